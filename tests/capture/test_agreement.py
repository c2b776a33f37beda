"""A call is replayed only if two recordings agree: what no comparison of variables sees."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import lowtide as lt
import lowtide.nn.functional as F
from lowtide import nn

KEY = "LOWTIDE_TEST_NUMBER"  # the environment: recordings do not compare it


def number() -> float:
    """A number that no variable of a function tells."""
    return float(os.environ[KEY])


def scalar(x: Any) -> Any:
    return x * number()


def attribute(x: Any) -> Any:
    return F.leaky_relu(x - 1.5, number())


def list_of_numbers(x: Any) -> Any:
    return x + lt.tensor([number(), 1.0, 2.0])


def array_of_numpy(x: Any) -> Any:
    return x + lt.tensor(np.full(3, number(), np.float32))


def filled(x: Any) -> Any:
    return lt.full((3,), number()) + x


def other_kernels(x: Any) -> Any:
    return x.sin() if number() % 2 else x.cos()


def more_kernels(x: Any) -> Any:
    for _ in range(int(number())):
        x = x * 1.5
    return x + 1


def kernels_at_the_end(x: Any) -> Any:
    y = x * 2
    for _ in range(int(number())):
        y.add_(1)
    return y


def position(x: Any) -> Any:
    return x.roll(int(number()), 0) * 2


def returned(x: Any) -> Any:
    return x * 2, number()


def nan_or_number(x: Any) -> Any:
    return x * (float("nan") if number() > 2 else 1.0)


HIDDEN: list[Callable[[Any], Any]] = [
    scalar,
    attribute,
    list_of_numbers,
    array_of_numpy,
    filled,
    other_kernels,
    more_kernels,
    kernels_at_the_end,
    position,
    returned,
    nan_or_number,
]


def run(f: Any, numbers: list[float], monkeypatch: Any) -> list[Any]:
    found = []
    for k, value in enumerate(numbers):
        monkeypatch.setenv(KEY, str(value))
        out = f(lt.tensor([1.0, 2.0, 3.0]) + k)
        out = out if isinstance(out, tuple) else (out,)
        found.append([repr(x.tolist()) if isinstance(x, lt.Tensor) else x for x in out])
    return found


@pytest.mark.parametrize("f", HIDDEN, ids=lambda f: f.__name__)
def test_what_differs_from_call_to_call_is_not_replayed(f: Any, monkeypatch: Any) -> None:
    numbers = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    compiled = lt.compile(f)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        found = run(compiled, numbers, monkeypatch)
    assert found == run(f, numbers, monkeypatch)
    assert compiled.replays == 0
    assert [w.category for w in seen] == [lt.CaptureWarning]
    assert "call" in str(seen[0].message)


@pytest.mark.parametrize("f", HIDDEN, ids=lambda f: f.__name__)
def test_what_is_the_same_in_each_call_is_replayed(f: Any, monkeypatch: Any) -> None:
    numbers = [3.0] * 6
    compiled = lt.compile(f, fullgraph=True)
    assert run(compiled, numbers, monkeypatch) == run(f, numbers, monkeypatch)
    assert compiled.replays == 3


def test_a_clock_is_noticed() -> None:
    import time

    compiled = lt.compile(lambda x: x * time.perf_counter())
    with pytest.warns(lt.CaptureWarning, match="an argument of mul differs from call to call"):
        found = [compiled(lt.ones(1, dtype=lt.float64)).item() for _ in range(6)]
    assert sorted(set(found)) == found


def test_a_backward_that_differs_from_call_to_call_is_not_replayed(monkeypatch: Any) -> None:
    class Scaled(lt.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 1

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g * number()

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(lt.ones(3))

        def forward(self, x: Any) -> Any:
            return Scaled.apply(self.weight * x)

    net = Net()
    compiled = lt.compile(net)
    compiled._compiled.quiet = True
    for k in range(6):
        monkeypatch.setenv(KEY, str(k + 1.0))
        net.weight.grad = None
        compiled(lt.ones(3)).sum().backward()
        assert net.weight.grad.tolist() == [k + 1.0] * 3
    assert compiled._compiled.replays == 0


def test_calls_of_one_step_agree_with_each_other() -> None:
    net = nn.Linear(3, 3)
    compiled = lt.compile(net, fullgraph=True)
    for _ in range(4):
        (compiled(lt.ones(2, 3)) - compiled(lt.zeros(2, 3))).square().sum().backward()
    assert compiled._compiled.replays >= 4


def test_a_learning_rate_is_read_anew_in_between() -> None:
    p = nn.Parameter(lt.zeros(1))
    optimizer = lt.optim.SGD([p], lr=1.0)

    def step() -> None:
        optimizer.zero_grad()
        p.sum().backward()
        optimizer.step()

    compiled = lt.compile(step, fullgraph=True)
    for k in range(6):
        optimizer.param_groups[0]["lr"] = float(k)
        compiled()
    assert compiled.replays == 3
    assert p.item() == -15.0
