"""Routes by products of matrices: 1 x 1 windows as they are, others unrolled into columns.

A tile is a few images, or a few lines of one image, such that its columns stay in the cache; the
scratch is the columns of one tile, whatever the batch. One batched product a tile does the
arithmetic. Both routes are written with the array module, and run on every device.
"""

from __future__ import annotations

from functools import partial
from itertools import product
from math import prod

from ...kernels.common.matmul import matmul_into
from ...kernels.cuda import im2col as on_gpu
from ...kernels.cuda.kernel import has_cuda
from ...kernels.runtime import blas, threads, thresholds
from .sizes import INPUT, OUT, WEIGHT, Route, Sizes, ceil_div, evenly, tiles

# Columns of a product at least, also where that breaks the cache. No difference was seen between 1
# and 512 on images of 6 x 6 with 256 channels.
WIDE = 128


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


class _Products(Route):
    # What both have of the weight: a batch of matrices, one a group; and of the result.

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes)
        self.batch, self.out = sizes.batch, tuple(sizes.out)
        self.matrix = (sizes.groups, sizes.filters, sizes.taps)
        self.result = (sizes.batch, *self.matrix[:2], prod(sizes.out))

    def bias_column(self, bias):
        """The bias, as it is added to a product."""
        return None if bias is None else bias.reshape(*self.matrix[:2], 1)


class Pointwise(_Products):
    """Windows of one element: the images are the columns.

    On a CPU each thread takes a chunk of the images, with BLAS to itself.
    """

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes)
        shared = self.batch >= self.threads and blas.controllable()
        self.workers = self.threads if shared else 1

    def run(self, xp, scratch, x, weight, y, bias=None) -> None:
        """Fill the array of the side; see :class:`Route`."""
        matrix, out = weight.reshape(self.matrix), y.reshape(self.result)
        source = x.reshape(self.batch, self.matrix[0], self.matrix[2], self.result[3])
        added = self.bias_column(bias)
        if self.sizes.side == INPUT:
            matrix, source, out = matrix.swapaxes(1, 2), out, source

        multiply = xp.matmul if self.workers > 1 else partial(matmul_into, xp)

        def chunk(worker, start, stop):
            target = out[start:stop]
            multiply(matrix, source[start:stop], out=target)
            if added is not None:
                xp.add(target, added, out=target)

        if self.workers > 1:
            blas.alone(threads.parallel_chunks, chunk, self.batch, self.workers)
        elif self.batch:
            chunk(0, 0, self.batch)


