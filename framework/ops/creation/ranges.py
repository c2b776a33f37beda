"""arange, linspace and relatives, eye, triangle indices.

A long ramp is written a tile at a time in float64 (int64 where that is exact), so its temporaries
stay small, and in every dtype it is the rounded exact one.
"""

from __future__ import annotations

import builtins
import math
import operator
from typing import Any

import numpy as np

from ...devices import backend
from ...dtypes import BOOL, FLOAT, INT, bool_, get_default_dtype, int64
from ...kernels.runtime import thresholds
from ...tensor import Tensor
from ..registry import function
from .factory import bounds_of, dtype_of, natural_dtype, need_strided, scalar, target, written
from .from_data import tensor

_TILE = 4096  # elements of a ramp at a time on the host: 32 KiB in float64


@function()
def arange(
    start: Any = None,
    end: Any = None,
    step: Any = 1,
    *,
    out: Tensor | None = None,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> Tensor:
    """Create values from ``start`` (default 0) to ``end``, excluded, in steps of ``step``.

    Integers give int64, and any float among the three gives the default dtype.

    Raises:
        RuntimeError: ``step`` is 0 or leads away from ``end``, or the range is not finite.
    """
    if layout is not None:
        need_strided("arange", layout)
    start, end = bounds_of("arange", "end", start, end)
    start, end, step = scalar(start), scalar(end), scalar(step)
    natural = natural_dtype(start, end, step)
    natural = int64 if natural is bool_ else natural
    wanted = natural if dtype is None else dtype_of("arange", dtype)
    if dtype is None and out is not None:
        wanted = out.dtype
    given = (start, end, step)
    start, end, step = _line_ends("arange", wanted, start, end, step)
    if not given[2] or (wanted is int64 and not step):  # PyTorch has a type for each
        raise (ValueError if given[2] else RuntimeError)("arange: step must be nonzero")
    if not (math.isfinite(start) and math.isfinite(end)):
        raise RuntimeError(f"arange: unsupported range: {start} -> {end}")
    if (end - start) * step < 0:
        raise RuntimeError(
            "arange: upper bound and lower bound inconsistent with step sign; got "
            f"{start} -> {end} by {step}."
        )
    exact = all(isinstance(v, int) for v in (start, end, step))
    if wanted.category == INT and wanted is not int64:  # its length is that of the numbers given
        first, last, width = map(float, given)
        n = math.ceil((last - first) / width)
    else:
        n = -((start - end) // step) if exact else math.ceil((end - start) / step)
    t = target("arange", (n,), dtype, wanted, device, out)
    _ramp(t, lambda k: _line(k, start, step), exact)
    return t.requires_grad_() if requires_grad else t


def _line_ends(name: str, wanted: Any, *numbers: Any) -> list[Any]:
    """The numbers of a ramp: integers for an integer dtype.

    Raises:
        NotImplementedError: The dtype cannot count.
        RuntimeError: A number is complex.
    """
    if any(isinstance(v, complex) for v in numbers):
        raise RuntimeError(
            f"{name}: value cannot be converted to type double without overflow: it is complex; "
            f"got {numbers}. Pass real numbers."
        )
    if wanted.category not in (INT, FLOAT):
        raise NotImplementedError(f'"{name}" not implemented for {wanted}. Convert with .to().')
    whole = wanted.category == INT and all(math.isfinite(v) for v in numbers)
    return [int(v) for v in numbers] if whole else list(numbers)


@function()
def range(
    start: Any = 0,
    end: Any = None,
    step: Any = 1,
    *,
    out: Tensor | None = None,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> Tensor:
    """Create values from ``start`` to ``end``, included (deprecated by PyTorch; see ``arange``).

    The result has the default dtype unless another is given. PyTorch warns that it is deprecated.
    """
    if layout is not None:
        need_strided("range", layout)
    start, end, step = scalar(start), scalar(end), scalar(step)
    if end is None:
        raise TypeError('range() missing 1 required positional arguments: "end".')
    wanted = get_default_dtype() if dtype is None else dtype_of("range", dtype)
    if dtype is None and out is not None:
        wanted = out.dtype
    start, end, step = _line_ends("range", wanted, start, end, step)
    if step == 0:
        raise RuntimeError("range: step must be nonzero")
    if not (math.isfinite(start) and math.isfinite(end)):
        raise RuntimeError(f"range: unsupported range: {start} -> {end}")
    if (end - start) * step < 0:
        raise RuntimeError(
            "range: upper bound and lower bound inconsistent with step sign; got "
            f"{start} -> {end} by {step}."
        )
    t = target("range", (math.floor((end - start) / step) + 1,), dtype, wanted, device, out)
    _ramp(t, lambda k: _line(k, start, step), all(isinstance(v, int) for v in (start, step)))
    return t.requires_grad_() if requires_grad else t


def _line(k: Any, start: Any, step: Any) -> Any:
    k *= step
    k += start
    return k


def _ramp(t: Tensor, values: Any, exact: bool = False) -> None:
    # values(k) for each position k, a tile at a time, computed in float64 (int64 if exact).
    written(t, _ramp_into, backend(t.device).xp, values, exact)


def _ramp_into(array: Any, xp: Any, values: Any, exact: bool) -> None:
    n = array.size
    tile = _TILE if xp is np else thresholds.tile_elements(False)
    for first in builtins.range(0, n, tile):
        last = min(n, first + tile)
        k = xp.arange(first, last, dtype=xp.int64 if exact else xp.float64)
        xp.copyto(array[first:last], values(k), casting="unsafe")


@function()
def linspace(
    start: Any,
    end: Any,
    steps: int,
    *,
    out: Tensor | None = None,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> Tensor:
    """Create ``steps`` evenly spaced values from ``start`` to ``end``, both included."""
    if layout is not None:
        need_strided("linspace", layout)
    start, end, steps = scalar(start), scalar(end), operator.index(steps)
    if steps < 0:
        raise RuntimeError(f"linspace: number of steps must be non-negative; got {steps}.")
    wanted = natural_dtype(start, end, 1.0)
    t = target("linspace", (steps,), dtype, wanted, device, out)
    if t.dtype.category == BOOL:
        raise NotImplementedError('"linspace" not implemented for bool. Convert with .to().')
    _ramp(t, _between(t, start, end, steps))
    return t.requires_grad_() if requires_grad else t


def _between(t: Tensor, start: Any, end: Any, steps: int) -> Any:
    xp = backend(t.device).xp
    if t.dtype.category == INT:
        start, end = int(start), int(end)
    step = (end - start) / max(steps - 1, 1)

    def values(k: Any) -> Any:  # from both ends, so that both are exact
        return xp.where(k < steps / 2, start + step * k, end - step * (steps - 1 - k))

    return values if steps > 1 else lambda k: k + start


@function()
def logspace(
    start: Any,
    end: Any,
    steps: int,
    base: float = 10.0,
    *,
    out: Tensor | None = None,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> Tensor:
    """Create ``steps`` values from ``base**start`` to ``base**end``, evenly spaced in logarithm."""
    if layout is not None:
        need_strided("logspace", layout)
    start, end, steps = scalar(start), scalar(end), operator.index(steps)
    if steps < 0:
        raise RuntimeError(f"logspace: number of steps must be non-negative; got {steps}.")
    t = target("logspace", (steps,), dtype, natural_dtype(start, end, 1.0), device, out)
    exponents = _between(t, start, end, steps)
    _ramp(t, lambda k: float(base) ** exponents(k))
    return t.requires_grad_() if requires_grad else t


def _triangle(name: str, host: Any, dtype: Any, device: Any) -> Tensor:
    wanted = int64 if dtype is None else dtype_of(name, dtype)
    return tensor(np.stack(host).astype(np.int64), dtype=wanted, device=device)


@function()
def tril_indices(
    row: int,
    col: int,
    offset: int = 0,
    *,
    dtype: Any = None,
    device: Any = None,
    layout: Any = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> Tensor:
    """Return (row, column) indices of the lower triangle of a matrix, as a (2, N) tensor."""
    if layout is not None:
        need_strided("tril_indices", layout)
    t = _triangle("tril_indices", np.tril_indices(row, offset, col), dtype, device)
    return t.requires_grad_() if requires_grad else t


@function()
def triu_indices(
    row: int,
    col: int,
    offset: int = 0,
    *,
    dtype: Any = None,
    device: Any = None,
    layout: Any = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> Tensor:
    """Return (row, column) indices of the upper triangle of a matrix, as a (2, N) tensor."""
    if layout is not None:
        need_strided("triu_indices", layout)
    t = _triangle("triu_indices", np.triu_indices(row, offset, col), dtype, device)
    return t.requires_grad_() if requires_grad else t


def _ones_on_diagonal(a: Any, xp: Any) -> None:
    n, m = a.shape
    k = min(n, m)
    a.fill(0)
    if a.flags.c_contiguous:
        a.reshape(-1)[: k * m : m + 1] = 1
    else:
        a[xp.arange(k), xp.arange(k)] = 1


@function()
def eye(
    n: int,
    m: int | None = None,
    *,
    out: Tensor | None = None,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> Tensor:
    """Create an (n, m) matrix with ones on the diagonal; ``m`` defaults to ``n``."""
    if layout is not None:
        need_strided("eye", layout)
    m = n if m is None else m
    for what, value in (("n", n), ("m", m)):
        if value < 0:
            raise RuntimeError(f"eye: {what} must be greater or equal to 0, got {value}")
    t = target("eye", (n, m), dtype, get_default_dtype(), device, out)
    written(t, _ones_on_diagonal, backend(t.device).xp)
    return t.requires_grad_() if requires_grad else t
