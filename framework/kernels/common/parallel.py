"""Large calls of a kernel in parts: several threads for what NumPy does in one.

What a kernel declared ``elementwise`` writes at a place depends on nothing but that place of its
inputs. So it may be called on parts of its arrays, in any order, and NumPy releases the
interpreter's lock while it computes. A plan decides it from shapes: small calls pay nothing. The
same numbers come out, bit for bit, however many threads there are.

Not optimal: a kernel of several passes goes over each part as often. Smaller parts that stay in a
core's own cache were no faster where this was written.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from ..runtime import threads

LEAST = 1 << 19  # elements of a result from which on a call is shared out
_FEW = 16  # places along a dim that can be shared out evenly enough


def in_parts(kernel: Callable[..., None], shape: tuple[int, ...], rows: bool) -> Any:
    """The kernel, called on parts of its arrays by several threads.

    Args:
        kernel: Elementwise.
        shape: Of its results; its inputs broadcast to that.
        rows: Only along the first dim that is not 1, which leaves contiguous arrays contiguous.

    Returns:
        A kernel, or the given one where sharing out would not pay.
    """
    if prod(shape) < LEAST:
        return kernel
    axis = _axis(shape, rows)
    if axis is None:
        return kernel
    n, after = shape[axis], len(shape) - axis
    elements = prod(shape)

    def shared(xp: Any, *arrays: Any, **attributes: Any) -> None:
        if threads.workers(elements, n) <= 1:
            kernel(xp, *arrays, **attributes)
            return
        cut = [_place(a, n, after) for a in arrays]
        out = arrays[0]

        def part(start: int, stop: int) -> None:
            here = (slice(start, stop),)
            first = out[(slice(None),) * axis + here]
            some = [
                first if a is out else a if k is None else a[(slice(None),) * k + here]
                for a, k in zip(arrays, cut, strict=True)
            ]  # in place, kernels ask whether an input is the result: its part must be that, too
            kernel(xp, *some, **attributes)

        threads.ranges(part, elements, n)

    shared.__wrapped__ = kernel  # type: ignore[attr-defined]  # an estimate asks whose it is
    return shared


def _axis(shape: tuple[int, ...], rows: bool) -> int | None:
    # The first dim that is long enough, else the longest.
    longest = max(range(len(shape)), key=lambda d: shape[d])
    first = next(d for d, n in enumerate(shape) if n > 1)
    if rows:
        return first if shape[first] >= 2 else None
    return next((d for d, n in enumerate(shape) if n >= _FEW), longest)


def _place(array: Any, n: int, after: int) -> int | None:
    # Which dim of an operand is the one that is cut; None if it is the same for all parts.
    ndim = getattr(array, "ndim", 0)
    k = ndim - after
    return k if 0 <= k < ndim and array.shape[k] == n else None