class Columns(_Products):
    """Any convolution: tiles of columns, and a product of matrices for each.

    Attributes:
        images: Of a tile.
        lines: Of a tile, along the first spatial dim of ``y``.
    """

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes)
        self.rows = sizes.groups * sizes.taps  # of the columns of one image
        self.line = prod(self.out[1:])  # positions of a line
        high = max(1, self.out[0])
        room = thresholds.tile_bytes(sizes.cpu)
        lines = max(1, room // max(1, self.rows * self.line * sizes.itemsize))
        lines = max(lines, ceil_div(WIDE, max(1, self.line)))
        if lines >= self.out[0]:
            self.images, self.lines = max(1, min(lines // high, self.batch)), high
        else:
            self.images, self.lines = 1, evenly(self.out[0], lines)
        self.geometry = on_gpu.geometry(sizes, self.out)

    @property
    def scratch(self) -> tuple[tuple[int, ...], ...]:
        """Shapes of the columns of a tile; for the weight of its gradient and a product, too."""
        span = self.images * self.lines * self.line
        if self.sizes.side != WEIGHT:
            return ((self.rows * span,),)
        rows = span * self.sizes.weight[0]
        return (self.rows * span,), (rows,), (1, prod(self.sizes.weight))

    def run(self, xp, scratch, x, weight, y, bias=None) -> None:
        """Fill the array of the side; see :class:`Route`."""
        if self.sizes.side == OUT:
            self.forward(xp, scratch, x, weight, y, bias)
        elif self.sizes.side == INPUT:
            self.input_grad(xp, scratch, x, weight, y)
        else:
            self.weight_grad(xp, scratch, x, weight, y)

    def forward(self, xp, scratch, x, weight, y, bias) -> None:
        """Contract the columns of each tile with the weight."""
        (columns,) = scratch
        matrix, added = weight.reshape(self.matrix), self.bias_column(bias)
        result = y.reshape(self.result)
        for n, m, r, s in self._tiles():
            tile = self._tile(columns, n, m, r, s)
            self.unroll(xp, tile, x[n:m], r, s)
            # Where a tile has some lines of an image, the rows of its result have gaps in between.
            target = result[n:m, :, :, r * self.line : s * self.line]
            matmul_into(xp, matrix, self._by_image(tile, m - n, s - r), out=target)
            if added is not None:
                xp.add(target, added, out=target)

    def input_grad(self, xp, scratch, x, weight, y) -> None:
        """Make the columns' gradient tile by tile, and add it where the columns came from."""
        (columns,) = scratch
        matrix, result = weight.reshape(self.matrix).swapaxes(1, 2), y.reshape(self.result)
        x.fill(0)
        for n, m, r, s in self._tiles():
            tile = self._tile(columns, n, m, r, s)
            lines = result[n:m, :, :, r * self.line : s * self.line]
            matmul_into(xp, matrix, lines, out=self._by_image(tile, m - n, s - r))
            self.roll(xp, tile, x[n:m], r, s)

    def weight_grad(self, xp, scratch, x, weight, y) -> None:
        """Add up the products of each tile's columns with its lines of ``y``."""
        columns, rows, sums = scratch
        groups, filters, taps = self.matrix
        total, product = weight.reshape(self.matrix), sums.reshape(self.matrix)
        source = y.reshape(self.batch, groups, filters, *self.out)
        total.fill(0)
        for n, m, r, s in self._tiles():
            # The images of a tile lie side by side, so that each product sums over all of them.
            tile = self._tile(columns, n, m, r, s)
            self.unroll(xp, tile, x[n:m], r, s, beside=True)
            span = (m - n) * (s - r) * self.line
            flat = rows[: groups * filters * span]
            lines = flat.reshape(groups, filters, m - n, s - r, *self.out[1:])
            xp.copyto(lines, xp.moveaxis(source[n:m, :, :, r:s], 0, 2))
            lines, tile = flat.reshape(groups, filters, span), tile.reshape(groups, taps, span)
            matmul_into(xp, lines, tile.swapaxes(1, 2), out=product)
            xp.add(total, product, out=total)

    def unroll(self, xp, columns, images, first, last, beside=False) -> None:
        """Copy what each window element meets at the lines ``first:last``, 0 in the padding.

        Args:
            xp: The array module.
            columns: Flat, written: (images, channels, window, positions); with ``beside`` the
                images lie side by side: (channels, window, images, positions).
            images: (images, channels, ...).
            first: Line of the output.
            last: The line after the last.
            beside: See ``columns``.
        """
        if self._on_gpu(xp, images):
            on_gpu.unroll(xp, columns, images, self.geometry, (first, last), beside)
            return
        tile = self._by_element(xp, columns, images.shape[0], first, last, beside)
        full = (slice(0, last - first), *[slice(0, n) for n in self.out[1:]])
        for taps, positions, elements in self._shifts(first, last):
            target = tile[taps]
            if positions != full:
                target.fill(0)
            xp.copyto(target[(..., *positions)], images[(..., *elements)])

    def roll(self, xp, columns, images, first, last) -> None:
        """Add columns to where :meth:`unroll` takes them from."""
        if self._on_gpu(xp, images):
            on_gpu.roll(xp, columns, images, self.geometry, (first, last))
            return
        tile = self._by_element(xp, columns, images.shape[0], first, last, False)
        for taps, positions, elements in self._shifts(first, last):
            view = images[(..., *elements)]
            xp.add(view, tile[taps][(..., *positions)], out=view)

    def _on_gpu(self, xp, images):
        return not self.sizes.cpu and has_cuda(xp) and on_gpu.takes(images)

    def _tiles(self):
        # (first image, last, first line, last) of each tile.
        return tiles(0, self.batch, self.images, self.out[0], self.lines)

    def _tile(self, columns, n, m, r, s):
        # The buffer is of the largest tile.
        return columns[: (m - n) * self.rows * (s - r) * self.line]

    def _by_image(self, tile, images, lines):
        # (images, groups, rows of a group, positions)
        groups, _, taps = self.matrix
        return tile.reshape(images, groups, taps, lines * self.line)

    def _by_element(self, xp, columns, count, first, last, beside):
        # The columns with the window's dims in front: (*window, count, channels, *positions).
        sizes = self.sizes
        kernel, channels = sizes.kernel, sizes.input[1]
        nd = len(kernel)
        span = (last - first, *self.out[1:])
        if beside:
            tile = columns.reshape(channels, *kernel, count, *span)
            return xp.moveaxis(tile, (*range(1, 1 + nd), 1 + nd), range(nd + 1))
        tile = columns.reshape(count, channels, *kernel, *span)
        return xp.moveaxis(tile, range(2, 2 + nd), range(nd))

    def _shifts(self, first, last):
        # For each window element and the output lines first:last: (its index in the window, slices
        # into the tile's positions, slices into the input).
        sizes = self.sizes
        axes = []
        for d, k in enumerate(sizes.kernel):
            low, n, out, s = sizes.padding[d][0], sizes.input[2 + d], self.out[d], sizes.stride[d]
            if d == 0:  # as if the input began where these lines look
                low, out = low - first * s, last - first
            axes.append([(j, *reach(j * sizes.dilation[d], n, out, s, low)) for j in range(k)])
        for taps in product(*axes):
            yield tuple(zip(*taps, strict=True))
