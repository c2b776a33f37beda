"""Bitmasks on GPUs: on which side of a bend each element lies, one bit an element.

A thread has a byte. Tiles of 4096 elements have 512 bytes, of which byte j has at its bit k element
j + k * 512; in the last tile, of b bytes, element j + k * b. So neighboring threads read and write
neighboring elements.
"""

from __future__ import annotations

from typing import Any

from .kernel import THREADS, CudaKernel, blocks_for

_PLACE = """
/* The first element of a byte, and the distance to its next. */
__device__ inline long long place(long long byte, long long bytes, long long *apart) {
    long long tile = byte / 512, left = bytes - tile * 512;
    *apart = left < 512 ? left : 512;
    return tile * 4096 + byte % 512;
}
"""

_FILL = CudaKernel(
    "lt_fill_bitmask",
    _PLACE
    + """
extern "C" __global__ void lt_fill_bitmask(
    unsigned char *bitmask, T *values, long long bytes, long long count, T low, T high,
    long long nan_inside) {
    long long apart;
    LT_EACH(b, bytes) {
        long long i = place(b, bytes, &apart);
        int found = 0;
        for (int k = 0; k < 8 && i < count; k++, i += apart) {
            T v = values[i];
            bool beyond = (low > -INFINITY && v <= low) || (high < INFINITY && v >= high);
            if (!nan_inside && v != v) beyond = true;
            found |= beyond ? 0 : 1 << k;
        }
        bitmask[b] = found;
    }
}
""",
)

_SELECT = CudaKernel(
    "lt_select_by_mask",
    _PLACE
    + """
extern "C" __global__ void lt_select_by_mask(
    T *out, T *grad, unsigned char *bitmask, long long bytes, long long count, long long given,
    T inside, T outside) {
    long long apart;
    LT_EACH(b, bytes) {
        long long i = place(b, bytes, &apart);
        int bits = bitmask[b];
        for (int k = 0; k < 8 && i < count; k++, i += apart) {
            T g = grad[given == 1 ? 0 : i];
            out[i] = bits >> k & 1 ? inside * g : outside == 0 ? T(0) : outside * g;
        }
    }
}
""",
)

_SIGNS = CudaKernel(
    "lt_sign_by_masks",
    _PLACE
    + """
extern "C" __global__ void lt_sign_by_masks(
    T *out, T *grad, unsigned char *above, unsigned char *apart, long long bytes, long long count,
    long long given) {
    long long step = (long long)gridDim.x * blockDim.x, distance;
    for (long long b = blockIdx.x * (long long)blockDim.x + threadIdx.x; b < bytes; b += step) {
        long long i = place(b, bytes, &distance);
        int here = above[b], there = apart[b];
        for (int k = 0; k < 8 && i < count; k++, i += distance) {
            T g = grad[given == 1 ? 0 : i];
            out[i] = !(there >> k & 1) ? T(0) : here >> k & 1 ? g : -g;
        }
    }
}
""",
)

_ABSOLUTE_ERROR = CudaKernel(
    "lt_absolute_error",
    _PLACE
    + """
extern "C" __global__ void lt_absolute_error(
    T *out, unsigned char *above, unsigned char *apart, T *x, T *y, long long bytes,
    long long count) {
    long long step = (long long)gridDim.x * blockDim.x, distance;
    for (long long b = blockIdx.x * (long long)blockDim.x + threadIdx.x; b < bytes; b += step) {
        long long i = place(b, bytes, &distance);
        int here = 0, there = 0;
        for (int k = 0; k < 8 && i < count; k++, i += distance) {
            T d = x[i] - y[i];
            out[i] = lt_abs(d);
            here |= d <= 0 ? 0 : 1 << k;
            there |= d == 0 ? 0 : 1 << k;
        }
        above[b] = here;
        apart[b] = there;
    }
}
""",
)


def fill(xp: Any, bitmask: Any, values: Any, low: float, high: float, nan_inside: bool) -> None:
    """Set the bits of values inside (low, high), and of NaN if that is inside."""
    _FILL.launch(
        xp,
        values.dtype,
        blocks_for(bitmask.size),
        THREADS,
        bitmask,
        values,
        int(bitmask.size),
        int(values.size),
        float(low),
        float(high),
        int(nan_inside),
    )


def select(xp: Any, out: Any, grad: Any, bitmask: Any, inside: float, outside: float) -> None:
    """``inside * grad`` where the bit is set, else ``outside * grad``; one number serves all."""
    _SELECT.launch(
        xp,
        out.dtype,
        blocks_for(bitmask.size),
        THREADS,
        out,
        grad,
        bitmask,
        int(bitmask.size),
        int(out.size),
        int(grad.size),
        float(inside),
        float(outside),
    )


def signs(xp: Any, out: Any, grad: Any, above: Any, apart: Any) -> None:
    """``grad`` where both bits are set, ``-grad`` where only ``apart`` is, else 0."""
    _SIGNS.launch(
        xp,
        out.dtype,
        blocks_for(above.size),
        THREADS,
        out,
        grad,
        above,
        apart,
        int(above.size),
        int(out.size),
        int(grad.size),
    )


def absolute_error(xp: Any, out: Any, above: Any, apart: Any, x: Any, y: Any) -> None:
    """``|x - y|``, and the bits of ``x > y`` and of ``x != y``."""
    _ABSOLUTE_ERROR.launch(
        xp,
        out.dtype,
        blocks_for(above.size),
        THREADS,
        out,
        above,
        apart,
        x,
        y,
        int(above.size),
        int(out.size),
    )
