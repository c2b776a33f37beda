"""``lowtide launch``: what workers are told, what is seen of them, and that none is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from lowtide import cli
from lowtide.distributed import run as launcher_of_torch
from lowtide.framework.distributed.launch import output
from lowtide.framework.distributed.launch.environment import Job, cores_of, slurm, variables
from lowtide.framework.distributed.launch.failures import Failure, culprit, last_words
from lowtide.framework.kernels.runtime import cores

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 60  # seconds, for all that a test starts
LAUNCH = ("lowtide", "launch")
SLEEP = "import time\nprint('ready')\ntime.sleep(60)\n"


def environ(told: dict[str, str]) -> dict[str, str]:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "OMP_"))}
    return {**inherited, "PYTHONPATH": str(ROOT), **told}


class Forked:
    """A launcher in a copy of this process, which need not import lowtide for seconds."""

    def __init__(self, folder: Path, words: tuple[str, ...], told: dict[str, str]) -> None:
        pipes = os.pipe(), os.pipe()
        with warnings.catch_warnings():  # its first step is to start other programs
            warnings.simplefilter("ignore")
            self.pid = os.fork()
        if not self.pid:
            self._launch(folder, words, told, pipes)
        for _, write in pipes:
            os.close(write)
        self.stdout, self.stderr = (os.fdopen(read) for read, _ in pipes)
        self.returncode: int | None = None

    def _launch(
        self,
        folder: Path,
        words: tuple[str, ...],
        told: dict[str, str],
        pipes: tuple[tuple[int, int], ...],
    ) -> None:
        code = 99
        try:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            for number, (read, write) in enumerate(pipes, 1):
                os.dup2(write, number)
                os.close(read)
            sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
            os.chdir(folder)
            found = environ(told)
            os.environ.clear()
            os.environ.update(found)
            code = cli.main(["launch", *words])
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def wait(self, timeout: float) -> None:
        until = time.monotonic() + timeout
        while self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
            elif time.monotonic() > until:
                os.kill(self.pid, signal.SIGKILL)
                pytest.fail("the launcher does not end")
            else:
                time.sleep(0.005)

    def communicate(self, timeout: float) -> tuple[str, str]:
        killer = threading.Timer(timeout, os.kill, (self.pid, signal.SIGKILL))
        killer.start()
        with self.stdout, self.stderr:
            found = self.stdout.read(), self.stderr.read()
        killer.cancel()
        self.wait(timeout)
        return found


def launched(
    folder: Path, *words: str, start: tuple[str, ...] = (), **told: str
) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a launcher that comes to its end.

    With ``start``, as in ``python -m start``, it is a new process of Python.
    """
    if start:
        done = subprocess.run(
            [sys.executable, "-m", *start, *words],
            cwd=folder,
            env=environ(told),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT,
        )
        return done.returncode, done.stdout, done.stderr
    running = Forked(folder, words, told)
    out, err = running.communicate(LIMIT)
    assert running.returncode is not None
    return running.returncode, out, err


def begin(folder: Path, *words: str) -> Forked:
    """Start a launcher in a folder."""
    return Forked(folder, words, {})


def script(folder: Path, text: str) -> str:
    (folder / "train.py").write_text(text)
    return "train.py"


def alive(mark: str) -> list[int]:
    """Processes whose command line has a word that only a test's own processes have."""
    found = []
    for one in psutil.process_iter(["cmdline", "status"]):
        words = one.info["cmdline"] or ()
        if one.info["status"] != psutil.STATUS_ZOMBIE and any(mark in w for w in words):
            found.append(one.pid)
    return found


@pytest.fixture
def mark(tmp_path: Path) -> Iterator[str]:
    """A word for the command lines of workers; none of them may be left."""
    word = f"mark-{os.getpid()}-{tmp_path.name}"
    yield word
    until = time.monotonic() + 2
    while alive(word) and time.monotonic() < until:
        time.sleep(0.02)
    left = alive(word)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert left == []


