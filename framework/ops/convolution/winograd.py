"""Winograd's route: windows of 3 x 3 in float32, with 16 multiplications in place of 36.

The loops are those of ``kernels/cpu/convolution/winograd.py``; here are their blocks. Sizes alone
decide, so scratch is the same on ``meta`` as on a CPU.

The route is as exact as the direct one where numbers are of like magnitudes: its error is that of
the largest number in 4 x 4 pixels. An image with numbers that are much larger than most, or with
results that are not finite, is computed directly. So an image's result does not depend on others.
For the weight's gradient, which is a sum over images, that holds for all of it.
"""

from __future__ import annotations

from math import prod

import numpy as np

from ...kernels.common.schedule import parallel_range
from ...kernels.cpu.compiler import processor
from .direct import Direct, DirectWeight
from .sizes import INPUT, WEIGHT, Route, Sizes, ceil_div, given_bias

# Bytes of a block: its transformed pixels and their sums. 64 x 64 x 16 x 16: 7.1 ms at 2^20, 7.6 at
# 2^21, 7.3 at 2^19.
BLOCK = 1 << 20
# Bytes of transformed windows. If there are more, the rows are computed in parts, which transform
# the pixels again.
WINDOWS = 1 << 22
# Bytes of the totals of a weight's gradient that a thread has. 512 x 512 windows, 8 images of
# 7 x 7: 15.9 ms at 2^21, 15.6 at 2^22.
TOTALS = 1 << 21
# Powers of two by which the largest number of an image may be above the mean. An error of 2^12 *
# 2^-24 is that of a sum of some hundred products.
ABOVE = 12
# Channels and filters, and tiles, from which on the transformations repay. 16 channels: 0.66 ms,
# and 0.85 directly; 128 tiles of 512 channels: 17.8, 25.6; 16 tiles of 64: 0.15, 0.10.
FEWEST, FEWEST_TILES = 16, 96
FEWEST_OF_WEIGHT = 24  # channels, in the weight's gradient: 16 take 1.2 ms, and 0.9 directly
_ROWS, _NUMBERS, _TOGETHER, _APART = 8, 16, 3, 80  # as the kernel has them
_MUCH = 1 << 40  # additions: the route has decided whether threads take part


def _loops():
    from ...kernels.cpu.convolution import winograd, winograd_weight

    return winograd, winograd_weight


def repays(sizes: Sizes) -> bool:
    """Whether the route takes such a convolution, and is faster than the direct one."""
    height, width = sizes.input[2:] if sizes.side == INPUT else sizes.out
    tiles = sizes.batch * ceil_div(height, 2) * ceil_div(width, 2)
    filters, channels = sizes.weight[:2]
    if sizes.side == WEIGHT and channels < FEWEST_OF_WEIGHT:
        return False
    return min(filters, channels) >= FEWEST and tiles >= FEWEST_TILES


