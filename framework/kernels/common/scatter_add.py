"""Adding into an array at indices that may repeat, on every device."""

from __future__ import annotations

from typing import Any

import numpy as np

_ATOMIC = frozenset("iIlLqQefdFD")  # NumPy's letters of the types that GPUs add atomically


def scatter_add(xp: Any, out: Any, index: Any, values: Any) -> None:
    """Add ``values`` to ``out[index]`` in place; an element named twice receives both.

    NumPy adds in the order of the indices. CuPy adds by atomic operations, in no certain order:
    floating sums may differ in the last bit from run to run.

    Args:
        xp: The array module.
        out: Written.
        index: What ``out[...]`` takes; integers in range.
        values: An array that broadcasts to ``out[index]``, or a Python scalar.

    Memory:
        Types without atomic addition (bool, 8 and 16 bit integers, bfloat16) go through a copy of
        ``out`` in a wider type on a GPU.
    """
    if xp is np or out.dtype.char in _ATOMIC:
        xp.add.at(out, index, values)
        return
    wide = out.astype(xp.int32 if out.dtype.kind in "biu" else xp.float32)
    given = values.astype(wide.dtype) if hasattr(values, "astype") else values
    xp.add.at(wide, index, given)
    xp.copyto(out, wide, casting="unsafe")
