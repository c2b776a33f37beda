"""A compiled step gives the bits of the plain one, and notices whatever changes between calls."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import pytest

import lowtide as lt
from lowtide import nn
from tests.capture.steps import (
    OPTIMIZERS,
    STEPS,
    Setup,
    batches,
    bits,
    equal_runs,
    plain_step,
)


@pytest.mark.parametrize("name", STEPS)
def test_a_step_is_equal_bit_for_bit(name: str) -> None:
    step = equal_runs(STEPS[name], lambda f: lt.compile(f, fullgraph=True))
    if name == "scaled":  # the scale changes every second step
        assert step.replays >= 2
    else:
        assert (step.recordings, step.replays) == (1, 5)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_steps_anew(name: str) -> None:
    step = equal_runs(plain_step, lambda f: lt.compile(f, fullgraph=True), optimizer=name)
    assert step.replays == 5


def set_training(s: Setup, k: int) -> None:
    s.net.train(k % 3 != 2)


def set_rate(s: Setup, k: int) -> None:
    s.opt.param_groups[0]["lr"] = 0.01 * (k + 1)


def set_factor(s: Setup, k: int) -> None:
    s.net.factor = 1.0 + (k > 4)


def freeze(s: Setup, k: int) -> None:
    s.net.first.weight.requires_grad_(k < 5)


def clear(s: Setup, k: int) -> None:
    if k % 2:
        for p in s.net.parameters():
            p.grad = None


def replace(s: Setup, k: int) -> None:
    if k == 5:
        s.net.last.weight.data = lt.full((3, 16), 0.1)


def load(s: Setup, k: int) -> None:
    if k == 5:
        s.net.load_state_dict(
            {n: t + 0.5 if t.is_floating_point() else t for n, t in s.net.state_dict().items()}
        )


def swap_layer(s: Setup, k: int) -> None:
    if k == 5:
        s.net.drop = nn.Identity()


def forward_hook(s: Setup, k: int) -> None:
    if k == 5:
        s.net.first.register_forward_hook(lambda m, a, out: out * 2)


def tensor_hook(s: Setup, k: int) -> None:
    if k == 5:
        s.net.first.weight.register_hook(lambda g: g * 3)


def accumulate_hook(s: Setup, k: int) -> None:
    if k == 5:
        s.net.first.weight.register_post_accumulate_grad_hook(lambda p: p.grad.mul_(2))


def set_momentum(s: Setup, k: int) -> None:
    s.net.norm.momentum = 0.1 if k < 5 else 0.2


def add_group(s: Setup, k: int) -> None:
    if k == 4:
        s.opt.add_param_group({"params": [nn.Parameter(lt.ones(2))]})


CHANGES = (set_training, set_rate, set_factor, freeze, clear, replace, load, swap_layer,
           forward_hook, tensor_hook, accumulate_hook, set_momentum, add_group)  # fmt: skip


@pytest.mark.parametrize("change", CHANGES, ids=lambda f: f.__name__)
def test_a_change_between_calls_is_noticed(change: Any) -> None:
    step = equal_runs(plain_step, lambda f: lt.compile(f, fullgraph=True), 12, change)
    assert step.replays >= 5


def test_new_shapes_are_recorded_anew() -> None:
    s, t = Setup(), Setup()
    step, plain = lt.compile(plain_step(s), fullgraph=True), plain_step(t)
    for size in (8, 8, 4, 8, 4, 4, 8, 4, 4):
        ((x, y),) = batches(1, size)
        found = []
        for f, who in ((plain, t), (step, s)):
            lt.manual_seed(size)
            found.append((bits(f(x, y)), who.state()))
        assert found[0] == found[1]
    assert (step.recordings, step.replays) == (2, 3)


def test_arguments_that_share_memory_are_told_apart() -> None:
    def add(a: Any, b: Any) -> Any:
        a.add_(b)
        b.mul_(2)
        return a + b

    f = lt.compile(add, fullgraph=True)
    for k in range(10):
        a = lt.arange(4.0)
        b = a if k % 2 else lt.arange(4.0) + 1
        c = a.clone()
        assert bits(f(a, b)) == bits(add(c, c if k % 2 else lt.arange(4.0) + 1))
    assert f.replays == 4


def test_views_and_foreign_memory_are_taken() -> None:
    f = lt.compile(lambda a: a.sum(0) + a[1], fullgraph=True)
    for k in range(6):
        array = np.random.default_rng(k).standard_normal((4, 5)).astype(np.float32)
        for x in (
            lt.from_numpy(array),
            lt.tensor(array),
            lt.tensor(array.T.copy()).t(),
            lt.tensor(np.vstack([array, array]))[2:6],
        ):
            assert bits(f(x)) == bits(x.sum(0) + x[1])
    assert f.replays >= 12


def test_attributes_that_are_looked_up_by_strings_are_compared() -> None:
    class Config:
        def __init__(self) -> None:
            self.factor_a = 1.0

    config = Config()
    f = lt.compile(lambda x: x * getattr(config, "factor_" + "ab"[0]), fullgraph=True)
    for k in range(8):
        config.factor_a = float(k // 4)
        assert f(lt.ones(1)).item() == k // 4
    assert f.replays == 4


def test_a_parameter_in_another_order_of_the_same_memory_is_noticed() -> None:
    w = nn.Parameter(lt.arange(9.0).reshape(3, 3))
    f = lt.compile(lambda x: (x @ w).detach(), fullgraph=True)
    x = lt.rand(2, 3)
    for _ in range(4):
        f(x)
    w.data = w.data.t()
    assert bits(f(x)) == bits((x @ w).detach())


def test_memory_of_others_is_let_go_after_a_call() -> None:
    f = lt.compile(lambda x: x * 2, fullgraph=True)
    for k in range(5):
        array = np.full(1000, float(k), np.float32)
        gone = weakref.ref(array)
        assert f(lt.from_numpy(array))[0].item() == 2.0 * k
        del array
        assert gone() is None
    assert f.replays == 2