def lines_until(running: Forked, wanted: int, word: str) -> None:
    """Read stdout until a word was seen that often."""
    while wanted:
        line = running.stdout.readline()
        assert line, running.stderr.read()
        wanted -= word in line


# What workers are told


def test_each_worker_finds_its_rank(tmp_path: Path) -> None:
    names = "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE ROLE_RANK"
    names += " ROLE_WORLD_SIZE ROLE_NAME MASTER_ADDR MASTER_PORT TORCHELASTIC_RUN_ID"
    names += " TORCHELASTIC_RESTART_COUNT TORCHELASTIC_MAX_RESTARTS OMP_NUM_THREADS"
    text = "import json, os, sys\n"
    text += f"print(json.dumps([sys.argv[1:], [os.environ[n] for n in {names.split()}]]))"
    code, out, err = launched(tmp_path, "-n", "3", script(tmp_path, text), "-n", "9", "--x=1")
    assert (code, err) == (0, "")
    told = {}
    for line in out.splitlines():
        prefix, _, rest = line.partition(" ")
        args, values = json.loads(rest)
        assert args == ["-n", "9", "--x=1"]
        told[prefix] = dict(zip(names.split(), values, strict=True))
    assert sorted(told) == ["[0]:", "[1]:", "[2]:"]
    for rank in range(3):
        mine = told[f"[{rank}]:"]
        assert mine["RANK"] == mine["LOCAL_RANK"] == mine["ROLE_RANK"] == str(rank)
        sizes = ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE")
        assert {mine[name] for name in sizes} == {"3"}
        assert (mine["GROUP_RANK"], mine["GROUP_WORLD_SIZE"]) == ("0", "1")
        assert (mine["ROLE_NAME"], mine["MASTER_ADDR"]) == ("default", "127.0.0.1")
        assert mine["TORCHELASTIC_RESTART_COUNT"] == mine["TORCHELASTIC_MAX_RESTARTS"] == "0"
        assert mine["OMP_NUM_THREADS"] == str(max(1, cores.usable() // 3))
    assert len({mine["MASTER_PORT"] for mine in told.values()}) == 1
    assert len({mine["TORCHELASTIC_RUN_ID"] for mine in told.values()}) == 1


def test_threads_that_the_user_sets_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert "OMP_NUM_THREADS" not in variables(Job(local_size=4), 0, 1, 0)
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setattr(cores, "usable", lambda: 7)
    assert variables(Job(local_size=3), 0, 1, 0)["OMP_NUM_THREADS"] == "2"
    assert variables(Job(local_size=1), 0, 1, 0)["OMP_NUM_THREADS"] == "7"
    assert variables(Job(local_size=9), 0, 1, 0)["OMP_NUM_THREADS"] == "1"
    monkeypatch.setattr(cores, "usable", lambda: 128)
    assert variables(Job(local_size=2), 0, 1, 0)["OMP_NUM_THREADS"] == "32"


def test_bound_workers_share_the_cores_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "side_by_side", lambda: [2, 3, 4, 5, 8])
    job = Job(local_size=2, bind_cores=True)
    assert [cores_of(job, k) for k in range(2)] == [[2, 3], [4, 5]]
    crowded = Job(local_size=7, bind_cores=True)
    assert [cores_of(crowded, k) for k in range(7)] == [[2], [3], [4], [5], [8], [2], [3]]
    assert cores_of(Job(local_size=2), 0) == []


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="Linux binds to cores")
def test_a_bound_worker_runs_on_its_cores(tmp_path: Path) -> None:
    text = "import os; print(*os.sched_getaffinity(0))"
    code, out, _ = launched(tmp_path, "-n", "2", "--bind-cores", script(tmp_path, text))
    job = Job(local_size=2, bind_cores=True)
    assert code == 0
    assert sorted(out.splitlines()) == [
        f"[{k}]: {' '.join(map(str, cores_of(job, k)))}" for k in range(2)
    ]


