"""The tiles and tables of a direct convolution (``kernels/cpu/convolution/direct.py``).

All is three-dimensional here, with sizes of 1 in front. A tile is a few images, or a few lines of
one, whose layout with padding stays in the cache. Sizes alone decide, so ``infer`` and the kernel
come to the same plan, on ``meta`` as on a CPU.

Threads take images each. Where there are fewer images than threads, or where each would need a
large sum of its own, they take blocks of eight rows instead, and each lays out its images itself.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import product
from math import prod

import numpy as np

from ...kernels.runtime import threads

TILE = 3 << 18  # bytes of a tile; it stays in a core's second-level cache
_WORTH = 1 << 23  # operations below which another thread costs more than it saves
_GROUP, _ROWS, _TOGETHER = 64, 8, 3  # as in registers.py, which imports Numba
_PRODUCTS = 768  # at most that are summed up before they are added to the result
_POSITIONS = 768  # of a tile at least: the weights that are laid out for each are to repay
_LARGE = 1 << 20  # bytes of sums of which not each thread has its own
_SUMS = 1 << 21  # bytes of sums at a time; where they are more, images are laid out again


def _solid(values, missing):
    values = tuple(values)
    return (missing,) * (3 - len(values)) + values


def _up(n, k):
    return -(-n // k)


def windows(*sizes, back=False):
    """The plan of a result or with ``back`` of the input's gradient; see :class:`Windows`."""
    return _plan(Windows, sizes, back, TILE, threads.LIMIT, _POSITIONS, _PRODUCTS, _WORTH)


def weight_grad(*sizes):
    """The plan of the weight's gradient; see :class:`WeightGrad`."""
    return _plan(WeightGrad, sizes, None, TILE, threads.LIMIT, _POSITIONS, _PRODUCTS, _WORTH)


@lru_cache(maxsize=256)
def _plan(kind, sizes, back, *_):  # the settings are part of the key, for tests
    return kind(*sizes) if back is None else kind(*sizes, back=back)


