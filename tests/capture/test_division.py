"""Statements that cannot be recorded run as they are written; those around them are recorded."""

from __future__ import annotations

import gc
import inspect
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import lowtide as lt
from lowtide import nn
from lowtide.nn import functional as F

CALLS = 24


class Run:
    """A model, its optimizer, and what Python keeps of its steps."""

    def __init__(self) -> None:
        lt.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 3))
        self.optimizer = lt.optim.AdamW(self.model.parameters(), lr=0.01)
        self.losses: list[float] = []
        self.texts: list[str] = []
        self.state: dict[str, Any] = {"n": 0, "total": 0.0}
        self.steps = 0
        self.kept: list[Any] = []

    def loss(self, x: Any, y: Any) -> Any:
        return F.cross_entropy(self.model(x), y)


# Steps: ``# apart`` ends each line that a compiled step runs as it is written.


def appends(run: Run, x: Any, y: Any, epoch: int) -> Any:
    run.optimizer.zero_grad()
    loss = run.loss(x, y)
    loss.backward()
    run.optimizer.step()
    run.losses.append(loss.item())  # apart


def prints(run: Run, x: Any, y: Any, epoch: int) -> Any:
    run.optimizer.zero_grad()
    loss = run.loss(x, y)
    loss.backward()
    run.optimizer.step()
    if epoch % 3 == 0:  # apart
        run.texts.append(f"{epoch}: {loss:.4f}")
    return loss


def accuracy(run: Run, x: Any, y: Any, epoch: int) -> Any:
    run.optimizer.zero_grad()
    logits = run.model(x)
    loss = F.cross_entropy(logits, y)
    loss.backward()
    nn.utils.clip_grad_norm_(run.model.parameters(), 1.0)
    run.optimizer.step()
    right = (logits.argmax(1) == y).float().mean()
    value = loss.item()  # apart
    run.losses.append(value)  # apart
    run.state["total"] += value  # apart
    return {"right": right, "loss": value}


def counts(run: Run, x: Any, y: Any, epoch: int) -> Any:
    run.steps += 1  # apart
    run.optimizer.zero_grad()
    loss = run.loss(x, y)
    loss.backward()
    run.optimizer.step()
    run.state["n"] += 1  # apart
    return loss.item()


def warms_up(run: Run, x: Any, y: Any, epoch: int) -> Any:
    for group in run.optimizer.param_groups:  # apart
        group["lr"] = 0.01 * min(1.0, (epoch + 1) / 10)
    run.optimizer.zero_grad()
    loss = run.loss(x, y)
    loss.backward()
    run.optimizer.step()
    return loss


def draws(run: Run, x: Any, y: Any, epoch: int) -> Any:
    keep = x.abs().sum(1) > 0
    picked = x[keep]  # apart
    run.texts.append(str(picked.shape))
    with lt.no_grad():
        hidden = run.model(x)
    return hidden * 2


def leaves_early(run: Run, x: Any, y: Any, epoch: int) -> Any:
    run.optimizer.zero_grad()
    loss = run.loss(x, y)
    loss.backward()
    if not lt.isfinite(loss) or epoch % 7 == 6:  # apart
        return None
    run.optimizer.step()
    return loss


def forward_apart(run: Run, x: Any, y: Any, epoch: int) -> Any:
    run.optimizer.zero_grad()
    loss = run.loss(x, y)
    run.losses.append(loss.item())  # apart
    loss.backward()
    run.optimizer.step()


def keeps_tensors(run: Run, x: Any, y: Any, epoch: int) -> Any:
    run.optimizer.zero_grad()
    logits = run.model(x)
    loss = F.cross_entropy(logits, y)
    loss.backward()
    run.optimizer.step()
    run.kept.append(loss.detach())  # no kernel: set apart without a warning
    run.state["last"] = logits.detach()  # apart
    return loss


class Report:
    def __init__(self, loss: Any, count: int) -> None:
        self.loss, self.count = loss, count


def returns_an_object(run: Run, x: Any, y: Any, epoch: int) -> Any:
    run.optimizer.zero_grad()
    loss = run.loss(x, y)
    loss.backward()
    run.optimizer.step()
    return Report(loss.detach(), len(x))  # apart