def test_ranks_of_a_second_node() -> None:
    job = Job(local_size=4, nodes=3, node_rank=2)
    told = variables(job, 1, 5, 0)
    wanted = {"RANK": "9", "WORLD_SIZE": "12", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}
    wanted |= {"GROUP_RANK": "2", "GROUP_WORLD_SIZE": "3", "ROLE_RANK": "9", "MASTER_PORT": "5"}
    assert {name: told[name] for name in wanted} == wanted


def test_slurm_says_which_node_this_is() -> None:
    told = {"SLURM_NNODES": "3", "SLURM_NODEID": "2", "SLURM_JOB_NODELIST": "n[04-05],m1"}
    assert slurm(told) is None  # no step
    told |= {"SLURM_PROCID": "2", "SLURM_JOB_ID": "77"}
    found = slurm(told)
    assert found is not None
    assert (found.nodes, found.node_rank, found.master, found.run_id) == (3, 2, "n04", "77.0")
    found = slurm({**told, "SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NODELIST": "m[1,3]"})
    assert found is not None
    assert (found.nodes, found.master) == (2, "m1")
    assert slurm({**told, "SLURM_NNODES": "1"}) is None


def test_a_launcher_under_slurm_takes_its_word(tmp_path: Path) -> None:
    text = "import os; print(*map(os.environ.get, ['RANK', 'WORLD_SIZE', 'MASTER_ADDR',"
    text += "'MASTER_PORT', 'TORCHELASTIC_RUN_ID']))"
    told = {"SLURM_PROCID": "1", "SLURM_NNODES": "2", "SLURM_NODEID": "1", "SLURM_JOB_ID": "5"}
    told["SLURM_JOB_NODELIST"] = "a[7-8]"
    code, out, err = launched(tmp_path, script(tmp_path, text), **told)
    assert (code, out) == (0, "1 2 a7 29500 5.0\n")
    assert err == "lowtide launch: node 1 of 2, as Slurm says; node 0 is a7.\n"


# What is seen of them


def test_lines_of_workers_are_not_mixed(tmp_path: Path) -> None:
    text = """
import os, sys
rank = os.environ["RANK"]
for k in range(300):
    for part in (rank * 50, rank * 3000, f" {k}\\n"):
        sys.stdout.write(part)
        sys.stdout.flush()
print("to stderr", file=sys.stderr)
sys.stdout.write("50%\\r100%\\rno end")
"""
    code, out, err = launched(tmp_path, "-n", "2", script(tmp_path, text))
    assert code == 0
    assert sorted(err.splitlines()) == ["[0]: to stderr", "[1]: to stderr"]
    for rank in "01":
        mine = [line for line in out.split("\n") if line.startswith(f"[{rank}]")]
        assert mine[:300] == [f"[{rank}]: {rank * 3050} {k}" for k in range(300)]
    assert sorted(p for p in out.replace("\r", "\n").split("\n") if "0%" in p or "no" in p) == [
        f"[{rank}]: {end}" for rank in "01" for end in ("100%", "50%", "no end")
    ]


def test_one_worker_has_no_prefix_and_reads_stdin(tmp_path: Path) -> None:
    text = "import sys; sys.stdout.write(f'10%\\r{sys.stdin.read()!r} no end')"
    assert launched(tmp_path, script(tmp_path, text)) == (0, "10%\n'' no end", "")


def test_no_prefix(tmp_path: Path) -> None:
    file = script(tmp_path, "print('a')")
    assert launched(tmp_path, "-n", "2", "--no-prefix", file) == (0, "a\na\n", "")


def test_a_line_without_end_is_broken_before_it_fills_the_memory() -> None:
    read, write = os.pipe()
    stream = output.Stream(read, 1, "[0]: ")
    assert stream.lines(b"x" * output.LONGEST) == b""
    assert stream.lines(b"y").endswith(b"xy\n")
    assert len(stream.tail[-1]) == output.KEPT_BYTES
    os.close(read)
    os.close(write)


