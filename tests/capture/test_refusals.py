"""What cannot be recorded runs as it is written, and a warning says why and where."""

from __future__ import annotations

import random
import warnings
from typing import Any

import numpy as np
import pytest

import lowtide as lt
from tests.capture.steps import Setup

GLOBAL = {"factor": 1.0}
COUNT = 0
GENERATOR = random.Random(0)


def reads_value(x: Any) -> Any:
    x.mul_(1.0)  # nobody could undo it, if the value were another
    return x * 2 if x.sum().item() > 0 else x


def reads_truth(x: Any) -> Any:
    x.mul_(1.0)
    return x * 2 if (x > 0).all() else x


def reads_array(x: Any) -> Any:
    return lt.tensor(x.numpy() * 2)


def shape_of_values(x: Any) -> Any:
    return x[x > 0].sum()


def python_random(x: Any) -> Any:
    return x * random.random()


def own_random(x: Any) -> Any:
    return x * GENERATOR.random()


def numpy_random(x: Any) -> Any:
    return x * float(np.random.rand())  # noqa: NPY002


def counts(x: Any) -> Any:
    global COUNT
    COUNT += 1
    return x * COUNT


KEPT: list[Any] = []


def keeps(x: Any) -> Any:
    KEPT.append(x * 2)
    return x


def seeds(x: Any) -> Any:
    lt.manual_seed(0)
    return x + lt.rand(3)


def iterates(x: Any) -> Any:
    return x * next(ITERATOR)


ITERATOR = iter(range(100))


def prints(x: Any) -> Any:
    str(x)
    return x * 2


@lt.compiler.disable
def kept_out(x: Any) -> Any:
    return x * 2


def calls_kept_out(x: Any) -> Any:
    return kept_out(x)


REFUSED = {
    reads_value: "reads a tensor's value",
    reads_truth: "reads a tensor's value",
    reads_array: "reads a tensor's value",
    shape_of_values: "depends on values",
    python_random: "random generator",
    own_random: "draws from GENERATOR",
    numpy_random: "random generator",
    counts: "COUNT",
    keeps: "kept somewhere else",
    seeds: "state of a random generator",
    iterates: "iterator",
    prints: "reads a tensor's value",
    calls_kept_out: "compiler.disable",
}


DIVIDED = (reads_value, reads_truth, seeds, prints)  # one statement of two runs as it is written


@pytest.mark.parametrize("function", REFUSED, ids=lambda f: f.__name__)
def test_what_cannot_be_repeated_runs_as_it_is_written(function: Any) -> None:
    f = lt.compile(function)
    with pytest.warns(lt.CaptureWarning, match=REFUSED[function]) as caught:
        first = [f(lt.tensor([1.0, -2.0, 3.0 + k])) for k in range(6)]
    assert len(caught) == 1
    assert (f.replays > 0) == (function in DIVIDED)
    assert len({tuple(np.atleast_1d(t.numpy()).tolist()) for t in first}) == 6
    strict = lt.compile(function, fullgraph=True)
    with pytest.raises(lt.CaptureError, match=REFUSED[function]):
        [strict(lt.ones(3)) for _ in range(4)]


def test_the_line_that_ends_a_recording_is_named() -> None:
    text = lt.compiler.explain(reads_value, lt.ones(3))
    assert "Python reads a tensor's value (item, after it has changed what was there" in text
    line = reads_value.__code__.co_firstlineno + 2
    assert f"line {line} (return x * 2 if x.sum().item() > 0 else x) runs as it is written" in text
    text = lt.compiler.explain(reads_array, lt.ones(3))
    assert f"test_refusals.py:{reads_array.__code__.co_firstlineno + 1}" in text


def test_a_global_that_changes_is_noticed() -> None:
    f = lt.compile(lambda x: x * GLOBAL["factor"], fullgraph=True)
    for k in range(10):
        GLOBAL["factor"] = float(k // 4)
        assert f(lt.ones(1)).item() == k // 4
    assert f.replays == 5


def test_too_many_recordings_end_in_plain_calls() -> None:
    f = lt.compile(lambda x: x * GLOBAL["factor"])
    found = []
    for k in range(20):
        GLOBAL["factor"] = float(k)
        if k == 9:
            with pytest.warns(lt.CaptureWarning, match=r"recorded 8 times: GLOBAL.factor changes"):
                found.append(f(lt.ones(1)).item())
        else:
            found.append(f(lt.ones(1)).item())
    assert found == list(range(20))


def test_warnings_name_the_function() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        f = lt.compile(reads_value)
        for _ in range(3):
            f(lt.ones(2))
    line = reads_value.__code__.co_firstlineno + 2
    assert [str(w.message).partition(" runs")[0] for w in caught] == [
        f"compile: reads_value: line {line} (return x * 2 if x.sum().item() > 0 else x)"
    ]
    assert caught[0].filename == __file__


class Reads:
    """A whole step that reads a value at one of its places."""

    def __init__(self, at: int) -> None:
        self.at, self.setup, self.seen = at, Setup(), []
        self.x, self.y = lt.randn(8, 6), lt.tensor([0, 1, 2, 0, 1, 2, 0, 1])

    def read(self, place: int, t: Any) -> None:
        if place == self.at:
            self.seen.append(t.sum().item())

    def step(self) -> None:
        s = self.setup
        self.read(0, self.x)
        s.opt.zero_grad()
        self.read(1, self.x)
        loss = lt.nn.functional.cross_entropy(s.net(self.x), self.y)
        self.read(2, loss)
        s.scaler.scale(loss).backward()
        self.read(3, loss)
        s.scaler.unscale_(s.opt)
        self.read(4, loss)
        lt.nn.utils.clip_grad_norm_(s.net.parameters(), 1.0)
        self.read(5, loss)
        s.scaler.step(s.opt)
        self.read(6, loss)
        s.scaler.update()
        self.read(7, loss)
        s.sched.step()
        self.read(8, loss)
        s.ema.update_parameters(s.net)
        self.read(9, loss)


@pytest.mark.parametrize("at", range(10))
def test_a_value_that_is_read_anywhere_in_a_step_changes_nothing(at):
    found = []
    for is_compiled in (False, True):
        run = Reads(at)
        step = lt.compile(run.step) if is_compiled else run.step
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for _ in range(5):
                step()
        found.append((run.seen, run.setup.state()))
    assert found[0] == found[1]
    assert len(found[0][0]) == 5


@pytest.mark.parametrize("at", [2, 3])
def test_a_step_of_an_optimizer_runs_after_a_value_was_read(at):
    p = lt.nn.Parameter(lt.ones(3))
    optimizer, seen = lt.optim.SGD([p], lr=0.25), []

    @lt.compile
    def step():
        optimizer.zero_grad()
        loss = (p * p).sum()
        if at == 2:
            seen.append(loss.item())
        loss.backward()
        if at == 3:
            print(loss)
        optimizer.step()

    with pytest.warns(lt.CaptureWarning, match="reads a tensor's value|changes seen"):
        [step() for _ in range(4)]
    assert p.tolist() == [0.5**4] * 3