class Winograd(Route):
    """The result of a convolution with neighboring windows of 3 x 3, or the input's gradient."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes)
        self.back = sizes.side == INPUT
        filters, channels = sizes.weight[:2]
        self.rows, self.steps = (channels, filters) if self.back else (filters, channels)
        height, width = sizes.input[2:] if self.back else sizes.out
        self.high, self.wide = ceil_div(height, 2), ceil_div(width, 2)
        self.padding = tuple((2 - p if self.back else p) for p in sizes.low)
        panels = ceil_div(self.rows, _ROWS)
        each = _NUMBERS * self.steps * _ROWS * sizes.itemsize  # of a panel
        parts = ceil_div(panels, max(1, WINDOWS // each))
        self.panels = ceil_div(panels, parts)  # at a time
        self.lanes = processor.register_bytes() // sizes.itemsize
        self.block, self.parts = self._divide()
        self.direct = Direct(sizes._replace(input=(1, *sizes.input[1:])))  # of one image

    def _divide(self) -> tuple[int, int]:
        # Lines of tiles of a block, and parts of the rows that units of work are: what takes least,
        # counted in rows of a tile. Pixels take about as much as four rows to transform.
        tile = _NUMBERS * (self.steps + self.panels * _ROWS) * self.sizes.itemsize
        together = _TOGETHER * self.lanes
        total = self.sizes.batch * self.high
        most = max(3 * BLOCK // 2 // (tile * self.wide), ceil_div(together, self.wide))
        parts = [p for p in (1, 2, 4, 8, 16, 32) if p == 1 or p <= min(self.threads, self.panels)]

        def cost(lines: int, parts: int) -> float:
            tiles = lines * self.wide
            filled = ceil_div(tiles, together) * together
            rounds = ceil_div(ceil_div(total, lines) * parts, self.threads)
            sums = rounds * filled * ceil_div(self.panels, parts) * _ROWS
            pixels = 4 * total * self.wide * parts / self.threads
            return (sums + pixels) * (1 if tiles * tile <= BLOCK else 1.03)

        pairs = [(n, p) for n in range(1, min(most, total) + 1) for p in parts]
        return min(pairs, key=lambda pair: (cost(*pair), -pair[0]))

    def room(self) -> int:
        """Elements that a thread needs."""
        together = _TOGETHER * self.lanes
        tiles = ceil_div(self.block * self.wide, together) * together
        numbers = _NUMBERS * ((self.steps + self.panels * _ROWS) * tiles + 2 * _APART)
        lines = 2 * (min(self.high, self.block) + 1) * 2 * (self.wide + 1 + self.lanes)
        images = self.block // self.high + 2
        return ceil_div(numbers + lines + (5 + images) * self.lanes, 16) * 16

    @property
    def scratch(self) -> tuple[tuple[int, ...], ...]:
        """One buffer: transformed windows, and for each thread a block; or the direct route's."""
        windows = _NUMBERS * self.panels * self.steps * _ROWS
        return ((max(windows + self.threads * self.room(), *self.direct.scratch[0]),),)

    def run(self, xp, scratch, x, weight, y, bias=None) -> None:
        """Fill the array of the side; see :class:`Route`."""
        loops, workspace = _loops()[0], scratch[0]
        out, source = (x, y) if self.back else (y, x)
        given, bits = given_bias(weight, bias), source.view(np.int32).reshape(-1)
        windows = workspace[: _NUMBERS * self.panels * self.steps * _ROWS]
        rooms = workspace[len(windows) :][: self.threads * self.room()]
        rooms = rooms.reshape(self.threads, self.room())
        taken = np.zeros(self.threads, np.int64)
        marked = np.zeros(self.sizes.batch, np.int64)
        blocks = ceil_div(self.sizes.batch * self.high, self.block)
        noted = np.zeros((blocks, self.block // self.high + 2, 3), np.int64)
        work = _MUCH if self.threads > 1 else 0
        for first in range(0, self.rows, self.panels * _ROWS):
            count = min(self.panels * _ROWS, self.rows - first)
            panels = ceil_div(count, _ROWS)
            some = windows[: _NUMBERS * panels * self.steps * _ROWS]
            parallel_range(
                loops.transform_windows, work, panels, some, weight, self.back, first, count
            )
            arrays = (out, source, bits, some, given, rooms, taken, marked, noted)
            options = (self.padding, self.block, (first, count), self.parts)
            parallel_range(loops.winograd, work, blocks * self.parts, *arrays, *options)
        for n in (marked | self._uneven(noted)).nonzero()[0]:
            self.direct.run(xp, scratch, x[n : n + 1], weight, y[n : n + 1], bias)

    def _uneven(self, noted):
        # For each image, 1 if its largest number is far above the mean of those that are not zero.
        of_image = np.zeros((self.sizes.batch + noted.shape[1], 3), np.int64)
        for k, block in enumerate(noted):
            here = of_image[k * self.block // self.high :][: len(block)]
            np.maximum(here[:, 0], block[:, 0], out=here[:, 0])
            here[:, 1:] += block[:, 1:]
        largest, total, count = of_image[: self.sizes.batch].T
        return ((largest - ABOVE) * count > total).astype(np.int64)


class WinogradWeight(Route):
    """The gradient of a weight of 3 x 3 windows.

    Threads take a part of the blocks each, with totals of their own, where these are few. Else they
    take some filters each, and transform the pixels themselves.
    """

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes)
        filters, channels = sizes.weight[:2]
        self.high, self.wide = (ceil_div(n, 2) for n in sizes.out)
        lanes = processor.register_bytes() // sizes.itemsize
        self.pitch = max(2, ceil_div(channels, lanes)) * lanes
        panels = ceil_div(filters, _ROWS)
        panel = _NUMBERS * _ROWS * self.pitch * sizes.itemsize
        self.parts = self.threads if panels * panel <= TOTALS else 1
        some = panels
        if self.parts == 1:
            units = max(self.threads, ceil_div(panels * panel, TOTALS))
            some = ceil_div(panels, min(units, panels))
        self.rows = some * _ROWS
        tile = _NUMBERS * (self.pitch + self.rows) * sizes.itemsize
        most = max(1, ceil_div(sizes.batch * self.high, self.parts))
        self.block = min(max(1, BLOCK // tile // self.wide), most)
        self.direct = DirectWeight(sizes)

    def room(self) -> int:
        """Elements that a thread needs."""
        tiles, lines = self.block * self.wide, min(self.high, self.block)
        numbers = self.rows * self.pitch + tiles * (self.pitch + self.rows) + 3 * _APART
        pixels = (2 * lines + 2) * (2 * self.wide + 2) * self.pitch
        results = 2 * lines * 2 * self.wide * _ROWS
        return ceil_div(_NUMBERS * numbers + pixels + results, 16) * 16

    @property
    def scratch(self) -> tuple[tuple[int, ...], ...]:
        """One buffer: for each thread totals and a block; or all that the direct route needs."""
        directly = sum(map(prod, self.direct.scratch))
        return (max(self.threads * self.room(), directly),), (0,), (0,)

    def run(self, xp, scratch, x, weight, y, bias=None) -> None:
        """Fill the array of the side; see :class:`Route`."""
        loops, sizes = _loops()[1], self.sizes
        workspace = scratch[0]
        rooms = workspace[: self.threads * self.room()].reshape(self.threads, self.room())
        marked = np.zeros(1, np.int64)
        units = self.parts * ceil_div(sizes.weight[0], self.rows)
        bits = (a.view(np.int32).reshape(-1) for a in (x, y))
        arrays = [array for pair in zip((x, y), bits, strict=True) for array in pair]
        taken = np.zeros(self.threads, np.int64)
        options = (ABOVE, tuple(sizes.low), self.block, self.rows, self.parts)
        work = _MUCH if self.threads > 1 else 0
        parallel_range(
            loops.winograd_weight, work, units, weight, *arrays, rooms, taken, marked, *options
        )
        if self.parts > 1:
            panels = ceil_div(sizes.weight[0], _ROWS)
            finish = (weight, marked, rooms, self.rows, self.pitch)
            parallel_range(loops.finish_weight, work, panels, *finish)
        if marked[0]:
            places, found = 0, []
            for shape in self.direct.scratch:
                found.append(workspace[places : places + prod(shape)].reshape(shape))
                places += prod(shape)
            self.direct.run(xp, found, x, weight, y, bias)
