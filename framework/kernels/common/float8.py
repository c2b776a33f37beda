"""Conversion to 8-bit floats as PyTorch's: float8_e4m3fn saturates, where ml_dtypes gives NaN."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

_E4M3 = np.dtype(ml_dtypes.float8_e4m3fn)
LARGEST = 448.0  # there is no infinity: it, too, becomes the largest number


def saturates(to: Any, source: Any) -> bool:
    """True if a conversion between these dtypes has to be limited to what the result can hold."""
    return to == _E4M3 and source != _E4M3


def saturated_copy(out: Any, array: Any) -> None:
    """Fill ``out`` with ``array``, broadcast, converted by way of float32, and limited; NaN stays.

    A buffer of NumPy's iterator is limited at a time, so that nothing as large as an operand is
    allocated.
    """
    walk = np.nditer(
        [array, out],
        flags=["external_loop", "buffered", "zerosize_ok", "copy_if_overlap"],
        op_flags=[["readonly"], ["writeonly"]],
        op_dtypes=[np.dtype(np.float32), _E4M3],
        casting="unsafe",
    )
    with walk, np.errstate(all="ignore"):
        for source, target in walk:
            np.copyto(target, np.clip(source, -LARGEST, LARGEST), casting="unsafe")
