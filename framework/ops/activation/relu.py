"""ReLU and piecewise linear relatives. Each saves one value: a bitmask, input or result.

Those that PyTorch has only in ``nn.functional`` are no Tensor methods and not in ``lowtide.*``.
"""

from __future__ import annotations

from ...dtypes import BOOL, bool_, uint8
from ...kernels.common.layout import worth_compiling
from ...kernels.formula.bits import bits
from ...kernels.formula.formula import formula
from ...kernels.formula.functions import maximum, minimum
from ..conversion.copy import zero_gradient
from ..elementwise.bitmask import HIDDEN, INFINITY, bitmask_vjp, with_bitmask, worth_bits
from ..overwrite import write_over
from ..registry import function, op
from ..signatures import per_element, same, singles


def need_float(name, input):
    if input.dtype.category < 2:
        raise NotImplementedError(
            f"\"{name}\" not implemented for '{input.dtype.name}'. Convert with "
            ".to(lowtide.float32)."
        )


def floating(name, *extra):
    """Infer function of activations: results and scratch have the input's spec."""

    def infer(input, **_):
        need_float(name, input)
        return (input, *[input.like(dtype=bool_) if e == "mask" else input for e in extra])

    return infer


NAN = float("nan")


def _window_infer(grad, input, **_):
    return grad


def _windows(make):
    for low, high, outside in ((0.0, INFINITY, 0.0), (-0.7, 0.7, 0.0), (0.0, INFINITY, 0.1)):
        yield (make(3, 4), make(3, 4)), {"low": low, "high": high, "outside": outside}
    yield (make(3, 4), make(3, 4)), {"low": 0.0, "high": 1.0, "outside": 0.0, "inside": 0.25}
    ends = {"low": -1.3, "high": 0.3, "outside": 0.0}
    for shape in ((), (0, 3)):
        yield (make(*shape), make(*shape)), ends | {"nan_inside": True}


@op(infer=_window_infer, flops=per_element(2), samples=_windows)
@formula(fused=False, when=worth_compiling)
def _window(grad, input, *, low, high, outside, inside=1.0, nan_inside=False):
    """``inside * grad`` where ``low < input < high``, ``outside * grad`` elsewhere."""
    if high == INFINITY:
        beyond = input <= (low if low > -INFINITY else NAN)  # never, if there is no bound
    elif low == -INFINITY:
        beyond = input >= high
    else:
        beyond = input <= low or input >= high
    if not nan_inside:
        beyond = beyond or input != input
    if outside == 0:  # of an infinite gradient, too
        return 0 if beyond else grad * inside
    return grad * outside if beyond else grad * inside


@_window.vjp("grad", room=("g",))
def _(g, input, low, high, outside, inside, nan_inside, room):
    attributes = {"low": low, "high": high, "outside": outside}
    return write_over(room, _window, g, input, inside=inside, nan_inside=nan_inside, **attributes)


@_window.vjp("input")
def _(g, input_spec):  # flat except at the edges: zeros, as PyTorch has, and not None
    return zero_gradient(g, input_spec)


def _relu_infer(input):
    if input.dtype.category == BOOL:
        raise RuntimeError(
            "Boolean inputs not supported for relu. Convert with .to(lowtide.int64)."
        )
    return input


@op(
    inplace="relu_",
    infer=_relu_infer,
    flops=per_element(1),
    samples=singles,
    real=True,
    elementwise=True,
    one_write=True,
)
def _relu(xp, out, input):
    """Apply ``max(input, 0)``. Keeps the result."""
    xp.maximum(input, 0, out=out)


@_relu.loop()
def _positive(input):
    return 0 if input <= 0 else input  # NaN is not


@_relu.vjp("input", room=("g", "out"))
def _(g, out, room):
    positive = {"low": 0.0, "high": INFINITY, "outside": 0.0, "nan_inside": True}
    return write_over(room, _window, g, out, **positive)


@bits
def _relu_bits(input):
    out = _positive(input)
    return out, not out <= 0


relu_with_bitmask = with_bitmask(_relu, "_relu_with_bitmask", _relu_bits)


@relu_with_bitmask.vjp("input", room=("g_out",))
def _(g_out, bitmask, room):
    return bitmask_vjp(room, g_out, bitmask)


@function(method=True)
def relu(input, *, out=None):
    """Apply ReLU: ``max(input, 0)``.

    Memory:
        Keeps one bit an element; the result below 16384 elements and in place (``relu_``).
    """
    if out is None and worth_bits(input, exact=False):
        return relu_with_bitmask(input)[0]
    return _relu(input, out=out)


