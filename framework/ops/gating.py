"""Smooth gates: gelu, silu, softplus and their kin."""

from __future__ import annotations

from math import pi, sqrt

from .activation import HIDDEN, _compile, _floating, _need_float
from .pointwise import sigmoid, special, tanh
from .registry import function, op, per_element, singles
from .selecting import where_select

# Smooth gates


@op(
    name="silu", **HIDDEN, infer=_floating("silu"), half="float32", flops=per_element(13),
    samples=singles,
)  # fmt: skip
def silu_of(xp, out, input):
    """Apply ``input * sigmoid(input)``. Keeps ``input`` for backward."""
    xp.negative(input, out=out)
    xp.exp(out, out=out)
    xp.add(out, 1, out=out)
    xp.true_divide(input, out, out=out)


def _gradients(make):
    yield (make(3, 4), make(3, 4)), {}
    yield (make(0, 2), make(0, 2)), {}


def _two_like(grad, input, **_):
    return grad, grad


@op(
    name="_silu_backward", **HIDDEN, infer=_two_like, scratch=("gate",), half="float32",
    flops=per_element(17), samples=_gradients,
)  # fmt: skip
def silu_slope(xp, out, gate, grad, input):
    """``grad * s * (1 + input * (1 - s))`` with ``s = sigmoid(input)``."""
    xp.negative(input, out=gate)
    xp.exp(gate, out=gate)
    xp.add(gate, 1, out=gate)
    xp.reciprocal(gate, out=gate)
    xp.subtract(1, gate, out=out)
    xp.multiply(out, input, out=out)
    xp.add(out, 1, out=out)
    xp.multiply(out, gate, out=out)
    xp.multiply(out, grad, out=out)


_compile(silu_of, lambda gates: (gates.silu, ()))
_compile(silu_slope, lambda gates: (gates.silu_grad, ()))


@silu_of.vjp("input")
def _(g, input):
    return silu_slope(g, input)


@silu_slope.vjp("grad")
def _(g, input):
    return silu_slope(g, input)


@silu_slope.vjp("input")
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


def _gelu_infer(input, *, approximate):
    if approximate not in ("none", "tanh"):
        raise RuntimeError(
            f"gelu: approximate argument must be either none or tanh; got {approximate!r}."
        )
    _need_float("gelu", input)
    return input


def _tanh_inner(xp, out, x):
    # K0 * (x + K1 * x ** 3)
    xp.multiply(x, x, out=out)
    xp.multiply(out, K0 * K1, out=out)
    xp.add(out, K0, out=out)
    xp.multiply(out, x, out=out)
    xp.tanh(out, out=out)


@op(
    name="gelu", **HIDDEN, infer=_gelu_infer, half="float32", flops=per_element(20),
    samples=_gelu_attributes(singles),
)  # fmt: skip
def gelu(xp, out, input, *, approximate="none"):
    """Apply ``input * Phi(input)``, Phi the normal distribution's cumulative function.

    Args:
        input: Values of any shape, floating point.
        approximate: "none" takes the error function, "tanh" its approximation.

    Memory:
        Keeps ``input``.

    Source:
        Hendrycks and Gimpel 2016.
    """
    if approximate == "tanh":
        _tanh_inner(xp, out, input)
    else:
        xp.multiply(input, sqrt(0.5), out=out)
        special(xp).erf(out, out=out)
    xp.add(out, 1, out=out)
    xp.multiply(out, input, out=out)
    xp.multiply(out, 0.5, out=out)


@op(
    name="_gelu_backward", **HIDDEN, infer=_two_like, scratch=("other",), half="float32",
    flops=per_element(35), samples=_gelu_attributes(_gradients),
)  # fmt: skip
def gelu_slope(xp, out, other, grad, input, *, approximate):
    """``grad`` times the derivative of gelu."""
    if approximate == "tanh":
        # .5 (1 + t) + .5 x (1 - t^2) K0 (1 + 3 K1 x^2) = .5 (1 + t) (1 + x (1 - t) u)
        xp.multiply(input, input, out=other)
        xp.multiply(other, 3 * K0 * K1, out=other)
        xp.add(other, K0, out=other)
        xp.multiply(other, input, out=other)
        _tanh_inner(xp, out, input)
        xp.multiply(other, 0.5, out=other)
        xp.subtract(1, out, out=out)  # 1 - t
        xp.multiply(other, out, out=other)
        xp.add(other, 0.5, out=other)
        xp.subtract(2, out, out=out)  # 1 + t
        xp.multiply(out, other, out=out)
    else:
        xp.multiply(input, input, out=other)
        xp.multiply(other, -0.5, out=other)
        xp.exp(other, out=other)
        xp.multiply(other, 1 / sqrt(2 * pi), out=other)
        xp.multiply(other, input, out=other)
        xp.multiply(input, sqrt(0.5), out=out)
        special(xp).erf(out, out=out)
        xp.multiply(out, 0.5, out=out)
        xp.add(out, 0.5, out=out)
        xp.add(out, other, out=out)
    xp.multiply(out, grad, out=out)


