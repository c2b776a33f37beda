"""Binary cross entropy, of probabilities and of logits.

Probabilities near 0 and 1 want logarithms that are bounded, logits an exponential that does not
overflow; so each is a separate op, and so is the gradient of each.
"""

from __future__ import annotations

import math
from functools import partial

from ...dtypes import FLOAT
from ...kernels.common.elementwise import same_shape_float32
from ...kernels.formula.formula import formula
from ...kernels.formula.functions import (
    exp,
    log,
    log1p_of_fraction,
    log_of_rest,
    maximum,
    minimum,
)
from ...modes import no_grad
from ..activation.gelu import softplus
from ..overwrite import write_over
from ..registry import function, op
from ..signatures import broadcast, per_element
from .cross_entropy import reduce_loss, reduction_of
from .fused_reduction import expand_loss_gradient, fused_reduction, reduce_loss_fused


def _check_floating(name, input, target):
    if target.dtype.category != FLOAT:
        raise RuntimeError(
            f"{name}: Found dtype {target.dtype} but expected {input.dtype}, since targets are "
            "probabilities. Convert target with .to(input.dtype)."
        )


def _probabilities(make):
    for shape in ((3, 4), (2, 3, 2), (), (0, 3)):
        yield (make(*shape, low=0.1, high=0.9), make(*shape, low=0.1, high=0.9)), {}


@op(
    infer=broadcast,
    promote="arith",
    flops=per_element(8),
    samples=_probabilities,
)
@formula(when=same_shape_float32)
def _binary_cross_entropy(input, target):
    """``-(target * log(input) + (1 - target) * log(1 - input))``, logarithms at least -100."""
    high = maximum(log(input), -100)
    low = maximum(log_of_rest(input), -100)
    return (target - 1) * low - high * target


def _arriving_probabilities(make):
    for shape in ((3, 4), (2, 3, 2), (), (0, 3)):
        x, t = (make(*shape, low=0.1, high=0.9) for _ in range(2))
        yield (make(*shape), x, t), {}


@op(
    infer=broadcast,
    promote="arith",
    flops=per_element(6),
    samples=_arriving_probabilities,
)
@formula(when=same_shape_float32)
def _binary_cross_entropy_backward(grad, input, target):
    """``grad * (input - target) / ((1 - input) input)``, the divisor at least 1e-12."""
    return (input - target) / maximum((1 - input) * input, 1e-12) * grad


@_binary_cross_entropy.vjp("input", room=("g",))
@_binary_cross_entropy_backward.vjp("grad", room=("g",))
def _(g, input, target, room):
    return write_over(room, _binary_cross_entropy_backward, g, input, target)


@_binary_cross_entropy_backward.vjp("input")
def _(g, grad, input, target):
    # Not that of the bounded divisor, which would be flat: the exact one, kept from 0 / 0.
    room = (1 - input + 1e-12) * (input + 1e-12)
    return g * grad * ((input * input - 2 * input * target + target) / (room * room))


@_binary_cross_entropy_backward.vjp("target")
def _(g, grad, input):
    return -g * grad / ((1 - input) * input).clamp_min(1e-12)


@_binary_cross_entropy.vjp("target")
def _(g, input):
    return g * ((1 - input).log() - input.log())


bce_total = fused_reduction(_binary_cross_entropy, when=same_shape_float32)


@bce_total.vjp("input", room=("input",))
def _(g, input, target, divisor, room):
    each = expand_loss_gradient(g, input, divisor)
    return write_over(room, _binary_cross_entropy_backward, each, input, target)


@bce_total.vjp("target")
def _(g, input, divisor):
    return expand_loss_gradient(g, input, divisor) * ((1 - input).log() - input.log())


def _check_probabilities(name, values):
    least, most = values.aminmax()  # NaN if one is
    if not (least >= 0 and most <= 1):
        raise RuntimeError(
            f"binary_cross_entropy: all elements of {name} should be between 0 and 1; got "
            f"{float(least)} to {float(most)}. For logits, call binary_cross_entropy_with_logits."
        )


