"""Losses of pairs of numbers, of distances and of margins: compositions of elementwise ops.

Binary cross entropy is an op of its own, for its logarithms of numbers near 0 and 1; the others
say what they are in one or two lines.
"""

from __future__ import annotations

import math
import warnings

from ..autograd.modes import no_grad
from ..dtypes import FLOAT
from .loss import reduce_loss, reduction_of
from .registry import WIDE_ON_CUDA, broadcast, function, op, per_element
from .shaping import normal_dim


def _compared(input, target) -> None:
    if tuple(target.shape) != tuple(input.shape):
        warnings.warn(
            f"Using a target size ({target.shape}) that is different to the input size "
            f"({input.shape}). This will likely lead to incorrect results due to broadcasting. "
            "Please ensure they have the same size.",
            UserWarning,
            stacklevel=4,
        )


def _weighted(loss, weight, reduction, over_weights=True):
    # A weight per element; the mean is over the weights.
    if weight is None:
        return reduce_loss(loss, reduction)
    if tuple(weight.shape) != tuple(loss.shape):
        raise ValueError(
            f"Weights and input must have the same size; got {tuple(weight.shape)} and "
            f"{tuple(loss.shape)}. Expand the weights."
        )
    if reduction == "mean" and over_weights:
        return (loss * weight).sum() / weight.sum()
    return reduce_loss(loss * weight, reduction)


@function(public=False, autocast="float32")
def mse_loss(input, target, size_average=None, reduce=None, reduction="mean", weight=None):
    """Take squares of differences.

    Args:
        input: Any shape.
        target: The same shape.
        size_average: Old form of ``reduction``.
        reduce: Old form of ``reduction``.
        reduction: "mean", "sum" or "none".
        weight: A factor for each element; the mean is over the weights.

    Returns:
        Tensor (), or in the shape of ``input`` for "none".

    Memory:
        Keeps the differences.
    """
    how = reduction_of(size_average, reduce, reduction)
    _compared(input, target)
    difference = input - target
    return _weighted(difference * difference, weight, how)


@function(public=False, autocast="float32")
def l1_loss(input, target, size_average=None, reduce=None, reduction="mean", weight=None):
    """Take absolute differences. The arguments are those of :func:`mse_loss`."""
    how = reduction_of(size_average, reduce, reduction)
    _compared(input, target)
    return _weighted((input - target).abs(), weight, how)


@function(public=False, autocast="float32")
def smooth_l1_loss(input, target, size_average=None, reduce=None, reduction="mean", beta=1.0):
    """Take absolute differences, squared (over ``2 beta``) where they are below ``beta``.

    The other arguments are those of :func:`mse_loss`.
    """
    how = reduction_of(size_average, reduce, reduction)
    if beta < 0:
        raise RuntimeError(f"smooth_l1_loss does not support negative values for beta; got {beta}.")
    if beta == 0:
        return l1_loss(input, target, reduction=how)
    _compared(input, target)
    return reduce_loss(_quadratic_then_linear(input - target, beta) / beta, how)


@function(public=False, autocast="float32")
def huber_loss(input, target, reduction="mean", delta=1.0, weight=None):
    """Take half squares of differences below ``delta``, and lines of slope ``delta`` beyond.

    The other arguments are those of :func:`mse_loss`.
    """
    how = reduction_of(None, None, reduction)
    if delta <= 0:
        raise RuntimeError(f"huber_loss does not support non-positive values for delta: {delta}.")
    _compared(input, target)
    return _weighted(_quadratic_then_linear(input - target, delta), weight, how, False)


def _quadratic_then_linear(difference, bend):
    from . import where

    size = difference.abs()
    return where(size < bend, size * size * 0.5, (size - 0.5 * bend) * bend)


# Binary cross entropy


def _pair_infer(input, target):
    out = broadcast(input, target)
    return out, out


