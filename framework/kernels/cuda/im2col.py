"""Windows of images as columns on GPUs, and back: one launch where slices take one a tap.

Images and windows have one to three dims; missing ones count as 1. Each element of the result
belongs to one thread, so sums have one order, and the same bits at every run.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from .kernel import THREADS, CudaKernel, blocks_for

_TYPES = (np.dtype("float32"), np.dtype("float64"))

_SIZES = """
struct Sizes { /* of three dims: window, step, dilation, padding before, image, positions */
    int k[3], s[3], d[3], p[3], n[3], o[3];
};
"""
_ARGUMENTS = ", ".join(f"long long {name}{dim}" for name in "ksdpno" for dim in range(3))
_FILLED = "\n".join(
    "    " + " ".join(f"z.{name}[{dim}] = (int){name}{dim};" for dim in range(3))
    for name in "ksdpno"
)

_UNROLL = CudaKernel(
    "lt_unroll",
    _SIZES
    + f"""
extern "C" __global__ void lt_unroll(
    T *columns, T *images, long long count, long long channels, long long first, long long lines,
    long long beside, {_ARGUMENTS}) {{
    Sizes z;
{_FILLED}
"""
    + """
    unsigned span = lines * z.o[1] * z.o[2], taps = z.k[0] * z.k[1] * z.k[2];
    unsigned total = count * channels * taps * span, plane = z.n[0] * z.n[1] * z.n[2];
    unsigned start = blockIdx.x * blockDim.x + threadIdx.x;
    for (unsigned i = start; i < total; i += gridDim.x * blockDim.x) {
        unsigned at = i, image = 0;
        unsigned o2 = at % z.o[2], o1 = (at /= z.o[2]) % z.o[1], o0 = (at /= z.o[1]) % lines;
        at /= lines;
        if (beside) {
            image = at % count;
            at /= count;
        }
        unsigned k2 = at % z.k[2], k1 = (at /= z.k[2]) % z.k[1], k0 = (at /= z.k[1]) % z.k[0];
        unsigned channel = (at /= z.k[0]) % channels;
        if (!beside) image = at / channels;
        int x0 = (int)(o0 + first) * z.s[0] + (int)k0 * z.d[0] - z.p[0];
        int x1 = (int)o1 * z.s[1] + (int)k1 * z.d[1] - z.p[1];
        int x2 = (int)o2 * z.s[2] + (int)k2 * z.d[2] - z.p[2];
        bool inside = x0 >= 0 && x0 < z.n[0] && x1 >= 0 && x1 < z.n[1] && x2 >= 0 && x2 < z.n[2];
        columns[i] = inside
            ? images[(image * channels + channel) * (long long)plane
                     + ((long long)x0 * z.n[1] + x1) * z.n[2] + x2]
            : T(0);
    }
}
""",
)

_ROLL = CudaKernel(
    "lt_roll",
    _SIZES
    + f"""
extern "C" __global__ void lt_roll(
    T *columns, T *images, long long count, long long channels, long long first, long long lines,
    {_ARGUMENTS}) {{
    Sizes z;
{_FILLED}
"""
    + """
    long long plane = (long long)z.n[0] * z.n[1] * z.n[2], total = count * channels * plane;
    long long span = lines * z.o[1] * z.o[2];
    LT_EACH(i, total) {
        int x2 = i % z.n[2], x1 = i / z.n[2] % z.n[1], x0 = i / z.n[2] / z.n[1] % z.n[0];
        T *of_channel = columns + i / plane * (z.k[0] * z.k[1] * z.k[2]) * span;
        T sum = 0;
        for (int k0 = 0; k0 < z.k[0]; k0++) {
            int o0 = x0 + z.p[0] - k0 * z.d[0];
            if (o0 < 0 || o0 % z.s[0]) continue;
            o0 = o0 / z.s[0] - (int)first;
            if (o0 < 0 || o0 >= lines) continue;
            for (int k1 = 0; k1 < z.k[1]; k1++) {
                int o1 = x1 + z.p[1] - k1 * z.d[1];
                if (o1 < 0 || o1 % z.s[1] || o1 / z.s[1] >= z.o[1]) continue;
                o1 /= z.s[1];
                for (int k2 = 0; k2 < z.k[2]; k2++) {
                    int o2 = x2 + z.p[2] - k2 * z.d[2];
                    if (o2 < 0 || o2 % z.s[2] || o2 / z.s[2] >= z.o[2]) continue;
                    long long tap = (k0 * z.k[1] + k1) * z.k[2] + k2;
                    long long place = ((long long)o0 * z.o[1] + o1) * z.o[2] + o2 / z.s[2];
                    sum += of_channel[tap * span + place];
                }
            }
        }
        images[i] += sum;
    }
}
""",
)


def _three(values: Any, missing: int) -> list[int]:
    found = [int(v) for v in values]
    return found + [missing] * (3 - len(found))


def geometry(sizes: Any, out: Any) -> tuple[int, ...]:
    """Return window, stride, dilation, padding, image and positions as the kernels take them."""
    found = [
        _three(sizes.kernel, 1),
        _three(sizes.stride, 1),
        _three(sizes.dilation, 1),
        _three(sizes.low, 0),
        _three(sizes.input[2:], 1),
        _three(out, 1),
    ]
    return tuple(n for three in found for n in three)


def unroll(
    xp: Any, columns: Any, images: Any, sizes: tuple[int, ...], lines: tuple[int, int], beside: bool
) -> None:
    """Fill ``columns`` with what each window element meets at output lines; 0 in the padding.

    Args:
        xp: CuPy.
        columns: Flat: (images, channels, window, positions), or with ``beside`` (channels, window,
            images, positions).
        images: (images, channels, ...), contiguous.
        sizes: What :func:`geometry` returned.
        lines: The first, and the one after the last.
        beside: See ``columns``.
    """
    count, channels = int(images.shape[0]), int(images.shape[1])
    _UNROLL.launch(
        xp,
        columns.dtype,
        blocks_for(columns.size),
        THREADS,
        columns,
        images,
        count,
        channels,
        lines[0],
        lines[1] - lines[0],
        int(beside),
        *sizes,
    )


def roll(
    xp: Any, columns: Any, images: Any, sizes: tuple[int, ...], lines: tuple[int, int]
) -> None:
    """Add columns (images, channels, window, positions) to where :func:`unroll` took them from."""
    count, channels = int(images.shape[0]), int(images.shape[1])
    _ROLL.launch(
        xp,
        columns.dtype,
        blocks_for(prod(images.shape)),
        THREADS,
        columns,
        images,
        count,
        channels,
        lines[0],
        lines[1] - lines[0],
        *sizes,
    )


def takes(images: Any) -> bool:
    """True for arrays of a type, and of as many dims, as the kernels here know."""
    return images.dtype in _TYPES and images.ndim <= 5
