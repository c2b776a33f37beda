"""Elementwise ops whose operands must be converted, a piece at a time.

A kernel that computes in float32 wants its float16 and bfloat16 operands converted, and its result
rounded; an op of two dtypes wants the lesser one promoted. Converted as a whole they would be
workspace of up to three times the result's size in float32. What is computed elementwise is
converted, computed and rounded in pieces of ``PIECE`` elements instead: the workspace is the same
however large the operands are, and it stays in a core's cache.

A piece is a range of flat arrays, where all operands lie like the result; else a range of rows
along one dim of it, and operands that broadcast are cut where they have that dim. Threads take
pieces side by side, each in workspace of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from ...spec import Spec
from ..runtime import threads
from . import copy as copies
from .copy import copy, line_copier

PIECE = 1 << 16  # elements
_KINDS = ("add", "sub", "mul", "div")  # as in ``kernels/cpu/elementwise/half_arithmetic.py``


def worth_pieces(results: tuple[Spec, ...]) -> bool:
    """True for results large enough that pieces take less workspace than all at once."""
    return results[0].numel >= 2 * PIECE


def in_pieces(
    kernel: Any,
    results: tuple[Spec, ...],
    casts: tuple[Any, ...],
    made: Spec | None,
    scratch: tuple[Spec, ...],
    direct: Any = None,
    bits: bool = False,
) -> tuple[Any, tuple[Spec, ...]]:
    """A kernel that converts for itself, and the workspace it wants.

    Args:
        kernel: Elementwise, of operands that are converted.
        results: What is to be written.
        casts: For each input the spec that the kernel takes it in; None if that is its own.
        made: What the kernel writes, if that is another dtype than the result's.
        scratch: Its scratch: as large as the result, or empty.
        direct: A kernel that converts as it goes, or returns False for these arrays.
        bits: All arrays are in C order; a second result, and an input of another size than the
            first, has one bit an element (``ops/elementwise/bitmask.py``).
    """
    parts = min(threads.LIMIT, -(-results[0].numel // PIECE))
    others = len(results) - 1
    wanted = [*[s for s in casts if s is not None], *([made] if made else [])]
    tiles = tuple([Spec((parts, PIECE), s.dtype, s.device) for s in wanted])
    spare = tuple([s.like((parts, PIECE)) if s.numel else s for s in scratch])

    def run(xp: Any, out: Any, *rest: Any, **attributes: Any) -> None:
        sides, rest = rest[:others], rest[others:]
        room = iter(rest[: len(tiles)])
        free = rest[len(tiles) : len(tiles) + len(spare)]
        arrays = rest[len(tiles) + len(spare) :]
        homes = [None if s is None else next(room) for s in casts]
        rounded = next(room, None)

        def compute(to: Any, *operands: Any) -> None:
            kernel(xp, to, *operands, **attributes)

        if direct is not None and direct(xp, out, *arrays, **attributes):
            return
        if bits or _lie_alike(out, arrays):
            work: Any = _Lines(compute, (out, *sides), arrays, homes, rounded, free)
        else:
            work = _Rows(compute, out, arrays, homes, rounded, free)
        threads.split(work.run, work.count, min(parts, work.count))

    return run, (*tiles, *spare)


def _lie_alike(out: Any, arrays: Any) -> bool:
    return all(
        a.shape == out.shape and a.flags.c_contiguous and a.flags.aligned
        for a in (out, *arrays)
        if getattr(a, "ndim", 0)
    )


def converting_arithmetic(kind: str) -> Callable[..., bool]:
    """A kernel of two operands that converts as it goes: "add", "sub", "mul" or "div".

    It returns False for arrays that it does not take.
    """
    number = _KINDS.index(kind)

    def kernel(xp: Any, out: Any, input: Any, other: Any) -> bool:
        return _combined(number, out, input, other)

    return kernel


def _combined(kind: int, out: Any, *operands: Any) -> bool:
    # Arithmetic in one pass; False where it is not for these operands.
    from ..cpu.elementwise.half_arithmetic import combiner

    if copies.word(out.dtype) is None:
        return False
    arrays = [
        np.broadcast_to(a if hasattr(a, "dtype") else np.float32(a), out.shape) for a in operands
    ]
    arrays = [out, *[a if any(a.strides) else _single(a) for a in arrays]]
    words = [copies.word(a.dtype) for a in arrays]
    if None in words or not all(a.flags.aligned for a in arrays):
        return False
    axes, sizes, steps = copies.merged(*arrays)
    ends = [s[-1] for s in steps]
    lines = all(e in (a.itemsize, 0) for e, a in zip(ends, arrays[1:], strict=True))
    if not 0 < len(sizes) <= 3 or not lines or not any(ends):
        return False
    shape = (*(1,) * (3 - len(sizes)), *sizes)
    views = [a.view(w).transpose(axes).reshape(shape) for a, w in zip(arrays, words, strict=True)]
    combine = combiner(*words)
    copies.by_threads(lambda *parts: combine(*parts, kind), *views)
    return True


def _single(array: Any) -> Any:
    # One element repeated, as a float32: so that fewer kernels are compiled.
    return np.broadcast_to(np.float32(array[(0,) * array.ndim]), array.shape)


class _Lines:
    """Pieces of flat arrays."""

    def __init__(
        self, compute: Any, results: Any, arrays: Any, homes: Any, rounded: Any, free: Any
    ) -> None:
        self.compute, self.rounded, self.free = compute, rounded, free
        out, *sides = (a.reshape(-1) for a in results)
        self.out = out
        self.sides = sides
        self.arrays = [a.reshape(-1) if getattr(a, "ndim", 0) else a for a in arrays]
        self.homes: list[tuple[Any, Any]] = [
            (home, None if home is None else line_copier(home.dtype, a.dtype))
            for home, a in zip(homes, arrays, strict=True)
        ]
        self.round = None if rounded is None else line_copier(out.dtype, rounded.dtype)
        self.count = -(-out.size // PIECE)

    def run(self, part: int, first: int, last: int) -> None:
        """Compute pieces ``first`` to ``last`` in the workspace of one part."""
        for k in range(first, last):
            here = self.out[k * PIECE : (k + 1) * PIECE]
            size = here.size
            operands = [a[k * PIECE // 8 : (k + 1) * PIECE // 8] for a in self.sides]
            operands += [f[part, :size] if f.ndim > 1 else f for f in self.free]
            for a, (home, convert) in zip(self.arrays, self.homes, strict=True):
                if getattr(a, "ndim", 0):
                    step = PIECE if a.size == self.out.size else PIECE // 8
                    a = a[k * step : (k + 1) * step]
                if home is not None:
                    piece = home[part, : a.size].reshape(a.shape)
                    convert(piece, a)
                    a = piece
                operands.append(a)
            if self.round is None:
                self.compute(here, *operands)
            else:
                piece = self.rounded[part, :size]
                self.compute(piece, *operands)
                self.round(here, piece)


class _Rows:
    """Pieces of arrays of any strides that broadcast."""

    def __init__(
        self, compute: Any, out: Any, arrays: Any, homes: Any, rounded: Any, free: Any
    ) -> None:
        self.compute, self.rounded, self.free = compute, rounded, free
        self.out, self.arrays, self.homes = out, arrays, homes
        shape, axis = out.shape, 0
        while prod(shape[axis + 1 :]) > PIECE:
            axis += 1
        self.before, self.rows = shape[:axis], shape[axis]
        self.step = max(1, PIECE // prod(shape[axis + 1 :]))
        self.each = -(-self.rows // self.step)  # pieces along the dim
        self.count = prod(self.before) * self.each

    def run(self, part: int, first: int, last: int) -> None:
        """Compute pieces ``first`` to ``last`` in the workspace of one part."""
        for k in range(first, last):
            index = self._place(k)
            here = self.out[index]
            operands = [
                f[part, : here.size].reshape(here.shape) if f.ndim > 1 else f for f in self.free
            ]
            for a, home in zip(self.arrays, self.homes, strict=True):
                if getattr(a, "ndim", 0):
                    a = _cut(a, index, self.out.ndim)
                if home is not None:
                    piece = home[part, : a.size].reshape(a.shape)
                    copy(piece, a)
                    a = piece
                operands.append(a)
            if self.rounded is None:
                self.compute(here, *operands)
            else:
                piece = self.rounded[part, : here.size].reshape(here.shape)
                self.compute(piece, *operands)
                copy(here, piece)

    def _place(self, k: int) -> tuple[slice, ...]:
        # Where piece k of the result is.
        k, turn = divmod(k, self.each)
        at = [slice(turn * self.step, (turn + 1) * self.step)]
        for n in reversed(self.before):
            k, i = divmod(k, n)
            at.append(slice(i, i + 1))
        return tuple(reversed(at))


def _cut(array: Any, index: tuple[slice, ...], ndim: int) -> Any:
    # The part of an operand that belongs to a part of the result, which has so many dims.
    missing = ndim - array.ndim
    mine = zip(array.shape, index[missing:], strict=False)
    return array[tuple([slice(None) if n == 1 else i for n, i in mine])]
