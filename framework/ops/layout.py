"""What compiled kernels ask of their operands: the layout, and enough work."""

from __future__ import annotations


def contiguous(array) -> bool:
    """True for an array in C order: kernels here reshape without copying."""
    return array.flags.c_contiguous


def worth_compiling(input, *_, **__) -> bool:
    """True for operands large enough that a compiled kernel repays its import."""
    return input.numel >= 1 << 14 and input.dtype.name in ("float32", "float64")