STEPS = [
    returns_an_object,
    keeps_tensors,
    appends,
    prints,
    accuracy,
    counts,
    warms_up,
    draws,
    leaves_early,
    forward_apart,
]


def batches() -> Iterator[tuple[Any, Any]]:
    generator = lt.Generator().manual_seed(1)
    for _ in range(CALLS):
        yield (
            lt.randn(5, 6, generator=generator),
            lt.randint(0, 3, (5,), generator=generator),
        )


def of(run: Run, results: list[Any]) -> Any:
    """Everything that the steps have left, as bytes and texts."""
    plain = [
        {k: v.tolist() if isinstance(v, lt.Tensor) else v for k, v in r.items()}
        if isinstance(r, dict)
        else r.tolist()
        if isinstance(r, lt.Tensor)
        else r
        for r in (r.loss if isinstance(r, Report) else r for r in results)
    ]
    parameters = [p.detach().numpy().tobytes() for p in run.model.parameters()]
    gradients = [None if p.grad is None else p.grad.tolist() for p in run.model.parameters()]
    state = {k: v.tolist() if isinstance(v, lt.Tensor) else v for k, v in run.state.items()}
    kept = [t.tolist() for t in run.kept]
    return plain, parameters, gradients, run.losses, run.texts, state, run.steps, kept


def repeated(step: Callable[..., Any], run: Run) -> Any:
    lt.manual_seed(3)
    return of(run, [step(run, x, y, epoch) for epoch, (x, y) in enumerate(batches())])


@pytest.mark.parametrize("step", STEPS, ids=lambda f: f.__name__)
def test_steps_with_statements_of_python_are_replayed_around_them(step: Any) -> None:
    expected = repeated(step, Run())
    compiled = lt.compile(step)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert repeated(compiled, Run()) == expected
    assert compiled.replays > 0
    lines, first = inspect.getsourcelines(step)
    marked = {first + k for k, text in enumerate(lines) if text.rstrip().endswith("# apart")}
    told = [t for t in compiled.reasons if t.startswith("line ")]
    assert marked <= {int(n.split()[0]) for t in told for n in t.split("line ")[1:]}, told
    assert sum("What lies around it is recorded" in str(w.message) for w in caught) <= 1
    assert all(w.category is lt.CaptureWarning for w in caught)


def test_a_method_is_divided_for_each_object() -> None:
    class Trainer(Run):
        @lt.compile
        def step(self, x: Any, y: Any) -> None:
            self.optimizer.zero_grad()
            loss = self.loss(x, y)
            loss.backward()
            self.optimizer.step()
            self.losses.append(loss.item())

    one, other = Trainer(), Trainer()

    def train() -> None:
        for x, y in batches():
            one.step(x, y)
            other.step(x, y)

    with pytest.warns(lt.CaptureWarning, match=r"step: line \d+ \(self.losses.append"):
        train()
    assert len(one.losses) == len(other.losses) == CALLS
    assert one.step.replays > CALLS // 2
    assert other.step.replays > CALLS // 2


def used() -> Any:
    """A weak reference to a compiled function that was divided, and nothing else."""
    run = Run()

    def local(x: Any, y: Any) -> None:
        run.optimizer.zero_grad()
        loss = run.loss(x, y)
        loss.backward()
        run.optimizer.step()
        run.losses.append(loss.item())

    step = lt.compile(local)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lt.CaptureWarning)
        for x, y in batches():
            step(x, y)
    assert step.replays > 0
    return weakref.ref(step)


def test_a_divided_function_goes_with_its_last_reference() -> None:
    gc.collect()
    gc.disable()
    try:
        before = lt.memory_allocated()
        assert used()() is None
        assert lt.memory_allocated() == before
    finally:
        gc.enable()


def test_fullgraph_divides_nothing() -> None:
    step, run = lt.compile(appends, fullgraph=True), Run()
    x, y = next(batches())
    step(run, x, y, 0)
    with pytest.raises(lt.CaptureError, match="item, after it has changed"):
        step(run, x, y, 0)


