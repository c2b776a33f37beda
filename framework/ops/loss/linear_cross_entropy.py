"""Linear layer and cross entropy as one op, computed a tile of logits at a time.

``linear_cross_entropy`` is ``cross_entropy(linear(input, linear_weight), target)`` without the
matrix of (tokens, classes), which is the largest tensor of a language model's training step and
exists there two or three times. Some tokens meet some classes; the tile of logits that they make is
folded into one sum of exponentials per token, and overwritten by the next.

For backward the node keeps its inputs, which are alive in any case, that sum, and the largest
logit. The tiles are recomputed, turned into the gradient of the logits, and multiplied into the
gradients of input and weight (``linear_cross_entropy_backward.py``). That is one matrix product
more than the plain pair: 4 instead of 3, and about 1.3 times its time where the products are all
that matters. What it buys: beyond inputs and gradients there is only the workspace of a tile, less
than 1.5 % of those at any size worth counting; forward alone costs what it always did; there is a
loss for each token; backward can be repeated, and differentiated again.

The other way (Liger; PyTorch with ``options``) makes the gradients in forward, some tokens at a
time, and multiplies them in backward by what arrives. It needs no further product, but whole rows
of logits, and each group of tokens passes over all of ``linear_weight`` and its gradient: measured
on one core with 768 features, groups of 128 tokens take 1.1 times the pair's time, of 32 tokens
1.6. With 128 tokens, their logits alone are 8 % of inputs and gradients there; they are below 2 %
from 3200 features on. Both gradients would also be kept until it is known what multiplies them:
that is a second copy of them, or a write into what is kept, after which backward cannot be
repeated. So bytes decided.

Not optimal: inputs of 16 bits are converted to float32 a tile at a time, each tile as often as it
is used. Ignored tokens are computed like any others.

Source:
    Wijmans et al.: "Cut Your Losses in Large-Vocabulary Language Models", 2024. Unlike there, no
    gradient is left out for being small. The other way: Hsu et al.: "Liger Kernel", 2024.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from ...dtypes import FLOAT, dtype, int64
from ...kernels.common import layout
from ...spec import Spec
from ..creation.from_data import tensor
from ..linalg.linear import linear
from ..registry import function, op
from .class_targets import check_classes, class_shape
from .cross_entropy import _cross_entropy, by_class, cross_entropy, reduction_of
from .linear_cross_entropy_backward import _linear_cross_entropy_grad, shares_of, worth_tiles
from .linear_cross_entropy_tiling import (
    computed,
    found_in,
    logits_of,
    ready,
    room,
    rows_of,
    tiles_of,
)


@dataclass(slots=True, frozen=True)
class LinearCrossEntropyOptions:
    """PyTorch's options for chunking; accepted, since the one path here is always chunked.

    Args:
        allow_retain_graph: Accepted; backward can always be repeated.
        batch_chunk_size: Tokens of a tile in the workspace; None chooses.
        chunking_method: Accepted.
        acc_policy: Accepted; 16-bit inputs are always summed in float32.
        acc_dtype: Accepted.

    Raises:
        ValueError: A choice that PyTorch does not know.
    """

    allow_retain_graph: bool = False
    batch_chunk_size: int | None = None
    chunking_method: str | None = "auto"
    acc_policy: str = "auto"
    acc_dtype: dtype | None = None

    def __post_init__(self) -> None:
        size, method = self.batch_chunk_size, self.chunking_method
        if size is not None and not (isinstance(size, int) and size > 0):
            raise ValueError(f"batch_chunk_size must be positive int or None, got {size!r}")
        if self.acc_policy not in ("auto", "accurate", "balanced", "compact"):
            raise ValueError(
                f"invalid acc_policy: {self.acc_policy!r}; pass 'auto', 'accurate', 'balanced' or "
                "'compact'."
            )
        name, colon, factor = (method or "auto").partition(":")
        scaled = name == "aspect_ratio" and (not colon or (factor.isdigit() and int(factor) > 0))
        if not scaled and method not in (None, "auto"):
            raise ValueError(
                f"invalid chunking_method: {method!r}; pass 'auto', 'aspect_ratio', "
                "'aspect_ratio:N' or None."
            )
        if self.acc_dtype is not None and self.acc_dtype.category != FLOAT:
            raise ValueError(f"acc_dtype must be a floating dtype or None, got {self.acc_dtype!r}.")


def _infer(input, linear_weight, linear_bias, target, weight, *, tiles, **_):
    classes = linear_weight.shape[0]
    class_shape(
        "linear_cross_entropy", Spec((input.shape[0], classes), input.dtype), target, weight
    )
    kind = computed(input.dtype)
    return (
        *[Spec(target.shape, kind)] * 3,
        *room(input, linear_weight, tiles[0]),
        Spec((3, tiles[0][0]), kind),
    )


def _classes(values):
    return tensor(values, dtype=int64)


def _samples(make):
    base = {"ignore_index": -100, "label_smoothing": 0.0}

    def given(n, d, c, bias=False, weight=False):
        x, w = make(n, d), make(c, d)
        n, c = x.shape[0], w.shape[0]
        target = _classes([k * k % c for k in range(n)])
        inputs = x, w, (make(c) if bias else None), target, (make(c, low=0.5) if weight else None)
        tile = max(1, n // 2 + n % 2), max(1, c // 2)  # smaller than the logits
        return inputs, {"tiles": (tile, (tile[0], max(1, c // 3)))}

    inputs, tiles = given(4, 3, 5)
    yield inputs, base | tiles
    yield inputs, base | {"tiles": ((inputs[0].shape[0], inputs[1].shape[0]),) * 2}
    inputs, tiles = given(5, 3, 4, bias=True, weight=True)
    yield inputs, base | tiles | {"ignore_index": 1, "label_smoothing": 0.2}
    inputs, tiles = given(4, 2, 3, bias=True)
    small = inputs[0].shape[0] // 4, inputs[1].shape[0] // 3
    yield inputs, base | {"label_smoothing": 0.1, "tiles": (small, small)}
    inputs, tiles = given(2, 3, 3)
    ignored = _classes([1] * inputs[0].shape[0])
    yield (*inputs[:3], ignored, None), base | tiles | {"ignore_index": 1}
    inputs, tiles = given(3, 2, 1)  # one class
    yield inputs, base | tiles
    inputs, tiles = given(0, 3, 5)
    yield inputs, base | tiles


def _flops(input, linear_weight, *_, **__):
    return (2 * input.shape[1] + 3) * input.shape[0] * linear_weight.shape[0]


@op(
    infer=_infer,
    aux=("top", "total"),
    scratch=("work", "some_inputs", "some_weights", "sums"),
    promote=("same", ("input", "linear_weight", "linear_bias")),
    half="tiles",
    layout=ready,
    flops=_flops,
    samples=_samples,
)
def _linear_cross_entropy(
    xp, out, top, total, work, some_inputs, some_weights, sums, input, linear_weight, linear_bias,
    target, weight, *, ignore_index, label_smoothing, tiles,
):  # fmt: skip
    """Cross entropy of each token's logits, ``input @ linear_weight.mT``, with its class."""
    _meet_all(
        xp, _meet, out, top, total, work, some_inputs, some_weights, sums, input, linear_weight,
        linear_bias, target, weight, ignore_index=ignore_index, label_smoothing=label_smoothing,
        tiles=tiles,
    )  # fmt: skip


