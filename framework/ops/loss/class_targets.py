"""Helpers of losses with class indices: shapes, tiles of rows, range checks.

Logits are (examples, classes, positions) here, whatever their shape; a row is one position.
"""

from __future__ import annotations

from functools import cache
from math import prod

import numpy as np

from ...dtypes import FLOAT, int64, uint8
from ...kernels.common.schedule import parallel_rows
from ...kernels.runtime import thresholds

TILE_BYTES = 1 << 18  # of logits at a time on the host
TILE_ROWS = 2048  # and at most so many rows, so that what is made per row stays small
_ROW_BYTES = 64  # of what is made per row beside its logits


def rows_of_tile(c: int, itemsize: int, host: bool) -> int:
    """Return the maximal number of rows of ``c`` logits in a tile, on the host or elsewhere."""
    if host:
        return max(1, min(TILE_ROWS, TILE_BYTES // max(1, c * itemsize)))
    return max(1, thresholds.tile_bytes(host) // max(_ROW_BYTES, c * itemsize))


def tiles(n: int, c: int, length: int, itemsize: int, host: bool):
    """Yield slices (examples, positions) of (n, c, length) logits, a tile each."""
    rows = rows_of_tile(c, itemsize, host)
    if length <= rows:
        step = max(1, rows // max(1, length))
        for k in range(0, n, step):
            yield slice(k, min(k + step, n)), slice(0, length)
    else:
        for k in range(n):
            for start in range(0, length, rows):
                yield slice(k, k + 1), slice(start, min(start + rows, length))


def tile_size(n: int, c: int, length: int, itemsize: int, host: bool) -> int:
    """Return the maximal number of elements in a tile."""
    return c * min(n * length, rows_of_tile(c, itemsize, host))


def class_shape(name, input, target, weight):
    """Return (examples, classes, positions) of the spec of logits.

    Raises:
        NotImplementedError: The logits are not floating.
        RuntimeError: The target is neither int64 nor uint8, or there is no weight for some class.
        ValueError: The target has another shape than the logits without their classes.
    """
    if input.dtype.category != FLOAT:
        raise NotImplementedError(
            f"{name} is not implemented for {input.dtype}. Convert input with .to(lowtide.float32)."
        )
    if input.ndim == 0:
        raise RuntimeError(f"{name} takes input (C,) or (N, C, *); got a 0-d tensor.")
    classes = input.shape[0] if input.ndim == 1 else input.shape[1]
    wanted = () if input.ndim == 1 else (input.shape[0], *input.shape[2:])
    if tuple(target.shape) != wanted:
        hint = "batch_size to match target batch_size" if input.ndim > 1 else "target ()"
        raise ValueError(
            f"{name}: Expected input {hint}: input {tuple(input.shape)} needs class indices of "
            f"shape {wanted}; got target {tuple(target.shape)}. Put classes in dim 1."
        )
    if target.dtype not in (int64, uint8):
        raise RuntimeError(
            f"{name}: expected scalar type Long or Byte for class indices (target's dtype), "
            f"but found {target.dtype}. Convert target with .to(lowtide.int64), or pass "
            "probabilities of input's shape."
        )
    if weight is not None and tuple(weight.shape) != (classes,):
        raise RuntimeError(
            f"{name}: weight tensor should be defined either for all {classes} classes or no "
            f"classes but got weight tensor of shape: {list(weight.shape)}."
        )
    return (1 if input.ndim == 1 else input.shape[0]), classes, prod(wanted[1:])


def sizes(input):
    """Return (examples, classes, positions) of an array of logits."""
    n = 1 if input.ndim == 1 else input.shape[0]
    c = input.shape[0] if input.ndim == 1 else input.shape[1]
    return n, c, prod(input.shape[2:])


def checked(xp, target, classes, ignore_index):
    """Return (class indices with ignored ones replaced, mask of those that count), for a tile."""
    counts = target != ignore_index
    safe = xp.where(counts, target, 0)
    if xp is np and safe.size and (safe.min() < 0 or safe.max() >= classes):
        bad = int(safe.min()) if safe.min() < 0 else int(safe.max())
        raise IndexError(
            f"Target {bad} is out of bounds: cross_entropy and nll_loss take class indices 0 to "
            f"{classes - 1}, or ignore_index ({ignore_index})."
        )
    return safe[:, None], counts


def where_in(xp, x, safe):
    """Index of each row's class in (rows, classes, columns); half ``take_along_axis``'s time."""
    rows, _, columns = x.shape
    return xp.arange(rows)[:, None], safe[:, 0], xp.arange(columns)


def weights_of(xp, weight, safe, counts, dtype):
    """Return the weight of each row: of its class, or one; zero where ignored."""
    if weight is None:
        return counts.astype(dtype)
    return weight[safe[:, 0]] * counts


def check_classes(xp, target, classes, ignore_index):
    """Raise an error for class indices out of range, on the CPU; ``target`` is (N,).

    Raises:
        IndexError: There is one; the message names it.
    """
    for start in range(0, target.size, TILE_ROWS):
        checked(xp, target[start : start + TILE_ROWS], classes, ignore_index)


@cache
def loops():
    """The module of compiled loops, imported when one is first called."""
    from ...kernels.cpu.loss import cross_entropy

    return cross_entropy


@cache
def no_weight(dtype):
    """What a compiled loop takes where classes have no weights."""
    return np.empty((1, 0), dtype)


def check_compiled(target, classes, ignore_index):
    """Check class indices, flat and contiguous, before a compiled loop uses them."""
    if loops().has_invalid_class(target, classes, ignore_index):
        check_classes(np, target, classes, ignore_index)


def run_compiled(name, logits, numbers, weight, ignore_index, *more):
    """Run a loop of ``kernels/cpu/loss/cross_entropy.py``; its last numbers are the classes."""
    whole = logits[0]
    n, c, length = sizes(whole)
    cubes = [a.reshape(n, c, length) for a in logits]
    lines = [a.reshape(n, length) for a in numbers]  # checks sizes, which compiled loops do not
    check_compiled(lines[-1].reshape(-1), c, ignore_index)
    weights = no_weight(whole.dtype) if weight is None else weight.reshape(1, c)
    run = getattr(loops(), name)
    parallel_rows(run, whole.size, n, *cubes, *lines, weights, ignore_index, *more)


def are_rows(input):
    """True for the spec of logits whose classes lie together."""
    return input.numel == input.shape[0] * input.shape[1]


def run_rows(out, top, total, input, target, weight, ignore_index, smoothing):
    """Run the loop over rows of logits."""
    n, c = input.shape[0], input.shape[1]
    target = target.reshape(n)
    check_compiled(target, c, ignore_index)
    weights = no_weight(input.dtype) if weight is None else weight.reshape(1, c)
    lines = out.reshape(n), top.reshape(n), total.reshape(n), target
    parallel_rows(
        loops().rows, input.size, n, input.reshape(n, c), *lines, weights, ignore_index, smoothing
    )


def run_rows_grad(out, grad, input, target, weight, top, total, ignore_index, smoothing):
    """Run the loop of the gradient of rows; ``grad`` may be one number, repeated by strides of 0.

    A mean sends such a gradient. It is not copied.
    """
    n, c = input.shape[0], input.shape[1]
    step = 1
    if not grad.flags.c_contiguous:
        grad, step = grad[:1], 0
    target = target.reshape(n)
    check_compiled(target, c, ignore_index)
    weights = no_weight(input.dtype) if weight is None else weight.reshape(1, c)
    lines = grad.reshape(-1), top.reshape(n), total.reshape(n), target
    parallel_rows(
        loops().rows_grad,
        input.size,
        n,
        out.reshape(n, c),
        input.reshape(n, c),
        *lines,
        weights,
        ignore_index,
        smoothing,
        step,
    )


def contiguous_or_repeated(array):
    """True for an array in C order, and for a gradient of rows that is one number repeated."""
    flags = array.flags
    return flags.c_contiguous or (
        array.ndim == 1 and array.dtype.kind == "f" and flags.aligned and array.strides == (0,)
    )
