"""Smooth activations: gelu, silu, mish, softplus, logsigmoid."""

from __future__ import annotations

from math import pi, sqrt

from ...kernels.common.elementwise import elementwise_kernel
from ...kernels.common.strided_ufuncs import negate
from ..autocast_policy import WIDE_ON_CUDA
from ..elementwise.bitmask import HIDDEN
from ..elementwise.unary import sigmoid, special, tanh
from ..indexing.where import where_select
from ..registry import function, op
from ..signatures import per_element, singles
from .relu import floating, gradient_infer, gradient_samples, need_float

# Smooth gates


@op(name="silu", **HIDDEN, infer=floating("silu"), flops=per_element(13), samples=singles)
def silu_of(xp, out, input):
    """Apply ``input * sigmoid(input)``. Keeps ``input`` for backward."""
    negate(xp, input, out)
    xp.exp(out, out=out)
    xp.add(out, 1, out=out)
    xp.true_divide(input, out, out=out)


def _gradients(make):
    yield (make(3, 4), make(3, 4)), {}
    yield (make(0, 2), make(0, 2)), {}


def _two_like(grad, input, **_):
    return grad, grad


@op(
    name="_silu_backward", infer=_two_like, scratch=("gate",), flops=per_element(17),
    samples=_gradients,
)  # fmt: skip
def silu_slope(xp, out, gate, grad, input):
    """``grad * s * (1 + input * (1 - s))`` with ``s = sigmoid(input)``."""
    negate(xp, input, gate)
    xp.exp(gate, out=gate)
    xp.add(gate, 1, out=gate)
    xp.reciprocal(gate, out=gate)
    xp.subtract(1, gate, out=out)
    xp.multiply(out, input, out=out)
    xp.add(out, 1, out=out)
    xp.multiply(out, gate, out=out)
    xp.multiply(out, grad, out=out)


elementwise_kernel(silu_of, lambda gates: (gates.silu, ()))
elementwise_kernel(silu_slope, lambda gates: (gates.silu_grad, ()))


@silu_of.vjp("input")
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
    need_float("gelu", input)
    return input


def _tanh_inner(xp, out, x):
    # K0 * (x + K1 * x ** 3)
    xp.multiply(x, x, out=out)
    xp.multiply(out, K0 * K1, out=out)
    xp.add(out, K0, out=out)
    xp.multiply(out, x, out=out)
    xp.tanh(out, out=out)


@op(
    name="gelu", **HIDDEN, infer=_gelu_infer, flops=per_element(20),
    samples=_gelu_attributes(singles),
)  # fmt: skip
def gelu(xp, out, input, *, approximate="none"):
    """Apply GELU: ``input * Phi(input)``, Phi the cumulative normal distribution.

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
    xp.multiply(out, 0.5, out=out)
    xp.multiply(out, input, out=out)


@op(
    name="_gelu_backward", infer=_two_like, scratch=("other",), flops=per_element(35),
    samples=_gelu_attributes(_gradients),
)  # fmt: skip
def gelu_slope(xp, out, other, grad, input, *, approximate):
    """Backward of gelu: ``grad`` times its derivative."""
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


elementwise_kernel(gelu, _gelu_compiled)
elementwise_kernel(gelu_slope, _gelu_slope_compiled)


@gelu.vjp("input")
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
    """Apply SiLU (swish): ``input * sigmoid(input)``.

    Memory:
        Keeps ``input``.
    """
    if inplace:  # backward wants the value that is about to go
        return input.copy_(silu_of(input.clone() if input.requires_grad else input))
    return silu_of(input)


@op(name="_mish", infer=floating("mish"), flops=per_element(30), samples=singles)
def mish_of(xp, out, input):
    """``input * tanh(log(1 + exp(input)))``."""
    xp.logaddexp(input, 0.0, out=out)
    xp.tanh(out, out=out)
    xp.multiply(out, input, out=out)


def _two_scratch(grad, input, **_):
    return grad, grad, grad


@op(
    name="_mish_backward", infer=_two_scratch, scratch=("power", "share"), flops=per_element(25),
    samples=gradient_samples,
)  # fmt: skip
def mish_slope(xp, out, power, share, grad, input):
    """Backward of mish: ``grad`` times its derivative.

    With ``e = exp(x)`` and ``n = e (e + 2)`` it is ``n / (n + 2) + 4 x e (e + 1) / (n + 2)^2``,
    where e may stop growing at exp(20).
    """
    xp.minimum(input, 20, out=power)
    xp.exp(power, out=power)
    xp.add(power, 2, out=share)
    xp.multiply(share, power, out=share)  # n
    xp.add(share, 2, out=out)
    xp.true_divide(share, out, out=share)  # n / (n + 2)
    xp.multiply(out, out, out=out)
    xp.true_divide(power, out, out=out)
    xp.add(power, 1, out=power)
    xp.multiply(out, power, out=out)
    xp.multiply(out, 4, out=out)
    # Far out the share is 1 and the rest exp(-2 x) x: nothing, but for what was cut off of e.
    xp.minimum(input, 20, out=power)
    xp.multiply(out, power, out=out)
    xp.add(out, share, out=out)
    xp.multiply(out, grad, out=out)


elementwise_kernel(mish_of, lambda gates: (gates.mish, ()))
elementwise_kernel(mish_slope, lambda gates: (gates.mish_grad, ()))


@mish_of.vjp("input")
@mish_slope.vjp("grad")
def _(g, input):
    return mish_slope(g, input)


@mish_slope.vjp("input")
def _(g, grad, input):
    s, t = sigmoid(input), tanh(softplus(input))
    return g * grad * ((1 - t * t) * s * (2 + input * (1 - s - s * t * 2)))


@function(public=False)
def mish(input, inplace=False):
    """Apply Mish: ``input * tanh(softplus(input))``.

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
    name="softplus", **HIDDEN, infer=floating("softplus", "mask"), scratch=("mask",),
    flops=per_element(20), samples=_softpluses, autocast=WIDE_ON_CUDA,
)  # fmt: skip
def softplus(xp, out, mask, input, *, beta=1.0, threshold=20.0):
    """Apply softplus: ``log(1 + exp(beta * input)) / beta``, linear above ``threshold``.

    Memory:
        Keeps ``input``: near the threshold the result does not tell which side it is from.
    """
    xp.multiply(input, float(beta), out=out)
    xp.greater(out, threshold, out=mask)
    xp.logaddexp(out, 0.0, out=out)
    xp.true_divide(out, float(beta), out=out)
    xp.copyto(out, input, where=mask)