@_linear_cross_entropy.kernel("cpu", when=worth_tiles, layout=ready)
def _(xp, *arrays, **attributes):
    from ...kernels.cpu.loss.linear_cross_entropy import meet, over_rows

    def compiled(xp, tile, total, top, picked, below, target, first, shares, seen):
        shares = tile[0, :0] if shares is None else shares
        over_rows(meet, (tile, total, top, picked, below, target), first, shares, np.float32(seen))

    _meet_all(xp, compiled, *arrays, **attributes)


def _meet_all(
    xp, meet, out, top, total, work, some_inputs, some_weights, sums, input, linear_weight,
    linear_bias, target, weight, *, ignore_index, label_smoothing, tiles,
):  # fmt: skip
    classes, (height, width) = linear_weight.shape[0], tiles[0]
    check_classes(xp, target, classes, ignore_index)
    for rows in layout.tiles(input.shape[0], height):
        largest, powers, seen = top[rows], total[rows], 0.0
        picked, below, low = sums[:, : powers.shape[0]]
        largest.fill(-np.inf)
        for a in (powers, picked, below):
            a.fill(0)
        x = rows_of(xp, input, rows, some_inputs)
        for columns in layout.tiles(classes, width):
            w = rows_of(xp, linear_weight, columns, some_weights)
            t = logits_of(xp, work, x, w, linear_bias, columns)
            shares = shares_of(xp, weight, columns, t) if label_smoothing else None
            cut = powers, largest, picked, below, target[rows]
            meet(xp, t, *cut, columns.start, shares, seen)
            if shares is not None:
                seen += float(shares.sum())
        xp.log(powers, out=low)
        counts = target[rows] != ignore_index
        xp.subtract(largest, picked, out=picked)
        xp.add(picked, low, out=picked)
        if weight is not None:
            each = weight[xp.where(counts, target[rows], 0)].astype(picked.dtype)
            xp.multiply(picked, each, out=picked)
        if label_smoothing:
            # The mean over classes of what the loss would be for each.
            xp.subtract(xp.multiply(low, seen, out=low), below, out=below)
            xp.multiply(picked, 1.0 - label_smoothing, out=picked)
            xp.multiply(below, label_smoothing / classes, out=below)
            xp.add(picked, below, out=picked)
        picked[~counts] = 0  # also where logits are not finite
        xp.copyto(out[rows], picked)