def _slopes(make):
    for inputs, _ in singles(make):
        yield inputs, {"negative_slope": 0.1}
    yield (make(2, 3),), {"negative_slope": 0.0}


@op(
    infer=floating("leaky_relu"),
    flops=per_element(3),
    inplace="_leaky_relu_",
    samples=_slopes,
)
@formula
def _leaky_relu(input, *, negative_slope):
    """``max(input, 0) + negative_slope * min(input, 0)`` for a slope >= 0. Keeps the result."""
    return input if input > 0 else input * negative_slope


@_leaky_relu.vjp("input", room=("g", "out"))
def _(g, out, negative_slope, room):
    slopes = {"low": 0.0, "high": INFINITY, "outside": negative_slope}
    return write_over(room, _window, g, out, **slopes)


@bits
def _leaky_relu_bits(input, *, negative_slope):
    return _leaky_relu(input, negative_slope=negative_slope), input > 0


leaky_relu_with_bitmask = with_bitmask(_leaky_relu, "_leaky_relu_with_bitmask", _leaky_relu_bits)


@leaky_relu_with_bitmask.vjp("input", room=("g_out",))
def _(g_out, bitmask, negative_slope, room):
    return bitmask_vjp(room, g_out, bitmask, outside=negative_slope)


@function(public=False)
def leaky_relu(input, negative_slope=0.01, inplace=False):
    """Apply leaky ReLU: ``max(input, 0) + negative_slope * min(input, 0)``.

    Memory:
        Keeps one bit an element; the result below 16384 elements and in place; the input where the
        slope is negative.
    """
    slope = float(negative_slope)
    if not slope < 0:
        if not inplace and worth_bits(input, exact=False):
            return leaky_relu_with_bitmask(input, slope)[0]
        return input._leaky_relu_(slope) if inplace else _leaky_relu(input, slope)
    from .glu_prelu import _prelu

    out = _prelu(input.clone() if inplace else input, slope)
    return input.copy_(out) if inplace else out


def _bounds(make):
    for inputs, _ in singles(make):
        yield inputs, {"min_val": -0.7, "max_val": 0.7}
    yield (make(2, 3),), {"min_val": 0.2, "max_val": 1.3}


def _hardtanh_infer(input, *, min_val, max_val):
    if min_val > max_val:
        raise ValueError(
            f"hardtanh: min_val cannot be greater than max_val; got {min_val} and {max_val}."
        )
    if input.dtype is uint8 and min_val < 0:
        raise RuntimeError(
            f"cannot do hardtanh on an unsigned type with negative limits; got {min_val}. Convert "
            "it with .float()."
        )
    return input


@op(
    infer=_hardtanh_infer,
    flops=per_element(2),
    samples=_bounds,
    inplace="_hardtanh_",
)
def _hardtanh(xp, out, input, *, min_val, max_val):
    """Limit to [min_val, max_val]; the gradient at a limit is 0. Keeps the result."""
    if out.dtype.kind in "iu":
        min_val, max_val = int(min_val), int(max_val)
    xp.maximum(input, min_val, out=out)
    xp.minimum(out, max_val, out=out)


@_hardtanh.vjp("input", room=("g", "out"))
def _(g, out, min_val, max_val, room):
    # The limits as `out` holds them: 0.7 is 0.699 in bfloat16.
    low, high = (float(out.dtype.np.type(v)) for v in (min_val, max_val))
    return write_over(room, _window, g, out, low=low, high=high, outside=0.0)


@bits
def _hardtanh_bits(input, *, min_val, max_val):
    out = minimum(maximum(input, min_val), max_val)
    return out, out > min_val and out < max_val


hardtanh_with_bitmask = with_bitmask(_hardtanh, "_hardtanh_with_bitmask", _hardtanh_bits)


@hardtanh_with_bitmask.vjp("input", room=("g_out",))
def _(g_out, bitmask, room):
    return bitmask_vjp(room, g_out, bitmask)


@function(public=False)
def hardtanh(input, min_val=-1.0, max_val=1.0, inplace=False):
    """Clamp to [min_val, max_val]; the gradient at a limit is 0.

    Memory:
        Keeps one bit an element; the result below 16384 elements and in place.
    """
    if inplace:
        return input._hardtanh_(min_val, max_val)
    if worth_bits(input):
        return hardtanh_with_bitmask(input, min_val, max_val)[0]
    return _hardtanh(input, min_val, max_val)


@function(public=False)
def relu6(input, inplace=False):
    """Apply ReLU6: ``min(max(input, 0), 6)``.

    Memory:
        Keeps one bit an element; the result below 16384 elements and in place.
    """
    return hardtanh(input, 0.0, 6.0, inplace)


