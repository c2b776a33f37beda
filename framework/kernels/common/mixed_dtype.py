"""Elementwise ops whose operands must be converted, a tile at a time.

A kernel that computes in float32 wants its float16 and bfloat16 operands converted, and its result
rounded; an op of two dtypes wants the lesser one promoted. Converted as a whole they would be
workspace of up to three times the result's size in float32. What is computed elementwise is
converted, computed and rounded in tiles of ``thresholds.TILE`` elements instead: the workspace is
the same however large the operands are, and it stays in a core's cache.

A tile is a range of flat arrays, where all operands lie like the result; else a range of rows
along one dim of it, and operands that broadcast are cut where they have that dim. Threads take
chunks of the tiles, each in separate workspace.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from ...spec import Spec
from ..runtime import threads, thresholds
from . import copy as copies
from .copy import copy, line_copier

_KINDS = ("add", "sub", "mul", "div")  # as in ``kernels/cpu/elementwise/half_arithmetic.py``


def worth_tiles(results: tuple[Spec, ...]) -> bool:
    """True for results large enough that tiles take less workspace than all at once."""
    return results[0].numel >= 2 * thresholds.TILE


def in_tiles(
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
    tile = thresholds.TILE
    chunks = min(threads.LIMIT, -(-results[0].numel // tile))
    others = len(results) - 1
    wanted = [*[s for s in casts if s is not None], *([made] if made else [])]
    work = tuple([Spec((chunks, tile), s.dtype, s.device) for s in wanted])
    spare = tuple([s.like((chunks, tile)) if s.numel else s for s in scratch])

    def run(xp: Any, out: Any, *rest: Any, **attributes: Any) -> None:
        sides, rest = rest[:others], rest[others:]
        room = iter(rest[: len(work)])
        free = rest[len(work) : len(work) + len(spare)]
        arrays = rest[len(work) + len(spare) :]
        homes = [None if s is None else next(room) for s in casts]
        rounded = next(room, None)

        def compute(to: Any, *operands: Any) -> None:
            kernel(xp, to, *operands, **attributes)

        if direct is not None and direct(xp, out, *arrays, **attributes):
            return
        convert: Any = copy
        if bits or _lie_alike(out, arrays):
            out, *flat = (a.reshape(-1) for a in (out, *sides))
            sides = tuple(flat)
            arrays = tuple([a.reshape(-1) if getattr(a, "ndim", 0) else a for a in arrays])
            convert = None
        tiles = _Tiles(compute, out, sides, arrays, homes, rounded, free, convert, tile)
        threads.parallel_chunks(tiles.run, tiles.count, min(chunks, tiles.count))

    run.__wrapped__ = kernel  # type: ignore[attr-defined]  # for who asks whose kernel it is
    return run, (*work, *spare)


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
    copies.by_threads(lambda *chunks: combine(*chunks, kind), out.size, *views)
    return True


def _single(array: Any) -> Any:
    # One element repeated, as a float32: so that fewer kernels are compiled.
    return np.broadcast_to(np.float32(array[(0,) * array.ndim]), array.shape)


class _Tiles:
    """The tiles of a result, and what is computed for each: convert, compute, round.

    Arrays are cut along ``axis``, in steps of some rows, once for each place before it. Where
    ``convert`` is None all arrays are flat, and what is smaller than the result has one bit an
    element.
    """

    def __init__(
        self,
        compute: Any,
        out: Any,
        sides: Any,
        arrays: Any,
        homes: Any,
        rounded: Any,
        free: Any,
        convert: Any,
        tile: int,
    ) -> None:
        self.compute, self.out, self.rounded, self.free = compute, out, rounded, free
        flat = convert is None
        self.cut = _cut_flat if flat else _cut
        self.sides = sides
        self.operands: list[tuple[Any, Any, Any]] = [
            (a, home, convert or (None if home is None else line_copier(home.dtype, a.dtype)))
            for a, home in zip(arrays, homes, strict=True)
        ]
        self.round: Any = convert
        if flat and rounded is not None:
            self.round = line_copier(out.dtype, rounded.dtype)
        shape, axis = out.shape, 0
        while prod(shape[axis + 1 :]) > tile:
            axis += 1
        self.before, self.rows = shape[:axis], shape[axis]
        self.step = max(1, tile // prod(shape[axis + 1 :]))
        self.each = -(-self.rows // self.step)  # tiles along the dim
        self.count = prod(self.before) * self.each

    def run(self, chunk: int, first: int, last: int) -> None:
        """Compute tiles ``first`` to ``last`` in the workspace of one chunk."""
        for k in range(first, last):
            index = self._index(k)
            here = self.out[index]

            def room(workspace: Any, like: Any = here) -> Any:
                return workspace[chunk, : like.size].reshape(like.shape)

            operands = [self.cut(a, index, self.out) for a in self.sides]
            operands += [room(f) if f.ndim > 1 else f for f in self.free]
            for a, home, convert in self.operands:
                if getattr(a, "ndim", 0):
                    a = self.cut(a, index, self.out)
                if home is not None:
                    converted = room(home, a)
                    convert(converted, a)
                    a = converted
                operands.append(a)
            if self.rounded is None:
                self.compute(here, *operands)
            else:
                computed = room(self.rounded)
                self.compute(computed, *operands)
                self.round(here, computed)

    def _index(self, k: int) -> tuple[slice, ...]:
        # Where tile k of the result is.
        k, turn = divmod(k, self.each)
        at = [slice(turn * self.step, (turn + 1) * self.step)]
        for n in reversed(self.before):
            k, i = divmod(k, n)
            at.append(slice(i, i + 1))
        return tuple(reversed(at))


def _cut(array: Any, index: tuple[slice, ...], out: Any) -> Any:
    # The tile of an operand that belongs to a tile of the result.
    missing = out.ndim - array.ndim
    mine = zip(array.shape, index[missing:], strict=False)
    return array[tuple([slice(None) if n == 1 else i for n, i in mine])]


def _cut_flat(array: Any, index: tuple[slice, ...], out: Any) -> Any:
    # The same of flat arrays, of elements or of bits. A tile's elements fill whole bytes.
    (here,) = index
    if array.size != out.size:
        here = slice(here.start // 8, here.stop // 8)
    return array[here]
