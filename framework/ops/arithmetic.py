"""Arithmetic: the operators of Python, with broadcasting and PyTorch's promotion."""

from __future__ import annotations

from .registry import broadcast, function, op, pairs, per_element, same, singles


@op(
    name="_add", method=False, public=False, operator="__add__", inplace="_add_", infer=broadcast,
    promote="arith", half="float32", flops=per_element(1), samples=pairs,
)  # fmt: skip
def plus(xp, out, input, other):
    """Add elementwise, with broadcasting: ``out = input + other``."""
    xp.add(input, other, out=out)


@plus.vjp("input")
def _(g):
    return g


@plus.vjp("other")
def _(g):
    return g


@function(method=True)
def add(input, other, *, alpha=1, out=None):
    """Add elementwise, with broadcasting: ``input + alpha * other``."""
    return plus(input, other if alpha == 1 else other * alpha, out=out)


@function(method=True, public=False)
def add_(input, other, *, alpha=1):
    """In-place twin of ``add``."""
    return input._add_(other if alpha == 1 else other * alpha)


@op(
    operator="__mul__", inplace="mul_", infer=broadcast, promote="arith", half="float32",
    flops=per_element(1), samples=pairs,
)  # fmt: skip
def mul(xp, out, input, other):
    """Multiply elementwise, with broadcasting: ``out = input * other``."""
    xp.multiply(input, other, out=out)


@mul.vjp("input")
def _(g, other):  # naming `other` keeps it alive, and only while `input` needs a gradient
    return g * other


@mul.vjp("other")
def _(g, input):
    return g * input


@op(operator="__neg__", inplace="neg_", infer=same, half="exact", flops=per_element(1), samples=singles)
def neg(xp, out, input):
    """Negate: ``out = -input``."""
    xp.negative(input, out=out)


@neg.vjp("input")
def _(g):
    return -g
