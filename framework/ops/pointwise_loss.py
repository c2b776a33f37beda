"""Losses of pairs of numbers: binary cross entropy, divergences, likelihoods.

Binary cross entropy is an op of its own, for its logarithms of numbers near 0 and 1. The others are
compositions that say what they are in one or two lines. Those of a difference are in
``difference_loss.py``.
"""

from __future__ import annotations

import math
import warnings
from math import prod

from ..autograd.modes import no_grad
from ..dtypes import float32
from ..spec import Spec
from .compiling import alike_singles, compile_gate
from .gating import softplus
from .layout import contiguous, even
from .loss import reduce_loss, reduction_of
from .registry import broadcast, function, op, per_element
from .selecting import where_select

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


def _arriving_probabilities(make):
    for shape in ((3, 4), (2, 3, 2), (), (0, 3)):
        x, t = (make(*shape, low=0.1, high=0.9) for _ in range(2))
        yield (make(*shape), x, t), {}


@op(
    name="_binary_cross_entropy_backward", method=False, public=False, promote="arith",
    infer=lambda *specs: (broadcast(*specs, op_name="binary_cross_entropy"),) * 2,
    half="float32", scratch=("work",), flops=per_element(6), samples=_arriving_probabilities,
)  # fmt: skip
def bce_slope(xp, out, work, grad, input, target):
    """``grad * (input - target) / ((1 - input) input)``, the divisor at least 1e-12."""
    xp.subtract(1, input, out=work)
    xp.multiply(work, input, out=work)
    xp.maximum(work, 1e-12, out=work)
    xp.subtract(input, target, out=out)
    xp.true_divide(out, work, out=out)
    xp.multiply(out, grad, out=out)


for _op, _name in ((bce, "bce"), (bce_slope, "bce_grad")):
    compile_gate(
        _op, lambda losses, _name=_name: (getattr(losses, _name), ()), when=alike_singles,
        module="losses",
    )  # fmt: skip


@bce.vjp("input")
def _(g, input, target):
    return bce_slope(g, input, target)


@bce_slope.vjp("grad")
def _(g, input, target):
    return bce_slope(g, input, target)


@bce_slope.vjp("input")
def _(g, grad, input, target):
    room = (1 - input) * input
    bend = (input - target) * (1 - 2 * input) / (room * room)
    return g * grad * (1 / room.clamp_min(1e-12) - where_select(room < 1e-12, 0, bend))


@bce_slope.vjp("target")
def _(g, grad, input):
    return -g * grad / ((1 - input) * input).clamp_min(1e-12)


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


def _three(make):
    for shape in ((3, 4), (2, 3, 2), (), (0, 3)):
        yield (make(*shape), make(*shape), make(*shape)), {}


@op(
    name="_bce_with_logits_backward", method=False, public=False, infer=broadcast, promote="arith",
    half="float32", flops=per_element(6), samples=_three,
)  # fmt: skip
def bce_logits_slope(xp, out, grad, input, target):
    """``grad * (sigmoid(input) - target)``."""
    xp.negative(input, out=out)
    xp.exp(out, out=out)
    xp.add(out, 1, out=out)
    xp.reciprocal(out, out=out)
    xp.subtract(out, target, out=out)
    xp.multiply(out, grad, out=out)


compile_gate(
    bce_logits, lambda losses: (losses.bce_logits, ()), when=alike_singles, module="losses"
)
compile_gate(
    bce_logits_slope,
    lambda losses: (losses.bce_logits_grad, ()),
    when=alike_singles,
    module="losses",
)


@bce_logits.vjp("input")
def _(g, input, target):
    return bce_logits_slope(g, input, target)


@bce_logits.vjp("target")
def _(g, input):
    return -g * input


@bce_logits_slope.vjp("grad")
def _(g, input, target):
    return bce_logits_slope(g, input, target)


@bce_logits_slope.vjp("input")
def _(g, grad, input):
    share = input.sigmoid()
    return g * grad * (share * (1 - share))


@bce_logits_slope.vjp("target")
def _(g, grad):
    return -g * grad


def _weighted_logits(make):
    for shape in ((3, 4), (2, 3, 2), (), (0, 3)):
        target = make(*shape, low=0.1, high=0.9)
        yield (make(*shape), target, make(*shape[1:], low=0.5, high=2.0)), {}