def _meet(xp, tile, total, top, picked, below, target, first, shares, seen):
    # `total` is the sum of exp(logit - top) so far; see the compiled one.
    column, inside = found_in(xp, target, slice(first, first + tile.shape[1]))
    row = xp.arange(tile.shape[0])
    xp.copyto(picked, tile[row, column], where=inside)
    largest = xp.maximum(top, xp.max(tile, axis=1))
    less = xp.where(top == largest, 0, top - largest)  # -inf - -inf would make NaN
    xp.multiply(total, xp.exp(less), out=total)
    xp.copyto(top, largest)
    largest[largest == -np.inf] = 0
    xp.subtract(tile, largest[:, None], out=tile)
    if shares is not None:
        xp.add(below, less * seen if seen else 0, out=below)
        xp.add(below, xp.matmul(tile, shares), out=below)
    xp.exp(tile, out=tile)
    xp.add(total, xp.sum(tile, axis=1), out=total)


@_linear_cross_entropy.vjp("input", "linear_weight", "linear_bias")
def _(
    g,
    needs,
    input,
    linear_weight,
    linear_bias,
    target,
    weight,
    top,
    total,
    ignore_index,
    label_smoothing,
    tiles,
):
    found = _linear_cross_entropy_grad(
        g,
        input,
        linear_weight,
        linear_bias,
        target,
        weight,
        top,
        total,
        needs,
        ignore_index,
        label_smoothing,
        tiles[1],
    )
    return tuple(d if need else None for d, need in zip(found, needs, strict=True))


@_linear_cross_entropy.composite
def _(input, linear_weight, linear_bias, target, weight, *, ignore_index, label_smoothing, tiles):
    logits = linear(input, linear_weight, linear_bias)
    return _cross_entropy(logits, target, weight, ignore_index, label_smoothing)


