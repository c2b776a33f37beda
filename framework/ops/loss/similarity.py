"""Distances and similarity, and the losses based on them.

Compositions of elementwise ops and sums: each says what it is in one or two lines.
"""

from __future__ import annotations

from math import inf

from ...dtypes import FLOAT, INT, get_default_dtype, promote_types
from ..activation.gelu import softplus
from ..autocast_policy import WIDE_ON_CUDA
from ..elementwise.comparison import minimum
from ..indexing.where import where
from ..registry import function
from ..signatures import common_dtype
from ..views.reshape import normal_dim
from .binary_cross_entropy import _bce_with_logits
from .cross_entropy import reduce_loss, reduction_of
from .multilabel_margin import _multilabel_margin


def _wide(x):
    return x.float() if x.dtype.is_half else x


@function(autocast=WIDE_ON_CUDA)
def cosine_similarity(x1, x2, dim=1, eps=1e-8):
    """Compute the cosine similarity of vectors along ``dim``.

    Args:
        x1: Vectors.
        x2: Vectors, broadcasting with ``x1``.
        dim: The dimension of their elements.
        eps: The least norm.

    Returns:
        Tensor in the broadcast shape without ``dim``. float16 and bfloat16 are computed in float32.
    """
    common = common_dtype(x1, x2)
    if common.category < FLOAT:
        raise RuntimeError(
            f"cosine_similarity: expected a floating dtype; got {x1.dtype} and {x2.dtype}. "
            "Convert with .to(lowtide.float32)."
        )
    x1, x2 = (x if x.dtype.category >= FLOAT else x.to(common) for x in (x1, x2))
    if x1.dtype.is_half or x2.dtype.is_half:  # their squares are too large or too small for it
        dtype = promote_types(x1.dtype, x2.dtype)
        return cosine_similarity(_wide(x1), _wide(x2), dim, eps).to(dtype)
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
    """Compute the ``p``-norm distance along the last dimension.

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
    """Compute the cosine embedding loss of pairs with targets 1 (similar) and -1.

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
    how = reduction_of(size_average, reduce, reduction)
    if target.ndim + 1 != input1.ndim or target.ndim + 1 != input2.ndim or target.ndim > 1:
        raise RuntimeError(
            f"cosine_embedding_loss: {target.ndim}D target tensor expects {target.ndim + 1}D input "
            f"tensors; got {tuple(input1.shape)} and {tuple(input2.shape)}."
        )
    if input1.dtype.is_half or input2.dtype.is_half:  # as in cosine_similarity
        dtype = promote_types(input1.dtype, input2.dtype)
        loss = cosine_embedding_loss(_wide(input1), _wide(input2), target, margin, reduction=how)
        return loss.to(dtype)
    dim, eps = target.ndim, 1e-12
    norms = ((input1 * input1).sum(dim) + eps) * ((input2 * input2).sum(dim) + eps)
    cosine = (input1 * input2).sum(dim) / norms.sqrt()
    far = where(target == -1, (cosine - margin).clamp_min(0), 0.0)
    return reduce_loss(where(target == 1, 1 - cosine, far), how)


@function(public=False, autocast="float32")
def margin_ranking_loss(
    input1, input2, target, margin=0, size_average=None, reduce=None, reduction="mean"
):
    """Compute the margin ranking loss ``max(0, -target * (input1 - input2) + margin)``."""
    how = reduction_of(size_average, reduce, reduction)
    if not input1.ndim == input2.ndim == target.ndim:
        raise RuntimeError(
            "margin_ranking_loss : All input tensors should have same dimension but got sizes: "
            f"input1: {tuple(input1.shape)}, input2: {tuple(input2.shape)}, target: "
            f"{tuple(target.shape)}."
        )
    if common_dtype(input1, input2).category <= INT:  # whose differences may wrap
        input1, input2 = (x.to(get_default_dtype()) for x in (input1, input2))
    return reduce_loss((target * (input2 - input1) + float(margin)).clamp_min(0), how)