def _probabilities(make):
    for shape in ((3, 4), (2, 3, 2), (), (0, 3)):
        yield (make(*shape, low=0.1, high=0.9), make(*shape, low=0.1, high=0.9)), {}


@op(
    name="_binary_cross_entropy", method=False, public=False, infer=_pair_infer,
    promote="arith", half="float32", scratch=("work",), flops=per_element(8),
    samples=_probabilities,
)  # fmt: skip
def bce(xp, out, work, input, target):
    """``-(target * log(input) + (1 - target) * log(1 - input))``, logarithms at least -100."""
    xp.negative(input, out=work)
    xp.log1p(work, out=work)
    xp.maximum(work, -100.0, out=work)
    xp.subtract(target, 1.0, out=out)
    xp.multiply(out, work, out=out)
    xp.log(input, out=work)
    xp.maximum(work, -100.0, out=work)
    xp.multiply(work, target, out=work)
    xp.subtract(out, work, out=out)


@bce.vjp("input")
def _(g, input, target):
    return g * (input - target) / ((1 - input) * input).clamp_min(1e-12)


@bce.vjp("target")
def _(g, input):
    return g * ((1 - input).log().clamp_min(-100) - input.log().clamp_min(-100))


@function(public=False, autocast={"cpu": "float32", "cuda": "refuse"})
def binary_cross_entropy(
    input, target, weight=None, size_average=None, reduce=None, reduction="mean"
):
    """Compare probabilities with the chance that they speak of.

    Args:
        input: Probabilities in [0, 1].
        target: Numbers in [0, 1], the same shape.
        weight: A factor for each element, broadcasting.
        size_average: Old form of ``reduction``.
        reduce: Old form of ``reduction``.
        reduction: "mean" (over all elements), "sum" or "none".

    Returns:
        Tensor (), or in the shape of ``input`` for "none".
    """
    how = reduction_of(size_average, reduce, reduction)
    if tuple(target.shape) != tuple(input.shape):
        raise ValueError(
            f"Using a target size ({target.shape}) that is different to the input size "
            f"({input.shape}) is deprecated. Please ensure they have the same size."
        )
    if input.device.type == "cpu" and input.numel():
        with no_grad():
            if bool(((input < 0) | (input > 1)).any()):
                raise RuntimeError(
                    "binary_cross_entropy: all elements of input should be between 0 and 1. For "
                    "logits, call binary_cross_entropy_with_logits."
                )
    loss = bce(input, target)
    return reduce_loss(loss if weight is None else loss * weight, how)


def _logits(make):
    for shape in ((3, 4), (2, 3, 2), (), (0, 3)):
        yield (make(*shape), make(*shape)), {}


@op(
    name="_bce_with_logits", method=False, public=False, infer=_pair_infer, promote="arith",
    half="float32", scratch=("work",), flops=per_element(6), samples=_logits,
)  # fmt: skip
def bce_logits(xp, out, work, input, target):
    """``log(1 + exp(input)) - input * target``, without overflow."""
    xp.logaddexp(input, 0.0, out=out)
    xp.multiply(input, target, out=work)
    xp.subtract(out, work, out=out)


@bce_logits.vjp("input")
def _(g, input, target):
    return g * (input.sigmoid() - target)


@bce_logits.vjp("target")
def _(g, input):
    return -g * input


@function(public=False, autocast="float32")
def binary_cross_entropy_with_logits(
    input, target, weight=None, size_average=None, reduce=None, reduction="mean", pos_weight=None
):
    """Compare logits with the chance that they speak of.

    Args:
        input: Logits of any shape.
        target: Numbers in [0, 1], the same shape.
        weight: A factor for each element, broadcasting.
        size_average: Old form of ``reduction``.
        reduce: Old form of ``reduction``.
        reduction: "mean" (over all elements), "sum" or "none".
        pos_weight: A factor of the positive part, broadcasting.

    Returns:
        Tensor (), or in the shape of ``input`` for "none".

    Memory:
        Keeps input and target.
    """
    how = reduction_of(size_average, reduce, reduction)
    if tuple(target.shape) != tuple(input.shape):
        raise ValueError(
            f"Target size ({target.shape}) must be the same as input size ({input.shape})."
        )
    if pos_weight is None:
        loss = bce_logits(input, target)
    else:
        # (1 - t) x + (1 + (w - 1) t) log(1 + exp(-x))
        factor = 1 + (pos_weight - 1) * target
        loss = (1 - target) * input + factor * bce_logits(-input, 0.0)
    return reduce_loss(loss if weight is None else loss * weight, how)


