"""8-bit floats on GPUs: CuPy has no such type, so their bytes are converted here.

Every conversion goes by way of float32, as on the CPU.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..common.float8 import LARGEST, saturates
from .kernel import THREADS, CudaKernel, blocks_for

# (bits of the mantissa, exponent of the smallest normal number, largest number, its NaN, what is
# too large)
_FORMATS = {
    "float8_e4m3fn": (3, -6, 448.0, 0x7F, 0x7F),
    "float8_e5m2": (2, -14, 57344.0, 0x7E, 0x7C),
}

_PACK = CudaKernel(
    "lt_pack_float8",
    """
/* Round to the nearest, ties to even: of numbers with `bits` bits, the smallest normal 2^least. */
extern "C" __global__ void lt_pack_float8(
    unsigned char *out, T *x, long long n, long long bits, long long least, T largest,
    long long nan, long long overflow) {
    LT_EACH(i, n) {
        float v = x[i], a = fabsf(v);
        unsigned sign = __float_as_uint(v) >> 24 & 0x80, code;
        if (a != a) {
            code = nan;
        } else if (a == INFINITY) {
            code = overflow;
        } else {
            int exponent = a == 0 ? (int)least : ilogbf(a);
            if (exponent < least) exponent = least;
            float steps = rintf(ldexpf(a, bits - exponent));
            if (ldexpf(steps, exponent - bits) > largest)
                code = overflow;
            else if (steps < (1 << bits))
                code = (unsigned)steps; /* subnormal */
            else
                code = ((exponent - least + 1) << bits) + (unsigned)steps - (1 << bits);
        }
        out[i] = sign | code;
    }
}
""",
)

_UNPACK = CudaKernel(
    "lt_unpack_float8",
    """
extern "C" __global__ void lt_unpack_float8(
    T *out, unsigned char *x, long long n, long long bits, long long least, T largest,
    long long nan, long long overflow) {
    LT_EACH(i, n) {
        int code = x[i] & 0x7f, exponent = code >> bits, fraction = code & ((1 << bits) - 1);
        float v;
        if (exponent == 0)
            v = ldexpf(fraction, least - bits);
        else
            v = ldexpf(fraction + (1 << bits), exponent - 1 + least - bits);
        if (v > largest) v = code == overflow && overflow != nan ? INFINITY : NAN;
        out[i] = x[i] & 0x80 ? -v : v;
    }
}
""",
)


def is_float8(*specs: Any, **attributes: Any) -> bool:
    """True if an operand, or the dtype that is asked for, is an 8-bit float."""
    asked = attributes.get("dtype")
    return any(getattr(d, "limited", None) == "float8" for d in (asked, *map(_dtype, specs)))


def _dtype(spec: Any) -> Any:
    return getattr(spec, "dtype", None)


def convert(xp: Any, out: Any, source: Any) -> None:
    """Copy ``source``, an array or a number, into ``out``; at least one has 8-bit floats.

    Memory:
        A float32 copy, and one of bytes where ``out`` has 8-bit floats, in CuPy's pool.
    """
    kind = getattr(source, "dtype", None)
    if kind == out.dtype:
        xp.copyto(out.view(xp.uint8), source.view(xp.uint8))
        return
    wide = xp.empty(out.shape, dtype="float32")
    if kind is not None and kind.name in _FORMATS:
        _unpack(xp, wide, source)
    else:
        xp.copyto(wide, source if kind is None or out.dtype.kind == "c" else source.real)
    if out.dtype.name not in _FORMATS:
        xp.copyto(out, wide, casting="unsafe")
        return
    if saturates(out.dtype, kind):
        xp.clip(wide, -LARGEST, LARGEST, out=wide)
    packed = xp.empty(out.shape, dtype="uint8")
    _run(xp, _PACK, packed, wide, out.dtype.name)
    xp.copyto(out.view(xp.uint8), packed)


def _unpack(xp: Any, wide: Any, source: Any) -> None:
    here = xp.ascontiguousarray(xp.broadcast_to(source.view(xp.uint8), wide.shape))
    _run(xp, _UNPACK, wide, here, source.dtype.name)


def _run(xp: Any, kernel: CudaKernel, out: Any, x: Any, name: str) -> None:
    n = int(out.size)
    bits, least, largest, nan, overflow = _FORMATS[name]
    kernel.launch(
        xp,
        np.dtype("float32"),
        blocks_for(n),
        THREADS,
        out,
        x,
        n,
        bits,
        least,
        largest,
        nan,
        overflow,
    )
