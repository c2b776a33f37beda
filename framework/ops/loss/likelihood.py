"""Divergence and likelihood losses: kl_div, poisson_nll_loss, gaussian_nll_loss.

They are compositions that say what they are in one or two lines. Binary cross entropy is in
``binary_cross_entropy.py``, losses of a difference are in ``regression.py``.
"""

from __future__ import annotations

import math
import warnings

from ...modes import no_grad
from ..creation.fill import full_like
from ..indexing.where import where
from ..registry import function
from .cross_entropy import reduce_loss, reduction_of


@function(public=False, autocast="float32")
def kl_div(input, target, size_average=None, reduce=None, reduction="mean", log_target=False):
    """Compute the Kullback-Leibler divergence ``target * (log target - input)``.

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
    if log_target:
        out = reduce_loss(target.exp() * (target - input), how)
    else:
        out = reduce_loss(target.xlogy(target) - target * input, how)
    return out / input.shape[0] if reduction == "batchmean" and input.ndim else out


@function(public=False, autocast="float32")
def poisson_nll_loss(
    input,
    target,
    log_input=True,
    full=False,
    size_average=None,
    eps=1e-8,
    reduce=None,
    reduction="mean",
):
    """Compute the negative log-likelihood of counts under Poisson distributions.

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
    """Compute the negative log-likelihood of ``target`` under normal distributions.

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
    var = var.clone()
    with no_grad():
        var.clamp_(min=eps)
    difference = input - target
    loss = 0.5 * (var.log() + difference * difference / var)
    return reduce_loss(loss + 0.5 * math.log(2 * math.pi) if full else loss, how)