@function(public=False, autocast="float32")
def linear_cross_entropy(
    input,
    linear_weight,
    target,
    *,
    linear_bias=None,
    weight=None,
    reduction="mean",
    ignore_index=None,
    label_smoothing=0.0,
    options=None,
):
    """Compute the cross entropy of a linear layer's logits without storing all logits.

    Args:
        input: Tokens (N, in_features), or one (in_features,).
        linear_weight: (C, in_features), or (C, *, in_features) for a loss at each of ``*``.
        target: Class indices (N,), (N, *) or (); or probabilities (N, C), (N, C, *) or (C,).
        linear_bias: (C,) or (C, *), or None.
        weight: (C,), a factor for each class.
        reduction: "mean" (over the weights of the tokens that count), "sum" or "none".
        ignore_index: Tokens of this class count for nothing; None is -100. Not with probabilities.
        label_smoothing: Share of the target that is spread evenly over all classes.
        options: A :class:`LinearCrossEntropyOptions`, or None. Its ``batch_chunk_size`` is honored;
            nothing else of it is needed here.

    Returns:
        Tensor (), or in the shape of the class indices for "none".

    Raises:
        RuntimeError: Shapes or dtypes do not fit, or a setting is out of range.
        ValueError: ``target`` has another number of tokens.
        IndexError: A class index is out of range (on the CPU).

    Memory:
        Keeps ``input``, ``linear_weight``, ``linear_bias``, ``target``, ``weight`` and two numbers
        per token. Workspace, forward and backward: 1 MiB, or 1.4 % of inputs and gradients if that
        is more, 64 MiB at most; with inputs of 16 bits, backward also sums the gradient of
        ``input`` in float32. Where the target has probabilities or ``linear_weight`` more than 2
        dims, the logits are made.

    Source:
        Wijmans et al.: "Cut Your Losses in Large-Vocabulary Language Models", 2024.
    """
    lead = _check(input, linear_weight, linear_bias)
    how = reduction_of(None, None, reduction)
    if not 0.0 <= label_smoothing <= 1.0:
        raise RuntimeError(f"label_smoothing must be between 0.0 and 1.0. Got: {label_smoothing}.")
    classes, *places, features = linear_weight.shape
    likely = tuple(target.shape) == (*lead, classes, *places)
    if likely and ignore_index is not None:
        raise RuntimeError(
            "linear_cross_entropy: ignore_index cannot be specified when target contains "
            f"probabilities; got ignore_index {ignore_index} and target {tuple(target.shape)}. "
            "Leave it out, or pass class indices."
        )
    ignore_index = -100 if ignore_index is None else ignore_index
    if likely or places:
        flat = linear_weight.reshape(classes * prod(places), features)
        bias = None if linear_bias is None else linear_bias.reshape(classes * prod(places))
        logits = linear(input, flat, bias).reshape(*lead, classes, *places)
        return cross_entropy(
            logits,
            target,
            weight,
            ignore_index=ignore_index,
            reduction=how,
            label_smoothing=label_smoothing,
        )
    if not lead:
        input, target = input.unsqueeze(0), target.unsqueeze(0)
    tiles = tiles_of(input.shape[0], classes, features, input.dtype, input._spec.on_host)
    if options is not None and options.batch_chunk_size is not None:
        rows = max(1, min(options.batch_chunk_size, input.shape[0]))
        tiles = tuple((rows, columns) for _, columns in tiles)
    loss = _linear_cross_entropy(
        input,
        linear_weight,
        linear_bias,
        target,
        weight,
        ignore_index,
        float(label_smoothing),
        tiles,
    )
    found = by_class(loss, target, weight, ignore_index, how).to(input.dtype)
    return found.squeeze(0) if how == "none" and not lead else found


def _check(input: Any, linear_weight: Any, linear_bias: Any) -> tuple[int, ...]:
    # The number of tokens, if there are several
    name = "linear_cross_entropy"
    if input.ndim not in (1, 2):
        raise RuntimeError(
            f"{name}: expected input with dimensionality 1 or 2, got {input.ndim}. Flatten the "
            "tokens of all sequences into one dimension, and those of target."
        )
    if linear_weight.ndim < 2:
        raise RuntimeError(
            f"{name}: expected linear_weight with dimensionality at least 2, got "
            f"{linear_weight.ndim}. Pass (classes, in_features)."
        )
    if input.shape[-1] != linear_weight.shape[-1]:
        raise RuntimeError(
            f"{name}: expected equal input and linear_weight last dimensions (in_features); got "
            f"input {tuple(input.shape)} and linear_weight {tuple(linear_weight.shape)}. "
            "linear_weight is (classes, in_features); transpose it with .mT."
        )
    if linear_bias is not None and linear_bias.shape != linear_weight.shape[:-1]:
        raise RuntimeError(
            f"{name}: expected linear_bias shape {tuple(linear_weight.shape[:-1])}, got "
            f"{tuple(linear_bias.shape)}. Reshape it."
        )
    if linear_weight.ndim > 2 and input.ndim == 1:
        raise RuntimeError(
            f"{name}: K-dimensional loss defined by linear_weight shape "
            f"{tuple(linear_weight.shape)} requires batched input (N, {input.shape[-1]}); got "
            f"{tuple(input.shape)}. Add a dimension with .unsqueeze(0)."
        )
    return tuple(input.shape[:-1])
