"""Depthwise kernels with a stride against sums over windows, on drawn sizes.

Around each array lies memory of other numbers: what a kernel reads or writes there shows.
"""

from __future__ import annotations

import random
from itertools import combinations
from typing import Any

import numpy as np
import pytest

import lowtide as lt
from lowtide.framework.kernels.cpu.convolution import depthwise_stride1, depthwise_strided
from lowtide.framework.kernels.cpu.convolution.depthwise_strided import (
    slide_strided,
    slide_strided_back,
    slide_strided_weight,
)
from lowtide.framework.kernels.cpu.support import vectors
from lowtide.framework.ops.convolution import depthwise
from lowtide.framework.ops.convolution.depthwise import SlidingStrided
from lowtide.framework.ops.convolution.sizes import INPUT, OUT, WEIGHT, Sizes

AROUND = 64  # elements


def rooms(side: str, case: Case) -> list[Any]:
    """The workspace that the route names, full of NaN."""
    shapes = (case.x.shape, (case.weight.shape[0], 1, *case.taps), tuple(case.places))
    rest = (case.stride, tuple((p, p) for p in case.padding), (1, 1), case.x.shape[1])
    route = SlidingStrided(Sizes(side, True, *shapes, *rest, np.dtype(case.dtype)))
    return [np.full(n, np.nan, case.dtype) for n in route.rooms()]


class Case:
    """Sizes of a convolution, and its arrays.

    Args:
        seed: Of the numbers.
        dtype: Of the arrays.
    """

    def __init__(self, seed: int, dtype: Any) -> None:
        r = random.Random(seed)
        self.draws, self.dtype = np.random.default_rng(seed), dtype
        images, channels, filters = r.choice([1, 2, 3]), r.choice([1, 2, 3]), r.choice([1, 1, 2])
        self.taps = r.choice([1, 2, 3, 4, 5, 7]), r.choice([1, 2, 3, 4, 5, 7])
        self.stride = r.choice([1, 2, 2, 3, 9]), r.choice([1, 2, 2, 3, 9])
        self.padding = r.choice([0, 1, 2, 3, 8]), r.choice([0, 1, 2, 3, 9])
        sizes = [r.choice([1, 2, 5, 9, 16, 31, 33]), r.choice([1, 3, 7, 15, 16, 17, 33, 64, 70])]
        self.sizes = [
            max(n, k - 2 * p) for n, k, p in zip(sizes, self.taps, self.padding, strict=True)
        ]
        self.places = [
            (n + 2 * p - k) // s + 1
            for n, k, p, s in zip(self.sizes, self.taps, self.padding, self.stride, strict=True)
        ]
        self.filters = filters
        self.x = self.numbers(images, channels, *self.sizes)
        self.weight = self.numbers(channels * filters, *self.taps)
        self.bias = self.numbers(channels * filters if r.random() < 0.5 else 0)
        self.grad = self.numbers(images, channels * filters, *self.places)

    def numbers(self, *shape: int) -> Any:
        """An array in memory of other numbers."""
        return numbers_around(self.draws, self.dtype, *shape)

    def windows(self) -> Any:
        """For each element of the window: its place, and what it meets in an image with zeros."""
        (high, wide), (a, b), (p, q) = self.places, self.stride, self.padding
        room = [(high - 1) * a + self.taps[0], (wide - 1) * b + self.taps[1]]
        room = [max(r, n + s) for r, n, s in zip(room, self.sizes, self.padding, strict=True)]
        around = np.zeros((*self.x.shape[:2], *room))
        inside = around[:, :, p : p + self.sizes[0], q : q + self.sizes[1]]
        for y in range(self.taps[0]):
            for x in range(self.taps[1]):
                lines = slice(y, y + (high - 1) * a + 1, a)
                columns = slice(x, x + (wide - 1) * b + 1, b)
                yield (y, x), around, inside, np.s_[:, :, lines, columns]


def numbers_around(draws: Any, dtype: Any, *shape: int) -> Any:
    """An array in memory of other numbers."""
    size = int(np.prod(shape))
    room = np.full(size + 2 * AROUND, np.nan, dtype)
    found = room[AROUND : AROUND + size].reshape(shape)
    found[...] = draws.standard_normal(shape)
    return found


def changed_around(array: Any) -> bool:
    """Whether a kernel has written outside of an array of ``numbers``."""
    room = array.base
    return not (np.isnan(room[:AROUND]).all() and np.isnan(room[room.size - AROUND :]).all())


def agree(found: Any, expected: Any) -> None:
    assert not changed_around(found)
    tolerance = 1e-4 if found.dtype == np.float32 else 1e-10
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=10 * tolerance)


