"""Shrinkage and threshold activations."""

from __future__ import annotations

from ...dtypes import bool_
from ...kernels.common.wrapping import fitting
from ...kernels.formula.bits import bits
from ...kernels.formula.formula import formula
from ...kernels.formula.functions import maximum, minimum
from ..conversion.copy import zero_gradient
from ..elementwise.bitmask import INFINITY, bitmask_vjp, with_bitmask, worth_bits
from ..elementwise.unary import tanh
from ..overwrite import write_over
from ..registry import function, op
from ..signatures import per_element, singles
from .relu import _window, floating, gradient_infer, gradient_samples


def _lambdas(make):
    for inputs, _ in singles(make):
        yield inputs, {"lambd": 0.53}
    yield (make(2, 3),), {"lambd": 0.0}


@op(infer=floating("softshrink"), flops=per_element(3), samples=_lambdas)
@formula(fused=False)
def _softshrink(input, *, lambd=0.5):
    """Move each element toward zero by ``lambd``, to zero if it is nearer."""
    return input - minimum(maximum(input, -lambd), lambd)


@op(infer=gradient_infer(), flops=per_element(1), samples=gradient_samples)
@formula(fused=False)
def _shrink_backward(grad, result):
    """Backward of shrinkage: zero where ``result`` is zero or NaN, else ``grad``."""
    return grad if abs(result) > 0 else 0


@_softshrink.vjp("input", room=("g", "out"))
def _(g, out, room):
    return write_over(room, _shrink_backward, g, out)


@_shrink_backward.vjp("grad")
def _(g, result):
    return _shrink_backward(g, result)


@_shrink_backward.vjp("result")
def _(g, result_spec):  # flat except at the edges: zeros, as PyTorch has, and not None
    return zero_gradient(g, result_spec)


@function(public=False)
def softshrink(input, lambd=0.5):
    """Apply soft shrinkage: move each element toward zero by ``lambd``, at most to zero.

    Raises:
        RuntimeError: ``lambd`` is negative.

    Memory:
        Keeps the result.
    """
    if lambd < 0:
        raise RuntimeError(f"lambda must be greater or equal to 0, but found to be {lambd}.")
    return _softshrink(input, lambd=float(lambd))


@op(infer=floating("hardshrink"), flops=per_element(2), samples=_lambdas)
@formula(fused=False)
def hardshrink(input, *, lambd=0.5):
    """Apply hard shrinkage: zero the elements in [-lambd, lambd].

    Memory:
        Keeps the result.
    """
    return 0 if abs(input) <= lambd else input


@hardshrink.vjp("input")
def _(g, out, lambd):
    return g if lambd < 0 else _shrink_backward(g, out)  # below 0 nothing is shrunk


@function(public=False)
def tanhshrink(input):
    """Apply ``input - tanh(input)``.

    Memory:
        Keeps ``tanh(input)``.
    """
    return input - tanh(input)


def _thresholds(make):
    for inputs, _ in singles(make):
        yield inputs, {"threshold": 0.3, "value": 20.0}
    yield (make(2, 3),), {"threshold": -0.8, "value": -1.0}


def _threshold_infer(input, *, threshold, value):
    return input, input.like(dtype=bool_)


@op(
    infer=_threshold_infer,
    scratch=("mask",),
    flops=per_element(1),
    samples=_thresholds,
    inplace="_threshold_",
)
def _threshold(xp, out, mask, input, *, threshold, value):
    """``input`` above ``threshold``, else ``value``."""
    xp.less_equal(input, threshold, out=mask)
    if out is not input:
        xp.copyto(out, input)
    xp.copyto(out, fitting(value, out.dtype), where=mask, casting="unsafe")


@_threshold.vjp("input")
def _(g, input, threshold):
    return _window(g, input, low=float(threshold), high=INFINITY, outside=0.0, nan_inside=True)


@bits
def _threshold_bits(input, *, threshold, value):
    beyond = input <= threshold
    return value if beyond else input, not beyond


threshold_with_bitmask = with_bitmask(_threshold, "_threshold_with_bitmask", _threshold_bits)


@threshold_with_bitmask.vjp("input", room=("g_out",))
def _(g_out, bitmask, room):
    return bitmask_vjp(room, g_out, bitmask)


@function(out=True)
def threshold(input, threshold, value, inplace=False):
    """Threshold elements: keep those above ``threshold``, replace the others by ``value``.

    Memory:
        Keeps one bit an element; ``input`` below 16384 elements; in place, a copy of it.
    """
    if not inplace and worth_bits(input):
        return threshold_with_bitmask(input, threshold, value)[0]
    run = input._threshold_ if inplace else lambda *a: _threshold(input, *a)
    return run(threshold, value)


@function()
def threshold_(input, threshold, value):
    """In-place twin of ``threshold``."""
    return input._threshold_(threshold, value)


__all__ = ["hardshrink", "softshrink", "tanhshrink", "threshold"]