# Divergence and likelihood


@function(public=False, autocast="float32")
def kl_div(
    input, target, size_average=None, reduce=None, reduction="mean", log_target=False
):  # fmt: skip
    """Take the pointwise Kullback-Leibler divergence ``target * (log target - input)``.

    Args:
        input: Log probabilities.
        target: Probabilities, or log probabilities with ``log_target``.
        size_average: Old form of ``reduction``.
        reduce: Old form of ``reduction``.
        reduction: "batchmean" (the divergence), "mean" (over all elements), "sum" or "none".
        log_target: ``target`` holds logarithms.

    Returns:
        Tensor (), or in the broadcast shape for "none".
    """
    if size_average is not None or reduce is not None:
        reduction = reduction_of(size_average, reduce, reduction)
    elif reduction == "mean":
        warnings.warn(
            "reduction: 'mean' divides the total loss by both the batch size and the support "
            "size. 'batchmean' divides only by the batch size, and aligns with the KL div math "
            "definition.",
            UserWarning,
            stacklevel=3,
        )
    how = "sum" if reduction == "batchmean" else reduction_of(None, None, reduction)
    entropy = target.exp() * target if log_target else target.xlogy(target)
    loss = entropy - (target.exp() if log_target else target) * input
    out = reduce_loss(loss, how)
    return out / input.shape[0] if reduction == "batchmean" and input.ndim else out


@function(public=False, autocast="float32")
def poisson_nll_loss(
    input, target, log_input=True, full=False, size_average=None, eps=1e-8, reduce=None,
    reduction="mean",
):  # fmt: skip
    """Take minus the log likelihood of counts under Poisson distributions.

    Args:
        input: Rates, or their logarithms with ``log_input``.
        target: Counts.
        log_input: ``input`` holds logarithms.
        full: Add Stirling's approximation of the term that does not depend on ``input``.
        size_average: Old form of ``reduction``.
        eps: Added to rates before their logarithm.
        reduce: Old form of ``reduction``.
        reduction: "mean", "sum" or "none".

    Returns:
        Tensor (), or in the broadcast shape for "none".
    """
    from . import where

    how = reduction_of(size_average, reduce, reduction)
    log_rate = input if log_input else (input + eps).log()
    loss = (input.exp() if log_input else input) - target * log_rate
    if full:
        safe = where(target > 1, target, 1.0)
        stirling = target * safe.log() - target + 0.5 * (safe * (2 * math.pi)).log()
        loss = loss + where(target > 1, stirling, 0.0)
    return reduce_loss(loss, how)


@function(public=False)
def gaussian_nll_loss(input, target, var, full=False, eps=1e-6, reduction="mean"):
    """Take minus the log likelihood of ``target`` under normal distributions.

    Args:
        input: Means.
        target: Observed values.
        var: Variances: the shape of ``input``, or 1 or nothing in its last dimension, or a number.
        full: Add the constant term.
        eps: The least variance.
        reduction: "mean", "sum" or "none".

    Returns:
        Tensor (), or in the shape of ``input`` for "none".

    Raises:
        ValueError: A variance is negative, or their shape does not fit.
    """
    from . import full_like

    if isinstance(var, float):
        var = full_like(input.detach(), var)
    if var.device.type != "meta" and var.numel() and bool((var < 0).any()):
        raise ValueError("gaussian_nll_loss: var has negative entry/entries. Pass variances.")
    if tuple(var.shape) != tuple(input.shape):
        if tuple(input.shape[:-1]) == tuple(var.shape):
            var = var.unsqueeze(-1)
        elif not (
            var.ndim == input.ndim
            and sum(v for n, v in zip(input.shape, var.shape, strict=True) if n != v) == 1
        ):
            raise ValueError(
                f"gaussian_nll_loss: var is of incorrect size {tuple(var.shape)} for input "
                f"{tuple(input.shape)}. Pass one variance per element, or per row."
            )
    how = reduction_of(None, None, reduction)
    # Clamped in value only: the gradient passes as if it were not.
    var = var + (var.clamp_min(eps) - var).detach()
    difference = input - target
    loss = 0.5 * (var.log() + difference * difference / var)
    return reduce_loss(loss + 0.5 * math.log(2 * math.pi) if full else loss, how)


