"""Random words and dropout on GPUs: the words of ``random/philox.py``, bit for bit.

A thread has a counter, and so four words. Kernels that draw as they go include :data:`PHILOX`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .kernel import THREADS, CudaKernel, blocks_for

PHILOX = """
/* Philox 4x32-10 (Salmon et al. 2011): the four words of a counter under a seed. */
__device__ inline void philox4(unsigned long long seed, unsigned long long counter, unsigned *w) {
    unsigned c0 = (unsigned)counter, c1 = (unsigned)(counter >> 32), c2 = 0, c3 = 0;
    unsigned k0 = (unsigned)seed, k1 = (unsigned)(seed >> 32);
    for (int round = 0; round < 10; round++) {
        unsigned long long p0 = c0 * 0xD2511F53ull, p1 = c2 * 0xCD9E8D57ull;
        c0 = (unsigned)(p1 >> 32) ^ c1 ^ k0;
        c2 = (unsigned)(p0 >> 32) ^ c3 ^ k1;
        c1 = (unsigned)p1;
        c3 = (unsigned)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    w[0] = c0;
    w[1] = c1;
    w[2] = c2;
    w[3] = c3;
}
/* Whether an element is kept: its word is at least `threshold`, of 2^32. */
__device__ inline bool is_kept(
    unsigned long long seed, unsigned long long offset, long long element, long long threshold) {
    unsigned w[4];
    philox4(seed, offset + element / 4, w);
    return w[element % 4] >= threshold;
}
"""

_BITS = CudaKernel(
    "lt_random_bits",
    PHILOX
    + """
extern "C" __global__ void lt_random_bits(
    unsigned *out, long long count, long long seed, long long counter) {
    LT_EACH(i, (count + 3) / 4) {
        unsigned w[4];
        philox4(seed, (unsigned long long)counter + i, w);
        for (int lane = 0; lane < 4 && i * 4 + lane < count; lane++) out[i * 4 + lane] = w[lane];
    }
}
""",
)

_DROPOUT = CudaKernel(
    "lt_dropout",
    PHILOX
    + """
extern "C" __global__ void lt_dropout(
    T *out, T *x, long long count, long long seed, long long counter, long long threshold, T scale,
    T shift, T value) {
    LT_EACH(i, (count + 3) / 4) {
        unsigned w[4];
        philox4(seed, (unsigned long long)counter + i, w);
        for (int lane = 0; lane < 4 && i * 4 + lane < count; lane++)
            out[i * 4 + lane] = w[lane] >= threshold ? x[i * 4 + lane] * scale + shift : value;
    }
}
""",
)


def signed(number: int) -> int:
    """Return an unsigned 64-bit number as the ``long long`` of the same bits."""
    number &= (1 << 64) - 1
    return number - (1 << 64) if number >> 63 else number


def bits(xp: Any, out: Any, seed: int, counter: int) -> None:
    """Fill a flat uint32 array with the words from a counter on."""
    count = int(out.size)
    _BITS.launch(
        xp,
        np.dtype("float32"),
        blocks_for(-(-count // 4)),
        THREADS,
        out,
        count,
        signed(seed),
        signed(counter),
    )


def dropout(
    xp: Any,
    out: Any,
    x: Any,
    seed: int,
    offset: int,
    threshold: int,
    scale: float,
    shift: float,
    value: float,
) -> None:
    """``x * scale + shift`` where an element's word is at least ``threshold``, or ``value``."""
    count = int(out.size)
    _DROPOUT.launch(
        xp, out.dtype, blocks_for(-(-count // 4)), THREADS, out, x, count, signed(seed),
        signed(offset), threshold, float(scale), float(shift), float(value),
    )  # fmt: skip
