"""The gradient of a table's rows on GPUs: the same bits at every run.

CuPy adds rows that come twice by atomic operations, in no certain order. Here the indices are
sorted first, and one block adds up all gradients of a row, in the order in which they came.
"""

from __future__ import annotations

from typing import Any

from .kernel import CudaKernel

_THREADS = 128  # of a block; each takes some columns of a row

_ADD_ROWS = CudaKernel(
    "lt_add_rows",
    """
extern "C" __global__ void lt_add_rows(
    T *out, T *grad, long long *sorted, long long *order, long long count, long long width,
    long long rows) {
    long long start = blockIdx.x, row = sorted[start];
    if (start > 0 && sorted[start - 1] == row) return; /* an earlier block has this row */
    if (row < 0 || row >= rows) return;
    for (long long j = threadIdx.x; j < width; j += blockDim.x) {
        T total = 0;
        for (long long k = start; k < count && sorted[k] == row; k++)
            total += grad[order[k] * width + j];
        out[row * width + j] = total;
    }
}
""",
)


def add_rows(xp: Any, out: Any, grad: Any, index: Any) -> None:
    """Fill ``out`` (rows, width) with sums of rows of ``grad`` (count, width) by ``index``.

    Memory:
        Two int64 numbers an index, and what sorting takes, in CuPy's pool.
    """
    out.fill(0)
    if not grad.size:
        return
    order = xp.argsort(index, kind="stable")
    count, width = (int(n) for n in grad.shape)
    _ADD_ROWS.launch(
        xp,
        out.dtype,
        count,
        _THREADS,
        out,
        grad,
        index[order],
        order,
        count,
        width,
        int(out.shape[0]),
    )
