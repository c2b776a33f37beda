"""Depthwise kernels for small planes against sums over windows, on drawn sizes.

Around each array lies memory of other numbers: what a kernel reads or writes there shows.
"""

from __future__ import annotations

import random
import threading
from typing import Any

import numpy as np
import pytest

import lowtide as lt
from lowtide.framework.kernels.cpu.convolution import depthwise_small
from lowtide.framework.kernels.cpu.support import vectors
from lowtide.framework.kernels.cpu.support.jit import compiled
from lowtide.framework.kernels.cpu.support.rooms import enter, leave
from lowtide.framework.ops.convolution import depthwise
from lowtide.framework.ops.convolution.depthwise import Sliding, SmallPlanes
from lowtide.framework.ops.convolution.routes import route
from lowtide.framework.ops.convolution.sizes import INPUT, OUT, WEIGHT, Sizes
from tests.ops.convolution.test_strided_depthwise import agree, changed_around, numbers_around


class Case:
    """Sizes of a convolution, and its arrays.

    Args:
        seed: Of the sizes and the numbers.
        dtype: Of the arrays.
    """

    def __init__(self, seed: int, dtype: Any) -> None:
        r = random.Random(seed)
        self.draws, self.dtype = np.random.default_rng(seed), np.dtype(dtype)
        self.images, channels, self.filters = r.choice([1, 2, 3]), r.choice([8, 9, 17, 40]), 1
        if r.random() < 0.25:
            self.filters = r.choice([2, 3])
        self.taps = [r.choice([1, 2, 3, 3, 5]) for _ in range(2)]
        self.stride = tuple(r.choice([1, 1, 2, 3, 6]) for _ in range(2))
        self.padding = tuple(r.choice([0, 1, 1, 2, 5]) for _ in range(2))
        self.dilation = tuple(r.choice([1, 1, 1, 2, 3]) for _ in range(2))
        reach = [(k - 1) * d + 1 for k, d in zip(self.taps, self.dilation, strict=True)]
        self.sizes = [
            max(r.choice([1, 2, 3, 4, 7, 8, 11]), n - 2 * p)
            for n, p in zip(reach, self.padding, strict=True)
        ]
        self.places = [
            (n + 2 * p - k) // s + 1
            for n, p, k, s in zip(self.sizes, self.padding, reach, self.stride, strict=True)
        ]
        self.x = self.numbers(self.images, channels, *self.sizes)
        self.weight = self.numbers(channels * self.filters, *self.taps)
        self.bias = self.numbers(channels * self.filters if r.random() < 0.5 else 0)
        self.grad = self.numbers(self.images, channels * self.filters, *self.places)

    def numbers(self, *shape: int) -> Any:
        """An array in memory of other numbers."""
        return numbers_around(self.draws, self.dtype, *shape)

    def met(self) -> Any:
        """Each place of the result, element of the window, and pixel where these meet."""
        for q in range(self.places[0]):
            for s in range(self.places[1]):
                for b in range(self.taps[0]):
                    for e in range(self.taps[1]):
                        y = q * self.stride[0] + b * self.dilation[0] - self.padding[0]
                        x = s * self.stride[1] + e * self.dilation[1] - self.padding[1]
                        if 0 <= y < self.sizes[0] and 0 <= x < self.sizes[1]:
                            yield (q, s), (b, e), (y, x)

    def expected(self, side: str) -> Any:
        """The array of a side, as sums in float64."""
        x = np.repeat(self.x.astype(float), self.filters, 1)
        grad, weight = self.grad.astype(float), self.weight.astype(float)
        found = np.zeros({OUT: grad, INPUT: x, WEIGHT: weight}[side].shape)
        if side == OUT and self.bias.size:
            found += self.bias[:, None, None]
        for (q, s), (b, e), (i, j) in self.met():
            if side == OUT:
                found[:, :, q, s] += weight[:, b, e] * x[:, :, i, j]
            elif side == INPUT:
                found[:, :, i, j] += weight[:, b, e] * grad[:, :, q, s]
            else:
                found[:, b, e] += (x[:, :, i, j] * grad[:, :, q, s]).sum(0)
        if side == INPUT:
            found = found.reshape(self.images, -1, self.filters, *self.sizes).sum(2)
        return found

    def known(self, side: str) -> Sizes:
        """What a route is chosen by."""
        weight = (self.weight.shape[0], 1, *self.taps)
        padding = tuple((p, p) for p in self.padding)
        rest = (tuple(self.places), self.stride, padding, self.dilation)
        return Sizes(side, True, self.x.shape, weight, *rest, self.x.shape[1], self.dtype)

    def found(self, side: str, cuts: int = 1) -> Any:
        """The array of a side, from the kernel, in so many calls."""
        steps = (self.stride, self.padding, self.dilation)
        lanes = 64 // self.dtype.itemsize
        room = np.full((2, SmallPlanes(self.known(side)).room()), np.nan, self.dtype)
        taken = np.array([1, 0])  # another thread has the first room
        shape = {OUT: self.grad, INPUT: self.x, WEIGHT: self.weight}[side].shape
        made = self.numbers(*shape)
        made[...] = np.nan
        arrays = {
            OUT: [made, self.x, self.weight, self.bias],
            INPUT: [made, self.grad, self.weight],
            WEIGHT: [made, self.x, self.grad],
        }[side]
        name = {OUT: "small_planes", INPUT: "small_planes_back", WEIGHT: "small_planes_weight"}
        groups = -(-shape[0 if side == WEIGHT else 1] // lanes)
        parts = groups if side == WEIGHT else groups * self.images
        for k in range(cuts):
            ends = parts * k // cuts, parts * (k + 1) // cuts
            getattr(depthwise_small, name[side])(*arrays, room, taken, *steps, *ends)
        assert taken.tolist() == [1, 0]
        assert np.isnan(room[0]).all()
        return made


@pytest.mark.compiled
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("side", [OUT, INPUT, WEIGHT])
def test_drawn_sizes(side: str, dtype: Any) -> None:
    for seed in range(60):
        case = Case(seed, dtype)
        agree(case.found(side), case.expected(side))
        assert case.found(side, cuts=3).tobytes() == case.found(side).tobytes()
        assert not any(map(changed_around, (case.x, case.weight, case.grad)))


def test_what_lies_outside_of_an_image_is_left_out_not_multiplied_by_zero() -> None:
    case = Case(3, np.float32)
    case.weight[...] = np.inf
    case.x[...] = case.grad[...] = 1  # no infinity less another
    for side in (OUT, INPUT):
        expected = case.expected(side)
        assert np.isinf(expected).any()
        np.testing.assert_array_equal(np.isinf(case.found(side)), np.isinf(expected))
        assert not np.isnan(case.found(side)).any()


def test_which_planes_take_the_route() -> None:
    def chosen(size: int, stride: int, channels: int = 32, dtype: Any = np.float32) -> type:
        places = (size + 2 - 3) // stride + 1
        rest = ((stride, stride), ((1, 1), (1, 1)), (1, 1), channels, np.dtype(dtype))
        shapes = ((64, channels, size, size), (channels, 1, 3, 3), (places, places))
        return type(route(OUT, True, *shapes, *rest))

    assert chosen(8, 1) is chosen(14, 1) is chosen(8, 2) is chosen(56, 2) is SmallPlanes
    assert chosen(16, 1) is chosen(28, 1) is chosen(8, 1, channels=4) is Sliding
    assert chosen(8, 1, dtype=np.float64) is Sliding
    assert depthwise._PAGE == depthwise_small.PAGE
    assert depthwise._GROUP == vectors.GROUP


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("size", "stride", "dilation"), [(7, 1, 1), (9, 2, 1), (12, 2, 2)])
def test_a_layer_has_the_gradients_of_plain_sums(
    size: int, stride: int, dilation: int, threads: int
) -> None:
    before = lt.get_num_threads()
    lt.set_num_threads(threads)
    try:
        x = lt.randn(16, 200, size, size, requires_grad=True)
        w, bias = lt.randn(200, 1, 3, 3, requires_grad=True), lt.randn(200, requires_grad=True)
        options = (stride, 1, dilation, 200)
        for _ in range(4):  # threads share a kernel from its second call on
            for t in (x, w, bias):
                t.grad = None
            y = lt.conv2d(x, w, bias, *options)
            y.backward(g := lt.randn(*y.shape))
            wide = [t.detach().double().requires_grad_() for t in (x, w, bias)]
            lt.conv2d(*wide, *options).backward(g.double())
            for t, other in zip((x, w, bias), wide, strict=True):
                np.testing.assert_allclose(t.grad.numpy(), other.grad.numpy(), rtol=1e-4, atol=1e-3)
    finally:
        lt.set_num_threads(before)


@compiled
def _stay(taken: Any, inside: Any, times: int) -> None:
    for _ in range(times):
        k = enter(taken)
        inside[k] += 1
        leave(taken, k)


def test_no_two_threads_are_in_a_room() -> None:
    taken, inside = np.zeros(3, np.int64), np.zeros(3, np.int64)
    _stay(taken, inside, 1)
    workers = [threading.Thread(target=_stay, args=(taken, inside, 30_000)) for _ in range(4)]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    assert inside.sum() == 120_001  # a number that two write at once would be lost
    assert not taken.any()
