"""Regression losses: mse_loss, l1_loss, smooth_l1_loss, huber_loss.

They are separate ops, which keep input and target, or of the absolute value the sign in two
bits, and not the difference: a third array that nothing else keeps.
"""

from __future__ import annotations

import warnings

from ...dtypes import bool_, finfo, float32, float64
from ...kernels.common.layout import contiguous, same_shape_dtype
from ...kernels.cuda.kernel import is_float
from ...kernels.formula.bits import bits
from ...kernels.formula.formula import formula
from ...kernels.formula.functions import maximum, minimum
from ...spec import Spec
from ..elementwise.bitmask import (
    _sign_by_masks,
    bitmask_spec,
    compute_bits,
    give_bit_loops,
    work_specs,
    worth_bits,
)
from ..indexing.where import _where
from ..overwrite import write_over
from ..registry import function, op
from ..signatures import broadcast, per_element
from .cross_entropy import reduce_loss, reduction_of
from .fused_reduction import expand_loss_gradient, fused_reduction, reduce_loss_fused


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


def _error_infer(input, target, **_):
    return broadcast(input, target)


def _differing(make):
    for shape in ((3, 4), (2, 3, 2), (), (0, 3)):
        yield (make(*shape), make(*shape)), {}
    yield (make(3, 4), make(4)), {}


def _bends(make):
    for inputs, _ in _differing(make):
        yield inputs, {"bend": 0.71, "slope": 0.71}
    yield (make(3, 4), make(3, 4)), {"bend": 1.3, "slope": 1.0}


def _arriving(make):
    for shape in ((3, 4), (2, 3, 2), (), (0, 3)):
        yield (make(*shape), make(*shape), make(*shape)), {}
    yield (make(3, 4), make(3, 4), make(4)), {}


def _arriving_bends(make):
    for inputs, _ in _arriving(make):
        yield inputs, {"bend": 0.71, "slope": 0.71}
    yield (make(3, 4), make(3, 4), make(3, 4)), {"bend": 1.3, "slope": 1.0}


@op(
    infer=_error_infer,
    promote="arith",
    flops=per_element(2),
    samples=_differing,
)
@formula(fused=False, when=same_shape_dtype)
def _squared_error(input, target):
    """``(input - target) ** 2``."""
    d = input - target
    return d * d


@op(
    infer=_error_infer,
    promote="arith",
    flops=per_element(2),
    samples=_differing,
)
def _absolute_error(xp, out, input, target):
    """``|input - target|``."""
    xp.subtract(input, target, out=out)
    xp.absolute(out, out=out)


@op(infer=_error_infer, promote="arith", flops=per_element(6), samples=_bends)
@formula(fused=False, when=same_shape_dtype)
def _bent_error(input, target, *, bend, slope):
    """Huber-like error: quadratic below ``bend``, then linear with slope ``slope``.

    With ``h`` half the difference or half of ``bend``, the smaller, it is
    ``2 slope / bend * (difference - h) * h`` on both sides.
    """
    d = abs(input - target)
    h = minimum(d * 0.5, 0.5 * bend)
    return (d - h) * h * (2 * slope / bend)


# The gradients in ``input``; those in ``target`` are the same with the other sign.


@op(
    infer=broadcast,
    promote="arith",
    flops=per_element(3),
    samples=_arriving,
)
@formula(fused=False, when=same_shape_dtype)
def _squared_error_backward(grad, input, target):
    """``grad * 2 (input - target)``."""
    return (input - target) * 2 * grad


@op(
    infer=broadcast,
    promote="arith",
    flops=per_element(5),
    samples=_arriving_bends,
)
@formula(fused=False, when=same_shape_dtype)
def _bent_error_backward(grad, input, target, *, bend, slope):
    """Backward of bent_error: ``grad`` times its derivative."""
    v = (input - target) * (slope / bend)
    return minimum(maximum(v, -slope), slope) * grad


squared_total, bent_total = fused_reduction(_squared_error), fused_reduction(_bent_error)


@squared_total.vjp("input", "target", room=("input", "target"))
def _(g, needs, input, target, divisor, room):
    each = expand_loss_gradient(g, input, divisor)
    return _both(write_over(room, _squared_error_backward, each, input, target), needs)


@bent_total.vjp("input", "target", room=("input", "target"))
def _(g, needs, input, target, bend, slope, divisor, room):
    each, bends = expand_loss_gradient(g, input, divisor), {"bend": bend, "slope": slope}
    return _both(write_over(room, _bent_error_backward, each, input, target, **bends), needs)


@bits
def _distance_bits(difference):
    return abs(difference), not difference <= 0, difference != 0


@bits
def _absolute_error_bits(input, target):
    return _distance_bits(input - target)


def _with_bitmask_infer(input, target):
    out = broadcast(input, target)
    return out, bitmask_spec(out), bitmask_spec(out), *work_specs(_distance_bits, out)


@op(
    infer=_with_bitmask_infer,
    returns=("out", "above", "apart"),
    scratch=("bools", "numbers"),
    promote="arith",
    flops=per_element(2),
    samples=_differing,
    layout=contiguous,
)
def _absolute_error_with_bitmask(xp, out, above, apart, bools, numbers, input, target):
    """``|input - target|``, with bitmasks of ``input > target`` and of inequality."""
    xp.subtract(input, target, out=out)
    compute_bits(xp, _distance_bits, out, [above, apart], bools, numbers, [out])


