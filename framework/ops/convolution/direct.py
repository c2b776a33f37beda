"""Direct routes: no columns, products are summed up where they are read.

The loops are those of ``kernels/cpu/convolution/direct.py``; here are their tiles and tables. All
is three-dimensional, with sizes of 1 in front. A tile is a few images, or a few lines of one, whose
layout with padding stays in the cache. Rows are taken by panels of eight: filters, or channels for
the gradient of the input. Sizes alone decide, so scratch is the same on ``meta`` as on a CPU.

Each thread takes a chunk of the images. Where there are fewer images than threads, or where each
would need a large sum of its own, it takes a chunk of the panels, and lays out its images itself.
"""

from __future__ import annotations

from itertools import product
from math import prod

import numpy as np

from ...kernels.cpu.compiler import processor
from ...kernels.runtime import threads
from .sizes import INPUT, Route, Sizes, as_3d, ceil_div, evenly, given_bias, tiles, volumes

# Measured in float32 on an AMD EPYC with 1 MiB of second-level cache a core.
# Bytes of a tile; each thread has one. 8 x 64 x 56 x 56 by 3 x 3, one thread: 19.9 ms at 2^16 to
# 2^18, 18.2 at 2^20 to 2^22. The gradient of the weight reads a tile for each panel: 17.4 to 18.1,
# the most at 2^22.
TILE, WEIGHT_TILE = 3 << 19, 3 << 18
# At most that are summed up before they are added to the result. It is for accuracy: the error of
# 2304 random products is 2.0e-5 here, 1.5e-5 at 384 and 4.0e-5 in one sum, in the same time.
PRODUCTS = 768
# Of a tile at least: the weights that are laid out for each are to repay. Images of 7 x 7 with 512
# channels take 20 ms one by one, 14 to 17 with 192 positions or more.
POSITIONS = 768
# Bytes of sums of which not each thread has its own. No difference was seen between 2^18 and 2^24:
# it keeps the workspace small.
SHARED_SUMS = 1 << 20
# Bytes of sums at a time; where they are more, images are laid out again. 512 x 512 x 3 x 3: 41 ms
# at 2^19, 24 at 2^21 and 2^23.
SUMS = 1 << 21
# Panels that read an image together, so that a tile may be larger than the second-level cache. With
# 512 KiB of it, 8 x 128 x 28 x 28 by 3 x 3: 76 GFLOP/s with one panel, 81 here; with stride 2, 58
# and 64. No difference was seen between 4 and 8.
BESIDE = 4
_ROWS, _TOGETHER = 8, 3  # as in microkernel.py, which imports Numba


def _loops():
    from ...kernels.cpu.convolution import direct

    return direct


