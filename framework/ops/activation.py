"""Activation functions. Each keeps one value for backward: the input, or the result if it suffices.

Those that PyTorch has only in ``nn.functional`` are no Tensor methods and not in ``lowtide.*``.
"""

from __future__ import annotations

from typing import Any

from ..dtypes import BOOL, bool_
from .convolution import contiguous, worth_compiling
from .pointwise import sigmoid, tanh
from .registry import broadcast, function, op, per_element, same, singles
from .selecting import where_select

INFINITY = float("inf")
HIDDEN: dict[str, Any] = {"public": False, "method": False}  # of nn.functional only


def _need_float(name, input):
    if input.dtype.category < 2:
        raise NotImplementedError(
            f"\"{name}\" not implemented for '{input.dtype.name}'. Convert with "
            ".to(lowtide.float32)."
        )


def _floating(name, *extra):
    """The infer rule of an activation: results and scratch look like the input."""

    def infer(input, **_):
        _need_float(name, input)
        return (input, *[input.like(dtype=bool_) if e == "mask" else input for e in extra])

    return infer


def _vectorized(input, *_, **__):
    return worth_compiling(input) and input.dtype.name == "float32"


def _compile(op, kernel, *, when=_vectorized):
    """Give an op of arrays that look alike a compiled CPU kernel: ``kernel(gates, attributes)``.

    It returns a function of gates and the numbers that this takes after the arrays.
    """

    @op.kernel("cpu", when=when, layout=contiguous)
    def _(xp, out, *arrays, **attributes):
        from ..kernels.cpu import gates
        from ..kernels.cpu.threads import spread

        arrays = arrays[len(op.op.scratch) :]  # nothing is left to put aside
        run, numbers = kernel(gates, **attributes)
        flat = [a.reshape(-1) for a in (out, *arrays)]
        spread(run, out.size, out.size, *flat, *numbers)


def _masked_infer(grad, input, **_):
    return grad, grad.like(dtype=bool_)


def _windows(make):
    for low, high, outside in ((0.0, INFINITY, 0.0), (-0.7, 0.7, 0.0), (0.0, INFINITY, 0.1)):
        yield (make(3, 4), make(3, 4)), {"low": low, "high": high, "outside": outside}
    for shape in ((), (0, 3)):
        yield (make(*shape), make(*shape)), {"low": -1.3, "high": 0.3, "outside": 0.0}


@op(
    name="_window", **HIDDEN, infer=_masked_infer, scratch=("mask",), half="float32",
    flops=per_element(2), samples=_windows,
)  # fmt: skip
def window(xp, out, mask, grad, input, *, low, high, outside):
    """``grad`` where ``low < input < high`` (or nan), ``outside * grad`` elsewhere."""
    xp.copyto(out, grad)
    for bound, beyond in ((low, xp.less_equal), (high, xp.greater_equal)):
        if -INFINITY < bound < INFINITY:
            beyond(input, bound, out=mask)
            xp.copyto(out, 0, where=mask)
    if outside != 0:  # with one bound, low
        xp.logical_not(mask, out=mask)
        xp.multiply(grad, outside, out=out)
        xp.copyto(out, grad, where=mask)


def _window_compiled(gates, low, high, outside):
    return gates.window, (float(low), float(high), float(outside))


_compile(window, _window_compiled, when=worth_compiling)


@window.vjp("grad")
def _(g, input, low, high, outside):
    return window(g, input, low=low, high=high, outside=outside)


@window.vjp("input")
def _(g):
    return None  # flat except at the edges


def _relu_infer(input):
    if input.dtype.category == BOOL:
        raise RuntimeError(
            "Boolean inputs not supported for relu. Convert with .to(lowtide.int64)."
        )
    return input


@op(
    inplace="relu_", infer=_relu_infer, half="float32", flops=per_element(1),
    samples=singles, real=True,
)  # fmt: skip
def relu(xp, out, input):
    """Apply ``max(input, 0)``. Keeps the result for backward."""
    xp.maximum(input, 0, out=out)


@relu.vjp("input")
def _(g, out):
    return window(g, out, low=0.0, high=INFINITY, outside=0.0)


def _slopes(make):
    for inputs, _ in singles(make):
        yield inputs, {"negative_slope": 0.1}
    yield (make(2, 3),), {"negative_slope": -0.4}


