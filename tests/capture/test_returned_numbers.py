"""Numbers that a compiled function reads only to return them: replays read them anew."""

from __future__ import annotations

import functools
import math
import textwrap
import warnings
from typing import Any

import numpy as np
import pytest

import lowtide as lt
from lowtide import nn
from lowtide.framework.capture import agreement, kernel_recorder
from lowtide.framework.capture.program import StepProgram
from lowtide.framework.capture.returned_numbers import Number


class Run:
    """A model, its optimizer, and a step that a text completes: what it returns."""

    def __init__(self, body: str) -> None:
        lt.manual_seed(1)
        self.model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
        self.optimizer = lt.optim.AdamW(self.model.parameters(), lr=0.05)
        self.seen: list[float] = []
        names: dict[str, Any] = {
            "__name__": __name__,
            "lt": lt,
            "math": math,
            "helper": lambda t: t.item(),
        }
        names |= {"model": self.model, "optimizer": self.optimizer, "seen": self.seen}
        source = (
            "def step(x, y):\n"
            "    optimizer.zero_grad()\n"
            "    out = model(x)\n"
            "    loss = (out - y).square().mean()\n"
            "    loss.backward()\n"
            "    optimizer.step()\n"
        )
        exec(source + textwrap.indent(textwrap.dedent(body).strip(), "    "), names)
        self.step: Any = names["step"]

    def parameters(self) -> list[Any]:
        return [p.detach().clone() for p in self.model.parameters()]


def compared(body: str, **options: Any) -> Any:
    """Run 12 steps as written and compiled; what they return is equal, and so are weights."""
    written, run = Run(body), Run(body)
    compiled = lt.compile(run.step, **options)
    for k in range(12):
        lt.manual_seed(k)
        x, y = lt.randn(5, 4), lt.randn(5, 2)
        a, b = written.step(x, y), compiled(x, y)
        assert repr(a) == repr(b)
        assert type(a) is type(b)
    assert all(map(lt.equal, written.parameters(), run.parameters()))
    assert written.seen == run.seen
    return compiled


ONLY_RETURNED = [
    "return loss.item()",
    "return loss.item(), (out > 0).sum().item()",
    "return {'loss': loss.item(), 'right': (out > y).sum().item(), 'out': out.detach()}",
    "value = loss.item()\nreturn value",
    "value = loss.item()\nn = (out > 0).sum().item()\nreturn n, [value, {'v': value}], value",
    "value = loss.item()\nmore = out.detach() * 2 + 1\nreturn -more, value",
    "with lt.no_grad():\n    return (out * 2).sum().item()",
    "return out.detach(), (out > 100).any().item(), out.max().item(), 3.5",
    "a, b = loss.item(), out.sum().item()\nreturn a, [b]",
    "a, b, c = loss.item(), out.sum().item(), 3\nreturn c, a, b",
    "value = loss.item()\nother = value\nvalue = other\nreturn value, other",
    "return float(loss), 2.5, {'sum': float(out.sum())}",
    "value = float(loss)\nreturn [value, out.sum().item(), value]",
    "if x.shape[0] > 3:\n    return loss.item()\nreturn None",
]


@pytest.mark.parametrize("body", ONLY_RETURNED)
def test_a_number_that_is_only_returned_is_read_by_each_replay(body):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert compared(body).replays == 9


USED = [
    "value = loss.item()\nreturn value + 1",
    "return loss.item() * 2",
    "value = loss.item()\nif value < 0.9:\n    return -1.0\nreturn value",
    "value = loss.item()\nassert math.isfinite(value)\nreturn value",
    "return math.sqrt(loss.item())",
    "return f'{loss.item():.3f}'",
    "seen.append(loss.item())",
    "value = loss.item()\nseen.append(value)\nreturn value",
    "return {loss.item(): 1}",
    "return {loss.item(), 2.0}",
    "return tuple([loss.item()])",
    "return round(float(loss), 3)",
    "value = float(loss)\nif value < 0.9:\n    return -1.0\nreturn value",
    "return float((out > 0).sum()), int((out > 0).sum())",
    "return helper(loss)",
    "value = helper(loss)\nif value < 0.9:\n    return -1.0\nreturn value",
    "value = loss.item()\nreturn locals()['value']",
    "value = loss.item()\nreturn (lambda: value)()",
    "value = loss.item()\ndel value\nreturn 1",
    "loss.item()\nreturn 1",
    "value = loss.item()\nvalue = out.sum().item()\nreturn value",
    "return [t.item() for t in (loss, out.sum())]",
    "total = 0.0\nfor t in (loss, out.sum()):\n    total += t.item()\nreturn total",
    "return loss.item() if loss.item() < 0.9 else 0.0",
    "a, b = loss.item(), out.sum().item()\nif b < 0.5:\n    return a\nreturn -1.0",
    "a, b = loss.item(), out.sum().item()\nif a < 0.9:\n    return b\nreturn -1.0",
    "value = loss.item()\nif locals()['value'] < 0.9:\n    return -1.0\nreturn value",
]


