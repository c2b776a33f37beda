"""Calls that are recorded and refused: what they did to their arguments is as in a plain call."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import lowtide as lt
from lowtide import nn

SHOWN: dict[str, Callable[[Any], Any]] = {
    "itself": lambda x: x,
    "a view": lambda x: x[:, :],
    "a part": lambda x: x.view(4, 3)[1:],
    "a view of a view": lambda x: x.view(2, 6)[:, 1:].t()[1:],
}


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lt.CaptureWarning)
        yield


class Writes(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.weight = nn.Parameter(lt.tensor(1.5))
        self.how, self.now = how, False

    def forward(self, x: Any) -> Any:
        if self.now and self.how == "in place":
            x.mul_(self.weight)
        if self.now and self.how == "a view":
            x[1:, :2].sin_()
        if self.now and self.how == "no_grad":
            with lt.no_grad():
                x.mul_(2)
        return x * self.weight + x.exp()


class Shows(nn.Module):
    """It returns a view of its argument, which the caller writes."""

    def forward(self, x: Any) -> Any:
        return {"flat": x.reshape(-1)[1:], "twice": x * 2}


def gradients(net: Any, k: int, shown: Any, after: Callable[[Any, Any], Any]) -> list[Any]:
    lt.manual_seed(k)
    a = lt.randn(3, 4, requires_grad=True)
    whole = a * 1
    x = shown(whole)
    net.zero_grad()
    loss = after(net(x), x) + whole.cos().sum()
    loss.backward()
    found = [loss, a.grad, *(p.grad for p in net.parameters())]
    return [number for t in found for number in t.flatten().tolist()]


@pytest.mark.parametrize("shown", SHOWN)
@pytest.mark.parametrize("how", ["in place", "a view", "no_grad"])
@pytest.mark.parametrize("begins", [1, 2, 5])
def test_writes_to_an_argument_that_begin_later(how: str, shown: str, begins: int) -> None:
    net = Writes(how)
    other = copy.deepcopy(net)
    compiled = lt.compile(other)
    for k in range(9):
        net.now = other.now = k >= begins
        found = [
            gradients(m, k, SHOWN[shown], lambda y, x: y.sum() + (x * 3).sum())
            for m in (net, compiled)
        ]
        assert found[1] == pytest.approx(found[0], rel=1e-5, abs=1e-6), k


@pytest.mark.parametrize("shown", SHOWN)
def test_a_view_of_an_argument_is_written_behind_the_call(shown: str) -> None:
    def after(found: Any, x: Any) -> Any:
        found["flat"].mul_(3)
        return found["flat"].sin().sum() + x.exp().sum() + found["twice"].sum()

    net = Shows()
    compiled = lt.compile(net)
    for k in range(6):
        assert gradients(net, k, SHOWN[shown], after) == gradients(compiled, k, SHOWN[shown], after)


def test_a_write_to_a_leaf_is_the_error_of_a_plain_call() -> None:
    net = Writes("in place")
    compiled = lt.compile(net)
    compiled(lt.ones(2, requires_grad=True)).sum().backward()
    net.now = True
    with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
        compiled(lt.ones(2, requires_grad=True))


def test_a_write_to_one_of_two_arguments_that_share_memory_is_an_error() -> None:
    state = {"now": False}

    def f(a: Any, b: Any) -> Any:
        if state["now"]:
            a.mul_(2)
        return a + b

    compiled = lt.compile(f)
    for k in range(2):
        state["now"] = k == 1
        x = lt.ones(2, 3, requires_grad=True) * 1
        if k == 0:
            compiled(x, x.t().t()).sum().backward()
            continue
        with pytest.raises(RuntimeError, match="shares memory with another"):
            compiled(x, x.t().t())