@op(
    name="leaky_relu", **HIDDEN, infer=_floating("leaky_relu", "low"), scratch=("low",),
    half="float32", flops=per_element(3), inplace="_leaky_relu_", samples=_slopes,
)  # fmt: skip
def leaky_relu(xp, out, low, input, *, negative_slope=0.01):
    """Apply ``max(input, 0) + negative_slope * min(input, 0)``."""
    xp.minimum(input, 0, out=low)
    xp.multiply(low, float(negative_slope), out=low)
    xp.maximum(input, 0, out=out)
    xp.add(out, low, out=out)


@leaky_relu.vjp("input")
def _(g, input, negative_slope):
    return window(g, input, low=0.0, high=INFINITY, outside=float(negative_slope))


def _bounds(make):
    for inputs, _ in singles(make):
        yield inputs, {"min_val": -0.7, "max_val": 0.7}
    yield (make(2, 3),), {"min_val": 0.2, "max_val": 1.3}


@op(
    name="hardtanh", **HIDDEN, infer=same, half="float32", flops=per_element(2), samples=_bounds,
    inplace="_hardtanh_",
)  # fmt: skip
def hardtanh(xp, out, input, *, min_val=-1.0, max_val=1.0):
    """Limit to [min_val, max_val]; the gradient at a limit is 0. Keeps the result."""
    xp.maximum(input, min_val, out=out)
    xp.minimum(out, max_val, out=out)


@hardtanh.vjp("input")
def _(g, out, min_val, max_val):
    return window(g, out, low=float(min_val), high=float(max_val), outside=0.0)


@function(public=False)
def relu6(input, inplace=False):
    """Apply ``min(max(input, 0), 6)``."""
    return input._hardtanh_(0.0, 6.0) if inplace else hardtanh(input, 0.0, 6.0)


# Exponential below zero


def _elus(make):
    for inputs, _ in singles(make):
        yield inputs, {"alpha": 1.3, "scale": 1.1, "input_scale": 0.9}
    yield (make(2, 3),), {"alpha": 1.0, "scale": 1.0, "input_scale": 1.0}


@op(
    name="_elu", **HIDDEN, infer=_floating("elu", "high"), scratch=("high",), half="float32",
    flops=per_element(12), inplace="_elu_", samples=_elus,
)  # fmt: skip
def scaled_elu(xp, out, high, input, *, alpha, scale, input_scale):
    """``scale * (max(x, 0) + alpha * expm1(input_scale * min(x, 0)))``."""
    xp.maximum(input, 0, out=high)
    if scale != 1:
        xp.multiply(high, scale, out=high)
    xp.minimum(input, 0, out=out)
    if input_scale != 1:
        xp.multiply(out, input_scale, out=out)
    xp.expm1(out, out=out)
    if alpha * scale != 1:
        xp.multiply(out, alpha * scale, out=out)
    xp.add(out, high, out=out)


@scaled_elu.vjp("input")
def _(g, input, alpha, scale, input_scale):
    below = (input.clamp(max=0) * input_scale).exp() * (alpha * scale * input_scale)
    return g * where_select(input > 0, scale, below)


def _elu_with(input, inplace, alpha, scale, input_scale):
    run = input._elu_ if inplace else lambda *a: scaled_elu(input, *a)
    return run(float(alpha), float(scale), float(input_scale))


@function(public=False)
def elu(input, alpha=1.0, inplace=False):
    """Apply ``input`` above zero and ``alpha * (exp(input) - 1)`` below."""
    return _elu_with(input, inplace, alpha, 1.0, 1.0)


SELU_ALPHA, SELU_SCALE = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946


@function()
def selu(input, inplace=False):
    """Apply the self-normalizing scaled ``elu``.

    Source:
        Klambauer et al. 2017, with the constants of their appendix.
    """
    return _elu_with(input, inplace, SELU_ALPHA, SELU_SCALE, 1.0)


@function()
def celu(input, alpha=1.0, inplace=False):
    """Apply ``max(0, x) + min(0, alpha * (exp(x / alpha) - 1))``."""
    if alpha == 0:
        raise RuntimeError("ZeroDivisionError: celu: alpha cannot be 0. Pass another number.")
    return _elu_with(input, inplace, alpha, 1.0, 1.0 / alpha)


