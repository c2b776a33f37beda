"""Normalization on GPUs: a block for each mean, in float32 or float64.

What shares a mean are M elements, and there are A of them. With ``batch`` they are the planes of
one channel in all examples, of (examples, A, plane); else they lie side by side, and a channel has
``plane`` of them, of which there are ``channels``. So one pair of kernels serves layer, group,
instance, batch and RMS normalization.

Sums are made in an order that only the sizes decide: results are the same at every run.
"""

from __future__ import annotations

from typing import Any

from .kernel import THREADS, CudaKernel

_PLACES = """
__device__ inline long long place(
    long long a, long long j, long long size, long long plane, long long means, bool batch) {
    return batch ? (j / plane * means + a) * plane + j % plane : a * size + j;
}
__device__ inline long long channel(
    long long a, long long j, long long size, long long plane, long long channels, bool batch) {
    if (batch) return a;
    long long of_mean = size / plane; /* channels that share a mean */
    return a % (channels / of_mean) * of_mean + j / plane;
}
"""

_FORWARD = CudaKernel(
    "lt_normalize",
    _PLACES
    + """
/* `mean`, `var`, `weight` and `bias` may be null: `mean` for RMS, whose mean counts as 0. */
extern "C" __global__ void lt_normalize(
    T *out, T *mean, T *var, T *rstd, T *x, T *weight, T *bias, long long size, long long plane,
    long long means, long long channels, long long batch, T eps) {
    __shared__ T room[32];
    long long a = blockIdx.x;
    T center = 0;
    if (mean) {
        T total = 0;
        for (long long j = threadIdx.x; j < size; j += blockDim.x)
            total += x[place(a, j, size, plane, means, batch)];
        center = block_sum(total, room) / size;
    }
    T squares = 0;
    for (long long j = threadIdx.x; j < size; j += blockDim.x) {
        T d = x[place(a, j, size, plane, means, batch)] - center;
        squares += d * d;
    }
    T variance = block_sum(squares, room) / size, scale = 1 / lt_sqrt(variance + eps);
    if (threadIdx.x == 0) {
        if (mean) mean[a] = center;
        if (var) var[a] = variance;
        rstd[a] = scale;
    }
    for (long long j = threadIdx.x; j < size; j += blockDim.x) {
        long long i = place(a, j, size, plane, means, batch);
        T y = (x[i] - center) * scale;
        if (weight || bias) {
            long long c = channel(a, j, size, plane, channels, batch);
            if (weight) y *= weight[c];
            if (bias) y += bias[c];
        }
        out[i] = y;
    }
}
""",
)

_BACKWARD = CudaKernel(
    "lt_normalize_grad",
    _PLACES
    + """
/* dx; with `batch` also dw and db, which are sums over the same elements. */
extern "C" __global__ void lt_normalize_grad(
    T *dx, T *dw, T *db, T *g, T *x, T *weight, T *mean, T *rstd, long long size, long long plane,
    long long means, long long channels, long long batch) {
    __shared__ T room[32];
    long long a = blockIdx.x;
    T center = mean ? mean[a] : T(0), scale = rstd[a], along = 0, total = 0;
    for (long long j = threadIdx.x; j < size; j += blockDim.x) {
        long long i = place(a, j, size, plane, means, batch);
        T d = g[i];
        if (weight && !batch) d *= weight[channel(a, j, size, plane, channels, batch)];
        along += d * ((x[i] - center) * scale);
        total += d;
    }
    along = block_sum(along, room);
    total = block_sum(total, room);
    if (batch && threadIdx.x == 0) {
        if (dw) dw[a] = along;
        db[a] = total;
    }
    if (weight && batch) {
        along *= weight[a];
        total *= weight[a];
    }
    along /= size;
    total = mean ? total / size : T(0);
    for (long long j = threadIdx.x; j < size; j += blockDim.x) {
        long long i = place(a, j, size, plane, means, batch);
        T d = g[i];
        if (weight) d *= weight[channel(a, j, size, plane, channels, batch)];
        dx[i] = (d - total - (x[i] - center) * scale * along) * scale;
    }
}
""",
)

# Channels of one element lie side by side: 32 of them are summed by a block, over all means.
_COLUMNS = CudaKernel(
    "lt_affine_columns",
    """
extern "C" __global__ void lt_affine_columns(
    T *dw, T *db, T *g, T *x, T *mean, T *rstd, long long rows, long long groups,
    long long width) {
    __shared__ T products[256], sums[256];
    long long lane = threadIdx.x % 32, line = threadIdx.x / 32;
    long long column = blockIdx.x * 32ll + lane, total = groups * width;
    T along = 0, sum = 0;
    if (column < total)
        for (long long r = line; r < rows; r += 8) {
            long long a = r * groups + column / width, i = r * total + column;
            T center = mean ? mean[a] : T(0);
            along += g[i] * ((x[i] - center) * rstd[a]);
            sum += g[i];
        }
    products[threadIdx.x] = along;
    sums[threadIdx.x] = sum;
    __syncthreads();
    if (line || column >= total) return;
    for (int k = 1; k < 8; k++) {
        along += products[k * 32 + lane];
        sum += sums[k * 32 + lane];
    }
    if (dw) dw[column] = along;
    db[column] = sum;
}
""",
)