# Distances and margins


@function(autocast=WIDE_ON_CUDA)
def cosine_similarity(x1, x2, dim=1, eps=1e-8):
    """Take the cosine of the angle between vectors along ``dim``.

    Args:
        x1: Vectors.
        x2: Vectors, broadcasting with ``x1``.
        dim: The dimension of their elements.
        eps: The least norm.

    Returns:
        Tensor in the broadcast shape without ``dim``.
    """
    if x1.dtype.category < FLOAT or x2.dtype.category < FLOAT:
        raise RuntimeError(
            f"cosine_similarity: expected floating dtypes; got {x1.dtype} and {x2.dtype}. "
            "Convert with .to(lowtide.float32)."
        )
    ndim = max(x1.ndim, x2.ndim)
    d = normal_dim("cosine_similarity", dim, ndim)
    a, b = (x.reshape(*[1] * (ndim - x.ndim), *x.shape) for x in (x1, x2))
    square_a, square_b = (a * a).sum(d), (b * b).sum(d)
    if ndim and a.shape[d] != b.shape[d]:  # one element stands for as many as the other has
        square_a = square_a * (b.shape[d] if a.shape[d] == 1 else 1)
        square_b = square_b * (a.shape[d] if b.shape[d] == 1 else 1)
    norms = square_a.clamp_min(eps * eps).rsqrt() * square_b.clamp_min(eps * eps).rsqrt()
    return (a * b).sum(d) * norms


@function()
def pairwise_distance(x1, x2, p=2.0, eps=1e-6, keepdim=False):
    """Take the ``p``-norm of differences along the last dimension.

    Args:
        x1: (*, D).
        x2: (*, D), broadcasting with ``x1``.
        p: Exponent of the norm.
        eps: Added to each difference.
        keepdim: Keep the last dimension, of size 1.

    Returns:
        Tensor in the broadcast shape without the last dimension.
    """
    return (x1 - x2 + eps).norm(p, -1, keepdim=keepdim)


@function(public=False, autocast="float32")
def cosine_embedding_loss(
    input1, input2, target, margin=0, size_average=None, reduce=None, reduction="mean"
):
    """Draw pairs of target 1 together and push those of target -1 beyond a cosine of ``margin``.

    Args:
        input1: (N, D) or (D,).
        input2: (N, D) or (D,).
        target: (N,) or (), of 1 and -1.
        margin: Cosine below which a pair of target -1 costs nothing.
        size_average: Old form of ``reduction``.
        reduce: Old form of ``reduction``.
        reduction: "mean", "sum" or "none".

    Returns:
        Tensor (), or (N,) for "none".
    """
    from . import where

    how = reduction_of(size_average, reduce, reduction)
    if target.ndim + 1 != input1.ndim or target.ndim + 1 != input2.ndim or target.ndim > 1:
        raise RuntimeError(
            f"cosine_embedding_loss: {target.ndim}D target tensor expects {target.ndim + 1}D input "
            f"tensors; got {tuple(input1.shape)} and {tuple(input2.shape)}."
        )
    dim, eps = target.ndim, 1e-12
    norms = ((input1 * input1).sum(dim) + eps) * ((input2 * input2).sum(dim) + eps)
    cosine = (input1 * input2).sum(dim) / norms.sqrt()
    far = where(target == -1, (cosine - margin).clamp_min(0), 0.0)
    return reduce_loss(where(target == 1, 1 - cosine, far), how)