class _Direct:
    # Sizes in three dimensions, threads, and the choice of a tile.

    def __init__(self, input, weight, out, stride, padding, dilation, groups, itemsize) -> None:
        self.batch = input[0]
        self.groups = groups
        self.size, self.out = _solid(input[2:], 1), _solid(out, 1)
        self.kernel, self.stride = _solid(weight[2:], 1), _solid(stride, 1)
        self.low, self.dilation = _solid((p[0] for p in padding), 0), _solid(dilation, 1)
        self.axis = 3 - len(out)  # the dimension that tiles are cut along
        self.lanes = _GROUP // itemsize
        self.itemsize = itemsize
        self.taps = list(product(*map(range, self.kernel)))
        work = 2 * prod(weight) * self.batch * prod(out)
        self.threads = threads.LIMIT if work >= _WORTH else 1

    def _share(self, rows, by_image):
        # Who works on what: `workers`, and for each call of the kernel images and blocks.
        self.blocks = self.groups * _up(rows, _ROWS)
        self.by_image = by_image and self.batch >= self.threads
        self.workers = self.threads if self.by_image else min(self.threads, self.blocks)

    def _choose(self, lines):
        # Images and lines of a tile, from self.room(images, lines), in elements.
        limit = TILE // self.itemsize
        one, fixed = self.room(1, lines), self.room(1, 0)
        area = prod(self.out)
        if one <= limit or area < _POSITIONS:
            share = _up(self.batch, self.workers) if self.by_image else self.batch
            fit = max(limit // max(1, one), _up(_POSITIONS, max(1, area)))
            return max(1, _up(share, _up(share, fit))), max(1, lines)
        fit = max(1, (limit - fixed) * lines // (one - fixed), _POSITIONS * lines // area)
        return 1, _up(lines, _up(lines, fit))  # tiles of about equal height

    def tiles(self, start, stop, lines):
        """(first image, last, first line, last) of each tile of the images ``start:stop``."""
        images, high = self.tile
        for n in range(start, stop, images):
            for r in range(0, lines, high):
                yield n, min(n + images, stop), r, min(r + high, lines)

    def run(self, body):
        """Call ``body(worker, images, blocks)``, side by side."""

        def images(worker, start, stop):
            body(worker, (start, stop), (0, self.blocks))

        def blocks(worker, start, stop):
            body(worker, (0, self.batch), (start, stop))

        if not self.batch:
            return
        count = self.batch if self.by_image else self.blocks
        threads.parallel_chunks(images if self.by_image else blocks, count, self.workers)


class Windows(_Direct):
    """The result of a convolution, or with ``back`` the gradient of its input.

    Args:
        input: Shape of the convolution's input.
        weight: Of its weight.
        out: Sizes of its result's spatial dims.
        stride: Per spatial dim, as the next two.
        padding: Pairs.
        dilation: Of the window.
        groups: Independent blocks of channels.
        itemsize: Of what is computed with.
        back: Whether its gradient is wanted.
    """

    def __init__(self, *sizes, back=False) -> None:
        super().__init__(*sizes)
        weight, groups = sizes[1], self.groups
        filters, per, count = weight[0] // groups, weight[1], len(self.taps)
        self.back = back
        rows, self.channels = (per, filters) if back else (filters, per)
        self.strides = (count, per * count) if back else (per * count, count)
        # Element t of a window is in phase t * dilation % stride, and so many positions further on.
        reach = [[t * d for t in range(k)] for k, d in zip(self.kernel, self.dilation, strict=True)]
        self.shift = [[t // s for t in ts] for ts, s in zip(reach, self.stride, strict=True)]
        self.phase = [[t % s for t in ts] for ts, s in zip(reach, self.stride, strict=True)]
        used = [sorted(set(p)) for p in self.phase]
        self.phases = list(product(*map(range, self.stride) if back else used))
        self.margin = [max(s) for s in self.shift]
        if back:
            # Positions that lead to each phase of the input; the first and the last of all.
            self.first = [low // s for low, s in zip(self.low, self.stride, strict=True)]
            last = [(n - 1 + low) // s for n, low, s in
                    zip(self.size, self.low, self.stride, strict=True)]  # fmt: skip
            self.positions = tuple(b - a + 1 for a, b in zip(self.first, last, strict=True))
        else:
            self.first, self.positions = [0, 0, 0], self.out
        self._share(rows, True)
        chunk = max(1, _PRODUCTS // count)
        self.packed = _ROWS * count * _up(self.channels, _up(self.channels, chunk))
        self.tile = self._choose(self.positions[self.axis])
        self.known: dict[tuple[int, int, int], tuple[object, ...]] = {}

    def _box(self, lines):
        positions = [*self.positions]
        positions[self.axis] = lines
        return tuple(positions), tuple(p + m for p, m in zip(positions, self.margin, strict=True))

    def _parts(self, images, lines):
        # Elements of the layout, and of the sums.
        positions, box = self._box(lines)
        sources = 1 if self.back else len(self.phases)
        layout = self.channels * sources * images * prod(box) + self.lanes
        groups = min(
            images * positions[0] * positions[1] * _up(positions[2], self.lanes),
            _up(images * prod(box), self.lanes),
        )
        return layout, _ROWS * self.lanes * (_up(groups, _TOGETHER) * _TOGETHER)

    def room(self, images, lines):
        """Elements of workspace for a tile."""
        return sum(self._parts(images, lines)) + self.packed

    @property
    def elements(self):
        """Elements of workspace for all threads."""
        return self.workers * self.room(*self.tile)

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
                found.append(at + sum(
                    x[t] * p for x, t, p in zip(self.shift, tap, pitches, strict=True)
                ))  # fmt: skip
            order = range(len(self.taps))
            parts = [[0, len(self.taps), *begin, *positions]]
            step, to = self.stride, (1, 1, 1)
        else:
            origin = [f + b for f, b in zip(self.first, begin, strict=True)]
            firsts = [[o - m for o, m in zip(origin, self.margin, strict=True)]]
            order, parts = [], []
            for phase in self.phases:
                start, to_first, extent = len(order), [], []
                base = 0
                for d, f in enumerate(phase):
                    stride, low = self.stride[d], self.low[d]
                    a = max(origin[d], _up(low - f, stride))
                    b = min(origin[d] + positions[d], (self.size[d] - 1 + low - f) // stride + 1)
                    base += (a - origin[d]) * pitches[d]
                    to_first.append(a * stride + f - low)
                    extent.append(b - a)
                for k, tap in enumerate(self.taps):
                    if all(p[t] == f for p, t, f in zip(self.phase, tap, phase, strict=True)):
                        order.append(k)
                        found.append(base + sum(
                            (m - x[t]) * p for m, x, t, p in
                            zip(self.margin, self.shift, tap, pitches, strict=True)
                        ))  # fmt: skip
                parts.append([start, len(order), *to_first, *extent])
            step, to = (1, 1, 1), self.stride
        firsts, order, found, parts = (
            np.array(a, dtype=np.int64) for a in (firsts, list(order), found, parts)
        )
        return firsts, step, box, order, found, parts, to

    def fill(self, out, workspace, x, weight, bias):
        """Run the kernel: ``out`` and ``x`` are five-dimensional, ``workspace`` flat."""
        from ...kernels.cpu.convolution.direct import convolve

        share = len(workspace) // self.workers
        lines = self.positions[self.axis]
        flat = weight.reshape(-1)
        given = flat[:0] if bias is None else bias

        def body(worker, images, blocks):
            room = workspace[worker * share : (worker + 1) * share]
            known = self.known
            for n, m, r, s in self.tiles(*images, lines):
                if (m - n, r, s) not in known:
                    known[m - n, r, s] = self._tables(m - n, r, s)
                layout, sums = self._parts(m - n, s - r)
                convolve(
                    out, room[:layout], room[layout : layout + sums],
                    room[layout + sums : layout + sums + self.packed], x, flat, given, self.groups,
                    (n, m), blocks, self.strides, *known[m - n, r, s],
                )  # fmt: skip

        self.run(body)


class WeightGrad(_Direct):
    """The gradient of a convolution's weight; the arguments are those of :class:`Windows`."""

    def __init__(self, *sizes) -> None:
        super().__init__(*sizes)
        weight = sizes[1]
        filters, self.channels = weight[0] // self.groups, weight[1]
        # Where groups of neighbors begin is the same in every tile: pitches that differ do not
        # matter along dimensions where the window is 1, and tiles are cut along the first other.
        _, box = self._box(self.out[self.axis])
        pitches = (box[1] * box[2], box[2], 1)
        starts: list[int] = []
        self.places = []
        for tap in self.taps:
            at = sum(
                t * d * p for t, d, p in zip(tap, self.dilation, pitches, strict=True)
            ) * self.channels  # fmt: skip
            if not starts or at >= starts[-1] + self.lanes:
                starts.append(at)
            self.places.append((len(starts) - 1) * self.lanes + at - starts[-1])
            while at + self.channels > starts[-1] + self.lanes:
                starts.append(starts[-1] + self.lanes)
        starts += starts[-1:] * (-len(starts) % _TOGETHER)
        self.starts = starts
        self.pitch = len(starts) * self.lanes
        self._share(filters, True)
        one = _ROWS * self.pitch
        self.some = self.blocks  # at a time
        if self.blocks * one * self.itemsize > _LARGE:
            self._share(filters, False)
            share = _up(self.blocks, self.workers)
            fit = max(1, _SUMS // (one * self.itemsize))
            self.some = _up(share, _up(share, fit))
        self.sums = self.some * one
        self.tile = self._choose(self.out[self.axis])

    def _box(self, lines):
        extent = [*self.out]
        extent[self.axis] = lines
        return tuple(extent), tuple(
            max(0, (n - 1) * s) + (k - 1) * d + 1
            for n, s, k, d in zip(extent, self.stride, self.kernel, self.dilation, strict=True)
        )

    def parts(self, images, lines):
        """Elements of a tile's layout, and of its part of the gradient of the result."""
        extent, box = self._box(lines)
        return self.channels * images * prod(box) + self.lanes, _ROWS * images * prod(extent)

    def room(self, images, lines):
        """Elements of both."""
        return sum(self.parts(images, lines))

    def fill(self, out, columns, rows, sums, x, grad):
        """Run the kernel: ``x`` and ``grad`` are five-dimensional, ``sums`` has a row each."""
        from ...kernels.cpu.convolution.direct import collect, sum_windows

        layout, packed = (len(a) // self.workers for a in (columns, rows))
        starts, places = (np.array(a, dtype=np.int64) for a in (self.starts, self.places))
        window = out.reshape(*out.shape[:2], -1)

        def body(worker, images, blocks):
            room, other = columns[worker * layout :], rows[worker * packed :]
            total = sums[worker : worker + 1]
            for b in range(*blocks, self.some):
                end = min(b + self.some, blocks[1])
                total.fill(0)
                for n, m, r, s in self.tiles(*images, self.out[self.axis]):
                    extent, box = self._box(s - r)
                    origin = [0, 0, 0]
                    origin[self.axis] = r
                    first = tuple(
                        o * t - low for o, t, low in zip(origin, self.stride, self.low, strict=True)
                    )
                    offsets = np.arange(extent[2]) * (self.stride[2] * self.channels)
                    sum_windows(
                        total[0], room[:layout], other[:packed], x, grad, self.groups, (n, m),
                        (b, end), first, self.stride, box, tuple(origin), extent, starts, offsets,
                    )  # fmt: skip
                if not self.by_image:
                    collect(window, total, self.groups, (b, end), places, self.pitch)

        self.run(body)
        if self.by_image:
            collect(window, sums, self.groups, (0, self.blocks), places, self.pitch)
