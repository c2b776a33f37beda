"""ELU, CELU and SELU. Backward needs only the result.

Below zero ``out = alpha * scale * expm1(input_scale * x)``, so the slope there is
``(out + alpha * scale) * input_scale``, and the sign of the result is that of the input as long as
``alpha`` is not negative. Where it is, the functions are compositions of other ops.

Not optimal: the slope is a difference of nearly equal numbers far below zero, so it has the
absolute precision of the dtype there and not the relative one.
"""

from __future__ import annotations

from ...kernels.formula.formula import formula
from ...kernels.formula.functions import expm1_of_negative, maximum, minimum
from ..indexing.where import _where
from ..overwrite import write_over
from ..registry import function, op
from ..signatures import per_element, singles
from .relu import floating, gradient_infer, need_float


def _elus(make):
    for inputs, _ in singles(make):
        yield inputs, {"alpha": 1.3, "scale": 1.1, "input_scale": 0.9}
    yield (make(2, 3),), {"alpha": 1.0, "scale": 1.0, "input_scale": 1.0}


@op(infer=floating("elu"), flops=per_element(12), inplace="_elu_", samples=_elus)
@formula
def _elu(input, *, alpha, scale, input_scale):
    """``scale * (max(x, 0) + alpha * expm1(input_scale * min(x, 0)))``. Keeps the result."""
    below = expm1_of_negative(minimum(input, 0) * input_scale) * (alpha * scale)
    return maximum(input, 0) * scale + below


def _slope_samples(make):
    for shape in ((3, 4), (0, 2)):
        pair = (make(*shape), make(*shape))
        yield pair, {"alpha": 1.3, "scale": 1.1, "input_scale": 0.9}
        yield pair, {"alpha": 1.0, "scale": 1.0, "input_scale": 1.0}


@op(infer=gradient_infer(), flops=per_element(4), samples=_slope_samples)
@formula
def _elu_backward(grad, result, *, alpha, scale, input_scale):
    """Backward of elu: ``grad`` times the derivative, computed from the result."""
    return grad * scale if result > 0 else (result + alpha * scale) * input_scale * grad


@_elu.vjp("input", room=("g", "out"))
def _(g, out, alpha, scale, input_scale, room):
    attributes = {"alpha": alpha, "scale": scale, "input_scale": input_scale}
    return write_over(room, _elu_backward, g, out, **attributes)


@_elu_backward.vjp("grad")
def _(g, result, alpha, scale, input_scale):
    return _elu_backward(g, result, alpha, scale, input_scale)


@_elu_backward.vjp("result")
def _(g, grad, result, input_scale):
    return _where(result < 0, g * grad * input_scale, 0)


def _elu_with(input, inplace, alpha, scale, input_scale):
    alpha, scale, input_scale = float(alpha), float(scale), float(input_scale)
    if not alpha < 0:
        if inplace:
            return input._elu_(alpha, scale, input_scale)
        return _elu(input, alpha, scale, input_scale)
    need_float("elu", input)
    x = input.clone() if inplace else input
    below = (x.clamp(max=0) * input_scale).expm1() * (alpha * scale)
    out = _where(x > 0, x * scale, below)
    return input.copy_(out) if inplace else out


@function(public=False)
def elu(input, alpha=1.0, inplace=False):
    """Apply ELU: ``input`` above zero and ``alpha * (exp(input) - 1)`` below.

    Memory:
        Keeps the result; the input too where ``alpha`` is negative.
    """
    return _elu_with(input, inplace, alpha, 1.0, 1.0)


SELU_ALPHA, SELU_SCALE = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946


@function()
def selu(input, inplace=False):
    """Apply SELU, the self-normalizing scaled ``elu``.

    Memory:
        Keeps the result.

    Source:
        Klambauer et al. 2017, with the constants of their appendix.
    """
    return _elu_with(input, inplace, SELU_ALPHA, SELU_SCALE, 1.0)


@function()
def celu(input, alpha=1.0, inplace=False):
    """Apply CELU: ``max(0, x) + min(0, alpha * (exp(x / alpha) - 1))``.

    Memory:
        Keeps the result; the input too where ``alpha`` is negative.
    """
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


__all__ = ["celu", "elu", "selu"]
