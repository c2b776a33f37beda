"""What compiled kernels ask of their operands: the layout, and enough work."""

from __future__ import annotations

from math import prod

from ...spec import Spec
from ..runtime import thresholds


def contiguous(array) -> bool:
    """True for an array in C order: kernels here reshape without copying."""
    return array.flags.c_contiguous


def dense_or_repeated_scalar(array) -> bool:
    """True for an array in C order, and for one number repeated by strides of 0.

    A mean or a sum sends back such a gradient. Kernels take it by :func:`flatten_repeated_grad`.
    """
    return array.flags.c_contiguous or not any(array.strides)


def flatten_repeated_grad(out, grad, *arrays):
    """Flat views of such arrays; of ``grad`` one element if it is one number repeated.

    The other arrays go in full: if one of them is a repeated number, a kernel is compiled for it.
    """
    if not grad.flags.c_contiguous:
        grad = grad[(slice(0, 1),) * grad.ndim]
    return [a.reshape(-1) for a in (out, grad, *arrays)]


def cube_of_channels(shape, numbers):
    """Return sizes (before, of, after) of the one dim along which ``numbers`` vary, or None.

    Args:
        shape: Of an array.
        numbers: The shape of one that broadcasts to it.
    """
    long = [k for k, n in enumerate(numbers) if n > 1]
    if len(numbers) > len(shape) or len(long) > 1:
        return None
    if not long:
        return shape[0], 1, prod(shape[1:])
    dim = len(shape) - len(numbers) + long[0]
    return prod(shape[:dim]), shape[dim], prod(shape[dim + 1 :])


def worth_compiling(input, *_, **__) -> bool:
    """True for operands large enough for a compiled kernel."""
    return input.numel >= thresholds.COMPILED and input.dtype.name in ("float32", "float64")


def heavy(input, *_, **__) -> bool:
    """True for operands of a compiled kernel that takes the place of many calls of NumPy's."""
    return input.numel >= thresholds.COMPILED_HEAVY and input.dtype.name in ("float32", "float64")


def same_shape_dtype(input, *others, **_) -> bool:
    """True for operands of one shape and dtype that are worth compiling for."""
    return (
        isinstance(input, Spec)
        and worth_compiling(input)
        and all(
            isinstance(s, Spec) and s.shape == input.shape and s.dtype is input.dtype
            for s in others
        )
    )


def tiles(count: int, size: int):
    """Slices of ``range(count)``, ``size`` long."""
    for start in range(0, count, size):
        yield slice(start, min(start + size, count))
