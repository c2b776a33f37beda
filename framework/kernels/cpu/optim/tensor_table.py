"""The table of a step of many parameters: where the memory of each lies.

A row is a piece of a parameter, of its gradient and of its state: the address of each, and how many
elements it has. Rows are short, so that threads can share them out.
"""

from __future__ import annotations

from typing import Any

from ..compiler.entry import DATA, DTYPE, FLAGS, NDIM, SHAPE
from ..compiler.entry import layout_known as layout_known
from ..support.atomics import load
from ..support.jit import compiled

_WANTED = 0x1 | 0x100 | 0x400  # C-contiguous, aligned, writeable: NumPy's flags
_INT = 0xFFFFFFFF  # a C int is half a word


@compiled(signature="i8:1C,i8:2C,i8,i8,i8")
def locate(objects: Any, table: Any, dtype: int, itemsize: int, limit: int) -> int:
    """Fill a table from NumPy's arrays; return how many rows it has.

    Args:
        objects: (parameters * arrays): the addresses of the array objects.
        table: (rows, arrays + 1): there must be enough of them.
        dtype: The address of the dtype that all of them must have.
        itemsize: Its bytes.
        limit: Elements of a row, at most.

    Returns:
        -1 - k if an array of parameter k is another, or not contiguous.
    """
    arrays = table.shape[1] - 1
    row = 0
    for k in range(objects.size // arrays):
        first = k * arrays
        for j in range(arrays):
            x = objects[first + j]
            if load(x + DTYPE) != dtype or load(x + FLAGS) & _WANTED != _WANTED:
                return -1 - k
        size, shape = 1, load(objects[first] + SHAPE)
        for d in range(load(objects[first] + NDIM) & _INT):
            size *= load(shape + 8 * d)
        for start in range(0, size, limit):
            for j in range(arrays):
                table[row, j] = load(objects[first + j] + DATA) + start * itemsize
            table[row, arrays] = min(limit, size - start)
            row += 1
    return row
