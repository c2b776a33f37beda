"""How a convolution is cut into tiles, and how images become columns.

A tile is a few images, or a few lines of one image, such that its columns stay in the cache; the
workspace is that of a tile for each thread, whatever the batch. :class:`Tiling` knows sizes only,
and is the same on every device.
"""

from __future__ import annotations

from itertools import product
from math import prod

from ...kernels.runtime import blas, threads

TILE = 1 << 20  # bytes of columns at a time; about half of a core's second-level cache
_WORTH = 1 << 23  # operations below which another thread costs more than it saves


def output_size(n: int, k: int, stride: int, padding: tuple[int, int], dilation: int) -> int:
    """How many positions a window of ``k`` has along a dimension of ``n``."""
    return (n + sum(padding) - dilation * (k - 1) - 1) // stride + 1


def reach(offset: int, n: int, out: int, stride: int, low: int) -> tuple[slice, slice]:
    """Where one window element falls inside the input, along one dimension.

    Args:
        offset: Of the element in the window, dilation included.
        n: Size of the input.
        out: Number of window positions.
        stride: Between them.
        low: Padding before the input.

    Returns:
        (positions, elements): slices of equal length into the output and the input.
    """
    first = max(0, -((offset - low) // stride))  # ceil((low - offset) / stride)
    last = min(out, (n - 1 + low - offset) // stride + 1)
    if last <= first:
        return slice(0, 0), slice(0, 0)
    start = first * stride + offset - low
    return slice(first, last), slice(start, start + (last - first - 1) * stride + 1, stride)


class Tiling:
    """Sizes of a convolution, and its tiles.

    Args:
        input: Its shape.
        weight: Its shape.
        out: Sizes of the result's spatial dims.
        stride: Per spatial dim, as the next two.
        padding: Pairs.
        dilation: Of the window.
        groups: Independent blocks of channels.
        where: The type of the device; threads of ours take part on "cpu", and "meta" foretells it.
    """

    def __init__(self, input, weight, out, stride, padding, dilation, groups, where=None) -> None:
        self.batch, self.channels, *self.size = input
        self.kernel = tuple(weight[2:])
        self.out = tuple(out)
        self.stride, self.padding, self.dilation, self.groups = stride, padding, dilation, groups
        self.per_group = self.channels // groups  # input channels
        self.filters = weight[0] // groups  # output channels of a group
        self.rows = self.channels * prod(self.kernel)  # of the columns of one image
        self.taps = self.rows // groups
        self.depthwise = self.per_group == 1 and groups > 1
        work = 2 * self.rows * self.filters * self.batch * prod(self.out)
        # Threads that a loop may use; and those that take some images each, with BLAS to itself.
        self.threads = threads.LIMIT if where in ("cpu", "meta") and work >= _WORTH else 1
        shared = self.batch >= self.threads and blas.controllable()
        self.workers = self.threads if shared else 1
        self.sliding = len(self.kernel) == 2 and tuple(stride) == (1, 1)
        self.pointwise = prod(self.kernel) == 1 and prod(stride) == 1 and not any(map(any, padding))

    def tile(self, itemsize: int) -> tuple[int, int]:
        """Images per tile, and rows of the first output dimension per tile."""
        line = max(1, self.rows * prod(self.out[1:]) * itemsize)
        lines = max(1, TILE // line)
        # Matrix products want a few hundred columns, also where that breaks the cache.
        lines = max(lines, -(-128 // max(1, prod(self.out[1:]))))
        if lines >= self.out[0]:
            images = min(lines // max(1, self.out[0]), -(-self.batch // self.workers))
            return max(1, images), max(1, self.out[0])
        return 1, -(-self.out[0] // -(-self.out[0] // lines))  # tiles of about equal height

    def columns(self, itemsize: int) -> int:
        """Elements of the columns of one tile."""
        images, lines = self.tile(itemsize)
        return self.rows * images * lines * prod(self.out[1:])

    def tiles(self, itemsize: int, start: int, stop: int):
        """(first image, last, first line, last) of each tile of the images ``start:stop``."""
        images, lines = self.tile(itemsize)
        for n in range(start, stop, images):
            for r in range(0, self.out[0], lines):
                yield n, min(n + images, stop), r, min(r + lines, self.out[0])

    def shifts(self, first: int, last: int):
        """For each window element and the output lines ``first:last``.

        Yields (index, positions, elements): the element's index in the window; slices into the
        tile's output positions; slices into the input.
        """
        axes = []
        for d, k in enumerate(self.kernel):
            low, n, out, s = self.padding[d][0], self.size[d], self.out[d], self.stride[d]
            if d == 0:  # as if the input began where these lines look
                low, out = low - first * s, last - first
            axes.append([(j, *reach(j * self.dilation[d], n, out, s, low)) for j in range(k)])
        for taps in product(*axes):
            yield (
                tuple(t[0] for t in taps), tuple(t[1] for t in taps), tuple(t[2] for t in taps)
            )  # fmt: skip

    def geometry(self, first: int, last: int):
        """(positions, window, stride, padding before, dilation) of lines, in three dimensions."""
        nd = len(self.kernel)
        low = [p[0] for p in self.padding]
        low[0] -= first * self.stride[0]
        ones, zeros = (1,) * (3 - nd), (0,) * (3 - nd)
        return (
            (*ones, last - first, *self.out[1:]), (*ones, *self.kernel), (*ones, *self.stride),
            (*zeros, *low), (*ones, *self.dilation),
        )  # fmt: skip

    def volumes(self, images):
        """Images (count, channels, ...) as five-dimensional ones."""
        return images.reshape(-1, self.channels, *[1] * (3 - len(self.kernel)), *self.size)


def _tile(xp, plan, columns, count, first, last, beside):
    # The columns with the window's dims in front: (*window, count, channels, *positions).
    nd = len(plan.kernel)
    span = (last - first, *plan.out[1:])
    if beside:
        tile = columns.reshape(plan.channels, *plan.kernel, count, *span)
        return xp.moveaxis(tile, (*range(1, 1 + nd), 1 + nd), range(nd + 1))
    tile = columns.reshape(count, plan.channels, *plan.kernel, *span)
    return xp.moveaxis(tile, range(2, 2 + nd), range(nd))


def unroll(xp, plan, columns, images, first, last, beside=False) -> None:
    """Copy what each window element meets at the output lines ``first:last``, 0 in the padding.

    Args:
        xp: The array module.
        plan: The tiling.
        columns: Flat, written: (images, channels, window, positions); with ``beside`` the images
            lie side by side: (channels, window, images, positions).
        images: (images, channels, ...).
        first: Line of the output.
        last: The line after the last.
        beside: See ``columns``.
    """
    tile = _tile(xp, plan, columns, images.shape[0], first, last, beside)
    full = (slice(0, last - first), *[slice(0, n) for n in plan.out[1:]])
    for taps, positions, elements in plan.shifts(first, last):
        target = tile[taps]
        if positions != full:
            target.fill(0)
        xp.copyto(target[(..., *positions)], images[(..., *elements)])


def roll(xp, plan, columns, images, first, last) -> None:
    """Add columns to where :func:`unroll` takes them from."""
    tile = _tile(xp, plan, columns, images.shape[0], first, last, False)
    for taps, positions, elements in plan.shifts(first, last):
        view = images[(..., *elements)]
        xp.add(view, tile[taps][(..., *positions)], out=view)