@pytest.mark.compiled
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("part", range(4))
def test_drawn_sizes(part: int, dtype: Any) -> None:
    for seed in range(60 * part, 60 * (part + 1)):
        case = Case(seed, dtype)
        shape, filters, steps = case.x.shape, case.filters, (case.stride, case.padding)

        found, expected = case.numbers(*case.grad.shape), np.zeros(case.grad.shape)
        back, weight = np.zeros(0), np.zeros(case.weight.shape)
        for (y, x), around, inside, there in case.windows():
            inside[...] = case.x
            met = np.repeat(around[there], filters, 1)
            expected += case.weight[None, :, y, x, None, None] * met
            weight[:, y, x] = (met * case.grad).sum((0, 2, 3))
        expected += case.bias[None, :, None, None] if case.bias.size else 0
        slide_strided(
            found, case.x, case.weight, case.bias, *rooms(OUT, case), *steps, 0, found.shape[1]
        )
        agree(found, expected)

        total: Any = 0
        for (y, x), around, inside, there in case.windows():
            given = case.weight[None, :, y, x, None, None] * case.grad
            around[...] = 0
            around[there] = given.reshape(shape[0], shape[1], filters, *case.places).sum(2)
            total = total + inside
        back = case.numbers(*shape)
        slide_strided_back(back, case.grad, case.weight, *rooms(INPUT, case), *steps, 0, shape[1])
        agree(back, total)

        found = case.numbers(*case.weight.shape)
        slide_strided_weight(
            found, case.x, case.grad, *rooms(WEIGHT, case), *steps, 0, found.shape[0]
        )
        agree(found, weight)


def test_the_route_leaves_as_much_room_as_the_loops_use() -> None:
    assert depthwise._GROUP == vectors.GROUP
    assert depthwise._LINES >= depthwise_stride1.LINES
    assert depthwise._TAPS >= depthwise_stride1.TAPS


def test_each_thread_has_room_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y, w = np.zeros((1, 4, 9, 9)), np.zeros((1, 4, 4, 4)), np.zeros((4, 1, 3, 3))
    rest = ((2, 2), ((0, 0),) * 2, (1, 1), 4, x.dtype)
    for side, name, places in (
        (OUT, "slide_strided", [4]),
        (INPUT, "slide_strided_back", [3]),
        (WEIGHT, "slide_strided_weight", [3, 4]),
    ):
        route = SlidingStrided(Sizes(side, True, x.shape, w.shape, (4, 4), *rest))
        route.threads = 2
        scratch = [np.zeros(n) for (n,) in route.scratch]
        given: list[Any] = []
        monkeypatch.setattr(depthwise_strided, name, lambda *a, to=given: to.append(a))
        route.run(np, scratch, x, w, y)
        assert sorted(a[-2:] for a in given) == [(0, 2), (2, 4)]
        own = [a[k] for a in given for k in places]
        assert not any(np.may_share_memory(a, b) for a, b in combinations(own, 2))
        assert sum(r.size for r in own) == sum(s.size for s in scratch)


def test_what_is_infinite_stays_where_its_windows_are() -> None:
    x = np.zeros((1, 1, 9, 40), np.float32)
    x[0, 0, 4, 20] = np.inf
    found = lt.conv2d(lt.tensor(x).tile(1, 8, 1, 1), lt.ones(8, 1, 3, 3), None, 2, (0, 1), 1, 8)
    found = found.numpy()[:, :1]
    assert np.argwhere(np.isinf(found)).tolist() == [[0, 0, 1, 10], [0, 0, 2, 10]]
    assert not np.isnan(found).any()


@pytest.mark.parametrize("threads", [1, 2])
def test_a_layer_with_a_stride_has_the_gradients_of_plain_sums(threads: int) -> None:
    before = lt.get_num_threads()
    lt.set_num_threads(threads)
    try:
        x, w = (
            lt.randn(8, 48, 72, 72, requires_grad=True),
            lt.randn(48, 1, 3, 3, requires_grad=True),
        )
        y = lt.conv2d(x, w, None, 2, 1, 1, 48)
        y.backward(g := lt.randn(*y.shape))
        wide = [t.detach().double().requires_grad_() for t in (x, w)]
        lt.conv2d(*wide, None, 2, 1, 1, 48).backward(g.double())
        for t, other in zip((x, w), wide, strict=True):
            np.testing.assert_allclose(t.grad.numpy(), other.grad.numpy(), rtol=1e-4, atol=1e-3)
    finally:
        lt.set_num_threads(before)
