"""Sums of float16 and bfloat16 without a float32 copy of what is summed.

The workspace is the sums in float32, where they are to be rounded. It takes dims that lie side by
side, as all, rows, columns or channels do; other sums convert their input first.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from ...dtypes import float32
from ...spec import Spec
from ..runtime import thresholds
from . import copy
from .schedule import parallel_rows


def summed_as_is(input: Spec, *, dim: Any, keepdim: bool, dtype: Any) -> bool:
    """True if :func:`sum_halves` takes this sum."""
    return (
        dtype in (None, float32, input.dtype)
        and input.numel >= thresholds.COMPILED_MOVE
        and _three(input.shape, dim) is not None
        and copy.word(input.dtype.np) is not None
    )


def sums_in_float32(input: Spec, *, dim: Any, keepdim: bool, dtype: Any) -> tuple[Spec]:
    """Its scratch."""
    shape = tuple([n for k, n in enumerate(input.shape) if k not in dim])
    return (Spec(shape if dtype is not float32 else (0,), float32, input.device),)


def sum_halves(out: Any, sums: Any, input: Any, dim: Any, divide: bool) -> None:
    """Add up ``input``, in C order, over ``dim``; or average it."""
    from ..cpu.reduction import half_sum

    found = _three(input.shape, dim)
    assert found is not None
    outer, n, inner = found
    word = copy.word(input.dtype)
    x = input.view(word).reshape(outer, n, inner)
    made = (out if out.dtype == np.float32 else sums).reshape(outer, inner)
    if inner == 1:
        parallel_rows(half_sum.rows(word), x.size, outer, made.reshape(outer), x.reshape(outer, n))
    else:
        parallel_rows(half_sum.columns(word), x.size, outer, made, x)
    if divide:
        np.divide(made, n, out=made)
    if out.dtype != np.float32:
        copy.copy(out, made.reshape(out.shape))


def _three(shape: Any, dim: Any) -> tuple[int, int, int] | None:
    # The sizes before, of and after what is reduced; None if that is not contiguous.
    large = [k for k, n in enumerate(shape) if n != 1]
    inside = [i for i, k in enumerate(large) if k in dim]
    if not inside or inside[-1] - inside[0] >= len(inside):
        return None
    sizes = [shape[k] for k in large]
    first, last = inside[0], inside[-1] + 1
    return prod(sizes[:first]), prod(sizes[first:last]), prod(sizes[last:])