@function(public=False, autocast="float32")
def margin_ranking_loss(
    input1, input2, target, margin=0, size_average=None, reduce=None, reduction="mean"
):
    """Take ``max(0, -target * (input1 - input2) + margin)``: which of two should rank higher."""
    how = reduction_of(size_average, reduce, reduction)
    if not input1.ndim == input2.ndim == target.ndim:
        raise RuntimeError(
            "margin_ranking_loss : All input tensors should have same dimension but got sizes: "
            f"input1: {tuple(input1.shape)}, input2: {tuple(input2.shape)}, target: "
            f"{tuple(target.shape)}."
        )
    return reduce_loss((-target * (input1 - input2) + margin).clamp_min(0), how)


@function(public=False, autocast="float32")
def hinge_embedding_loss(
    input, target, margin=1.0, size_average=None, reduce=None, reduction="mean"
):
    """Take ``input`` where the target is 1, and ``max(0, margin - input)`` where it is -1."""
    from . import where

    how = reduction_of(size_average, reduce, reduction)
    far = where(target != 1, (margin - input).clamp_min(0), 0.0)
    return reduce_loss(far + where(target != -1, input, 0.0), how)


@function(public=False, autocast="float32")
def soft_margin_loss(input, target, size_average=None, reduce=None, reduction="mean"):
    """Take ``log(1 + exp(-target * input))`` for targets 1 and -1."""
    how = reduction_of(size_average, reduce, reduction)
    return reduce_loss(bce_logits(-target * input, 0.0), how)


@function(public=False, autocast="float32")
def triplet_margin_loss(
    anchor, positive, negative, margin=1.0, p=2, eps=1e-6, swap=False, size_average=None,
    reduce=None, reduction="mean",
):  # fmt: skip
    """Take ``max(0, d(anchor, positive) - d(anchor, negative) + margin)``.

    Args:
        anchor: (N, D) or (D,).
        positive: Should be near.
        negative: Should be far.
        margin: By how much farther.
        p: Exponent of the distance.
        eps: Added to each difference.
        swap: The distance from positive to negative counts if it is the smaller one.
        size_average: Old form of ``reduction``.
        reduce: Old form of ``reduction``.
        reduction: "mean", "sum" or "none".

    Returns:
        Tensor (), or (N,) for "none".
    """
    how = reduction_of(size_average, reduce, reduction)

    def distance(a, b):
        return pairwise_distance(a, b, p, eps)

    return _triplet(anchor, positive, negative, distance, margin, swap, how)


@function(public=False)
def triplet_margin_with_distance_loss(
    anchor, positive, negative, *, distance_function=None, margin=1.0, swap=False,
    reduction="mean",
):  # fmt: skip
    """:func:`triplet_margin_loss` with a distance of one's own."""
    how = reduction_of(None, None, reduction)
    distance = distance_function or pairwise_distance
    return _triplet(anchor, positive, negative, distance, margin, swap, how)


def _triplet(anchor, positive, negative, distance, margin, swap, how):
    from . import minimum

    if margin <= 0:
        raise ValueError(f"margin must be greater than 0, got {margin}.")
    if not anchor.ndim == positive.ndim == negative.ndim:
        raise RuntimeError(
            "The anchor, positive, and negative tensors are expected to have the same number of "
            f"dimensions, but got: anchor {anchor.ndim}D, positive {positive.ndim}D, and negative "
            f"{negative.ndim}D inputs."
        )
    near, far = distance(anchor, positive), distance(anchor, negative)
    if swap:
        far = minimum(far, distance(positive, negative))
    return reduce_loss((near - far + margin).clamp_min(0), how)


