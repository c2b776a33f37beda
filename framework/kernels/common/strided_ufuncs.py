"""Negation and tests of floats, also through the strides at which NumPy 2.x is wrong.

Through a step of 16 bytes (of 8-byte numbers 64) ``np.negative`` writes other values than it
should, unless its output is contiguous; ``np.isfinite`` and ``np.signbit`` do through any step of
theirs. Kernels call these instead: ``tests/kernels/test_strided_ufuncs.py`` says when they can go.
"""

from __future__ import annotations


def _dense(input, out) -> bool:
    return input.flags.c_contiguous and out.flags.c_contiguous


def negate(xp, input, out) -> None:
    """``out = -input``, elementwise; ``out`` may be ``input``."""
    kind = input.dtype.kind
    if kind not in "fiu" or _dense(input, out):
        xp.negative(input, out=out)
    elif input.size and not any(input.strides):  # a gradient that repeats one number
        xp.copyto(out, -input[(slice(0, 1),) * input.ndim])
    else:
        xp.subtract(-0.0 if kind == "f" else 0, input, out=out)


def finite(xp, input, out) -> None:
    """``out = isfinite(input)``, elementwise, of dtype bool."""
    if input.dtype.kind != "f" or _dense(input, out):
        xp.isfinite(input, out=out)
    else:
        xp.less(input, float("inf"), out=out)  # false for nan
        xp.greater(input, -float("inf"), out=out, where=out)


def sign_bit(xp, input, out) -> None:
    """``out = signbit(input)`` of floats, elementwise, of dtype bool."""
    if _dense(input, out):
        xp.signbit(input, out=out)
    else:
        xp.less(input.view(f"i{input.dtype.itemsize}"), 0, out=out)