@pytest.mark.parametrize("body", USED)
@pytest.mark.filterwarnings("ignore::lowtide.CaptureWarning")
def test_a_number_that_is_used_keeps_a_call_from_being_replayed_or_is_right(body):
    compared(body)


@pytest.mark.parametrize("body", ONLY_RETURNED[:3])
def test_comparisons_of_replays_see_the_numbers(body):
    assert compared(body, check=1).replays == 9


def drawn(seed: int) -> str:
    """The text of a function that reads numbers, uses some, and returns others."""
    draw = np.random.default_rng(seed)
    lines, known = [], []
    for k in range(draw.integers(1, 4)):
        read = f"({['loss', 'out.sum()', '(out > 0).sum()', 'out.min()'][draw.integers(4)]}).item()"
        if draw.random() < 0.7:
            lines.append(f"v{k} = {read}")
            known.append(f"v{k}")
            if draw.random() < 0.25:
                lines.append(f"if v{k} > {draw.normal():.2f}:\n    out = out * 2")
        else:
            known.append(read)
    known += ["out.detach()", "1.5"]
    made = known[:]
    for _ in range(draw.integers(1, 4)):
        some = [made[i] for i in draw.integers(0, len(made), draw.integers(1, 4))]
        kind = draw.integers(3)
        if kind == 2:
            made.append("{" + ", ".join(f"'{k}': {s}" for k, s in enumerate(some)) + "}")
        else:
            made.append(f"[{', '.join(some)}]" if kind else f"({', '.join(some)},)")
    return "\n".join([*lines, f"return {made[-1]}"])


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.filterwarnings("ignore::lowtide.CaptureWarning")
def test_drawn_functions_return_the_same(seed):
    compared(drawn(seed))


def test_some_drawn_functions_are_replayed():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        replayed = [compared(drawn(seed)).replays for seed in range(60, 75)]
    assert sum(map(bool, replayed)) >= 5


@pytest.mark.filterwarnings("ignore::lowtide.CaptureWarning")
def test_a_number_that_is_not_found_in_the_result_ends_the_recording(monkeypatch):
    monkeypatch.setattr(kernel_recorder, "is_only_returned", lambda frame: True)
    run = Run("kept = [loss.item()]\nreturn len(kept)")
    compiled = lt.compile(run.step)
    for _ in range(6):
        assert compiled(lt.ones(2, 4), lt.ones(2, 2)) == 1
    assert compiled.recordings == 0
    assert "does not return it" in lt.compiler.explain(run.step, lt.ones(2, 4), lt.ones(2, 2))


def test_recordings_that_return_other_numbers_do_not_agree():
    comparison = agreement._Comparison(StepProgram(), StepProgram())
    assert comparison.same([Number(0, 1.0), Number(1, 2.0)], [Number(0, 5.0), Number(1, 6.0)])
    assert not comparison.same([Number(0, 1.0), Number(1, 2.0)], [Number(1, 2.0), Number(0, 1.0)])


@pytest.mark.filterwarnings("ignore::lowtide.CaptureWarning")
def test_a_wrapper_in_c_keeps_numbers_and_not_what_stands_for_them():
    cached = functools.lru_cache(lambda t: t.sum().item())
    compiled, given = lt.compile(cached), [lt.full((3,), float(k)) for k in range(5)]
    assert [compiled(t) for t in given] == [0.0, 3.0, 6.0, 9.0, 12.0]
    assert [type(cached(t)) for t in given] == [float] * 5


def test_a_method_that_returns_a_number_is_replayed():
    class Trainer:
        def __init__(self) -> None:
            self.model = nn.Linear(4, 2)

        def step(self, x: Any, y: Any) -> float:
            out = self.model(x)
            return (out - y).square().mean().item()

    trainer = Trainer()
    compiled = lt.compile(trainer.step)
    for k in range(6):
        x, y = lt.full((3, 4), float(k)), lt.zeros(3, 2)
        with lt.no_grad():
            assert compiled(x, y) == trainer.step(x, y)
    assert compiled.replays == 3