# Failures


def test_a_failure_ends_the_others(tmp_path: Path, mark: str) -> None:
    text = f"""
import os, signal, subprocess, sys, time
if os.environ["RANK"] == "1":
    time.sleep(0.3)
    raise ValueError("a bad batch")
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", "{mark}"])
time.sleep(60)
"""
    start = time.monotonic()
    code, _, err = launched(tmp_path, "-n", "3", "--grace", "0.3", script(tmp_path, text), mark)
    assert code == 1
    assert time.monotonic() - start < 20
    words = err[err.index("lowtide launch: rank 1 failed first: exit code 1") :]
    assert "The other 2 workers were ended." in words
    assert words.splitlines()[1] == "Its last lines on stderr:"
    assert words.splitlines()[2] == "  Traceback (most recent call last):"
    assert words.endswith("  ValueError: a bad batch\n")


def test_the_exit_code_is_that_of_the_first_failure(tmp_path: Path, mark: str) -> None:
    text = """
import os, signal, sys, time
if os.environ["RANK"] == "1":
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(0.05)
class DistNetworkError(RuntimeError): pass
DistNetworkError.__module__ = "builtins"
raise DistNetworkError("rank 1 closed its connection")
"""
    code, _, err = launched(tmp_path, "-n", "2", script(tmp_path, text), mark)
    assert code == 128 + signal.SIGKILL
    words = err[err.index("lowtide launch:") :]
    assert "rank 1 failed first: signal 9 (SIGKILL)" in words
    assert "memory runs out" in words
    assert words.endswith("It wrote nothing to stderr.\n")


def test_a_lost_connection_is_not_the_cause() -> None:
    def failure(rank: int, *lines: str) -> Failure:
        return Failure(rank, 1, 1, ("Traceback (most recent call last):", "  File", *lines))

    lost = failure(0, "lowtide.distributed.DistNetworkError: reset", "by peer")
    backend = failure(2, "DistBackendError: no")
    cause = failure(1, "ValueError: DistNetworkError")
    assert culprit([lost, backend, cause]) is cause
    assert culprit([lost, backend]) is lost
    assert "rank 0 failed first: exit code 1, process 1.\n" in last_words(lost, 1)


def test_workers_are_started_again(tmp_path: Path, mark: str) -> None:
    text = """
import os, sys, time
count = os.environ["TORCHELASTIC_RESTART_COUNT"]
print("start", count, os.environ["MASTER_PORT"])
if count == "2": sys.exit()
if os.environ["RANK"] == "0": sys.exit(7)
time.sleep(60)
"""
    file = script(tmp_path, text)
    code, out, err = launched(tmp_path, "-n", "2", "--max-restarts", "3", file, mark)
    assert code == 0, err
    starts = [line.split()[2:] for line in out.splitlines()]
    assert sorted(count for count, _ in starts) == ["0", "0", "1", "1", "2", "2"]
    assert len({port for _, port in starts}) == 3
    assert "rank 0 failed: exit code 7. Restart 2 of 3 of all 2 workers." in err
    assert "Restart 3" not in err


def test_after_the_last_restart_the_failure_counts(tmp_path: Path) -> None:
    file = script(tmp_path, "raise SystemExit(9)")
    code, _, err = launched(tmp_path, "--max-restarts", "1", file)
    assert code == 9
    assert err.count("Restart") == 1
    assert "rank 0 failed first: exit code 9" in err


# The end


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_reaches_all_workers(tmp_path: Path, mark: str, number: signal.Signals) -> None:
    text = """
import signal, subprocess, sys, time
def told(number, frame):
    print("told", number)
    sys.exit()
signal.signal(signal.SIGINT, told)
signal.signal(signal.SIGTERM, told)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", sys.argv[1]])
print("ready")
time.sleep(60)
"""
    running = begin(tmp_path, "-n", "2", script(tmp_path, text), mark)
    lines_until(running, 2, "ready")
    running.send_signal(number)
    out, err = running.communicate(LIMIT)
    assert running.returncode == 128 + number
    assert sorted(out.splitlines()) == [f"[{rank}]: told {number.value}" for rank in range(2)]
    assert err.endswith(f"lowtide launch: ended by {number.name}.\n")