def _gelu_compiled(gates, approximate):
    return gates.gelu_tanh if approximate == "tanh" else gates.gelu, ()


def _gelu_slope_compiled(gates, approximate):
    return gates.gelu_tanh_grad if approximate == "tanh" else gates.gelu_grad, ()


_compile(gelu, _gelu_compiled)
_compile(gelu_slope, _gelu_slope_compiled)


@gelu.vjp("input")
def _(g, input, approximate):
    return gelu_slope(g, input, approximate=approximate)


@gelu_slope.vjp("grad")
def _(g, input, approximate):
    return gelu_slope(g, input, approximate=approximate)


@gelu_slope.vjp("input")
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
    """Apply ``input * sigmoid(input)``.

    Memory:
        Keeps ``input``.
    """
    if inplace:  # backward wants the value that is about to go
        return input.copy_(silu_of(input.clone() if input.requires_grad else input))
    return silu_of(input)


@op(
    name="_mish", **HIDDEN, infer=_floating("mish"), half="float32", flops=per_element(30),
    samples=singles,
)  # fmt: skip
def mish_of(xp, out, input):
    """``input * tanh(log(1 + exp(input)))``."""
    xp.logaddexp(input, 0.0, out=out)
    xp.tanh(out, out=out)
    xp.multiply(out, input, out=out)


@mish_of.vjp("input")
def _(g, input):
    t = tanh(softplus(input))
    return g * ((1 - t * t) * sigmoid(input) * input + t)


@function(public=False)
def mish(input, inplace=False):
    """Apply ``input * tanh(softplus(input))``.

    Memory:
        Keeps ``input``.
    """
    if inplace:  # backward wants the value that is about to go
        return input.copy_(mish_of(input.clone() if input.requires_grad else input))
    return mish_of(input)


def _softpluses(make):
    for inputs, _ in singles(make):
        yield inputs, {"beta": 1.5, "threshold": 20.0}
    yield (make(2, 3),), {"beta": 1.0, "threshold": 0.7}


@op(
    name="softplus", **HIDDEN, infer=_floating("softplus", "mask"), scratch=("mask",),
    half="float32", flops=per_element(20),
    samples=_softpluses,
)  # fmt: skip
def softplus(xp, out, mask, input, *, beta=1.0, threshold=20.0):
    """Apply ``log(1 + exp(beta * input)) / beta``; ``input`` where beta * input > threshold."""
    xp.multiply(input, float(beta), out=out)
    xp.greater(out, threshold, out=mask)
    xp.logaddexp(out, 0.0, out=out)
    xp.true_divide(out, float(beta), out=out)
    xp.copyto(out, input, where=mask)


@softplus.vjp("input")
def _(g, input, beta, threshold):
    x = input if beta == 1 else input * beta
    return g * where_select(x > threshold, 1, sigmoid(x))


@op(
    name="logsigmoid", **HIDDEN, infer=_floating("logsigmoid", "low"), scratch=("low",),
    half="float32", flops=per_element(20), samples=singles,
)  # fmt: skip
def logsigmoid(xp, out, low, input):
    """Apply ``log(sigmoid(input))``, as ``min(x, 0) - log1p(exp(-|x|))``."""
    xp.absolute(input, out=out)
    xp.negative(out, out=out)
    xp.exp(out, out=out)
    xp.log1p(out, out=out)
    xp.minimum(input, 0, out=low)
    xp.subtract(low, out, out=out)


@logsigmoid.vjp("input")
def _(g, input):
    return g * sigmoid(-input)


__all__ = ["gelu", "logsigmoid", "mish", "silu", "softplus"]
