"""Sums, differences, products, quotients and copies of short rows that lie apart.

NumPy calls its inner loop for each row, and a call takes longer than a row of 32 elements. Each of
these operations is rounded once, so the numbers are NumPy's, bit for bit.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..support.jit import compiled, part
from ..support.memory import vector_at

ADD, SUBTRACT, MULTIPLY, DIVIDE, MOVE = range(5)
OPERATIONS = {"add": ADD, "subtract": SUBTRACT, "multiply": MULTIPLY, "divide": DIVIDE}


# Of a row of n; an operand whose step is 0 is one number, and both may be.


@compiled(overlaps=False)
def _add(out: Any, a: Any, b: Any, n: Any, inner: Any) -> None:
    if inner[0] == 0 and inner[1] == 0:
        both = a[0] + b[0]
        for j in range(n):
            out[j] = both
    elif inner[0] == 0:
        first = a[0]
        for j in range(n):
            out[j] = first + b[j]
    elif inner[1] == 0:
        second = b[0]
        for j in range(n):
            out[j] = a[j] + second
    else:
        for j in range(n):
            out[j] = a[j] + b[j]


@compiled(overlaps=False)
def _subtract(out: Any, a: Any, b: Any, n: Any, inner: Any) -> None:
    if inner[0] == 0 and inner[1] == 0:
        both = a[0] - b[0]
        for j in range(n):
            out[j] = both
    elif inner[0] == 0:
        first = a[0]
        for j in range(n):
            out[j] = first - b[j]
    elif inner[1] == 0:
        second = b[0]
        for j in range(n):
            out[j] = a[j] - second
    else:
        for j in range(n):
            out[j] = a[j] - b[j]


@compiled(overlaps=False)
def _multiply(out: Any, a: Any, b: Any, n: Any, inner: Any) -> None:
    if inner[0] == 0 and inner[1] == 0:
        both = a[0] * b[0]
        for j in range(n):
            out[j] = both
    elif inner[0] == 0:
        first = a[0]
        for j in range(n):
            out[j] = first * b[j]
    elif inner[1] == 0:
        second = b[0]
        for j in range(n):
            out[j] = a[j] * second
    else:
        for j in range(n):
            out[j] = a[j] * b[j]


@compiled(overlaps=False)
def _divide(out: Any, a: Any, b: Any, n: Any, inner: Any) -> None:
    if inner[0] == 0 and inner[1] == 0:
        both = a[0] / b[0]
        for j in range(n):
            out[j] = both
    elif inner[0] == 0:
        first = a[0]
        for j in range(n):
            out[j] = first / b[j]
    elif inner[1] == 0:
        second = b[0]
        for j in range(n):
            out[j] = a[j] / second
    else:
        for j in range(n):
            out[j] = a[j] / b[j]


@compiled(overlaps=False)
def _move(out: Any, a: Any, n: Any) -> None:
    for j in range(n):
        out[j] = a[j]


@part
def _block(
    like: Any, operation: Any, x: Any, y: Any, z: Any, outer: Any, inner: Any, n: Any, count: Any
) -> None:
    # Some rows of a block, which begin at addresses. All have one length, which is known before.
    for _ in range(count):
        a, b, out = vector_at(x, n, like), vector_at(y, n, like), vector_at(z, n, like)
        if operation == ADD:
            _add(out, a, b, n, inner)
        elif operation == SUBTRACT:
            _subtract(out, a, b, n, inner)
        elif operation == MULTIPLY:
            _multiply(out, a, b, n, inner)
        elif operation == DIVIDE:
            _divide(out, a, b, n, inner)
        else:
            _move(out, a, n)
        x += outer[0]
        y += outer[1]
        z += outer[2]


@part
def _rows(
    like: Any, operation: Any, at: Any, blocks: Any, outer: Any, inner: Any, n: Any, rows: Any,
    total: Any, start: Any, stop: Any,
) -> None:  # fmt: skip
    k, whole = start, min(stop, total // n)
    while k < stop:
        block, row = k // rows, k % rows
        x = at[0] + block * blocks[0] + row * outer[0]
        y = at[1] + block * blocks[1] + row * outer[1]
        z = at[2] + block * blocks[2] + row * outer[2]
        if k < whole:
            count = min(rows - row, whole - k)
            _block(like, operation, x, y, z, outer, inner, n, count)
        else:
            count = 1
            _block(like, operation, x, y, z, outer, inner, total - k * n, count)
        k += count


@compiled(signature="i8,i8x3,i8x3,i8x3,i8x3,i8,i8,i8,i8,i8")
def rows_of_float32(
    operation: int, at: Any, blocks: Any, outer: Any, inner: Any, n: int, rows: int, total: int,
    start: int, stop: int,
) -> None:  # fmt: skip
    """Compute rows ``start`` to ``stop`` of ``out = a operation b``.

    Args:
        operation: One of ``OPERATIONS``, or ``MOVE``, which copies a.
        at: Addresses of a, b and out; out may be one of the others.
        blocks: Bytes from one block of rows to the next of each.
        outer: Bytes from row to row.
        inner: Bytes from element to element; 0 of an operand that is one number a row.
        n: Elements of a row.
        rows: Rows of a block.
        total: Elements of all rows: the last one may be shorter.
        start: The first row.
        stop: Behind the last.
    """
    _rows(np.float32(0), operation, at, blocks, outer, inner, n, rows, total, start, stop)


@compiled(signature="i8,i8x3,i8x3,i8x3,i8x3,i8,i8,i8,i8,i8")
def rows_of_float64(
    operation: int, at: Any, blocks: Any, outer: Any, inner: Any, n: int, rows: int, total: int,
    start: int, stop: int,
) -> None:  # fmt: skip
    """Compute the same of float64."""
    _rows(np.float64(0), operation, at, blocks, outer, inner, n, rows, total, start, stop)


LOOPS = {np.dtype(np.float32): rows_of_float32, np.dtype(np.float64): rows_of_float64}