def test_a_worker_that_goes_on_is_killed(tmp_path: Path, mark: str) -> None:
    text = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + SLEEP
    running = begin(tmp_path, "-n", "2", "--grace", "0.2", script(tmp_path, text), mark)
    lines_until(running, 2, "ready")
    running.send_signal(signal.SIGTERM)
    _, err = running.communicate(LIMIT)
    assert running.returncode == 143
    assert "2 of 2 workers did not end within 0.2 s and were killed" in err


def test_a_second_signal_does_not_wait(tmp_path: Path, mark: str) -> None:
    text = "import signal\nsignal.signal(signal.SIGINT, lambda *_: print('no'))\n"
    text += "print('ready')\nwhile True: time.sleep(1)\n"
    file = script(tmp_path, "import time\n" + text)
    running = begin(tmp_path, "-n", "2", "--grace", "50", file, mark)
    lines_until(running, 2, "ready")
    running.send_signal(signal.SIGINT)
    lines_until(running, 2, "no")
    start = time.monotonic()
    running.send_signal(signal.SIGINT)
    running.communicate(LIMIT)
    assert running.returncode == 130
    assert time.monotonic() - start < 10


@pytest.mark.deep
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux tells of a parent's death")
def test_a_killed_launcher_leaves_nothing(tmp_path: Path, mark: str) -> None:
    text = f"""
import subprocess, sys
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", "{mark}"])
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", "{mark}"], process_group=0)
"""
    running = begin(tmp_path, "-n", "2", script(tmp_path, text + SLEEP), mark)
    lines_until(running, 2, "ready")
    assert len(alive(mark)) == 6  # two workers, two children of each
    helpers = psutil.Process(running.pid).children(recursive=True)
    running.send_signal(signal.SIGKILL)
    running.communicate(LIMIT)
    _, left = psutil.wait_procs(helpers, timeout=3)
    assert [one for one in left if one.status() != psutil.STATUS_ZOMBIE] == []


def test_what_workers_leave_behind_is_ended(tmp_path: Path, mark: str) -> None:
    text = f"""
import subprocess, sys
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", "{mark}"])
"""
    assert launched(tmp_path, "-n", "2", script(tmp_path, text), mark) == (0, "", "")


def test_nobody_reads(tmp_path: Path, mark: str) -> None:
    text = "import time\nprint('ready')\ntime.sleep(0.1)\nwhile True: print('more')\n"
    running = begin(tmp_path, "-n", "2", script(tmp_path, text), mark)
    lines_until(running, 2, "ready")
    running.stdout.close()
    running.wait(LIMIT)
    assert running.returncode == 128 + signal.SIGPIPE
    running.stderr.close()


# What runs


def test_torchrun_s_options(tmp_path: Path) -> None:
    text = "import os; print(*map(os.environ.get, ['RANK', 'MASTER_ADDR', 'MASTER_PORT',"
    text += "'ROLE_NAME', 'TORCHELASTIC_RUN_ID', 'TORCHELASTIC_MAX_RESTARTS']))"
    start = ("lowtide.distributed.run",)
    options = "--nnodes 2 --node_rank 1 --nproc_per_node 2 --rdzv_id job --rdzv_backend c10d "
    options += "--rdzv-endpoint host:77 --max_restarts 1 --role r --monitor-interval 1 -t 3"
    file = script(tmp_path, text)
    code, out, err = launched(tmp_path, *options.split(), file, start=start)
    assert (code, err) == (0, "")
    assert sorted(out.splitlines()) == [f"[{r}]: {r} host 77 r job 1" for r in (2, 3)]
    options = "--standalone --nnodes=1:1 --nproc-per-node=1 --no-python"
    code, out, err = launched(tmp_path, *options.split(), "echo", "-n", "hello")
    assert (code, out, err) == (0, "hello", "")


