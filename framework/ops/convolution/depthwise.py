"""Depthwise routes: each channel with separate windows, whose products would have a single row.

Channels are independent: threads take a chunk of them each.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from ...kernels.common.schedule import parallel_range
from ...kernels.runtime import threads, thresholds
from .sizes import INPUT, OUT, WEIGHT, Route, Sizes, as_3d, ceil_div, given_bias, volumes

_GROUP, _LINES, _TAPS = 64, 8, 3  # at least as in depthwise_stride1.py, which imports Numba
_PAGE = 4096  # bytes: as in depthwise_small.py
_MUCH = 1 << 40  # additions: the route has decided whether threads take part


def _loops() -> tuple[Any, Any, Any, Any]:
    from ...kernels.cpu.convolution import (
        depthwise,
        depthwise_small,
        depthwise_stride1,
        depthwise_strided,
    )

    return depthwise, depthwise_stride1, depthwise_strided, depthwise_small


class _Depthwise(Route):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes)
        # A multiplication takes some ten times what it takes in a product of matrices.
        if sizes.compiled and 8 * sizes.work >= thresholds.PRODUCT_THREAD:
            self.threads = threads.LIMIT

    def split(self, kernel, count: int, *arguments) -> None:
        """Call ``kernel(*arguments, start, stop)`` for chunks of ``count`` channels."""
        if self.threads == 1:
            kernel(*arguments, 0, count)
        else:
            parallel_range(kernel, _MUCH, count, *arguments)


class Sliding(_Depthwise):
    """Planes with windows that are one apart: neighbors stay in registers."""

    def run(self, xp, scratch, x, weight, y, bias=None) -> None:
        """Fill the array of the side; see :class:`Route`."""
        loops = _loops()[1]
        sizes, low, dilation = self.sizes, self.sizes.low, tuple(self.sizes.dilation)
        windows, given = weight.reshape(weight.shape[0], *sizes.kernel), given_bias(weight, bias)
        if sizes.side == OUT:
            self.split(loops.slide, y.shape[1], y, x, windows, given, low, dilation, False)
        elif sizes.side == INPUT:  # which is the convolution with windows turned around
            low = tuple(
                (k - 1) * d - p for k, d, p in zip(sizes.kernel, dilation, low, strict=True)
            )
            self.split(loops.slide, x.shape[1], x, y, windows, given, low, dilation, True)
        else:
            self.split(loops.slide_weight, weight.shape[0], windows, x, y, low, dilation)


class SlidingStrided(_Depthwise):
    """Planes with windows that are more than one apart: the same, by phases of the stride."""

    @property
    def scratch(self) -> tuple[tuple[int, ...], ...]:
        """For each thread a copy of a plane, with room around."""
        found = [(self.threads * n,) for n in self.rooms()]
        return (*found, (0,)) if self.sizes.side == WEIGHT else tuple(found)

    def rooms(self) -> list[int]:
        """Elements of the copies that a thread needs; a group may reach beyond what is used."""
        sizes = self.sizes
        (height, width), (lines, wide) = sizes.input[2:], sizes.out
        (high, across), (down, beside) = sizes.kernel, sizes.stride
        lanes = _GROUP // sizes.itemsize
        margin = sizes.low[1] + across + lanes
        if sizes.side == INPUT:
            planes = sizes.filters * lines * wide
            spare = (_LINES + high + 2) * wide + width + across + sizes.low[1] + 2 * lanes
            return [margin + planes + spare]
        rows = beside * height + _LINES * down + high + 2
        spare = wide + across + _TAPS + 2 * lanes
        phases = margin + rows * ceil_div(width, beside) + spare
        return [phases] if sizes.side == OUT else [phases, lines * wide + 2 * lanes]

    def run(self, xp, scratch, x, weight, y, bias=None) -> None:
        """Fill the array of the side; see :class:`Route`."""
        loops = _loops()[2]
        sizes, rooms = self.sizes, self.rooms()
        steps = tuple(sizes.stride), tuple(sizes.low)
        windows, given = weight.reshape(weight.shape[0], *sizes.kernel), given_bias(weight, bias)
        kernel: Any = loops.slide_strided
        count, arrays = y.shape[1], [y, x, windows, given]
        if sizes.side == INPUT:
            kernel = loops.slide_strided_back
            count, arrays = x.shape[1], [x, y, windows]
        elif sizes.side == WEIGHT:
            kernel = loops.slide_strided_weight
            count, arrays = weight.shape[0], [windows, x, y]

        def body(worker: int, start: int, stop: int) -> None:
            own = [s[worker * n : (worker + 1) * n] for s, n in zip(scratch, rooms, strict=False)]
            kernel(*arrays, *own, *steps, start, stop)

        threads.parallel_chunks(body, count, self.threads)


class SmallPlanes(_Depthwise):
    """Planes whose lines do not fill a register: a group of channels side by side."""

    @property
    def scratch(self) -> tuple[tuple[int, ...], ...]:
        """For each thread a group of planes of the input and of the result, and of windows."""
        found = (self.threads * self.room(),)
        return (found, (0,), (0,)) if self.sizes.side == WEIGHT else (found,)

    def room(self) -> int:
        """Elements that a thread needs."""
        sizes = self.sizes
        lanes = _GROUP // sizes.itemsize
        pixels = prod(sizes.input[2:]) + prod(sizes.out) + prod(sizes.kernel)
        return lanes * pixels + _PAGE // sizes.itemsize

    def run(self, xp, scratch, x, weight, y, bias=None) -> None:
        """Fill the array of the side; see :class:`Route`."""
        loops, sizes = _loops()[3], self.sizes
        steps = tuple(sizes.stride), tuple(sizes.low), tuple(sizes.dilation)
        windows, given = weight.reshape(weight.shape[0], *sizes.kernel), given_bias(weight, bias)
        kernel: Any = loops.small_planes
        count, arrays = y.shape[1], [y, x, windows, given]
        if sizes.side == INPUT:
            kernel = loops.small_planes_back
            count, arrays = x.shape[1], [x, y, windows]
        elif sizes.side == WEIGHT:
            kernel = loops.small_planes_weight
            arrays = [windows, x, y]
        parts = ceil_div(count, _GROUP // sizes.itemsize)
        parts *= 1 if sizes.side == WEIGHT else sizes.batch

        taken = np.zeros(self.threads, np.int64)
        self.split(kernel, parts, *arrays, scratch[0].reshape(self.threads, -1), taken, *steps)


class Depthwise(_Depthwise):
    """Signals, volumes, and planes with a stride and a dilation: plain loops."""

    def run(self, xp, scratch, x, weight, y, bias=None) -> None:
        """Fill the array of the side; see :class:`Route`."""
        loops = _loops()[0]
        sizes = self.sizes
        steps = as_3d(sizes.stride, 1), as_3d(sizes.low, 0), as_3d(sizes.dilation, 1)
        windows, given = weight.reshape(-1, *as_3d(sizes.kernel, 1)), given_bias(weight, bias)
        x, y = volumes(x), volumes(y)
        if sizes.side == OUT:
            self.split(loops.depthwise, weight.shape[0], y, x, windows, given, *steps)
        elif sizes.side == INPUT:
            self.split(loops.depthwise_input_grad, x.shape[1], x, y, windows, *steps)
        else:
            self.split(loops.depthwise_weight_grad, weight.shape[0], windows, x, y, *steps)
