"""Smooth activations: gelu, silu, mish, softplus, logsigmoid."""

from __future__ import annotations

from math import pi, sqrt

from ...kernels.formula.formula import formula
from ...kernels.formula.functions import (
    exp,
    expm1_of_negative,
    log1p_of_fraction,
    maximum,
    minimum,
    normal_cdf,
)
from ..autocast_policy import WIDE_ON_CUDA
from ..elementwise.bitmask import HIDDEN
from ..elementwise.unary import sigmoid, tanh
from ..indexing.where import _where
from ..overwrite import write_over
from ..registry import function, op
from ..signatures import per_element, singles
from .relu import floating, gradient_infer, gradient_samples, need_float

# Smooth gates


@op(inplace="_silu_", infer=floating("silu"), flops=per_element(13), samples=singles)
@formula
def _silu(input):
    """Apply ``input * sigmoid(input)``. Keeps ``input`` for backward."""
    return input / (1 + exp(-input))


def _gradients(make):
    yield (make(3, 4), make(3, 4)), {}
    yield (make(0, 2), make(0, 2)), {}


@op(infer=gradient_infer(), flops=per_element(17), samples=_gradients)
@formula
def _silu_backward(grad, input):
    """``grad * s * (1 + input * (1 - s))`` with ``s = sigmoid(input)``."""
    s = 1 / (1 + exp(-input))
    return ((1 - s) * input + 1) * s * grad


@_silu.vjp("input", room=("g", "input"))
@_silu_backward.vjp("grad", room=("g", "input"))
def _(g, input, room):
    return write_over(room, _silu_backward, g, input)


@_silu_backward.vjp("input")
def _(g, grad, input):
    s = sigmoid(input)
    return g * grad * (s * (1 - s) * ((1 - s * 2) * input + 2))


def _gelu_attributes(samples):
    def both(make):
        for inputs, _ in samples(make):
            for approximate in ("none", "tanh"):
                yield inputs, {"approximate": approximate}

    return both


K0, K1 = sqrt(2 / pi), 0.044715
DENSITY = 1 / sqrt(2 * pi)  # of a standard normal distribution, at 0


def _gelu_infer(input, *, approximate):
    if approximate not in ("none", "tanh"):
        raise RuntimeError(
            f"gelu: approximate argument must be either none or tanh; got {approximate!r}."
        )
    need_float("gelu", input)
    return input


@op(
    **HIDDEN,
    infer=_gelu_infer,
    flops=per_element(20),
    samples=_gelu_attributes(singles),
)
@formula
def gelu(input, *, approximate="none"):
    """Apply GELU: ``input * Phi(input)``, Phi the cumulative normal distribution.

    Args:
        input: Values of any shape, floating point.
        approximate: "none" takes the error function, "tanh" its approximation.

    Memory:
        Keeps ``input``.

    Source:
        Hendrycks and Gimpel 2016.
    """
    if approximate == "tanh":  # (1 + tanh(u)) / 2 = 1 / (1 + exp(-2 u))
        u = (input * input * (K0 * K1) + K0) * input
        return input / (1 + exp(-2 * u))
    return input * normal_cdf(input, exp(-0.5 * input * input))


@op(
    infer=gradient_infer(),
    flops=per_element(35),
    samples=_gelu_attributes(_gradients),
)
@formula
def _gelu_backward(grad, input, *, approximate):
    """Backward of gelu: ``grad`` times its derivative."""
    if approximate == "tanh":
        u = (input * input * (K0 * K1) + K0) * input
        s = 2 / (1 + exp(-2 * u))
        slope = input * input * (3 * K0 * K1) + K0
        return s * (0.5 + 0.5 * ((2 - s) * input) * slope) * grad  # in this order: 0 stays 0
    e = exp(-0.5 * input * input)
    return (normal_cdf(input, e) + input * (e * DENSITY)) * grad


@gelu.vjp("input", room=("g", "input"))
@_gelu_backward.vjp("grad", room=("g", "input"))
def _(g, input, approximate, room):
    return write_over(room, _gelu_backward, g, input, approximate=approximate)


@_gelu_backward.vjp("input")
def _(g, grad, input, approximate):
    return g * grad * _gelu_curvature(input, approximate)


def _gelu_curvature(x, approximate):
    square = x * x
    if approximate == "none":
        return (square * -0.5).exp() * (2 - square) * (1 / sqrt(2 * pi))
    t = tanh((square * (K0 * K1) + K0) * x)
    u = square * (3 * K0 * K1) + K0
    return (1 - t * t) * (u + x * 0.5 * (x * (6 * K0 * K1) - t * u * u * 2))


@function(public=False)
def silu(input, inplace=False):
    """Apply SiLU (swish): ``input * sigmoid(input)``.

    Memory:
        Keeps ``input``.
    """
    return input._silu_() if inplace else _silu(input)