# Channels of several elements: a block for each, over all examples.
_PLANES = CudaKernel(
    "lt_affine_planes",
    """
extern "C" __global__ void lt_affine_planes(
    T *dw, T *db, T *g, T *x, T *mean, T *rstd, long long examples, long long groups,
    long long together, long long plane) {
    __shared__ T room[32];
    long long c = blockIdx.x, channels = groups * together, count = examples * plane;
    T along = 0, sum = 0;
    for (long long k = threadIdx.x; k < count; k += blockDim.x) {
        long long n = k / plane, i = (n * channels + c) * plane + k % plane;
        long long a = n * groups + c / together;
        T center = mean ? mean[a] : T(0);
        along += g[i] * ((x[i] - center) * rstd[a]);
        sum += g[i];
    }
    along = block_sum(along, room);
    sum = block_sum(sum, room);
    if (threadIdx.x == 0) {
        if (dw) dw[c] = along;
        db[c] = sum;
    }
}
""",
)


def supported(shape: Any, axes: Any) -> bool:
    """True for a view and its axes that the kernels here know, with elements."""
    if 0 in shape:
        return False
    return tuple(axes) in ((0,), (0, 2)) or tuple(axes) == tuple(range(len(shape)))[-len(axes) :]


class View:
    """Sizes of a view, as the kernels take them.

    Args:
        shape: Of the view.
        axes: Those that are averaged over.
        affine: The shape in which weight and bias meet the view.
    """

    def __init__(self, shape: Any, axes: Any, affine: Any) -> None:
        count = 1
        for n in shape:
            count *= n
        self.batch = tuple(axes) in ((0,), (0, 2)) and len(shape) > 1 and shape[1] == _size(affine)
        self.channels = _size(affine)
        self.means = count
        self.size = 1
        for d in axes:
            self.size *= shape[d]
        self.means //= self.size
        # elements of one channel that lie side by side
        self.plane = shape[2] if self.batch and len(shape) == 3 else 1
        if not self.batch:
            for d in range(len(shape) - 1, -1, -1):
                if affine[d] != 1:
                    break
                if d in axes:
                    self.plane *= shape[d]

    def numbers(self) -> tuple[int, ...]:
        """Return the arguments after the arrays."""
        return tuple(int(n) for n in (self.size, self.plane, self.means, self.channels, self.batch))


def _size(affine: Any) -> int:
    found = 1
    for n in affine:
        found *= n
    return int(found)


def forward(
    xp: Any,
    view: View,
    out: Any,
    mean: Any,
    var: Any,
    rstd: Any,
    x: Any,
    weight: Any,
    bias: Any,
    eps: float,
) -> None:
    """Normalize; ``mean``, ``var``, ``weight`` and ``bias`` may be None."""
    arrays = (out, mean, var, rstd, x, weight, bias)
    _FORWARD.launch(
        xp,
        out.dtype,
        view.means,
        THREADS,
        *(0 if a is None else a for a in arrays),
        *view.numbers(),
        float(eps),
    )


def backward(
    xp: Any,
    view: View,
    dx: Any,
    dw: Any,
    db: Any,
    g: Any,
    x: Any,
    weight: Any,
    mean: Any,
    rstd: Any,
) -> None:
    """Compute the gradients of the input, the weight and the bias; ``dw`` is empty without one."""
    dw, weight, mean = (0 if a is None or not a.size else a for a in (dw, weight, mean))
    _BACKWARD.launch(
        xp, dx.dtype, view.means, THREADS, dx, dw, db, g, x, weight, mean, rstd, *view.numbers()
    )
    if view.batch:
        return
    together = view.size // view.plane  # channels that share a mean
    groups = view.channels // together
    examples = view.means // groups
    if view.plane == 1:
        _COLUMNS.launch(
            xp, dx.dtype, -(-view.channels // 32), 256, dw, db, g, x, mean, rstd, examples, groups,
            together,
        )  # fmt: skip
    else:
        _PLANES.launch(
            xp, dx.dtype, view.channels, THREADS, dw, db, g, x, mean, rstd, examples, groups,
            together, view.plane,
        )  # fmt: skip