@function()
def selu_(input):
    """In-place twin of ``selu``."""
    return selu(input, inplace=True)


@function()
def celu_(input, alpha=1.0):
    """In-place twin of ``celu``."""
    return celu(input, alpha, inplace=True)


# Piecewise linear gates


@op(
    name="_hardsigmoid", **HIDDEN, infer=_floating("hardsigmoid"), half="float32",
    flops=per_element(4), inplace="_hardsigmoid_", samples=singles,
)  # fmt: skip
def hardsigmoid_of(xp, out, input):
    """``min(max(input + 3, 0), 6) / 6``. Keeps the result."""
    xp.add(input, 3, out=out)
    xp.maximum(out, 0, out=out)
    xp.minimum(out, 6, out=out)
    xp.true_divide(out, 6, out=out)


@hardsigmoid_of.vjp("input")
def _(g, out):
    return window(g * (1 / 6), out, low=0.0, high=1.0, outside=0.0)


@function(public=False)
def hardsigmoid(input, inplace=False):
    """Apply ``min(max(input + 3, 0), 6) / 6``."""
    return input._hardsigmoid_() if inplace else hardsigmoid_of(input)


@op(
    name="_hardswish", **HIDDEN, infer=_floating("hardswish"), half="float32",
    flops=per_element(5), samples=singles,
)  # fmt: skip
def hardswish_of(xp, out, input):
    """``input * hardsigmoid(input)``."""
    xp.add(input, 3, out=out)
    xp.maximum(out, 0, out=out)
    xp.minimum(out, 6, out=out)
    xp.multiply(out, input, out=out)
    xp.true_divide(out, 6, out=out)


@hardswish_of.vjp("input")
def _(g, input):
    inside = where_select(input <= 3, input * (1 / 3) + 0.5, 1)
    return where_select(input <= -3, 0, g * inside)


@function(public=False)
def hardswish(input, inplace=False):
    """Apply ``input * min(max(input + 3, 0), 6) / 6``."""
    if inplace:  # backward wants the value that is about to go
        return input.copy_(hardswish_of(input.clone() if input.requires_grad else input))
    return hardswish_of(input)


@op(
    name="softsign", **HIDDEN, infer=_floating("softsign"), half="float32", flops=per_element(3),
    samples=singles,
)  # fmt: skip
def softsign(xp, out, input):
    """Apply ``input / (1 + |input|)``."""
    xp.absolute(input, out=out)
    xp.add(out, 1, out=out)
    xp.true_divide(input, out, out=out)


@softsign.vjp("input")
def _(g, input):
    return g / (input.abs() + 1).square()


def _lambdas(make):
    for inputs, _ in singles(make):
        yield inputs, {"lambd": 0.53}
    yield (make(2, 3),), {"lambd": 0.0}


@op(
    name="softshrink", **HIDDEN, infer=_floating("softshrink"), half="float32",
    flops=per_element(3), samples=_lambdas,
)  # fmt: skip
def softshrink_of(xp, out, input, *, lambd=0.5):
    """Move each element toward zero by ``lambd``, to zero if it is nearer."""
    xp.maximum(input, -lambd, out=out)
    xp.minimum(out, lambd, out=out)
    xp.subtract(input, out, out=out)


@softshrink_of.vjp("input")
def _(g, out):
    return where_select(out == 0, 0, g)


@function(public=False)
def softshrink(input, lambd=0.5):
    """Move each element toward zero by ``lambd``, to zero if it is nearer.

    Raises:
        RuntimeError: ``lambd`` is negative.
    """
    if lambd < 0:
        raise RuntimeError(f"lambda must be greater or equal to 0, but found to be {lambd}.")
    return softshrink_of(input, lambd=float(lambd))


@op(
    infer=_floating("hardshrink", "mask"), scratch=("mask",), half="float32",
    flops=per_element(2), samples=_lambdas,
)  # fmt: skip
def hardshrink(xp, out, mask, input, *, lambd=0.5):
    """Zero the elements in [-lambd, lambd]."""
    xp.absolute(input, out=out)
    xp.less_equal(out, lambd, out=mask)
    xp.copyto(out, input)
    xp.copyto(out, 0, where=mask)


@hardshrink.vjp("input")
def _(g, out):
    return where_select(out == 0, 0, g)