@op(inplace="_mish_", infer=floating("mish"), flops=per_element(30), samples=singles)
@formula
def _mish(input):
    """``input * tanh(log(1 + exp(input)))``; with ``n = e (e + 2)`` that is ``n / (n + 2)``."""
    e = exp(minimum(input, 20))  # where the tangent is 1
    n = e * (e + 2)
    return n / (n + 2) * input


@op(infer=gradient_infer(), flops=per_element(25), samples=gradient_samples)
@formula
def _mish_backward(grad, input):
    """Backward of mish: ``grad`` times its derivative.

    With ``e = exp(x)``, ``n = e (e + 2)`` it is ``n / (n + 2) + 4 x e (e + 1) / (n + 2)^2``.
    """
    near = minimum(input, 20)  # in both: infinity times what is left far out is no number
    e = exp(near)
    n = e * (e + 2)
    d = 1 / (n + 2)
    return (n * d + near * (4 * e * (e + 1) * d * d)) * grad


@_mish.vjp("input", room=("g", "input"))
@_mish_backward.vjp("grad", room=("g", "input"))
def _(g, input, room):
    return write_over(room, _mish_backward, g, input)


@_mish_backward.vjp("input")
def _(g, grad, input):
    s, t = sigmoid(input), tanh(softplus(input))
    return g * grad * ((1 - t * t) * s * (2 + input * (1 - s - s * t * 2)))


@function(public=False)
def mish(input, inplace=False):
    """Apply Mish: ``input * tanh(softplus(input))``.

    Memory:
        Keeps ``input``.
    """
    return input._mish_() if inplace else _mish(input)


def _softpluses(make):
    for inputs, _ in singles(make):
        yield inputs, {"beta": 1.5, "threshold": 20.0}
    yield (make(2, 3),), {"beta": 1.0, "threshold": 0.7}


@op(
    **HIDDEN,
    infer=floating("softplus"),
    flops=per_element(20),
    samples=_softpluses,
    autocast=WIDE_ON_CUDA,
)
@formula
def softplus(input, *, beta=1.0, threshold=20.0):
    """Apply softplus: ``log(1 + exp(beta * input)) / beta``, linear above ``threshold``.

    Memory:
        Keeps ``input``: near the threshold the result does not tell which side it is from.
    """
    v = input * beta
    soft = (log1p_of_fraction(exp(-abs(v))) + maximum(v, 0)) / beta
    return input if v > threshold else soft


def _softplus_gradients(make):
    for inputs, _ in gradient_samples(make):
        yield inputs, {"beta": 1.5, "threshold": 20.0}
    yield (make(2, 3), make(2, 3)), {"beta": 1.0, "threshold": 0.7}


@op(
    infer=gradient_infer(),
    flops=per_element(14),
    samples=_softplus_gradients,
)
@formula
def _softplus_backward(grad, input, *, beta, threshold):
    """``grad * sigmoid(beta * input)``; ``grad`` where beta * input > threshold."""
    v = input * beta
    return grad if v > threshold else grad / (1 + exp(-v))


@softplus.vjp("input", room=("g", "input"))
@_softplus_backward.vjp("grad", room=("g", "input"))
def _(g, input, beta, threshold, room):
    return write_over(room, _softplus_backward, g, input, beta=beta, threshold=threshold)


@_softplus_backward.vjp("input")
def _(g, grad, input, beta, threshold):
    x = input * beta
    s = sigmoid(x)
    return _where(x >= threshold, 0, g * grad * (s * (1 - s) * beta))


@op(
    **HIDDEN,
    infer=floating("logsigmoid"),
    flops=per_element(20),
    samples=singles,
)
@formula
def logsigmoid(input):
    """Apply ``log(sigmoid(input))``, as ``min(x, 0) - log1p(exp(-|x|))``.

    Memory:
        Keeps the result.
    """
    return minimum(input, 0) - log1p_of_fraction(exp(-abs(input)))


def _below_zero(make):
    for shape in ((3, 4), (0, 2)):
        yield (make(*shape), make(*shape, low=-4.3, high=-0.1)), {}


@op(infer=gradient_infer(), flops=per_element(12), samples=_below_zero)
@formula
def _logsigmoid_backward(grad, result):
    """``grad * (1 - exp(result))``: one minus the sigmoid."""
    return -expm1_of_negative(result) * grad


@logsigmoid.vjp("input", room=("g", "out"))
def _(g, out, room):
    return write_over(room, _logsigmoid_backward, g, out)


@_logsigmoid_backward.vjp("grad")
def _(g, result):
    return _logsigmoid_backward(g, result)


@_logsigmoid_backward.vjp("result")
def _(g, grad, result):
    return -g * grad * result.exp()


__all__ = ["gelu", "logsigmoid", "mish", "silu", "softplus"]
