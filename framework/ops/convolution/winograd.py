"""Winograd's route: windows of 3 x 3 in float32, with 16 multiplications in place of 36.

The loops are those of ``kernels/cpu/convolution/winograd.py``; here are their blocks. Sizes alone
decide, so scratch is the same on ``meta`` as on a CPU.

The route is as exact as the direct one where numbers are of like magnitudes: its error is that of
the largest number in 4 x 4 pixels. An image with numbers that are much larger than most, or with
results that are not finite, is computed directly. So an image's result does not depend on others.
"""

from __future__ import annotations

import numpy as np

from ...kernels.common.schedule import parallel_range
from ...kernels.cpu.compiler import processor
from .direct import Direct
from .sizes import INPUT, Route, Sizes, ceil_div, given_bias

# Bytes of a block: its transformed pixels and their sums. 64 x 64 x 16 x 16: 7.1 ms at 2^20, 7.6 at
# 2^21, 7.3 at 2^19.
BLOCK = 1 << 20
# Bytes of transformed windows. If there are more, the rows are computed in parts, which transform
# the pixels again.
WINDOWS = 1 << 22
# Powers of two by which the largest number of an image may be above the mean. An error of 2^12 *
# 2^-24 is that of a sum of some hundred products.
ABOVE = 12
# Channels and filters, and tiles, from which on the transformations repay. 16 channels: 0.66 ms,
# and 0.85 directly; 128 tiles of 512 channels: 17.8, 25.6; 16 tiles of 64: 0.15, 0.10.
FEWEST, FEWEST_TILES = 16, 96
_ROWS, _NUMBERS, _TOGETHER, _APART = 8, 16, 3, 80  # as the kernel has them
_MUCH = 1 << 40  # additions: the route has decided whether threads take part


def repays(sizes: Sizes) -> bool:
    """Whether the route takes such a convolution, and is faster than the direct one."""
    height, width = sizes.input[2:] if sizes.side == INPUT else sizes.out
    tiles = sizes.batch * ceil_div(height, 2) * ceil_div(width, 2)
    return min(sizes.weight[:2]) >= FEWEST and tiles >= FEWEST_TILES


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
        self.block = self._block()
        self.direct = Direct(sizes._replace(input=(1, *sizes.input[1:])))  # of one image

    def _block(self) -> int:
        # Lines of tiles: as many as fit, and of these the number that fills most of the registers.
        tile = _NUMBERS * (self.steps + self.panels * _ROWS) * self.sizes.itemsize
        together = _TOGETHER * self.lanes
        fit = max(1, BLOCK // (tile * together)) * together // self.wide
        total = self.sizes.batch * self.high
        most = max(1, min(fit, ceil_div(total, self.threads)))

        def filled(lines: int) -> float:
            return lines * self.wide / (ceil_div(lines * self.wide, together) * together)

        return max(range(max(1, most // 2), most + 1), key=lambda n: (round(filled(n), 2), n))

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
        from ...kernels.cpu.convolution import winograd as loops

        workspace = scratch[0]
        out, source = (x, y) if self.back else (y, x)
        given, bits = given_bias(weight, bias), source.view(np.int32).reshape(-1)
        windows = workspace[: _NUMBERS * self.panels * self.steps * _ROWS]
        rooms = workspace[len(windows) :][: self.threads * self.room()]
        rooms = rooms.reshape(self.threads, self.room())
        taken = np.zeros(self.threads, np.int64)
        marked = np.zeros(self.sizes.batch, np.int64)
        blocks = ceil_div(self.sizes.batch * self.high, self.block)
        work = _MUCH if self.threads > 1 else 0
        for first in range(0, self.rows, self.panels * _ROWS):
            count = min(self.panels * _ROWS, self.rows - first)
            panels = ceil_div(count, _ROWS)
            some = windows[: _NUMBERS * panels * self.steps * _ROWS]
            parallel_range(
                loops.transform_windows, work, panels, some, weight, self.back, first, count
            )
            arrays = (out, source, bits, some, given, rooms, taken, marked)
            options = (ABOVE, self.padding, self.block, (first, count))
            parallel_range(loops.winograd, work, blocks, *arrays, *options)
        for n in marked.nonzero()[0]:
            self.direct.run(xp, scratch, x[n : n + 1], weight, y[n : n + 1], bias)