@function(public=False, autocast="float32")
def hinge_embedding_loss(
    input, target, margin=1.0, size_average=None, reduce=None, reduction="mean"
):
    """Compute ``input`` where the target is 1, and ``max(0, margin - input)`` where it is -1."""
    how = reduction_of(size_average, reduce, reduction)
    far = where(target != 1, (margin - input).clamp_min(0), 0.0)
    return reduce_loss(far + where(target != -1, input, 0.0), how)


@function(public=False, autocast="float32")
def soft_margin_loss(input, target, size_average=None, reduce=None, reduction="mean"):
    """Compute the logistic loss ``log(1 + exp(-target * input))`` for targets 1 and -1."""
    how = reduction_of(size_average, reduce, reduction)
    return reduce_loss(softplus(-(target * input), 1.0, inf), how)


@function(public=False, autocast="float32")
def triplet_margin_loss(
    anchor,
    positive,
    negative,
    margin=1.0,
    p=2,
    eps=1e-6,
    swap=False,
    size_average=None,
    reduce=None,
    reduction="mean",
):
    """Compute the triplet loss ``max(0, d(anchor, positive) - d(anchor, negative) + margin)``.

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
    anchor, positive, negative, *, distance_function=None, margin=1.0, swap=False, reduction="mean"
):
    """Compute :func:`triplet_margin_loss` with a custom distance function."""
    how = reduction_of(None, None, reduction)
    distance = distance_function or pairwise_distance
    return _triplet(anchor, positive, negative, distance, margin, swap, how)


def _triplet(anchor, positive, negative, distance, margin, swap, how):
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
    """Compute the multi-class hinge loss, the mean of ``max(0, margin - x[class] + x[wrong])^p``.

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
    gap = margin - x.gather(1, chosen) + x
    gap = where(gap > 0, gap, 0.0)  # at 0 and NaN it costs nothing
    if p == 2:
        gap = gap * gap
    if weight is not None:
        gap = gap * weight[chosen]
    loss = gap.scatter(1, chosen, 0.0).sum(1) / x.shape[1]
    return reduce_loss(loss.view(target.shape) if target.ndim == 0 else loss, how)


@function(public=False, autocast="float32")
def multilabel_margin_loss(input, target, size_average=None, reduce=None, reduction="mean"):
    """Compute the multi-label hinge loss over pairs of right and wrong classes.

    Args:
        input: (N, C) or (C,).
        target: The right classes in the same shape, ended by -1.
        size_average: Old form of ``reduction``.
        reduce: Old form of ``reduction``.
        reduction: "mean", "sum" or "none".

    Returns:
        Tensor (), or (N,) for "none".

    Raises:
        RuntimeError: Shapes do not fit, or (on the CPU) there is no such class.

    Memory:
        Keeps ``input`` and ``target``; the pairs are never made.
    """
    how = reduction_of(size_average, reduce, reduction)
    fits = (
        tuple(input.shape) == tuple(target.shape)
        if input.ndim > 1
        else (target.ndim < 2 and input.numel() == target.numel())
    )
    if not fits or input.ndim > 2 or 0 in input.shape[-1:]:
        raise RuntimeError(
            f"multilabel_margin_loss takes (N, C) or (C,), with a target alike; got inconsistent "
            f"input {tuple(input.shape)} and target {tuple(target.shape)}."
        )
    x, t = (v if v.ndim == 2 else v.reshape(1, v.numel()) for v in (input, target))
    loss = _multilabel_margin(x, t)
    return reduce_loss(loss if input.ndim == 2 else loss.squeeze(0), how)


@function(public=False)
def multilabel_soft_margin_loss(
    input, target, weight=None, size_average=None, reduce=None, reduction="mean"
):
    """Compute the binary cross entropy with logits of each class, averaged over classes.

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
    loss = _bce_with_logits(input, target)
    if weight is not None:
        loss = loss * weight
    return reduce_loss(loss.mean(-1), how)
