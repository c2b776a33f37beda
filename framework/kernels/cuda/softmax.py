"""softmax and log_softmax on GPUs, and their gradients: a block for each row.

Arrays are (outer, n, inner), whatever their shape. A row is the n elements of one outer and one
inner position, which lie ``inner`` apart.
"""

from __future__ import annotations

from math import prod
from typing import Any

from .kernel import THREADS, CudaKernel

_FORWARD = CudaKernel(
    "lt_softmax",
    """
extern "C" __global__ void lt_softmax(
    T *out, T *input, long long n, long long inner, long long logarithm) {
    __shared__ T room[32];
    long long row = blockIdx.x, start = row / inner * n * inner + row % inner;
    T *x = input + start, *y = out + start, top = -INFINITY, total = 0;
    for (long long k = threadIdx.x; k < n; k += blockDim.x) top = lt_maximum(top, x[k * inner]);
    top = block_max(top, room);
    for (long long k = threadIdx.x; k < n; k += blockDim.x) {
        T power = lt_exp(x[k * inner] - top);
        if (!logarithm) y[k * inner] = power;
        total += power;
    }
    total = block_sum(total, room);
    T low = lt_log(total);
    for (long long k = threadIdx.x; k < n; k += blockDim.x)
        y[k * inner] = logarithm ? x[k * inner] - top - low : y[k * inner] / total;
}
""",
)

_BACKWARD = CudaKernel(
    "lt_softmax_grad",
    """
extern "C" __global__ void lt_softmax_grad(
    T *out, T *incoming, T *output, long long n, long long inner, long long logarithm) {
    __shared__ T room[32];
    long long row = blockIdx.x, start = row / inner * n * inner + row % inner;
    T *g = incoming + start, *y = output + start, *d = out + start, total = 0;
    for (long long k = threadIdx.x; k < n; k += blockDim.x)
        total += logarithm ? g[k * inner] : g[k * inner] * y[k * inner];
    total = block_sum(total, room);
    for (long long k = threadIdx.x; k < n; k += blockDim.x) {
        long long i = k * inner;
        d[i] = logarithm ? g[i] - lt_exp(y[i]) * total : (g[i] - total) * y[i];
    }
}
""",
)


def forward(xp: Any, out: Any, input: Any, dim: int, logarithm: bool) -> None:
    """Fill ``out`` with the softmax along ``dim``, or with its logarithm."""
    _launch(_FORWARD, xp, dim, logarithm, out, input)


def backward(xp: Any, out: Any, incoming: Any, output: Any, dim: int, logarithm: bool) -> None:
    """Fill ``out`` with the gradient of the input, from the forward pass's ``output``."""
    _launch(_BACKWARD, xp, dim, logarithm, out, incoming, output)


def _launch(kernel: CudaKernel, xp: Any, dim: int, logarithm: bool, *arrays: Any) -> None:
    out = arrays[0]
    if not out.size:
        return
    n = int(out.shape[dim]) if out.ndim else 1
    threads = min(THREADS, -(-n // 32) * 32)
    inner = int(prod(out.shape[dim + 1 :]))
    kernel.launch(xp, out.dtype, out.size // n, threads, *arrays, n, inner, int(logarithm))
