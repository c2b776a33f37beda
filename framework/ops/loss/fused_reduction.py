"""Fused loss reduction: the mean or sum of a loss without an array of its elements.

A loss of two arrays that is reduced at once is computed a tile at a time, and a tile's sum is all
that stays of it. Sums of tiles are added in double precision, in one order whatever the number of
threads. Backward is that of the loss itself, with a gradient that is one number repeated.

Below 16384 elements, on GPUs, and where operands differ in shape or dtype, the losses are made and
then reduced: there an array of them costs little, or a tile at a time would cost more.
"""

from __future__ import annotations

from inspect import Parameter, Signature

import numpy as np

from ...kernels.common.layout import contiguous, same_shape_dtype, tiles
from ...kernels.common.schedule import parallel_range
from ...kernels.formula.walks import TILE
from ...kernels.runtime import thresholds
from ...spec import Spec
from ..registry import op
from .cross_entropy import reduce_loss


def fused_reduction(plain, *, when=same_shape_dtype):
    """Declare the fused sum of a loss op: ``(input, target, numbers..., divisor)``.

    Args:
        plain: An op of two arrays that is a formula.
        when: Which specs its compiled loop is for.
    """
    declared = plain.op
    name = declared.name.strip("_")
    names = declared.workspace_names()

    def infer(input, target, divisor, **attributes):
        tile = Spec((min(thresholds.tile_elements(input.on_host), input.numel),), input.dtype)
        return input.like(()), tile, *declared.workspace(tile)

    def samples(make):
        for k, ((input, target), attributes) in enumerate(declared.samples(make)):
            if input.shape == target.shape:
                yield (input, target), {**attributes, "divisor": 1 + 2 * (k % 2)}

    def kernel(xp, out, tile, *arrays, divisor, **attributes):
        *work, x, y = arrays
        x, y = x.reshape(-1), y.reshape(-1)
        out.fill(0)
        for here in tiles(x.size, thresholds.tile_elements(xp is np)):
            some = [a[here] for a in (x, y)]
            losses, *rest = [w[: some[0].size] for w in (tile, *work)]
            declared.plain(xp, losses, *rest, *some, **attributes)
            xp.add(out, xp.sum(losses), out=out)
        xp.divide(out, divisor, out=out)

    leading = ("xp", "out", "tile", *names, "input", "target")
    keywords = [Parameter(n, Parameter.KEYWORD_ONLY) for n in (*declared.attributes, "divisor")]
    kernel.__signature__ = Signature(
        [*[Parameter(n, Parameter.POSITIONAL_OR_KEYWORD) for n in leading], *keywords]
    )
    kernel.__doc__ = f"The sum of what ``{name}`` gives, over ``divisor``."
    kernel.__module__ = declared.plain.__module__
    made = op(
        name=f"_{name}_total",
        infer=infer,
        promote="arith",
        scratch=("tile", *names),
        flops=declared.flops,
        samples=samples,
        layout=contiguous,
    )(kernel)
    made.op.display_name = declared.display_name

    @made.kernel("cpu", when=when, layout=contiguous, scratch=False)
    def _(xp, out, *arrays, divisor, **attributes):
        x, y = (a.reshape(-1) for a in arrays)
        count_of_tiles = -(-x.size // TILE)
        sums = np.empty(count_of_tiles, np.float64)
        variant = declared.formula.variant(attributes)
        run, numbers = variant.sums, variant.numbers(attributes)
        parallel_range(run, x.size, count_of_tiles, sums, x, y, *numbers)
        out[...] = sums.sum() / divisor

    return made


def reduce_loss_fused(plain, total, how, input, target, *numbers):
    """Reduce a loss as ``how`` says, without an array of its elements where that pays."""
    if how != "none" and input._spec.on_host and same_shape_dtype(input._spec, target._spec):
        return total(input, target, *numbers, divisor=input.numel() if how == "mean" else 1)
    return reduce_loss(plain(input, target, *numbers), how)


def expand_loss_gradient(g, like, divisor):
    """Expand the gradient of the sum, over the divisor, to each element of the loss."""
    return (g if divisor == 1 else g / divisor).expand(like.shape)
