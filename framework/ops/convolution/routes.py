"""The routes by which a convolution and its gradients are computed, and the choice among them.

The first row of ``TABLE`` that computes the side and takes the sizes is the route. It is chosen
once: ``infer`` asks for it when a call is planned, for the shapes of the scratch, on ``meta`` as
elsewhere, and the kernels find the same object again. On CUDA and on the stand-in for a GPU, where
``cpu`` is False, the last two rows are left.

Not optimal: no transformation saves multiplications of windows of 5 x 5 or 7 x 7, or with a stride.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import prod
from typing import NamedTuple

from .depthwise import Depthwise, Sliding, SlidingStrided, SmallPlanes
from .direct import Direct, DirectWeight
from .im2col import Columns, Pointwise
from .sizes import INPUT, OUT, WEIGHT, Route, Sizes
from .winograd import Winograd, WinogradWeight, repays

# Products in a sum from which on a direct convolution is faster. Images of 100 x 100 in float32,
# one thread: 12 products take 0.25 ms directly and 0.21 by columns, 16 take 0.30 and 0.39, 27 take
# 0.38 and 0.84.
TAPS = 16
# Positions of an image up to which the gradient of a 1 x 1 weight is a product of matrices. Eight
# images of 7 x 7, 512 to 2048 channels: 31 GFLOP/s directly, 70 so; 14 x 14, 256 to 1024: 50, 65;
# 28 x 28, 128 to 512: 60 both.
FEW = 256
KEPT = 1024  # routes, some kB each: all of a large net with a few sizes of batches


class Row(NamedTuple):
    """A route, and what it is for.

    Attributes:
        route: Its class, which says what it does.
        sides: What it computes.
        takes: Which sizes.
        scratch: In words; ``route.scratch`` says how much.
    """

    route: type[Route]
    sides: tuple[str, ...]
    takes: Callable[[Sizes], bool]
    scratch: str


ALL = (OUT, INPUT, WEIGHT)
TABLE = (
    Row(
        SmallPlanes,
        ALL,
        lambda s: s.compiled and s.depthwise and s.small_planes,
        "a group of planes and windows for each thread",
    ),
    Row(Sliding, ALL, lambda s: s.compiled and s.depthwise and s.neighboring, "none"),
    Row(
        SlidingStrided,
        ALL,
        lambda s: s.compiled and s.depthwise and s.dense_planes,
        "a copy of a plane for each thread, with room around; for the weight two",
    ),
    Row(Depthwise, ALL, lambda s: s.compiled and s.depthwise, "none"),
    Row(
        Winograd,
        (OUT, INPUT),
        lambda s: s.compiled and s.threes and repays(s),
        "transformed windows, and for each thread a block of transformed pixels and sums",
    ),
    Row(
        WinogradWeight,
        (WEIGHT,),
        lambda s: s.compiled and s.threes and repays(s),
        "for each thread totals, and a block of transformed pixels and gradients",
    ),
    Row(
        Direct,
        (OUT, INPUT),
        lambda s: s.compiled and s.taps >= TAPS and not s.pointwise,
        "a tile with its padding, its sums and packed weights, for each thread",
    ),
    Row(
        DirectWeight,
        (WEIGHT,),
        lambda s: s.compiled and not (s.pointwise and prod(s.out) <= FEW),
        "a tile of the input and one of the gradient, and sums as long as the weight's gradient "
        "or a few of its panels, for each thread",
    ),
    Row(Pointwise, (OUT, INPUT), lambda s: s.pointwise, "none"),
    Row(
        Columns,
        ALL,
        lambda s: True,
        "the columns of a tile; for the weight its tile of the gradient too, and a product",
    ),
)


@lru_cache(maxsize=KEPT)
def route(*sizes) -> Route:
    """The route for :class:`Sizes`, which are given in their order."""
    known = Sizes(*sizes)
    found = next(row for row in TABLE if known.side in row.sides and row.takes(known))
    return found.route(known)