def test_a_module(tmp_path: Path) -> None:
    script(tmp_path, "import sys; print(__name__, sys.argv[1:])")
    code, out, _ = launched(tmp_path, "-n1", "-m", "train", "-n", "3")
    assert (code, out) == (0, "__main__ ['-n', '3']\n")


def test_as_torch(tmp_path: Path) -> None:
    text = "import torch, sys; print(torch.ones(2).sum().item(), torch.__name__, sys.argv[1:])"
    file = script(tmp_path, text)
    code, out, err = launched(tmp_path, "--as-torch", file, "--lr", "1", start=LAUNCH)
    assert code == 0, err
    assert out == "2.0 torch ['--lr', '1']\n"


@pytest.mark.deep
def test_a_recipe(tmp_path: Path) -> None:
    code, out, err = launched(tmp_path, "-n", "2", "--recipe", "digits", "--", "--help")
    assert code == 0, err
    assert {line[:4] for line in out.splitlines()} == {"[0]:", "[1]:"}
    assert "usage: lowtide run digits" in out


# Wrong calls


WRONG = {
    "-n 0 train.py": "takes a number of workers, 1 or more, or auto for one per core; got '0'",
    "-n two train.py": "got 'two'",
    "--nnodes 1:4 train.py": "a fixed number of nodes; got '1:4'",
    "--nnodes 0 train.py": "takes a number of nodes, 1 or more; got '0'",
    "--nnodes 2 train.py": "the number of its node: --node-rank 0 to 1",
    "--nnodes 2 --node-rank 2 train.py": "--node-rank is 0 to 1 with --nnodes 2; got 2",
    "--nnodes 2 --node-rank 0 train.py": "the address of node 0: --master-addr HOST",
    "--nnodes 2 --node-rank 0 --rdzv-endpoint h:0 train.py": "all must name the same port",
    "--node-rank 1 train.py": "--node-rank 1 is not on one node",
    "--standalone --nnodes 2 train.py": "--standalone is for one node; got --nnodes 2",
    "--master-port 70000 train.py": "takes a TCP port, 0 to 65535; got '70000'",
    "--rdzv-endpoint h:x train.py": "--rdzv-endpoint takes HOST:PORT; got 'h:x'",
    "--rdzv-endpoint h:1 --master-addr h train.py": "not both",
    "--grace -1 train.py": "takes seconds, 0 or more; got '-1'",
    "--max-restarts x train.py": "takes a number, 0 or more; got 'x'",
    "-r 3 train.py": "Redirect it in the shell",
    "--log-dir logs train.py": "Redirect it in the shell",
    "--as-torch --no-python train.py": "--as-torch is for a Python script",
    "--rdzv-backend etcd train.py": "invalid choice: 'etcd'",
    "missing.py": "there is no missing.py",
    "": "lowtide launch takes a script, as in: python -m lowtide.distributed.run",
}


@pytest.mark.parametrize("words", WRONG)
def test_wrong_calls(
    tmp_path: Path, words: str, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    script(tmp_path, "")
    try:
        code: Any = launcher_of_torch.main(words.split())
    except SystemExit as stop:
        code = stop.code
    assert code == 2
    told = capsys.readouterr()
    assert WRONG[words] in told.err
    assert told.out == ""


def test_several_launchers_on_a_node_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    told = {"SLURM_PROCID": "1", "SLURM_NNODES": "2", "SLURM_NODEID": "0", "SLURM_LOCALID": "1"}
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    assert launcher_of_torch.main([str(tmp_path / script(tmp_path, ""))]) == 2
    assert "srun --ntasks-per-node=1 lowtide launch" in capsys.readouterr().err
