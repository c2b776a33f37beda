"""Kernel calls that may be joined into a pass: what they do at a place depends on that place alone.

Such a call belongs to an op that is declared ``elementwise``, writes a result that it alone fills,
and goes through its arrays in one order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple

from ...kernels.cpu.tiled_tape import OUTER, TILE
from ...ops.registry import OPS
from ..program import ARENA, FRESH, DrawNumber, EmptyArray, Place, Row, StepProgram
from ..tape.numpy_loops import MOST, walked

LEAST = MOST + 1  # elements: the loops of smaller calls are on tapes, and stay in a cache
SHORTEST = 16  # elements of the innermost dim from which a loop is worth its call


#: Whether all memory of a program's kernel call is aligned.
Takes = Callable[[StepProgram, Row], bool]


class Member(NamedTuple):
    """A kernel call that may be joined.

    Attributes:
        row: The call.
        shape: Of its results, to which its inputs broadcast.
        writes: Where its results lie.
        reads: Where its inputs lie.
    """

    row: Row
    shape: tuple[int, ...]
    writes: list[Place]
    reads: list[Place]


class Kernels:
    """Which kernels belong to elementwise ops."""

    def __init__(self) -> None:
        self._found: dict[int, Any] = {}  # by id: functions, which the ops hold
        for op in OPS.values():
            if op.elementwise is True:
                for function in (op.plain, *(kernel.function for kernel in op.kernels)):
                    self._found[id(function)] = function

    def member(self, program: StepProgram, k: int) -> Member | None:
        """Return entry ``k`` of a program as one that may be joined; None if it may not."""
        row = program.entries[k]
        if not isinstance(row, Row) or id(_inner(row.function)) not in self._found:
            return None
        places = [a for a in row.arguments if isinstance(a, Place)]
        others = [a for a in row.arguments if not isinstance(a, Place)]
        if any(isinstance(a, (list, tuple, DrawNumber, EmptyArray)) for a in others):
            return None
        count = len(row.written)
        if count == 0:
            return None
        writes, reads = places[:count], places[count:]
        shape = writes[0].shape
        if prod(shape) < LEAST:
            return None
        values = program.values
        if any(values[p.value].kind not in (ARENA, FRESH) for p in writes):
            return None
        if any(p.value == w.value and p != w for p in reads for w in writes):
            return None  # NumPy copies what overlaps
        own = [values[p.value] for p in reads if values[p.value].kind == ARENA]
        if any(v.first == v.last == k for v in own):
            return None  # workspace
        if not all(_broadcasts(p.shape, shape) for p in reads):
            return None
        if domain_of(shape, places) is None:
            return None
        return Member(row, shape, writes, reads)


class Domain(NamedTuple):
    """How the operands of a pass are gone through.

    A tile is a part of one dim, the innermost one. Where that is short, a tile is a part of the dim
    around it, and has all of the innermost one: several rows.

    Attributes:
        sizes: Of the outer dims, ``OUTER`` of them, and of the dim that is cut into tiles.
        row: Elements of the dim inside the one that is cut; 1 if there is none.
        strides: For each operand, those of all these dims in bytes.
    """

    sizes: list[int]
    row: int
    strides: list[list[int]]


def domain_of(shape: Sequence[int], places: Sequence[Place]) -> Domain | None:
    """Return the order in which operands are gone through together.

    Returns:
        None if they have too many dims that cannot be joined, a short innermost dim, or elements
        that do not lie side by side along it: some loops round otherwise there.
    """
    sizes, strides = walked(shape, [_spread(p, len(shape)) for p in places])
    if sizes[-1] < SHORTEST:
        return None
    if any(s[-1] not in (0, p.dtype.itemsize) for s, p in zip(strides, places, strict=True)):
        return None
    row = sizes[-1]
    if len(sizes) == 1 or row > TILE // 2:
        sizes, row, strides = [*sizes, 1], 1, [[*s, 0] for s in strides]
    missing = OUTER + 2 - len(sizes)
    if missing < 0:
        return None
    return Domain([*[1] * missing, *sizes[:-1]], row, [[0] * missing + s for s in strides])


def _inner(function: Any) -> Any:
    while (inner := getattr(function, "__wrapped__", getattr(function, "func", None))) is not None:
        function = inner
    return function


def _broadcasts(shape: Sequence[int], to: Sequence[int]) -> bool:
    if len(shape) > len(to):
        return False
    return all(n in (1, m) for n, m in zip(shape, to[len(to) - len(shape) :], strict=True))


def _spread(p: Place, dims: int) -> list[int]:
    # The strides of an operand, 0 where it is repeated.
    found = [0 if n == 1 else s for n, s in zip(p.shape, p.strides, strict=True)]
    return [0] * (dims - len(found)) + found
