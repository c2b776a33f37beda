"""What a profile answers: tables, timeline, marks, growth, differences, files, the process."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import time

import numpy as np
import pytest

import lowtide as lt
from lowtide import nn
from lowtide.framework.memory.ledger import GRADIENT, OPTIMIZER
from lowtide.nn import functional as F
from lowtide.profiling import (
    MemoryProfiler,
    Peak,
    Profile,
    Recording,
    estimate,
    saved_tensors,
)
from lowtide.profiling.analysis.tables import Table
from lowtide.profiling.record.system_memory import look, process, rows

from .programs import Model, train


@pytest.fixture(scope="module")
def prof():
    """Five steps of a small transformer."""
    lt.manual_seed(0)
    with MemoryProfiler() as profiler:
        train(Model(), lambda: lt.randn(3, 5, 8), lambda p: lt.optim.AdamW(p), steps=5)
    return profiler


def at_start(prof):
    """Bytes by role when it began: what other tests left."""
    return prof.marks[0].roles[prof.recording.devices.index("cpu")]


# Tables


def test_a_table_sorts_sums_and_prints():
    table = Table("Bytes", "role", {"small": 24, "large": 4096, "less": -1000})
    assert [r.name for r in table] == ["large", "less", "small"]
    assert (table.total, len(table), table["less"]) == (3120, 3, -1000)
    assert [r.share for r in table] == [4096 / 5120, -1000 / 5120, 24 / 5120]
    assert str(table).splitlines() == [
        "Bytes",
        "             bytes   share  role",
        "  4.00 KiB   4,096   80.0%  large",
        "   -1000 B  -1,000  -19.5%  less",
        "      24 B      24    0.5%  small",
        "  3.05 KiB   3,120          in all",
    ]
    assert "+4,096" in table.text(signed=True)
    assert json.loads(json.dumps(table.to_dict()))["rows"][0]["bytes"] == 4096


def test_rows_left_out_are_a_row_so_that_the_sum_holds():
    table = Table("", "op", {f"op{k}": k + 1 for k in range(10)})
    lines = table.text(limit=3).splitlines()
    assert len(lines) == 1 + 1 + 4 + 1
    assert "(7 more)" in lines[5]
    assert " 28 " in lines[5]


def test_every_grouping_has_the_same_sum(prof):
    tables = [prof.at_peak(by) for by in ("role", "module", "op", "line", "phase")]
    tables += [prof.at_peak(("module", "role"), depth=k) for k in (1, 2, 3)]
    assert {t.total for t in tables} == {prof.peak_bytes}
    assert {r.name.split(" · ")[0] for r in prof.at_peak(("module", "role"), depth=1)} >= {
        "blocks",
        "head",
    }
    with pytest.raises(ValueError, match="by is one of role, module"):
        prof.at_peak("layer")


def test_a_selection_is_a_part_of_the_whole(prof):
    by_role = prof.at_peak("role").as_dict()
    for role, n in by_role.items():
        assert prof.at_peak("module", role=role).total == n
    inside = prof.at_peak("module", module="blocks.1")
    assert set(inside.as_dict()) < set(prof.at_peak("module").as_dict())
    assert all(r.name.startswith("blocks.1") for r in inside)
    before = at_start(prof)[OPTIMIZER]
    assert prof.at_peak("line", phase="optimizer").total == by_role["optimizer"] - before
    with pytest.raises(ValueError, match="a role is one of"):
        prof.at_peak(role="weights")


def test_parameters_gradients_and_state_are_on_their_modules(prof):
    table = prof.at_peak(("role", "module"))
    model, gradients = Model(), 0
    for path, module in model.named_modules():
        own = sum(p.nbytes for p in module.parameters(recurse=False))
        if own:
            assert table[f"parameter · {path}"] == own
            assert table[f"optimizer · {path}"] == 2 * own
            if "attention" not in path:  # which computes with the weights of its child itself
                assert table[f"gradient · {path}"] == own
        gradients += own
    assert prof.at_peak("role")["gradient"] == gradients + at_start(prof)[GRADIENT]


# Time


def test_the_timeline_ends_where_the_ledger_does_and_knows_its_phases(prof):
    line = prof.timeline("phase")
    assert len(line) == len(line.times) == len(line.total) > 100
    assert list(line.times) == sorted(line.times)
    assert line.total[-1] == prof.marks[-1].live[prof.recording.devices.index(line.device)]
    order = [phase for _, _, phase in line.phases if phase != "other"]
    order = [a for a, b in zip(order, [*order[1:], ""], strict=True) if a != b]
    # A step takes memory once, for its state; later ones book nothing.
    assert order == ["forward", "backward", "optimizer"] + ["forward", "backward"] * 4
    assert all(a <= b for a, b, _ in line.phases)
    assert [b for _, b, _ in line.phases[:-1]] == [a for a, _, _ in line.phases[1:]]
    peaks = [max(s) for s in line.series.values()]
    assert peaks == sorted(peaks, reverse=True)
    assert [name for _, name, _ in line.marks][:2] == ["start", "step 1"]
    assert "instants" in str(line)
    stored = json.loads(json.dumps(line.to_dict()))
    assert stored["series"]["forward"] == list(line.series["forward"])
    assert len(stored["times"]) == len(line)


def test_the_peak_is_in_the_timeline_at_its_time(prof):
    line = prof.timeline()
    top = max(line.total)
    first = line.total.index(top)
    assert (top, line.times[first]) == (prof.peak_bytes, pytest.approx(prof.peak_time))
    at_peak = prof.at_peak("role").as_dict()
    assert at_peak in (
        {name: s[k] for name, s in line.series.items() if s[k]}
        for k, n in enumerate(line.total)
        if n == top
    )
    assert prof.peak().event == first


def test_steps_mark_themselves_and_a_steady_loop_does_not_grow(prof):
    steps = prof.steps()
    assert [s["name"] for s in steps] == [f"step {k}" for k in range(1, 6)]
    assert steps[1]["live"] == steps[4]["live"]
    assert steps[2]["peak"] == steps[4]["peak"] == prof.peak_bytes
    assert prof.growth().as_dict() == {}
    cpu = prof.recording.devices.index("cpu")
    assert prof.growth("start", "step 1").total == steps[0]["live"] - prof.marks[0].live[cpu]


def test_growth_names_the_line_that_keeps(prof):
    net, kept = nn.Linear(3, 3), []
    optimizer = lt.optim.SGD(net.parameters())
    with MemoryProfiler() as leaky:
        for _ in range(5):
            loss = net(lt.randn(2, 3)).sum()
            loss.backward()
            kept.append(lt.zeros(1000))
            optimizer.step()
    (row,) = leaky.growth(by=("op", "line")).rows
    assert row.name.startswith("zeros · ")
    assert "test_questions.py:" in row.name
    assert row.nbytes == 3 * 4000
    back = leaky.growth("step 5", "step 2", by="op")
    assert back.as_dict() == {"zeros": -3 * 4000}
    with pytest.raises(ValueError, match="no mark 'epoch 9'; there are 'start', 'step 1'"):
        leaky.growth("epoch 9")


def test_questions_can_be_asked_on_the_way():
    with MemoryProfiler() as prof:
        x = lt.zeros(1000)
        assert prof.at_peak("op")["zeros"] == 4000
        prof.mark("one")
        y = lt.ones(3000)
        assert prof.peak().cells
        assert prof.growth("one", by="op").total in (0, 12000)
        prof.mark("two")
        assert prof.growth("one", "two", "op").as_dict() == {"ones": 12000}
    del x, y


def test_questions_are_of_the_device_that_is_used():
    beside = lt.empty(10_000_000, device="meta")  # the largest of all, and nobody asks about it
    x = lt.randn(1000, requires_grad=True)
    step = (x * 2).relu().sum().backward
    found = estimate(step)
    with MemoryProfiler() as prof:
        step()
    assert prof.device == found.device == found.devices[0].device == "cpu"
    assert prof.peak_bytes == found.peak_bytes == prof.peak("cpu").nbytes
    with MemoryProfiler() as idle:
        pass
    assert idle.device == "meta"
    assert idle.peak_bytes >= beside.nbytes


def test_an_unused_profiler_says_so():
    prof = MemoryProfiler()
    with pytest.raises(RuntimeError, match="has recorded no device"):
        prof.peak()
    prof.mark("ignored")
    prof.stop()


# Reports, files, differences


def test_what_makes_no_sense_is_refused_with_the_reason(prof):
    for wrong in (3, [nn.Linear(1, 1)], {"a": 3}):
        with pytest.raises(TypeError, match="modules is a module, or a dict of name and module"):
            MemoryProfiler(modules=wrong)
    for wrong in (0, -1.0):
        with pytest.raises(ValueError, match="sample_ms is a positive number"):
            MemoryProfiler(sample_ms=wrong)
    with pytest.raises(TypeError, match="a name is a string; got 3"):
        prof.mark(3)
    with pytest.raises(ValueError, match="by is one of role, module"):
        prof.at_peak(())
    with pytest.raises(ValueError, match="how many segments of a path"):
        prof.at_peak("module", depth=0)
    with pytest.raises(TypeError, match="compares with another profile; got int"):
        prof.diff(3)
    with pytest.raises(KeyError, match="'wrong' is no row; there are .*parameter"):
        prof.at_peak("role")["wrong"]


def test_the_report_is_a_page_with_the_main_answers(prof):
    text = prof.report()
    assert text == str(prof)
    assert 20 < len(text.splitlines()) < 100
    for part in ("5 optimizer steps", "at the peak", "saved for backward", "nothing grew"):
        assert part in text
    assert "interpreter and libraries" in text
    empty = Recording(devices=["cpu"], peaks=[Peak()], fullest=[Peak()])
    assert "peaks of no bytes" in Profile(empty).report()
    with MemoryProfiler([]) as nothing:
        pass
    assert "no device was used\n\nProcess and devices at 'stop'" in nothing.report()
    assert MemoryProfiler().report() == "Memory profile of 0.000 s: no device was used\n"


def test_json_holds_everything(prof, tmp_path):
    path = tmp_path / "run.json"
    prof.to_json(path)
    back = MemoryProfiler.from_json(path)
    assert back.to_dict() == prof.to_dict()
    assert back.report() == prof.report()
    assert back.at_peak("line").as_dict() == prof.at_peak("line").as_dict()
    assert back.timeline().series == prof.timeline().series
    assert os.listdir(tmp_path) == ["run.json"]


def test_only_profiles_are_read(prof, tmp_path):
    path = tmp_path / "x.json"
    path.write_text("{}")
    with pytest.raises(ValueError, match="not a lowtide memory profile"):
        MemoryProfiler.from_json(path)
    path.write_text("{")
    with pytest.raises(ValueError, match="no JSON"):
        MemoryProfiler.from_json(path)
    path.write_text(json.dumps({**prof.to_dict(), "version": 99}))
    with pytest.raises(ValueError, match="version 99"):
        MemoryProfiler.from_json(path)


def test_a_failed_write_leaves_the_old_file(prof, tmp_path, monkeypatch):
    path = tmp_path / "run.json"
    path.write_text("old")

    def fail(*_):
        yield from ["{"] * 10_000  # some of it is written
        raise OSError(errno.ENOSPC, "disk full")

    monkeypatch.setattr(json.JSONEncoder, "iterencode", fail)
    with pytest.raises(OSError, match="disk full"):
        prof.to_json(path)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["run.json"]


def test_diff_of_two_runs_is_exact_and_sorted():
    def run(width):
        lt.manual_seed(0)
        net = nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 2))
        with MemoryProfiler() as prof:
            with_grad = net(lt.randn(8, 4)).sum()
            with_grad.backward()
        return prof

    narrow, wide = run(10), run(30)
    table = wide.diff(narrow)
    assert table.total == wide.peak_bytes - narrow.peak_bytes
    sizes = [abs(r.nbytes) for r in table]
    assert sizes == sorted(sizes, reverse=True)
    assert table["0"] >= (4 + 1) * 20 * 4
    assert narrow.diff(wide).as_dict() == {n: -b for n, b in table.as_dict().items()}
    assert narrow.diff(narrow).as_dict() == {}
    assert "hold the same" in str(narrow.diff(narrow))


# The process


def test_process_figures_come_from_the_kernel():
    import psutil

    found = process()
    assert found["method"] == "/proc/self"
    assert found["peak_rss"] >= found["rss"] > 10 << 20
    assert found["rss"] == pytest.approx(psutil.Process().memory_info().rss, rel=0.2)


def test_rows_add_up_to_what_is_resident(prof):
    figures = prof.marks[-1].probes
    found = rows(figures)
    host = figures["devices"]["cpu"]
    of_cpu = [n for where, what, n, _ in found if where == "cpu"]
    assert sum(of_cpu) == host["reserved"]
    assert of_cpu[0] == host["live"] == prof.marks[-1].live[prof.recording.devices.index("cpu")]
    parts = [n for where, what, n, _ in found if where == "process" and "=" not in what]
    assert host["reserved"] + sum(parts[:-1]) == figures["process"]["rss"]
    assert all(method for *_, method in found)
    assert prof.process() == found
    assert prof.process("step 1") == rows(prof.marks[1].probes)


def test_a_reserve_larger_than_the_process_is_a_row_of_its_own():
    found = rows(
        {
            "process": {"rss": 100, "peak_rss": 120, "method": "m"},
            "devices": {"cpu": {"live": 10, "used": 64, "reserved": 150, "method": "p"}},
        }
    )
    lines = {what: n for _, what, n, _ in found}
    assert lines["reserved, not in memory"] == -50
    assert lines["interpreter and libraries"] == 0
    assert lines["rounding to blocks"] + lines["free for reuse"] + lines["tensors"] == 150


def test_the_sampler_adds_marks():
    with MemoryProfiler(sample_ms=5) as prof:
        kept = lt.zeros(1000)
        deadline = time.monotonic() + 600
        while not any(m.kind == "sample" for m in prof.marks) and time.monotonic() < deadline:
            time.sleep(0.005)
    samples = [m for m in prof.marks if m.kind == "sample"]
    assert samples
    assert samples[0].probes["process"]["rss"] > 0
    assert look([]).keys() == {"process", "devices"}
    del kept


# saved_tensors


def test_saved_tensors_lists_what_the_graph_keeps():
    x, w = lt.randn(20, 10), lt.randn(10, 5, requires_grad=True)
    kept = saved_tensors(lambda: F.softmax((x @ w).tanh(), -1))
    assert [(s.label, s.shape, s.kept_bytes) for s in kept] == [
        ("matmul.input", (20, 10), 0),
        ("tanh.out", (20, 5), 400),
        ("softmax.out", (20, 5), 400),
    ]
    assert kept.total_bytes == 800
    assert {s.line.rpartition(":")[0][-17:] for s in kept} == {"test_questions.py"}
    assert kept.by("label").as_dict() == {"tanh.out": 400, "softmax.out": 400}
    assert "keep 800 B alive" in str(kept)
    assert json.loads(json.dumps(kept.to_dict()))[1]["shape"] == [20, 5]
    with pytest.raises(ValueError, match="by is one of line, module"):
        kept.by("op")


def test_saved_tensors_counts_a_storage_once_and_agrees_with_the_ledger():
    be = lt.framework.devices.backend(lt.device("cpu"))
    net, x = Model(), lt.randn(3, 5, 8)
    before = be.ledger.by_role()["saved"]
    loss = net(x).sum()
    held = be.ledger.by_role()["saved"] - before
    x_too = x.nbytes  # the argument was there before: the graph does not keep it alive
    kept = saved_tensors(lambda: net(x).sum())
    assert kept.total_bytes == held - x_too
    assert {s.module.split(".")[0] for s in kept} == {"blocks", "head"}
    del loss


def test_saved_tensors_on_meta_is_the_same_without_memory():
    def listed(device):
        net, x = Model().to(device), lt.zeros(3, 5, 8, device=device)
        return [(s.label, s.shape, s.kept_bytes, s.module) for s in saved_tensors(net, x)]

    assert listed("meta") == listed("cpu")


def test_saved_tensors_tells_a_value_from_the_empty_ones_at_its_address():
    code = (  # in a process of its own, where the pool's first block is known
        "import lowtide as lt\n"
        "first = lt.ones(100)\n"
        "x = lt.ones(100, requires_grad=True)\n"
        "del first\n"
        "def fn():\n"
        "    empty = lt.ones(0, requires_grad=True).exp()\n"
        "    y = x.exp()\n"
        "    assert empty._storage.address == y.data_ptr()\n"
        "    lt.ones(0)\n"
        "    return empty, y\n"
        "kept = lt.profiling.saved_tensors(fn)\n"
        "print([(s.label, s.kept_bytes) for s in kept])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "[('exp.out', 0), ('exp.out', 400)]\n", done.stderr


def test_saved_tensors_sees_hooks_functions_and_no_graph():
    x = lt.randn(6, requires_grad=True)
    with lt.no_grad():
        assert saved_tensors(lambda: x.exp()) == []
    with lt.autograd.graph.saved_tensors_hooks(lambda t: np.zeros(3), lambda _: x):
        (packed,) = saved_tensors(lambda: {"y": [x.exp()]})
    assert (packed.role, packed.kept_bytes, packed.nbytes) == ("packed", 0, 24)
    with pytest.raises(ZeroDivisionError):
        saved_tensors(lambda: 1 / 0)
    assert not lt.framework.attribution.scopes.listening()