def test_explain_tells_all_pieces() -> None:
    run = Run()
    x, y = next(batches())
    text = lt.compiler.explain(accuracy, run, x, y, 0)
    assert "(value = loss.item()) runs as it is written" in text
    assert "called anew: AdamW.step" in text
    assert text.count("accuracy (lines ") == 1  # the others run as they are written


def test_an_error_in_a_piece_has_the_line_of_the_file() -> None:
    run, step = Run(), lt.compile(appends)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for epoch, (x, y) in enumerate(batches()):
            step(run, x, y, epoch)
        with pytest.raises(RuntimeError) as caught:
            step(run, lt.randn(5, 7), y, 0)
    code = appends.__code__
    frames = [e for e in caught.traceback if e.frame.code.raw.co_filename == code.co_filename]
    assert any(e.lineno + 1 == code.co_firstlineno + 2 for e in frames)
    assert any(e.name == "appends" for e in frames)


def test_a_replay_compares_what_the_pieces_of_a_function_read() -> None:
    step, run = lt.compile(appends, check=2), Run()
    expected = repeated(appends, Run())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert repeated(step, run) == expected


# Statements that are there for what they do


def speaks(run: Run, x: Any, y: Any, epoch: int) -> Any:
    run.texts.append("begin")
    run.optimizer.zero_grad()
    loss = run.loss(x, y)
    note(run, "forward")
    loss.backward()
    run.optimizer.step()
    run.texts.append("end")
    return loss.item()


def note(run: Run, text: str) -> None:
    run.texts.append(text)


def test_statements_that_only_act_run_in_each_call_without_a_warning() -> None:
    step, run, plain = lt.compile(speaks), Run(), Run()
    with warnings.catch_warnings():
        warnings.simplefilter("error", lt.CaptureWarning)
        warnings.filterwarnings("ignore", "compile: speaks.*: its backward goes through")
        found = repeated(step, run)
    assert found == repeated(speaks, plain)
    assert run.texts == ["begin", "forward", "end"] * CALLS
    assert step.replays > CALLS // 2


def whole(run: Run, x: Any, y: Any) -> Any:
    run.model.train()
    run.optimizer.zero_grad()
    outputs: list[Any] = []
    outputs.append(x)
    outputs[0] = run.model(outputs[0])
    loss = F.cross_entropy(outputs[0], y)
    loss.backward()
    nn.utils.clip_grad_norm_(run.model.parameters(), 1.0)
    run.optimizer.step()
    return loss


def test_a_step_of_lowtide_alone_stays_in_one_piece() -> None:
    step, run = lt.compile(whole), Run()
    for x, y in batches():
        step(run, x, y)
    assert step.replays == CALLS - 3
    assert step.apart == 0


def properties(run: Run, x: Any) -> Any:
    SHY.value.append(1)
    return x * 2


class Shy:
    @property
    def value(self) -> Any:
        raise AssertionError("nobody may ask")


SHY = Shy()


@pytest.mark.filterwarnings("ignore::lowtide.CaptureWarning")
def test_looking_at_what_is_called_runs_nothing(monkeypatch: Any) -> None:
    monkeypatch.setattr(Shy, "value", property(lambda self: Asked()))
    step = lt.compile(properties)
    for _ in range(3):
        step(Run(), lt.ones(2))
    assert Asked.count == 3


class Asked:
    count = 0

    def __init__(self) -> None:
        Asked.count += 1

    def append(self, _: Any) -> None:
        pass


FACTOR = {"value": 2.0}
STEPS_SEEN: list[Any] = []


@lt.compile
def calls_itself(x: Any, n: int) -> Any:
    STEPS_SEEN.append(n)
    y = calls_itself(x + 1, n - 1) if n else x * 1.0
    STEPS_SEEN.append("middle")
    return y * FACTOR["value"]


def test_a_function_that_calls_itself_sees_what_changes() -> None:
    STEPS_SEEN.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lt.CaptureWarning)
        for k in range(12):
            FACTOR["value"] = 2.0 if k < 8 else 3.0
            found = calls_itself(lt.tensor([float(k)]), 2).item()
            assert found == (k + 2) * FACTOR["value"] ** 3
    assert STEPS_SEEN == [2, 1, 0, "middle", "middle", "middle"] * 12