def _softplus_gradients(make):
    for inputs, _ in gradient_samples(make):
        yield inputs, {"beta": 1.5, "threshold": 20.0}
    yield (make(2, 3), make(2, 3)), {"beta": 1.0, "threshold": 0.7}


@op(
    name="_softplus_backward", infer=gradient_infer("mask"), scratch=("mask",),
    flops=per_element(14), samples=_softplus_gradients,
)  # fmt: skip
def softplus_slope(xp, out, mask, grad, input, *, beta, threshold):
    """``grad * sigmoid(beta * input)``; ``grad`` where beta * input > threshold."""
    xp.multiply(input, float(beta), out=out)
    xp.greater(out, threshold, out=mask)
    negate(xp, out, out)
    xp.exp(out, out=out)
    xp.add(out, 1, out=out)
    xp.copyto(out, 1, where=mask)
    xp.true_divide(grad, out, out=out)


def _line(gates, beta, threshold):
    return gates.softplus, (float(beta), float(threshold))


def _line_slope(gates, beta, threshold):
    return gates.softplus_grad, (float(beta), float(threshold))


elementwise_kernel(softplus, _line)
elementwise_kernel(softplus_slope, _line_slope)


@softplus.vjp("input")
@softplus_slope.vjp("grad")
def _(g, input, beta, threshold):
    return softplus_slope(g, input, beta, threshold)


@softplus_slope.vjp("input")
def _(g, grad, input, beta, threshold):
    x = input * beta
    s = sigmoid(x)
    return where_select(x >= threshold, 0, g * grad * (s * (1 - s) * beta))


@op(
    name="logsigmoid", **HIDDEN, infer=floating("logsigmoid", "low"), scratch=("low",),
    flops=per_element(20), samples=singles,
)  # fmt: skip
def logsigmoid(xp, out, low, input):
    """Apply ``log(sigmoid(input))``, as ``min(x, 0) - log1p(exp(-|x|))``.

    Memory:
        Keeps the result.
    """
    xp.absolute(input, out=out)
    negate(xp, out, out)
    xp.exp(out, out=out)
    xp.log1p(out, out=out)
    xp.minimum(input, 0, out=low)
    xp.subtract(low, out, out=out)


def _below_zero(make):
    for shape in ((3, 4), (0, 2)):
        yield (make(*shape), make(*shape, low=-4.3, high=-0.1)), {}


@op(name="_logsigmoid_backward", infer=gradient_infer(), flops=per_element(12), samples=_below_zero)
def logsigmoid_slope(xp, out, grad, result):
    """``grad * (1 - exp(result))``: one minus the sigmoid."""
    xp.expm1(result, out=out)
    negate(xp, out, out)
    xp.multiply(out, grad, out=out)


elementwise_kernel(logsigmoid, lambda gates: (gates.logsigmoid, ()))
elementwise_kernel(logsigmoid_slope, lambda gates: (gates.logsigmoid_grad, ()))


@logsigmoid.vjp("input")
def _(g, out):
    return logsigmoid_slope(g, out)


@logsigmoid_slope.vjp("grad")
def _(g, result):
    return logsigmoid_slope(g, result)


@logsigmoid_slope.vjp("result")
def _(g, grad, result):
    return -g * grad * result.exp()


__all__ = ["gelu", "logsigmoid", "mish", "silu", "softplus"]