# Piecewise linear gates


@op(
    infer=floating("hardsigmoid"),
    flops=per_element(4),
    inplace="_hardsigmoid_",
    samples=singles,
)
@formula(fused=False)
def _hardsigmoid(input):
    """``min(max(input + 3, 0), 6) / 6``. Keeps the result."""
    return minimum(maximum(input + 3, 0), 6) / 6


@_hardsigmoid.vjp("input", room=("g", "out"))
def _(g, out, room):
    return write_over(room, _window, g, out, low=0.0, high=1.0, outside=0.0, inside=1 / 6)


@bits
def _hardsigmoid_bits(input):
    out = _hardsigmoid(input)
    return out, out > 0 and out < 1


hardsigmoid_with_bitmask = with_bitmask(
    _hardsigmoid, "_hardsigmoid_with_bitmask", _hardsigmoid_bits
)


@hardsigmoid_with_bitmask.vjp("input", room=("g_out",))
def _(g_out, bitmask, room):
    return bitmask_vjp(room, g_out, bitmask, inside=1 / 6)


@function(public=False)
def hardsigmoid(input, inplace=False):
    """Apply the hard sigmoid: ``min(max(input + 3, 0), 6) / 6``.

    Memory:
        Keeps one bit an element; the result below 16384 elements and in place.
    """
    if not inplace and worth_bits(input):
        return hardsigmoid_with_bitmask(input)[0]
    return input._hardsigmoid_() if inplace else _hardsigmoid(input)


@op(inplace="_hardswish_", infer=floating("hardswish"), flops=per_element(5), samples=singles)
@formula
def _hardswish(input):
    """``input * hardsigmoid(input)``."""
    return minimum(maximum(input + 3, 0), 6) * input / 6


def gradient_samples(make):
    """Samples of a backward op: a gradient and a value."""
    for shape in ((3, 4), (2, 3), (0, 2)):
        yield (make(*shape, low=-4.3, high=4.3), make(*shape, low=-4.3, high=4.3)), {}


def gradient_infer(*extra):
    """Infer function of a backward op: a gradient and a value, with scratch."""

    def infer(grad, value, **_):
        return (grad, *[grad.like(dtype=bool_) if e == "mask" else grad for e in extra])

    return infer


@op(
    infer=gradient_infer(),
    flops=per_element(4),
    samples=gradient_samples,
)
@formula
def _hardswish_backward(grad, input):
    """Backward of hardswish: ``grad`` times its derivative."""
    above = grad if input >= 3 else (input / 3 + 0.5) * grad
    return 0 if input <= -3 else above


@_hardswish.vjp("input", room=("g", "input"))
@_hardswish_backward.vjp("grad", room=("g", "input"))
def _(g, input, room):
    return write_over(room, _hardswish_backward, g, input)


@_hardswish_backward.vjp("input")
def _(g, grad, input):
    return _window(g * grad, input, low=-3.0, high=3.0, outside=0.0, inside=1 / 3)


@function(public=False)
def hardswish(input, inplace=False):
    """Apply the hard swish: ``input * min(max(input + 3, 0), 6) / 6``.

    Memory:
        Keeps ``input``; in place, a copy of it.
    """
    return input._hardswish_() if inplace else _hardswish(input)


@op(**HIDDEN, infer=same, promote="float", flops=per_element(3), samples=singles)
@formula
def softsign(input):
    """Apply ``input / (1 + |input|)``.

    Memory:
        Keeps ``input``.
    """
    return input / (1 + abs(input))


@op(
    infer=gradient_infer(),
    flops=per_element(4),
    samples=gradient_samples,
)
@formula
def _softsign_backward(grad, input):
    """``grad / (1 + |input|) ** 2``."""
    d = 1 + abs(input)
    return grad / (d * d)


@softsign.vjp("input")
def _(g, input):
    if input.is_complex():  # |input| is real: it takes the real part of what arrives there
        scale = input.abs() + 1
        return g / scale - input.sgn() * ((g.conj() * input).real / scale.square())
    return _softsign_backward(g, input)


@_softsign_backward.vjp("grad")
def _(g, input):
    return _softsign_backward(g, input)


@_softsign_backward.vjp("input")
def _(g, grad, input):
    return _softsign_backward(g * grad, input) * (input.sign() * -2) / (input.abs() + 1)


__all__ = ["hardsigmoid", "hardswish", "hardtanh", "leaky_relu", "relu", "relu6", "softsign"]
