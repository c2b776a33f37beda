"""Cross entropy with class numbers on GPUs: a block for each row of logits.

A row is one position of (examples, classes, positions). A class number out of range makes a row
NaN: a kernel cannot raise an error, and a wrong number would be worse.
"""

from __future__ import annotations

from typing import Any

from .kernel import CudaKernel

_ROWS = CudaKernel(
    "lt_cross_entropy",
    """
extern "C" __global__ void lt_cross_entropy(
    T *out, T *tops, T *totals, T *logits, long long *target, T *weight, long long classes,
    long long length, long long ignored, T smoothing) {
    __shared__ T room[32];
    long long row = blockIdx.x, wanted = target[row];
    T *x = logits + row / length * classes * length + row % length;
    T top = -INFINITY, total = 0, mass = 0, below = 0;
    for (long long k = threadIdx.x; k < classes; k += blockDim.x)
        top = lt_maximum(top, x[k * length]);
    top = block_max(top, room);
    for (long long k = threadIdx.x; k < classes; k += blockDim.x) {
        T d = x[k * length] - top, w = weight ? weight[k] : T(1);
        total += lt_exp(d);
        if (smoothing != 0) {
            mass += w;
            below += w * d;
        }
    }
    total = block_sum(total, room);
    if (smoothing != 0) {
        mass = block_sum(mass, room);
        below = block_sum(below, room);
    }
    if (threadIdx.x) return;
    tops[row] = top;
    totals[row] = total;
    T low = lt_log(total), loss = 0;
    if (wanted != ignored) {
        bool known = wanted >= 0 && wanted < classes;
        T of_class = !known ? T(NAN) : weight ? weight[wanted] : T(1);
        loss = (top - x[known ? wanted * length : 0] + low) * (of_class * (1 - smoothing));
        if (smoothing != 0) loss += (low * mass - below) * (smoothing / classes);
    }
    out[row] = loss;
}
""",
)

_GRAD = CudaKernel(
    "lt_cross_entropy_grad",
    """
extern "C" __global__ void lt_cross_entropy_grad(
    T *out, T *grad, T *logits, long long *target, T *weight, T *tops, T *totals, long long classes,
    long long length, long long ignored, T smoothing) {
    __shared__ T room[32];
    long long row = blockIdx.x, wanted = target[row];
    long long start = row / length * classes * length + row % length;
    T *x = logits + start, *y = out + start, mass = classes, g = grad[row];
    if (smoothing != 0 && weight) {
        mass = 0;
        for (long long k = threadIdx.x; k < classes; k += blockDim.x) mass += weight[k];
        mass = block_sum(mass, room);
    }
    bool counts = wanted != ignored, known = wanted >= 0 && wanted < classes;
    if (!counts) g = 0; /* infinite, if the mean is over no row */
    T of_class = !counts ? T(0) : !known ? T(NAN) : weight ? weight[wanted] : T(1);
    T hit = of_class * g * (1 - smoothing), spread = g * (smoothing / classes);
    T top = tops[row], factor = (hit + spread * mass) / totals[row];
    for (long long k = threadIdx.x; k < classes; k += blockDim.x) {
        T v = lt_exp(x[k * length] - top) * factor;
        if (smoothing != 0) v -= spread * (weight ? weight[k] : T(1));
        y[k * length] = k == wanted && counts ? v - hit : v;
    }
}
""",
)


def takes(logits: Any, target: Any, weight: Any) -> bool:
    """True for float32 or float64 logits, weights alike, and int64 targets; some classes."""
    alike = weight is None or weight.dtype is logits.dtype
    floats = logits.dtype.name in ("float32", "float64")
    return floats and alike and target.dtype.name == "int64" and logits.numel > 0


def _threads(classes: int) -> int:
    return min(256, -(-classes // 32) * 32)


def rows(
    xp: Any,
    out: Any,
    tops: Any,
    totals: Any,
    logits: Any,
    target: Any,
    weight: Any,
    sizes: tuple[int, int, int],
    ignored: int,
    smoothing: float,
) -> None:
    """Fill the loss, the largest logit and the sum of exponentials beside it of each row."""
    n, classes, length = sizes
    _ROWS.launch(
        xp, out.dtype, n * length, _threads(classes), out, tops, totals, logits, target,
        0 if weight is None else weight, classes, length, int(ignored), float(smoothing),
    )  # fmt: skip


def rows_grad(
    xp: Any,
    out: Any,
    grad: Any,
    logits: Any,
    target: Any,
    weight: Any,
    tops: Any,
    totals: Any,
    sizes: tuple[int, int, int],
    ignored: int,
    smoothing: float,
) -> None:
    """Fill the gradient of the logits."""
    n, classes, length = sizes
    _GRAD.launch(
        xp, out.dtype, n * length, _threads(classes), out, grad, logits, target,
        0 if weight is None else weight, tops, totals, classes, length, int(ignored),
        float(smoothing),
    )  # fmt: skip
