"""Matrix products on GPUs, by cuBLAS's strided batches, through CuPy's binding of it.

``cupy.matmul`` copies operands that are transposed or cut out of larger arrays, and computes
batches of bfloat16 not at all. cuBLAS takes any matrix whose rows, or columns, lie side by side,
with any distance from one to the next, and a batch of them at one distance. A stack that needs
several distances becomes several calls.

float16 and bfloat16 are multiplied as they are, and summed in float32.
"""

from __future__ import annotations

from functools import lru_cache, partial
from itertools import product
from math import prod
from typing import Any

import numpy as np

from ...dtypes import bfloat16, float16, float32, float64

CALLS = 256  # at most: stacks that take more are copied by CuPy
_COMPUTE_FLOAT32 = 68  # CUBLAS_COMPUTE_32F
_DEFAULT = -1  # CUBLAS_GEMM_DEFAULT
_NUMBERS: dict[tuple[str, float], Any] = {}  # cuBLAS reads alpha and beta where they lie


def multiply(xp: Any, a: Any, b: Any, out: Any, alpha: float = 1.0, beta: float = 0.0) -> bool:
    """Compute ``out = alpha a @ b + beta out``; False, and nothing done, where cuBLAS cannot.

    Args:
        xp: CuPy.
        a: (*, M, K), of one of float32, float64, float16, bfloat16.
        b: (*, K, N), of the same.
        out: (*, M, N), of the same; a matrix of it has rows or columns side by side.
        alpha: See above.
        beta: See above.
    """
    kind = out.dtype
    routine = _ROUTINES.get(kind)  # by dtype: its name is made anew at every look
    if routine is None or a.dtype != kind or b.dtype != kind:
        return False
    calls = _plan(a.shape, a.strides, b.shape, b.strides, out.shape, out.strides, kind.itemsize)
    if calls is None:
        return False
    if not out.size:
        return True
    if not a.shape[-1]:
        if beta == 0:
            out.fill(0)
        return True
    cublas, handle = xp.cuda.cublas, xp.cuda.device.get_cublas_handle()
    run, number = routine
    scale, keep = _number(number, alpha), _number(number, beta)
    addresses, at_out = (a.data.ptr, b.data.ptr), out.data.ptr
    for operations, sizes, (x, at_x, *of_x), (y, at_y, *of_y), (to, *of_out), count in calls:
        run(
            cublas, handle, *operations, *sizes, scale, addresses[x] + at_x, *of_x,
            addresses[y] + at_y, *of_y, keep, at_out + to, *of_out, count,
        )  # fmt: skip
    return True


def _single(cublas: Any, handle: int, *arguments: Any) -> None:
    cublas.sgemmStridedBatched(handle, *arguments)


def _double(cublas: Any, handle: int, *arguments: Any) -> None:
    cublas.dgemmStridedBatched(handle, *arguments)


def _half(kind: int, cublas: Any, handle: int, *arguments: Any) -> None:
    o1, o2, m, n, k, alpha, x, ldx, sx, y, ldy, sy, beta, z, ldz, sz, count = arguments
    cublas.gemmStridedBatchedEx(
        handle, o1, o2, m, n, k, alpha, x, kind, ldx, sx, y, kind, ldy, sy, beta, z, kind, ldz, sz,
        count, _COMPUTE_FLOAT32, _DEFAULT,
    )  # fmt: skip


# The call, and of which type alpha and beta are.
_ROUTINES: dict[Any, tuple[Any, str]] = {
    float32.np: (_single, "float32"),
    float64.np: (_double, "float64"),
    float16.np: (partial(_half, 2), "float32"),  # CUDA_R_16F
    bfloat16.np: (partial(_half, 14), "float32"),  # CUDA_R_16BF
}


def _number(kind: str, value: float) -> int:
    # The address of a number that lives on.
    found = _NUMBERS.get((kind, value))
    if found is None:
        held = np.array(value, kind)
        found = _NUMBERS[kind, value] = (held, int(held.ctypes.data))
    return found[1]


@lru_cache(maxsize=4096)
def _plan(a: Any, a_steps: Any, b: Any, b_steps: Any, out: Any, out_steps: Any, item: int) -> Any:
    # The calls, each (operations, sizes, first operand, second, result, count). An operand is
    # (0 for a or 1 for b, offset in bytes, leading dimension, step in the batch).
    if min(len(a), len(b), len(out)) < 2:
        return None
    stack = out[:-2]
    lies_a, lies_b, lies_out = (
        _matrix(shape[-2:], steps[-2:], item)
        for shape, steps in ((a, a_steps), (b, b_steps), (out, out_steps))
    )
    steps = (_stack(a, a_steps, stack), _stack(b, b_steps, stack), out_steps[:-2])
    if lies_a is None or lies_b is None or lies_out is None or None in steps:
        return None
    (a_turned, lda), (b_turned, ldb), (out_turned, ldo) = lies_a, lies_b, lies_out
    m, n, k = out[-2], out[-1], a[-1]
    # cuBLAS's matrices have columns side by side: a result that has rows so is the transposed
    # product of the transposed operands.
    if out_turned:
        operations, sizes, order = (int(not a_turned), int(not b_turned)), (m, n, k), (0, 1)
    else:
        operations, sizes, order = (int(b_turned), int(a_turned)), (n, m, k), (1, 0)
    outer, count, inner = _together(stack, steps)
    if prod(size for size, _ in outer) > CALLS:
        return None
    calls = []
    for place in product(*(range(size) for size, _ in outer)):
        at = [sum(i * s[of] for i, (_, s) in zip(place, outer, strict=True)) for of in range(3)]
        operands = [(of, at[of], (lda, ldb)[of], inner[of] // item) for of in order]
        calls.append((operations, sizes, *operands, (at[2], ldo, inner[2] // item), count))
    return calls


def _stack(shape: Any, steps: Any, stack: Any) -> tuple[int, ...] | None:
    # Steps of the dims before the matrix, broadcast to ``stack``; None if they do not fit.
    own = shape[:-2]
    missing = len(stack) - len(own)
    if missing < 0 or any(n not in (1, w) for n, w in zip(own, stack[missing:], strict=True)):
        return None
    found = (0 if n == 1 else s for n, s in zip(own, steps[:-2], strict=True))
    return (0,) * missing + tuple(found)


def _matrix(shape: Any, steps: Any, item: int) -> tuple[bool, int] | None:
    # (columns lie side by side, distance from one row, or column, to the next); None: neither.
    (rows, columns), (down, along) = shape, steps
    if columns == 1 or along == item:
        distance = down // item if rows > 1 else columns
        if distance >= max(1, columns) and down % item == 0:
            return False, max(distance, 1)
    if rows == 1 or down == item:
        distance = along // item if columns > 1 else rows
        if distance >= max(1, rows) and along % item == 0:
            return True, max(distance, 1)
    return None


def _together(stack: Any, steps: Any) -> Any:
    # (dims to go over one by one: their sizes and steps), the size of the batch, and its steps.
    merged: list[tuple[int, tuple[int, ...]]] = []
    for d, n in enumerate(stack):
        own = tuple(s[d] for s in steps)
        if n == 1:
            continue
        # A dim and the next are one if a step of the first goes over all of the second.
        if merged and all(o == n * s for o, s in zip(merged[-1][1], own, strict=True)):
            merged[-1] = (merged[-1][0] * n, own)
        else:
            merged.append((n, own))
    if not merged:
        return [], 1, (0, 0, 0)
    longest = max(range(len(merged)), key=lambda d: merged[d][0])
    count, inner = merged.pop(longest)
    return merged, count, inner
