"""Python integers that the dtype of a result cannot hold, as PyTorch takes them."""

from __future__ import annotations

from typing import Any

import numpy as np


def wrapped(x: Any, out: Any) -> Any:
    """Return an integer modulo 2 ** bits of the dtype of ``out``: an operand of arithmetic.

    What is no int, or belongs to a result that is no integer, is returned as it is.
    """
    if not isinstance(x, int) or 0 <= x < 128 or out.dtype.kind not in "iu":  # which fits all
        return x
    return np.array(x & (1 << 64) - 1, np.uint64).astype(out.dtype).item()


def fitting(x: Any, dtype: Any) -> Any:
    """Return an integer that is put into a dtype; a negative one wraps around if it is unsigned.

    Args:
        x: An int; all else is returned as it is.
        dtype: NumPy's; of one that is no integer, nothing is checked.

    Raises:
        RuntimeError: The dtype cannot hold it.
    """
    if not isinstance(x, int) or 0 <= x < 128 or dtype.kind not in "iu":
        return x
    limits = np.iinfo(dtype)
    if not limits.min and -limits.max <= x < 0:
        return x + int(limits.max) + 1
    if limits.min <= x <= limits.max:
        return x
    raise RuntimeError(
        f"value cannot be converted to type {dtype.name} without overflow; got {x}. Convert the "
        "tensor with .to(lowtide.int64)."
    )