@function(public=False)
def tanhshrink(input):
    """Apply ``input - tanh(input)``."""
    return input - tanh(input)


def _thresholds(make):
    for inputs, _ in singles(make):
        yield inputs, {"threshold": 0.3, "value": 20.0}
    yield (make(2, 3),), {"threshold": -0.8, "value": -1.0}


def _threshold_infer(input, *, threshold, value):
    return input, input.like(dtype=bool_)


@op(
    name="_threshold", **HIDDEN, infer=_threshold_infer, scratch=("mask",), half="float32",
    flops=per_element(1), samples=_thresholds, inplace="_threshold_",
)  # fmt: skip
def threshold_of(xp, out, mask, input, *, threshold, value):
    """``input`` above ``threshold``, else ``value``."""
    xp.less_equal(input, threshold, out=mask)
    if out is not input:
        xp.copyto(out, input)
    xp.copyto(out, value, where=mask, casting="unsafe")


@threshold_of.vjp("input")
def _(g, input, threshold):
    return window(g, input, low=float(threshold), high=INFINITY, outside=0.0)


@function()
def threshold(input, threshold, value, inplace=False):
    """Keep the elements above ``threshold`` and write ``value`` in place of the others."""
    run = input._threshold_ if inplace else lambda *a: threshold_of(input, *a)
    return run(threshold, value)


@function()
def threshold_(input, threshold, value):
    """In-place twin of ``threshold``."""
    return input._threshold_(threshold, value)


# With a second operand


@function(public=False)
def glu(input, dim=-1):
    """Split in two along ``dim`` and gate the first half by the sigmoid of the second.

    Raises:
        RuntimeError: The size of ``dim`` is odd, or there is no dimension.
    """
    if input.ndim == 0:
        raise RuntimeError("glu does not support 0-dimensional tensors. Unsqueeze it.")
    size = input.shape[dim]
    if size % 2:
        raise RuntimeError(
            f"glu: Halving dimension must be even, but dimension {dim} is size {size}. Pad it."
        )
    value, gate = input.narrow(dim, 0, size // 2), input.narrow(dim, size // 2, size // 2)
    return value * sigmoid(gate)


def _prelus(make):
    yield (make(3, 4), make(1)), {}
    yield (make(2, 3, 2), make(3, 1)), {}
    yield (make(), make(1)), {}
    yield (make(0, 3), make(3)), {}


def _prelu_infer(input, weight):
    spec = broadcast(input, weight, op_name="prelu")
    return spec, spec


@op(
    name="_prelu", **HIDDEN, infer=_prelu_infer, scratch=("low",), promote="same",
    half="float32", flops=per_element(4), samples=_prelus,
)  # fmt: skip
def prelu_of(xp, out, low, input, weight):
    """``max(input, 0) + weight * min(input, 0)``."""
    xp.minimum(input, 0, out=low)
    xp.multiply(low, weight, out=low)
    xp.maximum(input, 0, out=out)
    xp.add(out, low, out=out)


@prelu_of.vjp("input")
def _(g, input, weight):
    return where_select(input > 0, g, g * weight)


@prelu_of.vjp("weight")
def _(g, input):
    return where_select(input > 0, 0, g * input)


@function(method=True)
def prelu(input, weight):
    """Apply ``max(0, x) + weight * min(0, x)`` with one learned weight, or one per channel.

    Args:
        input: Values (N, C, ...).
        weight: (1) or (C).

    Raises:
        RuntimeError: The number of weights is neither 1 nor C.
    """
    count = weight.numel()
    if count != 1:
        channels = input.shape[1] if input.ndim > 1 else input.ndim and 1
        if count != channels:
            raise RuntimeError(
                "Mismatch of parameter numbers and input channel size. Found parameter numbers = "
                f"{count} and channel size = {channels}. Pass one weight per channel."
            )
        weight = weight.reshape(count, *[1] * (input.ndim - 2))
    elif weight.ndim and not input.ndim:
        weight = weight.reshape(())
    return prelu_of(input, weight)


__all__ = [
    "celu", "elu", "glu", "hardshrink", "hardsigmoid", "hardswish", "hardtanh", "leaky_relu",
    "prelu", "relu", "relu6", "selu", "softshrink", "softsign", "tanhshrink", "threshold",
]  # fmt: skip