_absolute_error_with_bitmask.op.display_name = _absolute_error.op.display_name


def _alike(input, target):
    both = isinstance(input, Spec) and isinstance(target, Spec)
    return both and is_float(input, target) and input.shape == target.shape


give_bit_loops(
    _absolute_error_with_bitmask, _absolute_error_bits, when=same_shape_dtype, on_gpu=_alike
)


@_absolute_error_with_bitmask.vjp("input", "target")
def _(g_out, needs, above, apart):
    if g_out is None:
        return None, None
    return _both(_sign_by_masks(g_out, above.detach(), apart.detach()), needs)


@_squared_error.vjp("input", "target", room=("g", "input", "target"))
def _(g, needs, input, target, room):
    return _both(write_over(room, _squared_error_backward, g, input, target), needs)


@_absolute_error.vjp("input", "target")
def _(g, needs, input, target):
    return _both(g * (input - target).sign(), needs)


@_bent_error.vjp("input", "target", room=("g", "input", "target"))
def _(g, needs, input, target, bend, slope, room):
    bends = {"bend": bend, "slope": slope}
    return _both(write_over(room, _bent_error_backward, g, input, target, **bends), needs)


@_squared_error_backward.vjp("grad")
def _(g, input, target):
    return _squared_error_backward(g, input, target)


@_squared_error_backward.vjp("input", "target")
def _(g, needs, grad):
    return _both(g * grad * 2, needs)


@_bent_error_backward.vjp("grad")
def _(g, input, target, bend, slope):
    return _bent_error_backward(g, input, target, bend, slope)


@_bent_error_backward.vjp("input", "target")
def _(g, needs, grad, input, target, bend, slope):
    curved = g * grad * (slope / bend)
    return _both(_where((input - target).abs() < bend, curved, 0), needs)


def _both(slope, needs):
    return slope if needs[0] else None, -slope if needs[1] else None


def _real_floats(input, target) -> bool:
    return input.is_floating_point() and not target.is_complex()


def _unless_bool(input, target):
    # A bool input beside floats: of bools there are no differences.
    return input.to(target.dtype) if input.dtype is bool_ is not target.dtype else input


@function(public=False, autocast="float32")
def mse_loss(input, target, size_average=None, reduce=None, reduction="mean", weight=None):
    """Compute the squared error.

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
        Keeps ``input`` and ``target``, and not their difference; from 16384 elements on, the mean
        and the sum make no array of losses either (on the CPU, without ``weight``).
    """
    how = reduction_of(size_average, reduce, reduction)
    _compared(input, target)
    if _real_floats(input, target):
        if weight is None:
            return reduce_loss_fused(_squared_error, squared_total, how, input, target)
        return _weighted(_squared_error(input, target), weight, how)
    difference = _unless_bool(input, target) - target
    return _weighted(difference * difference, weight, how)


@function(public=False, autocast="float32")
def l1_loss(input, target, size_average=None, reduce=None, reduction="mean", weight=None):
    """Compute the absolute error. The arguments are those of :func:`mse_loss`.

    Memory:
        Keeps two bits an element; ``input`` and ``target`` below 16384 elements.
    """
    how = reduction_of(size_average, reduce, reduction)
    _compared(input, target)
    if _real_floats(input, target):
        if worth_bits(input, exact=False) or worth_bits(target, exact=False):
            return _weighted(_absolute_error_with_bitmask(input, target)[0], weight, how)
        return _weighted(_absolute_error(input, target), weight, how)
    return _weighted((input - target).abs(), weight, how)


@function(public=False, autocast="float32")
def smooth_l1_loss(input, target, size_average=None, reduce=None, reduction="mean", beta=1.0):
    """Compute the smooth L1 loss: absolute error, quadratic (over ``2 beta``) below ``beta``.

    The other arguments are those of :func:`mse_loss`.
    """
    how = reduction_of(size_average, reduce, reduction)
    if beta < 0:
        raise RuntimeError(f"smooth_l1_loss does not support negative values for beta; got {beta}.")
    smallest = finfo(float64 if input.dtype is float64 else float32).tiny
    if beta < smallest:  # what is divided by it would not be finite
        return l1_loss(input, target, reduction=how)
    _compared(input, target)
    return _quadratic_then_linear(input, target, float(beta), 1.0, None, how)


@function(public=False, autocast="float32")
def huber_loss(input, target, reduction="mean", delta=1.0, weight=None):
    """Compute the Huber loss: half squared error below ``delta``, linear beyond.

    The other arguments are those of :func:`mse_loss`.
    """
    how = reduction_of(None, None, reduction)
    if delta <= 0:
        raise RuntimeError(f"huber_loss does not support non-positive values for delta: {delta}.")
    _compared(input, target)
    delta = float(delta)
    return _quadratic_then_linear(input, target, delta, delta, weight, how)


def _quadratic_then_linear(input, target, bend, slope, weight, how):
    if _real_floats(input, target):
        if weight is None:
            return reduce_loss_fused(_bent_error, bent_total, how, input, target, bend, slope)
        return _weighted(_bent_error(input, target, bend, slope), weight, how, False)
    size = (_unless_bool(input, target) - target).abs()
    line = (size - 0.5 * bend) * slope
    loss = _where(size < bend, size * size * (0.5 * slope / bend), line)
    return _weighted(loss, weight, how, False)