@function(public=False, autocast="float32")
def multi_margin_loss(
    input, target, p=1, margin=1.0, weight=None, size_average=None, reduce=None, reduction="mean"
):
    """Take the mean over wrong classes of ``max(0, margin - x[class] + x[wrong])^p``.

    Args:
        input: (N, C) or (C,).
        target: Class indices (N,) or ().
        p: 1 or 2.
        margin: By how much the right class should lead.
        weight: (C,), a factor for each class.
        size_average: Old form of ``reduction``.
        reduce: Old form of ``reduction``.
        reduction: "mean", "sum" or "none".

    Returns:
        Tensor (), or in the shape of ``target`` for "none".
    """
    how = reduction_of(size_average, reduce, reduction)
    if p not in (1, 2):
        raise ValueError(f"only p == 1 and p == 2 supported; got {p}.")
    if weight is not None and weight.ndim != 1:
        raise ValueError("weight must be one-dimensional")
    x = input if input.ndim == 2 else input.reshape(1, input.numel())
    chosen = target.reshape(-1, 1)
    gap = (margin - x.gather(1, chosen) + x).clamp_min(0)
    if p == 2:
        gap = gap * gap
    if weight is not None:
        gap = gap * weight[chosen]
    loss = gap.scatter(1, chosen, 0.0).sum(1) / x.shape[1]
    return reduce_loss(loss.view(target.shape) if target.ndim == 0 else loss, how)


@function(public=False, autocast="float32")
def multilabel_margin_loss(input, target, size_average=None, reduce=None, reduction="mean"):
    """Take the mean over pairs of a right and a wrong class of ``max(0, 1 - x[right] + x[wrong])``.

    Args:
        input: (N, C) or (C,).
        target: The right classes in the same shape, ended by -1.
        size_average: Old form of ``reduction``.
        reduce: Old form of ``reduction``.
        reduction: "mean", "sum" or "none".

    Returns:
        Tensor (), or (N,) for "none".
    """
    from . import zeros_like

    how = reduction_of(size_average, reduce, reduction)
    fits = tuple(input.shape) == tuple(target.shape) if input.ndim > 1 else (
        target.ndim < 2 and input.numel() == target.numel()
    )  # fmt: skip
    if not fits or input.ndim > 2 or 0 in input.shape[-1:]:
        raise RuntimeError(
            f"multilabel_margin_loss takes (N, C) or (C,), with a target alike; got inconsistent "
            f"input {tuple(input.shape)} and target {tuple(target.shape)}."
        )
    x, t = (v if v.ndim == 2 else v.reshape(1, v.numel()) for v in (input, target))
    listed = (t < 0).cumsum(1) == 0
    chosen = t.clamp_min(0)
    right = zeros_like(x.detach()).scatter_add(1, chosen, listed.to(x.dtype)) > 0
    gap = 1 - x.gather(1, chosen).unsqueeze(2) + x.unsqueeze(1)
    counts = (listed.unsqueeze(2) & right.logical_not().unsqueeze(1)).to(x.dtype)
    loss = (gap.clamp_min(0) * counts).sum((1, 2)) / x.shape[1]
    return reduce_loss(loss if input.ndim == 2 else loss.squeeze(0), how)


@function(public=False)
def multilabel_soft_margin_loss(
    input, target, weight=None, size_average=None, reduce=None, reduction="mean"
):
    """Take the mean over classes of the binary cross entropy of each.

    Args:
        input: Logits (*, C).
        target: 0 and 1, the same shape.
        weight: (C,), a factor for each class.
        size_average: Old form of ``reduction``.
        reduce: Old form of ``reduction``.
        reduction: "mean", "sum" or "none".

    Returns:
        Tensor (), or (*) for "none".
    """
    how = reduction_of(size_average, reduce, reduction)
    loss = bce_logits(input, target)
    if weight is not None:
        loss = loss * weight
    return reduce_loss(loss.mean(-1), how)