@op(
    name="_bce_with_pos_weight", method=False, public=False, promote="arith",
    infer=lambda *specs: (broadcast(*specs, op_name="binary_cross_entropy_with_logits"),) * 2,
    half="float32", scratch=("work",), flops=per_element(10), samples=_weighted_logits,
)  # fmt: skip
def bce_weighted(xp, out, work, input, target, pos_weight):
    """``(1 - t) x + (1 + (w - 1) t) log(1 + exp(-x))``."""
    xp.negative(input, out=work)
    xp.logaddexp(work, 0.0, out=work)
    xp.subtract(pos_weight, 1, out=out)
    xp.multiply(out, target, out=out)
    xp.add(out, 1, out=out)
    xp.multiply(out, work, out=out)
    xp.subtract(1, target, out=work)
    xp.multiply(work, input, out=work)
    xp.add(out, work, out=out)


def _arriving_logits(make):
    for shape in ((3, 4), (2, 3, 2), (), (0, 3)):
        weight = make(*shape[1:], low=0.5, high=2.0)
        yield (make(*shape), make(*shape), make(*shape), weight), {}


@op(
    name="_bce_with_pos_weight_backward", method=False, public=False, promote="arith",
    infer=lambda *specs: (broadcast(*specs, op_name="binary_cross_entropy_with_logits"),) * 2,
    half="float32", scratch=("work",), flops=per_element(12), samples=_arriving_logits,
)  # fmt: skip
def bce_weighted_slope(xp, out, work, grad, input, target, pos_weight):
    """``grad (1 - t - (1 + (w - 1) t) / (1 + exp(x)))``."""
    xp.subtract(pos_weight, 1, out=out)
    xp.multiply(out, target, out=out)
    xp.add(out, 1, out=out)
    xp.exp(input, out=work)
    xp.add(work, 1, out=work)
    xp.true_divide(out, work, out=out)
    xp.subtract(1, target, out=work)
    xp.subtract(work, out, out=out)
    xp.multiply(out, grad, out=out)


def _cube(shape, weight):
    """Sizes (before, of, after) the one dim that a weight varies along, or None: it is none."""
    long = [k for k, n in enumerate(weight) if n > 1]
    if len(weight) > len(shape) or len(long) > 1:
        return None
    if not long:
        return shape[0], 1, -1
    dim = len(shape) - len(weight) + long[0]
    return prod(shape[:dim]), shape[dim], prod(shape[dim + 1 :])


def _by_class(*specs):
    *others, weight = specs
    if not (alike_singles(*others) and isinstance(weight, Spec) and weight.dtype is float32):
        return False
    return _cube(others[0].shape, weight.shape) is not None


def _run_weighted(name, out, *arrays):
    from ..kernels.cpu import losses
    from ..kernels.cpu.threads import spread

    *others, weight = arrays
    cube = _cube(out.shape, weight.shape)
    shaped = [a.reshape(cube) for a in (out, *others)]
    if len(others) == 3 and not others[0].flags.c_contiguous:
        shaped[1] = shaped[1][:1, :1, :1]  # the gradient is one number
    spread(getattr(losses, name), out.size, len(shaped[0]), *shaped, weight.reshape(1, -1))


@bce_weighted.kernel("cpu", when=_by_class, layout=contiguous, scratch=False)
def _(xp, out, work, *arrays):
    _run_weighted("bce_weighted", out, *arrays)


@bce_weighted_slope.kernel("cpu", when=_by_class, layout=even, scratch=False)
def _(xp, out, work, grad, *arrays):
    _run_weighted("bce_weighted_grad", out, grad, *arrays)


@bce_weighted.vjp("input")
def _(g, input, target, pos_weight):
    return bce_weighted_slope(g, input, target, pos_weight)


@bce_weighted.vjp("target")
def _(g, input, pos_weight):
    return g * ((pos_weight - 1) * softplus(-input, 1.0, math.inf) - input)


@bce_weighted.vjp("pos_weight")
def _(g, input, target):
    return g * target * softplus(-input, 1.0, math.inf)


@bce_weighted_slope.vjp("grad")
def _(g, input, target, pos_weight):
    return bce_weighted_slope(g, input, target, pos_weight)


@bce_weighted_slope.vjp("input")
def _(g, grad, input, target, pos_weight):
    share = input.sigmoid()
    return g * grad * (1 + (pos_weight - 1) * target) * (share * (1 - share))


@bce_weighted_slope.vjp("target")
def _(g, grad, input, pos_weight):
    return -g * grad * (1 + (pos_weight - 1) * (-input).sigmoid())


@bce_weighted_slope.vjp("pos_weight")
def _(g, grad, input, target):
    return -g * grad * target * (-input).sigmoid()


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
        Keeps input and target; ``pos_weight`` too.
    """
    how = reduction_of(size_average, reduce, reduction)
    if tuple(target.shape) != tuple(input.shape):
        raise ValueError(
            f"Target size ({target.shape}) must be the same as input size ({input.shape})."
        )
    if pos_weight is None:
        loss = bce_logits(input, target)
    else:
        loss = bce_weighted(input, target, pos_weight)
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
