"""PyTorch's profiler on our recording: chosen steps, names, exact bytes, nothing left behind."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

import lowtide as lt
from lowtide.framework import execution
from lowtide.framework.attribution import scopes
from lowtide.framework.devices import live_backends, on_new_backend
from lowtide.profiler import ProfilerAction as Action
from lowtide.profiler import profile, record_function, schedule, tensorboard_trace_handler


def state() -> Any:
    """Everything that a recording changes while it runs."""
    observers = [list(be.ledger.observers) for be in live_backends()]
    return execution.current, observers, list(on_new_backend), scopes.listening()


def step(model: Any, optimizer: Any) -> None:
    with record_function("forward"):
        loss = model(lt.ones(2, 4)).relu().sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def made() -> tuple[Any, Any]:
    lt.manual_seed(0)
    model = lt.nn.Linear(4, 3)
    return model, lt.optim.Adam(model.parameters())


def test_bytes_add_up_to_what_is_still_there() -> None:
    model, optimizer = made()
    before = lt.memory_allocated()
    with profile(profile_memory=True) as prof:
        step(model, optimizer)
        kept = lt.ones(100)
    assert kept.numel() == 100
    change = lt.memory_allocated() - before
    events = prof.events()
    assert sum(e.self_cpu_memory_usage for e in events) == change
    averages = {a.key: a for a in prof.key_averages()}
    assert sum(a.self_cpu_memory_usage for a in averages.values()) == change
    assert averages["aten::ones"].self_cpu_memory_usage == 2 * 4 * 4 + 100 * 4
    # In the range: the input, what relu makes, and the sum; what linear made is given back.
    assert averages["forward"].cpu_memory_usage == 4 * (2 * 4 + 2 * 3 + 1)
    assert averages["forward"].self_cpu_memory_usage == 0
    assert averages["aten::linear"].count == 1
    assert averages["forward"].cpu_time_total >= averages["aten::linear"].cpu_time_total
    inside = [e.name for e in events if e.cpu_parent is not None and e.cpu_parent.name == "forward"]
    assert inside == ["aten::ones", "aten::linear", "aten::relu", "[memory]", "aten::sum"]


def test_shapes_group_calls() -> None:
    with profile(record_shapes=True) as prof:
        lt.ones(2, 3).relu()
        lt.ones(4).relu()
        lt.ones(4).relu()
    found = [
        (a.input_shapes, a.count)
        for a in prof.key_averages(group_by_input_shape=True)
        if a.key == "aten::relu"
    ]
    assert sorted(found) == [([[2, 3]], 1), ([[4]], 2)]
    table = prof.key_averages().table(sort_by="count", row_limit=1)
    assert "aten::relu" in table or "aten::ones" in table
    assert "Input Shapes" not in table
    with pytest.raises(ValueError, match="none of"):
        prof.key_averages().table(sort_by="colour")


def test_a_schedule_chooses_steps() -> None:
    plan = schedule(wait=1, warmup=1, active=2, repeat=1, skip_first=1)
    N, W, R, S = Action.NONE, Action.WARMUP, Action.RECORD, Action.RECORD_AND_SAVE
    assert [plan(i) for i in range(7)] == [N, N, W, R, S, N, N]
    with pytest.raises(ValueError, match="active=0"):
        schedule(wait=0, warmup=0, active=0)
    handed = []

    def ready(prof: Any) -> None:
        names = [e.trace_name for e in prof.events() if e.name == "ProfilerStep*"]
        handed.append((prof.step_num, names, len(prof.events())))
        (row,) = [a for a in prof.key_averages() if a.key.startswith("Profiler")]
        assert (row.key, row.count) == ("ProfilerStep*", 2)  # one row, whatever their numbers

    with profile(
        schedule=schedule(wait=1, warmup=0, active=2, repeat=2), on_trace_ready=ready
    ) as p:
        for _ in range(6):
            lt.ones(3)
            p.step()
    assert [(number, names) for number, names, _ in handed] == [
        (3, ["ProfilerStep#1", "ProfilerStep#2"]),
        (6, ["ProfilerStep#4", "ProfilerStep#5"]),
    ]
    # Of each step: its range, the op, and the bytes that go back when its result does.
    assert [count for *_, count in handed] == [6, 6]


def test_record_function_decorates() -> None:
    @record_function("named")
    def work() -> Any:
        return lt.ones(2) + 1

    with profile() as prof:
        work()
        work()
    (row,) = [a for a in prof.key_averages() if a.key == "named"]
    assert row.count == 2
    assert work().tolist() == [2.0, 2.0]  # and nothing happens where nobody records


def test_traces_are_json(tmp_path: Path) -> None:
    with profile(on_trace_ready=tensorboard_trace_handler(str(tmp_path / "runs"))) as prof:
        with record_function("stretch"):
            lt.ones(2).exp()
    (written,) = (tmp_path / "runs").iterdir()
    names = {e.get("name") for e in json.loads(written.read_text())["traceEvents"]}
    assert {"stretch", "aten::exp"} <= names
    prof.export_chrome_trace(str(tmp_path / "trace.json.gz"))
    with gzip.open(tmp_path / "trace.json.gz", "rt") as file:
        assert json.load(file)["traceEvents"]


def interrupted(before: Any, error: type[BaseException]) -> None:
    assert state() != before
    lt.ones(3)
    raise error


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
def test_nothing_is_left_behind(error: type[BaseException]) -> None:
    before = state()
    with pytest.raises(error), profile():
        interrupted(before, error)
    assert state() == before
    with profile():
        pass
    assert state() == before


def fails(*_: Any) -> Any:
    raise ZeroDivisionError


def one_step(prof: Any) -> None:
    lt.ones(3)
    prof.step()


def fails_later(step: int) -> Action:
    return Action.RECORD if step == 0 else fails()


@pytest.mark.parametrize(
    "given",
    [
        {"on_trace_ready": fails},
        {"schedule": fails},
        {"schedule": fails_later},
        {"schedule": schedule(wait=0, warmup=0, active=1), "on_trace_ready": fails},
    ],
    ids=["at the end", "before the first step", "between steps", "of a step"],
)
def test_what_a_caller_gives_may_fail(given: dict[str, Any]) -> None:
    before, held = state(), lt.memory_allocated()
    with pytest.raises(ZeroDivisionError), profile(**given) as prof:
        one_step(prof)
    assert state() == before
    assert lt.memory_allocated() == held


def test_one_records_at_a_time() -> None:
    with profile(), pytest.raises(RuntimeError, match="another profile records"), profile():
        pass
    with profile() as prof:
        lt.ones(1)
    assert [e.name for e in prof.events() if e.name != "[memory]"] == ["aten::ones"]


def test_what_is_not_there_is_refused_by_name() -> None:
    with pytest.raises(NotImplementedError, match=r"estimate\(step\)\.flops"):
        profile(with_flops=True)
    with pytest.raises(NotImplementedError, match="experimental_config"):
        profile(experimental_config=object())
    prof = profile()
    with pytest.raises(RuntimeError, match="nothing was recorded"):
        prof.events()
    with pytest.raises(NotImplementedError, match="flamegraph"):
        prof.export_stacks("file")
    with pytest.raises(NotImplementedError, match="MemoryProfiler"):
        prof.export_memory_timeline("file")


def test_the_older_profile() -> None:
    with lt.autograd.profiler.profile(profile_memory=True) as prof:
        x = lt.ones(2, requires_grad=True)
        (x * 2).sum().backward()
    keys = [a.key for a in prof.key_averages()]
    assert "MulBackward0" in keys
    assert "aten::mul" in prof.table()
    with lt.autograd.profiler.profile(enabled=False) as prof:
        lt.ones(1)
    with pytest.raises(RuntimeError):
        prof.key_averages()