@function(public=False, autocast={"cpu": "float32", "cuda": "refuse"})
def binary_cross_entropy(
    input, target, weight=None, size_average=None, reduce=None, reduction="mean"
):
    """Compute the binary cross entropy between probabilities and targets.

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
    _check_floating("binary_cross_entropy", input, target)
    if tuple(target.shape) != tuple(input.shape):
        raise ValueError(
            f"Using a target size ({target.shape}) that is different to the input size "
            f"({input.shape}) is deprecated. Please ensure they have the same size."
        )
    if input.device.type == "cpu" and input.numel():
        with no_grad():
            _check_probabilities("input", input)
            _check_probabilities("target", target)
    if weight is None:
        return reduce_loss_fused(_binary_cross_entropy, bce_total, how, input, target)
    return reduce_loss(_binary_cross_entropy(input, target) * weight, how)


def _logits(make):
    for shape in ((3, 4), (2, 3, 2), (), (0, 3)):
        yield (make(*shape), make(*shape)), {}


@op(
    infer=broadcast,
    promote="arith",
    flops=per_element(6),
    samples=_logits,
)
@formula(when=same_shape_float32)
def _bce_with_logits(input, target):
    """``log(1 + exp(input)) - input * target``, without overflow.

    As ``(1 - target) input - min(input, 0) + log(1 + exp(-abs(input)))``: the logarithm comes last,
    since it would be rounded away beside a large input.
    """
    line = (1 - target) * input - minimum(input, 0)
    return line + log1p_of_fraction(exp(-abs(input)))


def _three(make):
    for shape in ((3, 4), (2, 3, 2), (), (0, 3)):
        yield (make(*shape), make(*shape), make(*shape)), {}


@op(
    infer=broadcast,
    promote="arith",
    flops=per_element(6),
    samples=_three,
)
@formula(when=same_shape_float32)
def _bce_with_logits_backward(grad, input, target):
    """``grad * (sigmoid(input) - target)``."""
    return (1 / (1 + exp(-input)) - target) * grad


@_bce_with_logits.vjp("input", room=("g",))
def _(g, input, target, room):
    return write_over(room, _bce_with_logits_backward, g, input, target)


@_bce_with_logits.vjp("target")
def _(g, input):
    return -g * input


@_bce_with_logits_backward.vjp("grad")
def _(g, input, target):
    return _bce_with_logits_backward(g, input, target)


@_bce_with_logits_backward.vjp("input")
def _(g, grad, input):
    share = input.sigmoid()
    return g * grad * (share * (1 - share))


@_bce_with_logits_backward.vjp("target")
def _(g, grad):
    return -g * grad


bce_logits_total = fused_reduction(_bce_with_logits, when=same_shape_float32)


@bce_logits_total.vjp("input", room=("input",))
def _(g, input, target, divisor, room):
    each = expand_loss_gradient(g, input, divisor)
    return write_over(room, _bce_with_logits_backward, each, input, target)


@bce_logits_total.vjp("target")
def _(g, input, divisor):
    return -expand_loss_gradient(g, input, divisor) * input


def _weighted_logits(make):
    for shape in ((3, 4), (2, 3, 2), (), (0, 3)):
        target = make(*shape, low=0.1, high=0.9)
        for of in (shape[1:], shape):
            yield (make(*shape), target, make(*of, low=0.5, high=2.0)), {}


@op(
    promote="arith",
    infer=partial(broadcast, op_name="binary_cross_entropy_with_logits"),
    flops=per_element(10),
    samples=_weighted_logits,
)
@formula(when=same_shape_float32, channels=True)
def _bce_with_pos_weight(input, target, pos_weight):
    """``(1 - t) x + (1 + (w - 1) t) log(1 + exp(-x))``."""
    rest = log1p_of_fraction(exp(-abs(input))) + maximum(-input, 0)
    return ((pos_weight - 1) * target + 1) * rest + (1 - target) * input


def _arriving_logits(make):
    for shape in ((3, 4), (2, 3, 2), (), (0, 3)):
        for of in (shape[1:], shape):
            weight = make(*of, low=0.5, high=2.0)
            yield (make(*shape), make(*shape), make(*shape), weight), {}


@op(
    promote="arith",
    infer=partial(broadcast, op_name="binary_cross_entropy_with_logits"),
    flops=per_element(12),
    samples=_arriving_logits,
)
@formula(when=same_shape_float32, channels=True)
def _bce_with_pos_weight_backward(grad, input, target, pos_weight):
    """``grad (1 - t - (1 + (w - 1) t) / (1 + exp(x)))``."""
    return (1 - target - ((pos_weight - 1) * target + 1) / (1 + exp(input))) * grad


@_bce_with_pos_weight.vjp("input")
def _(g, input, target, pos_weight):
    return _bce_with_pos_weight_backward(g, input, target, pos_weight)


@_bce_with_pos_weight.vjp("target")
def _(g, input, pos_weight):
    return g * ((pos_weight - 1) * softplus(-input, 1.0, math.inf) - input)


@_bce_with_pos_weight.vjp("pos_weight")
def _(g, input, target):
    return g * target * softplus(-input, 1.0, math.inf)


@_bce_with_pos_weight_backward.vjp("grad")
def _(g, input, target, pos_weight):
    return _bce_with_pos_weight_backward(g, input, target, pos_weight)


@_bce_with_pos_weight_backward.vjp("input")
def _(g, grad, input, target, pos_weight):
    share = input.sigmoid()
    return g * grad * (1 + (pos_weight - 1) * target) * (share * (1 - share))


@_bce_with_pos_weight_backward.vjp("target")
def _(g, grad, input, pos_weight):
    return -g * grad * (1 + (pos_weight - 1) * (-input).sigmoid())


@_bce_with_pos_weight_backward.vjp("pos_weight")
def _(g, grad, input, target):
    return -g * grad * target * (-input).sigmoid()


@function(public=False, autocast="float32")
def binary_cross_entropy_with_logits(
    input, target, weight=None, size_average=None, reduce=None, reduction="mean", pos_weight=None
):
    """Compute the binary cross entropy between logits and targets, without overflow.

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
        Keeps input and target; ``pos_weight`` too. Without weights, from 16384 elements on, the
        mean and the sum make no array of losses (on the CPU).
    """
    how = reduction_of(size_average, reduce, reduction)
    _check_floating("binary_cross_entropy_with_logits", input, target)
    if tuple(target.shape) != tuple(input.shape):
        raise ValueError(
            f"Target size ({target.shape}) must be the same as input size ({input.shape})."
        )
    if pos_weight is None:
        if weight is None:
            return reduce_loss_fused(_bce_with_logits, bce_logits_total, how, input, target)
        loss = _bce_with_logits(input, target)
    else:
        loss = _bce_with_pos_weight(input, target, pos_weight)
    return reduce_loss(loss if weight is None else loss * weight, how)