class _Direct(Route):
    # Sizes in three dimensions, who works on what, and the choice of a tile.

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes)
        self.batch, self.groups = sizes.batch, sizes.groups
        self.size, self.out = as_3d(sizes.input[2:], 1), as_3d(sizes.out, 1)
        self.kernel, self.stride = as_3d(sizes.kernel, 1), as_3d(sizes.stride, 1)
        self.low, self.dilation = as_3d(sizes.low, 0), as_3d(sizes.dilation, 1)
        self.axis = 3 - len(sizes.out)  # the dimension that tiles are cut along
        self.itemsize = sizes.itemsize
        self.lanes = processor.register_bytes() // self.itemsize
        self.taps = list(product(*map(range, self.kernel)))

    def room(self, images, lines):
        """Elements of scratch for a tile."""
        raise NotImplementedError

    def divide(self, rows, by_image):
        """Decide who works on what: ``workers``, and what each takes a chunk of."""
        self.panels = self.groups * ceil_div(rows, _ROWS)
        self.by_image = by_image and self.batch >= self.threads
        self.workers = self.threads if self.by_image else min(self.threads, self.panels)

    def choose_tile(self, lines, size):
        """Images and lines of a tile, such that :meth:`room` for it is ``size`` bytes at most."""
        limit = size // self.itemsize
        one, fixed = self.room(1, lines), self.room(1, 0)
        area = prod(self.out)
        if one <= limit or area < POSITIONS:
            chunk = ceil_div(self.batch, self.workers) if self.by_image else self.batch
            fit = max(limit // max(1, one), ceil_div(POSITIONS, max(1, area)))
            return max(1, evenly(chunk, fit)), max(1, lines)
        fit = max(1, (limit - fixed) * lines // (one - fixed), POSITIONS * lines // area)
        return 1, evenly(lines, fit)

    def side_by_side(self, body):
        """Call ``body(worker, images, panels)`` for each thread's chunk, side by side."""

        def images(worker, start, stop):
            body(worker, (start, stop), (0, self.panels))

        def panels(worker, start, stop):
            body(worker, (0, self.batch), (start, stop))

        if not self.batch:
            return
        count = self.batch if self.by_image else self.panels
        threads.parallel_chunks(images if self.by_image else panels, count, self.workers)


class Direct(_Direct):
    """The result of a convolution, or the gradient of its input."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes)
        filters, per, count = sizes.filters, sizes.per_group, len(self.taps)
        self.back = sizes.side == INPUT
        rows, self.channels = (per, filters) if self.back else (filters, per)
        self.strides = (count, per * count) if self.back else (per * count, count)
        # Element t of a window is in phase t * dilation % stride, and so many positions further on.
        reach = [[t * d for t in range(k)] for k, d in zip(self.kernel, self.dilation, strict=True)]
        self.shift = [[t // s for t in ts] for ts, s in zip(reach, self.stride, strict=True)]
        self.phase = [[t % s for t in ts] for ts, s in zip(reach, self.stride, strict=True)]
        used = [sorted(set(p)) for p in self.phase]
        self.phases = list(product(*map(range, self.stride) if self.back else used))
        self.margin = [max(s) for s in self.shift]
        if self.back:
            # Positions that lead to each phase of the input; the first and the last of all.
            self.first = [low // s for low, s in zip(self.low, self.stride, strict=True)]
            last = [
                (n - 1 + low) // s
                for n, low, s in zip(self.size, self.low, self.stride, strict=True)
            ]
            self.positions = tuple(b - a + 1 for a, b in zip(self.first, last, strict=True))
        else:
            self.first, self.positions = [0, 0, 0], self.out
        self.divide(rows, True)
        most = max(1, PRODUCTS // count)  # channels
        self.beside = max(1, min(BESIDE, self.panels // self.groups))
        self.packed = self.beside * _ROWS * count * evenly(self.channels, most)
        self.tile = self.choose_tile(self.positions[self.axis], TILE)
        self.known: dict[tuple[int, int, int], tuple[object, ...]] = {}

    def _box(self, lines):
        positions = [*self.positions]
        positions[self.axis] = lines
        return tuple(positions), tuple(p + m for p, m in zip(positions, self.margin, strict=True))

    def _buffers(self, images, lines):
        # Elements of the layout, and of the sums.
        positions, box = self._box(lines)
        sources = 1 if self.back else len(self.phases)
        layout = self.channels * sources * images * prod(box) + self.lanes
        groups = min(
            images * positions[0] * positions[1] * ceil_div(positions[2], self.lanes),
            ceil_div(images * prod(box), self.lanes),
        )
        sums = _ROWS * self.lanes * (ceil_div(groups, _TOGETHER) * _TOGETHER)
        return layout, self.beside * sums

    def room(self, images, lines):
        """Elements of scratch for a tile."""
        return sum(self._buffers(images, lines)) + self.packed

    @property
    def scratch(self) -> tuple[tuple[int, ...], ...]:
        """One buffer: a tile's room for each thread."""
        return ((self.workers * self.room(*self.tile),),)

    def _tables(self, count, r, s):
        # What the kernel is told about the lines r:s of so many images.
        positions, box = self._box(s - r)
        pitches = (box[1] * box[2], box[2], 1)
        begin = [0, 0, 0]
        begin[self.axis] = r
        found = []
        if not self.back:
            volume = count * prod(box)
            which = {p: k for k, p in enumerate(self.phases)}
            at = [b * t - low for b, t, low in zip(begin, self.stride, self.low, strict=True)]
            firsts = [[a + f for a, f in zip(at, p, strict=True)] for p in self.phases]
            for tap in self.taps:
                at = which[tuple(p[t] for p, t in zip(self.phase, tap, strict=True))] * volume
                found.append(
                    at + sum(x[t] * p for x, t, p in zip(self.shift, tap, pitches, strict=True))
                )
            order = range(len(self.taps))
            phases = [[0, len(self.taps), *begin, *positions]]
            step, to = self.stride, (1, 1, 1)
        else:
            origin = [f + b for f, b in zip(self.first, begin, strict=True)]
            firsts = [[o - m for o, m in zip(origin, self.margin, strict=True)]]
            order, phases = [], []
            for phase in self.phases:
                start, to_first, extent = len(order), [], []
                base = 0
                for d, f in enumerate(phase):
                    stride, low = self.stride[d], self.low[d]
                    a = max(origin[d], ceil_div(low - f, stride))
                    b = min(origin[d] + positions[d], (self.size[d] - 1 + low - f) // stride + 1)
                    base += (a - origin[d]) * pitches[d]
                    to_first.append(a * stride + f - low)
                    extent.append(b - a)
                for k, tap in enumerate(self.taps):
                    if all(p[t] == f for p, t, f in zip(self.phase, tap, phase, strict=True)):
                        order.append(k)
                        found.append(
                            base
                            + sum(
                                (m - x[t]) * p
                                for m, x, t, p in zip(
                                    self.margin, self.shift, tap, pitches, strict=True
                                )
                            )
                        )
                phases.append([start, len(order), *to_first, *extent])
            step, to = (1, 1, 1), self.stride
        firsts, order, found, phases = (
            np.array(a, dtype=np.int64) for a in (firsts, list(order), found, phases)
        )
        return firsts, step, box, order, found, phases, to

    def run(self, xp, scratch, x, weight, y, bias=None) -> None:
        """Fill the array of the side; see :class:`Route`."""
        convolve = _loops().convolve
        (workspace,) = scratch
        out, source = (x, y) if self.back else (y, x)
        out, source, flat = volumes(out), volumes(source), weight.reshape(-1)
        given = given_bias(weight, bias)
        each = len(workspace) // self.workers
        lines = self.positions[self.axis]

        def body(worker, images, panels):
            room = workspace[worker * each : (worker + 1) * each]
            known = self.known
            for n, m, r, s in tiles(*images, self.tile[0], lines, self.tile[1]):
                if (m - n, r, s) not in known:
                    known[m - n, r, s] = self._tables(m - n, r, s)
                layout, sums = self._buffers(m - n, s - r)
                convolve(
                    out,
                    room[:layout],
                    room[layout : layout + sums],
                    room[layout + sums : layout + sums + self.packed],
                    source,
                    flat,
                    given,
                    self.groups,
                    (n, m),
                    panels,
                    self.beside,
                    self.strides,
                    *known[m - n, r, s],
                )

        self.side_by_side(body)


class DirectWeight(_Direct):
    """The gradient of a convolution's weight."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes)
        filters, self.channels = sizes.filters, sizes.per_group
        # Where groups of neighbors begin is the same in every tile: pitches that differ do not
        # matter along dimensions where the window is 1, and tiles are cut along the first other.
        _, box = self._box(self.out[self.axis])
        pitches = (box[1] * box[2], box[2], 1)
        starts: list[int] = []
        self.places = []
        for tap in self.taps:
            at = (
                sum(t * d * p for t, d, p in zip(tap, self.dilation, pitches, strict=True))
                * self.channels
            )
            if not starts or at >= starts[-1] + self.lanes:
                starts.append(at)
            self.places.append((len(starts) - 1) * self.lanes + at - starts[-1])
            while at + self.channels > starts[-1] + self.lanes:
                starts.append(starts[-1] + self.lanes)
        starts += starts[-1:] * (-len(starts) % _TOGETHER)
        self.starts = starts
        self.pitch = len(starts) * self.lanes
        self.divide(filters, True)
        one = _ROWS * self.pitch
        self.some = self.panels  # at a time
        if self.panels * one * self.itemsize > SHARED_SUMS:
            self.divide(filters, False)
            fit = max(1, SUMS // (one * self.itemsize))
            self.some = evenly(ceil_div(self.panels, self.workers), fit)
        self.sums = self.some * one
        self.tile = self.choose_tile(self.out[self.axis], WEIGHT_TILE)

    def _box(self, lines):
        extent = [*self.out]
        extent[self.axis] = lines
        return tuple(extent), tuple(
            max(0, (n - 1) * s) + (k - 1) * d + 1
            for n, s, k, d in zip(extent, self.stride, self.kernel, self.dilation, strict=True)
        )

    def _buffers(self, images, lines):
        # Elements of a tile's layout, and of its lines of the gradient of the result.
        extent, box = self._box(lines)
        return self.channels * images * prod(box) + self.lanes, _ROWS * images * prod(extent)

    def room(self, images, lines):
        """Elements of scratch for a tile, without the sums."""
        return sum(self._buffers(images, lines))

    @property
    def scratch(self) -> tuple[tuple[int, ...], ...]:
        """For each thread: a tile's layout, its lines of the gradient, and sums."""
        columns, rows = (self.workers * n for n in self._buffers(*self.tile))
        return (columns,), (rows,), (self.workers, self.sums)

    def run(self, xp, scratch, x, weight, y, bias=None) -> None:
        """Fill the array of the side; see :class:`Route`."""
        loops = _loops()
        columns, rows, sums = scratch
        x, grad, out = volumes(x), volumes(y), weight.reshape(*weight.shape[:2], -1)
        layout, packed = (len(a) // self.workers for a in (columns, rows))
        starts, places = (np.array(a, dtype=np.int64) for a in (self.starts, self.places))

        def body(worker, images, panels):
            room, other = columns[worker * layout :], rows[worker * packed :]
            total = sums[worker : worker + 1]
            for b in range(*panels, self.some):
                end = min(b + self.some, panels[1])
                total.fill(0)
                for n, m, r, s in tiles(*images, self.tile[0], self.out[self.axis], self.tile[1]):
                    extent, box = self._box(s - r)
                    origin = [0, 0, 0]
                    origin[self.axis] = r
                    first = tuple(
                        o * t - low for o, t, low in zip(origin, self.stride, self.low, strict=True)
                    )
                    offsets = np.arange(extent[2]) * (self.stride[2] * self.channels)
                    loops.sum_windows(
                        total[0], room[:layout], other[:packed], x, grad, self.groups, (n, m),
                        (b, end), first, self.stride, box, tuple(origin), extent, starts, offsets,
                    )  # fmt: skip
                if not self.by_image:
                    loops.collect(out, total, self.groups, (b, end), places, self.pitch)

        self.side_by_side(body)
        if self.by_image:
            loops.collect(out, sums, self.groups, (0, self.panels), places, self.pitch)
