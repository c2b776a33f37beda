"""``lowtide profile``, ``report``, ``diff`` and ``estimate``, as a user types them."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from itertools import chain
from pathlib import Path

import pytest

from lowtide.framework.memory.ledger import format_bytes
from lowtide.profiling import Finding, MemoryProfiler
from lowtide.profiling.record.json_format import from_dict

ROOT = Path(__file__).resolve().parents[2]
LEAK = Finding("list", "losses", "a.py:1", None, 0, 0, 0, 0, 1, "")
SCRIPT = """
import sys
import lowtide as lt
from lowtide import nn, optim
from beside import SIZE

lt.manual_seed(0)
model = nn.Sequential(nn.Linear(64, SIZE), nn.ReLU(), nn.Linear(SIZE, 10))
optimizer = optim.AdamW(model.parameters())
for step in range(3):
    loss = model(lt.randn(128, 64)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("the script got", sys.argv[1:])
if "--crash" in sys.argv:
    raise ValueError("inside the script")
if "--full" in sys.argv:
    lt.set_memory_limit(lt.memory_allocated() + 100_000)
    model(lt.randn(128, 64))
if "--leave" in sys.argv:
    sys.exit(7)
"""


@pytest.fixture
def script(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "beside.py").write_text("SIZE = 256\n")  # imported from the script's own folder
    return tmp_path


def lowtide(folder, *words):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-m", "lowtide", *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
    )


@pytest.mark.deep
def test_a_script_is_profiled_as_it_is(script):
    done = lowtide(script, "profile", "train.py", "--size", "3")
    assert done.returncode == 0, done.stderr
    assert "the script got ['--size', '3']" in done.stdout
    assert "train.py:11" in done.stdout  # the forward pass
    assert ": 3 optimizer steps" in done.stdout
    written = script / "train-memory"
    assert (written / "memory.png").read_bytes()[:4] == b"\x89PNG"
    assert "<html" in (written / "memory.html").read_text()
    run = MemoryProfiler.from_json(written / "run.json")
    assert len([m for m in run.marks if m.kind == "step"]) == 3
    files = {
        "--html": "a.html",
        "--png": "a.svg",
        "--perfetto": "a.json",
        "--snapshot": "a.pickle",
        "--flamegraph": "a.folded",
    }
    again = lowtide(script, "report", "train-memory", *chain(*files.items()))
    assert (again.returncode, again.stderr) == (0, "")
    assert "train.py:11" in again.stdout
    assert "<html" in (script / "a.html").read_text()
    assert "<svg" in (script / "a.svg").read_text()
    assert json.loads((script / "a.json").read_text())["traceEvents"]
    assert pickle.loads((script / "a.pickle").read_bytes())["device_traces"]
    stacks = (script / "a.folded").read_text().splitlines()
    assert sum(int(line.rpartition(" ")[2]) for line in stacks) == run.peak_bytes


AWKWARD = """
import os, sys, threading, time
from .beside import SIZE
import lowtide as lt

def later():
    time.sleep(0.2)
    global kept
    kept = lt.ones(SIZE)

print("it is", __name__, __package__, sys.argv[1:], os.path.isabs(__file__))
os.chdir(sys.argv[1])
threading.Thread(target=later).start()  # Python waits for it before it ends
sys.exit(0)
"""


@pytest.mark.deep
def test_a_module_is_profiled_wherever_it_goes_and_to_its_last_thread(script):
    package = script / "work"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "beside.py").write_text("SIZE = 1_000_000\n")
    (package / "train.py").write_text(AWKWARD)
    done = lowtide(script, "profile", "--no-timeline", "-m", "work.train", "work", "--out")
    assert done.returncode == 0, done.stderr
    assert "it is __main__ work ['work', '--out'] True" in done.stdout
    assert MemoryProfiler.from_json(script / "train-memory" / "run.json").peak_bytes == 4_000_000
    done = lowtide(script, "estimate", "-o", "e.json", "-m", "work.train", "work")
    assert done.returncode == 0, done.stderr  # sys.exit(0) is a good end
    (device,) = json.loads((script / "e.json").read_text())["devices"]
    assert device["peak_bytes"] == 4_000_000


def test_a_script_that_a_batch_system_ends_is_reported_and_its_workers_die_as_ever(script):
    (script / "long.py").write_text(
        "import multiprocessing, os, signal, time\n"
        "import lowtide as lt\n"
        "x = lt.ones(1000)\n"
        "codes = set()\n"
        "for _ in range(30):\n"  # at once: the signal comes before the worker runs
        "    worker = multiprocessing.get_context('fork').Process(target=time.sleep, args=(60,))\n"
        "    worker.start()\n"
        "    worker.terminate()\n"
        "    worker.join()\n"
        "    codes.add(worker.exitcode)\n"
        "print('workers', codes)\n"
        "if (copy := os.fork()) == 0:\n"
        "    raise SystemExit(3)\n"
        "print('copy', os.waitstatus_to_exitcode(os.waitpid(copy, 0)[1]), flush=True)\n"
        "os.kill(os.getpid(), signal.SIGTERM)\n"
        "time.sleep(60)\n"
    )
    done = lowtide(script, "profile", "-o", "out", "--no-timeline", "long.py")
    assert done.returncode == 143, done.stderr
    assert "workers {-15}" in done.stdout
    assert "copy 3" in done.stdout
    assert done.stdout.count("Written to") == 1  # not by the copy
    assert MemoryProfiler.from_json(script / "out" / "run.json").peak_bytes == 4000


@pytest.mark.deep
def test_a_leak_of_nodes_alone_is_reported_and_so_is_what_kernels_took(script):
    source = (
        SCRIPT.replace("range(3):", "range(6):")
        .replace("optimizer = ", "kept = []\noptimizer = ")
        .replace("    optimizer.step()\n", "    optimizer.step()\n    kept.append(loss.grad_fn)\n")
        + "with lt.no_grad():\n    model(lt.randn(4096, 64))\n"
    )
    (script / "leak.py").write_text(source)
    line = source.splitlines().index("    kept.append(loss.grad_fn)") + 1
    done = lowtide(script, "profile", "-o", "out", "--full", "leak.py")
    assert done.returncode == 0, done.stderr
    assert "no tensors grew, but graphs did" in done.stdout
    assert "`kept[0]`, global of __main__" in done.stdout
    assert f"kept at leak.py:{line}\n" in done.stdout
    assert "(not shown on the time axis)" in done.stdout
    page = (script / "out" / "memory.html").read_text()
    assert "What survives its step: graphs, and tensors that pile up (6 steps watched)" in page
    assert "evaluation after step 6" in page
    short, full = (lowtide(script, "report", *words, "out") for words in ((), ("--full",)))
    assert "`kept[0]`, global of __main__" in short.stdout
    assert short.stdout.rstrip() in full.stdout  # the verdict comes first
    assert len(short.stdout.splitlines()) <= 14 < 40 < len(full.stdout.splitlines())
    assert f"leak.py:{line}" not in short.stdout
    assert "optimizer.step()" in full.stdout  # the text of a line stands beside it


def test_the_callers_of_a_script_are_the_script_s_own(script):
    (script / "calls.py").write_text(
        "import lowtide as lt\ndef f():\n    return lt.ones(5)\nx = f()\n"
    )
    # as the console script does: a file that is nobody's but calls the command
    (script / "entry.py").write_text(
        "from lowtide.cli import main\n"
        "main(['profile', '-o', 'out', '--no-timeline', 'calls.py'])\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "entry.py"], cwd=script, env=environment, check=True)
    owners = MemoryProfiler.from_json(script / "out" / "run.json").recording.owners
    assert [(o.line, o.callers) for o in owners if o.op == "ones"] == [
        ("calls.py:3", ("calls.py:4",))
    ]


@pytest.mark.deep
def test_a_script_that_runs_out_of_memory_says_who_owns_it(script):
    done = lowtide(script, "profile", "-o", "out", "--no-timeline", "train.py", "--full")
    assert done.returncode == 1
    assert "MemoryLimitError: Allocating" in done.stderr
    assert "By module: " in done.stderr
    assert "By line: " in done.stderr
    assert "train.py:8 " in done.stderr  # the parameters
    assert ": 3 optimizer steps" in done.stdout


@pytest.mark.parametrize(
    ("word", "code", "said"), [("--crash", 1, "ValueError: inside the script"), ("--leave", 7, "")]
)
@pytest.mark.deep
def test_a_script_that_ends_early_is_reported_up_to_there(script, word, code, said):
    done = lowtide(script, "profile", "-o", "out", "--no-timeline", "train.py", word)
    assert done.returncode == code
    assert said in done.stderr
    assert "_command" not in done.stderr  # the traceback is the script's own
    assert ": 3 optimizer steps" in done.stdout
    assert (script / "out" / "run.json").is_file()
    assert not (script / "out" / "memory.png").exists()


@pytest.mark.deep
def test_an_estimate_is_what_the_run_takes(script):
    lowtide(script, "profile", "-o", "out", "train.py")
    real = MemoryProfiler.from_json(script / "out" / "run.json")
    done = lowtide(script, "estimate", "-o", "e.json", "train.py")
    assert done.returncode == 0, done.stderr
    (device,) = json.loads((script / "e.json").read_text())["devices"]
    assert device["peak_bytes"] == real.peak_bytes
    assert sum(device["peak_bytes_by_role"].values()) == device["peak_bytes"]
    failed = lowtide(script, "estimate", "train.py", "--crash")
    assert failed.returncode == 1
    assert 'train.py", line 17, in <module>' in failed.stderr
    assert "ValueError: inside the script" in failed.stderr
    assert "_command" not in failed.stderr


@pytest.mark.deep
def test_two_runs_are_compared(script):
    lowtide(script, "profile", "-o", "a", "train.py")
    (script / "beside.py").write_text("SIZE = 512\n")
    lowtide(script, "profile", "-o", "b", "train.py")
    done = lowtide(script, "diff", "a/run.json", "b/run.json", "--html", "both.html")
    assert done.returncode == 0, done.stderr
    a, b = (MemoryProfiler.from_json(script / k / "run.json").peak_bytes for k in "ab")
    change = f"{format_bytes(a)} -> {format_bytes(b)} (+{format_bytes(b - a)}, {b / a - 1:+.1%})"
    assert f"peak: {change}\n" in done.stdout
    assert "parameter" in done.stdout
    assert done.stdout.count(f": +{format_bytes(b - a)}\n") == 3  # what the second has more
    for allowed, code in (("5%", 1), ("1000%", 0), ("1KiB", 1), ("1GiB", 0)):
        done = lowtide(script, "diff", "a", "b", "--fail-over", allowed)
        assert done.returncode == code, done.stdout
        assert (f"the peak grew by more than {allowed}: {change}" in done.stdout) == code
    assert lowtide(script, "diff", "b", "a", "--fail-over", "0%").returncode == 0
    for wrong in ("5", "much", "%", "5%%"):
        done = lowtide(script, "diff", "a", "b", "--fail-over", wrong)
        if wrong != "5":  # bytes
            assert done.returncode == 2
            assert "takes a share such as 5%, or a size such as 10MiB; got" in done.stderr
    assert "a peaks" in (script / "both.html").read_text()  # by their folders
    (script / "old").mkdir()
    (script / "b").rename(script / "old" / "a")
    done = lowtide(script, "diff", "a", "old/a", "--html", "both.html")
    assert "a peaks" in (script / "both.html").read_text()
    assert "lower than old/a on cpu" in (script / "both.html").read_text()
    (script / "c").mkdir()
    MemoryProfiler().to_json(script / "c" / "run.json")
    nothing = lowtide(script, "diff", "a/run.json", "c/run.json")
    assert nothing.returncode == 2
    assert "no device was used" in nothing.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("profile", "missing.py"),
        ("report", "train.py"),
        *(
            pytest.param(words, marks=pytest.mark.deep)
            for words in (
                ("estimate", "missing.py"),
                ("report", "missing.json"),
                ("diff", "train.py", "train.py"),
                ("report", "."),
                ("profile", "-m", "missing.train"),
                ("profile", "-o", "train.py/out", "train.py"),
            )
        ),
    ],
)
def test_what_is_no_run_or_script_is_refused(script, words):
    done = lowtide(script, *words)
    assert done.returncode == 2
    assert "lowtide" in done.stderr
    assert "Traceback" not in done.stderr
    assert "the script got" not in done.stdout  # what cannot be written is found out before


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"format": "x"}, "not a lowtide memory profile"),
        ({"version": 2}, "has version 2"),
        ({"roles": ["x"]}, "has other roles"),
        ({"peaks": [{}]}, "damaged.*KeyError: 'bytes'"),
        ({"owners": [["a"]]}, "damaged.*TypeError"),
        ({"events": {}}, "damaged.*KeyError: 'time'"),
        ({"findings": [{"kind": "list"}]}, "damaged.*TypeError"),
        ({"findings": [dict.fromkeys(vars(LEAK), "x")]}, "damaged.*a finding's figures"),
        ({"compilations": [["Numba", None, 0]]}, "damaged.*TypeError"),
    ],
)
def test_a_damaged_run_is_refused_in_words(change, said):
    with MemoryProfiler("cpu") as prof:
        pass
    with pytest.raises(ValueError, match=said):
        from_dict(prof.to_dict() | change)
