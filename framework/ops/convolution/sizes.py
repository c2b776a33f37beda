"""The sizes of a convolution, and what a route is: one way to compute with them.

A convolution is a trilinear form of three arrays: ``x`` (batch, channels, ...), ``weight``
(filters, channels of a group, ...) and ``y`` (batch, filters, ...). Two of them give the third, its
*side*: the result, or one of the two gradients. A route takes all three and writes that one.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

import numpy as np

from ...dtypes import as_dtype
from ...kernels.common.layout import worth_compiling
from ...kernels.runtime import threads, thresholds
from ...spec import Spec

OUT, INPUT, WEIGHT = "out", "input", "weight"  # the sides
# Pixels of a plane up to which depthwise convolutions take channels side by side: of neighboring
# windows, 8 x 96 planes of 22 x 22 take 0.41 ms so and 0.48 line by line, of 28 x 28 0.92 and 0.58.
# With a stride that is never slower; larger planes would take more scratch.
SMALL, SMALL_WITH_STRIDE = 24 * 24, 64 * 64


class Sizes(NamedTuple):
    """All that a route is chosen by.

    Attributes:
        side: What is computed: ``OUT``, ``INPUT`` or ``WEIGHT``.
        cpu: Whether compiled loops and threads of ours take part; on meta too, which foretells.
        input: Shape of ``x``.
        weight: Shape of ``weight``.
        out: Sizes of the spatial dims of ``y``.
        stride: Per spatial dim, as the next two.
        padding: Pairs.
        dilation: Of the window.
        groups: Independent groups of channels.
        dtype: NumPy's, of what is computed with.
    """

    side: str
    cpu: bool
    input: tuple[int, ...]
    weight: tuple[int, ...]
    out: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    dilation: tuple[int, ...]
    groups: int
    dtype: np.dtype

    @property
    def batch(self) -> int:
        """Images."""
        return self.input[0]

    @property
    def kernel(self) -> tuple[int, ...]:
        """The window."""
        return tuple(self.weight[2:])

    @property
    def per_group(self) -> int:
        """Channels of ``x`` in a group."""
        return self.input[1] // self.groups

    @property
    def filters(self) -> int:
        """Channels of ``y`` in a group."""
        return self.weight[0] // self.groups

    @property
    def taps(self) -> int:
        """Products that are summed up in an element of ``y``."""
        return self.per_group * prod(self.kernel)

    @property
    def low(self) -> tuple[int, ...]:
        """Padding before ``x``."""
        return tuple(p[0] for p in self.padding)

    @property
    def itemsize(self) -> int:
        """Bytes of an element, small integers counted as 4: so long are the tiles."""
        return max(4, self.dtype.itemsize)

    @property
    def work(self) -> int:
        """Multiplications and additions."""
        return 2 * prod(self.weight) * self.batch * prod(self.out)

    @property
    def compiled(self) -> bool:
        """Large enough for a compiled loop, and of a type and a place that have one."""
        read = self.input if self.side != INPUT else (self.batch, self.weight[0], *self.out)
        return self.cpu and worth_compiling(Spec(read, as_dtype(self.dtype)))

    @property
    def depthwise(self) -> bool:
        """Each channel has separate filters."""
        return self.groups > 1 and self.per_group == 1

    @property
    def neighboring(self) -> bool:
        """Windows of planes are one apart."""
        return len(self.kernel) == 2 and prod(self.stride) == 1

    @property
    def dense_planes(self) -> bool:
        """Windows of planes have no gaps."""
        return len(self.kernel) == 2 and prod(self.dilation) == 1

    @property
    def small_planes(self) -> bool:
        """Planes whose lines do not fill registers, and enough channels to fill them instead."""
        if len(self.kernel) != 2 or self.input[1] < 8:
            return False
        pixels = prod(self.input[2:])
        if not self.neighboring:
            return pixels <= SMALL_WITH_STRIDE
        return pixels <= SMALL and self.out[1] * self.itemsize % 64 != 0

    @property
    def threes(self) -> bool:
        """Neighboring windows of 3 x 3 in float32, of all channels."""
        one = self.neighboring and self.kernel == (3, 3) and prod(self.dilation) == 1
        return one and self.groups == 1 and self.dtype == np.float32

    @property
    def pointwise(self) -> bool:
        """A window is one element, and there is one for each."""
        ones = prod(self.kernel) == 1 and prod(self.stride) == 1
        # A transposed convolution may have more places than windows: output_padding.
        return ones and not any(map(any, self.padding)) and self.out == tuple(self.input[2:])


class Route:
    """One way to compute one side of a convolution, made once for its sizes.

    Attributes:
        sizes: What it was made for.
        threads: How many of ours it may use.
    """

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        shared = sizes.compiled and sizes.work >= thresholds.PRODUCT_THREAD
        self.threads = threads.LIMIT if shared else 1

    @property
    def scratch(self) -> tuple[tuple[int, ...], ...]:
        """Shapes of the op's buffers: one, for the side of the weight three. None are wanted."""
        return ((0,),) * (3 if self.sizes.side == WEIGHT else 1)

    def run(self, xp, scratch, x, weight, y, bias=None) -> None:
        """Fill the array of the side, from the other two.

        Args:
            xp: The array module.
            scratch: Buffers of the shapes of :attr:`scratch`.
            x: (batch, channels, ...), in C order like the other two.
            weight: (filters, channels of a group, ...).
            y: (batch, filters, ...).
            bias: (filters,), of the side of the result only, or None.
        """
        raise NotImplementedError


def ceil_div(n: int, k: int) -> int:
    """``n / k``, rounded up."""
    return -(-n // k)


def evenly(n: int, most: int) -> int:
    """The length of tiles of about equal length, at most ``most``, that cover ``n``."""
    return ceil_div(n, ceil_div(n, most))


def tiles(start: int, stop: int, images: int, lines: int, high: int):
    """(first image, last, first line, last) of tiles of so many images and lines, ``high`` each."""
    for n in range(start, stop, images):
        for r in range(0, lines, high):
            yield n, min(n + images, stop), r, min(r + high, lines)


def as_3d(values, missing: int) -> tuple[int, ...]:
    """Values for three spatial dims, of those for one, two or three."""
    values = tuple(values)
    return (missing,) * (3 - len(values)) + values


def volumes(array):
    """(batch, channels, ...) or (filters, channels, ...) in three spatial dims."""
    return array.reshape(*array.shape[:2], *as_3d(array.shape[2:], 1))


def given_bias(weight, bias):
    """The bias that compiled loops take: of the length 0 if there is none."""
    return weight.reshape(-1)[:0] if bias is None else bias
