"""A pass: elementwise kernel calls as one tape that is run on tile after tile.

The loops of a call are found as those of a small call are (``tape/kernel_loops.py``): the kernel
runs once on traced arrays of one dim, or of two where a tile has several rows, and its loops must
give the kernel's bytes on drawn numbers. This is done for two sizes. Words that differ between them
are multiples of the size. All others hold for each size, since what an elementwise kernel does at a
place depends on that place alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from math import prod
from typing import Any, NamedTuple

import numpy as np

from ...kernels.common.schedule import parallel_range
from ...kernels.cpu.elementwise.ufunc_loops import address
from ...kernels.cpu.loop_tape import SCRATCH
from ...kernels.cpu.tiled_tape import OUTER, OWN, ROOM, TILE, run_tiles
from ..program import Place, Row
from ..tape.tape import KernelLoops
from .members import Domain, Member, domain_of

# Elements, or rows, of the arrays that a kernel is traced with: the first of these pairs whose
# arrays are no larger than a tile and take few bytes.
_SIZES = (1021, 1019), (251, 241), (61, 59), (13, 11), (3, 2)
_TRACED_BYTES = 1 << 18


class SizedLoops(NamedTuple):
    """The loops of a kernel call for tiles of any size.

    Attributes:
        loops: Those for one size; the values in their sites count the operands of a pass.
        counts: The words that are a multiple of the size, each with that multiple.
    """

    loops: KernelLoops
    counts: list[tuple[int, int]]


class TiledPass:
    """Kernel calls that are made tile by tile.

    Args:
        rows: The calls, in order.
        calls: The loops of each.
        domain: How the operands are gone through.
        operands: What the calls use, each once.
        own: The values among these that lie in a tile's own memory.

    Attributes:
        rows: The calls.
        bases: The addresses of the operands, to be written before a run.
        outside: Of the operands that lie in the program's memory, their numbers in ``bases``.
        call: The function that runs it, and its arguments.
        count: How many calls it stands for.
    """

    def __init__(
        self,
        rows: Sequence[Row],
        calls: Sequence[SizedLoops],
        domain: Domain,
        operands: Sequence[Place],
        own: set[int],
    ) -> None:
        self.rows = rows
        self.count = len(calls)
        self.outside = [k for k, p in enumerate(operands) if p.value not in own]
        self.bases = np.zeros(len(operands), np.int64)
        moves = np.zeros((len(operands), OWN + 1), np.int64)
        moves[:, OWN] = 1
        room = 0
        most = max(1, TILE // domain.row)
        for k, p in enumerate(operands):
            if p.value in own:
                self.bases[k] = room
                room += most * domain.row * p.dtype.itemsize + ROOM
        for k in self.outside:
            *around, along, _ = domain.strides[k]
            moves[k] = [*around, most * along, 0]
        words, sites, counts = self._joined(calls)
        units = prod(domain.sizes[:OUTER]) * -(-domain.sizes[OUTER] // most)
        work = self.count * prod(domain.sizes) * domain.row
        tables = words, self.bases, moves, sites, counts, np.array(domain.sizes, np.int64)
        self.call: tuple[Any, list[Any]] = (
            parallel_range,
            [run_tiles, work, units, *tables, most, room],
        )

    def copy(self) -> TiledPass:
        """Return one with addresses of its own."""
        found = copy(self)
        found.bases = self.bases.copy()
        function, arguments = self.call
        found.call = function, [found.bases if a is self.bases else a for a in arguments]
        return found

    def __call__(self, *arrays: Any) -> None:
        """Run it on arrays, those of ``outside``."""
        for k, a in zip(self.outside, arrays, strict=True):
            self.bases[k] = address(a)
        function, arguments = self.call
        function(*arguments)

    def _joined(self, calls: Sequence[SizedLoops]) -> tuple[Any, Any, Any]:
        # Words, sites and counts of all loops; the numbers that they read are kept here.
        words: list[int] = [0] * SCRATCH
        sites: list[tuple[int, int, int]] = []
        counts: list[tuple[int, int]] = []
        numbers = bytearray()
        of_numbers: list[tuple[int, int]] = []
        for loops, own_counts in calls:
            start, first = len(words), len(numbers)
            for word, operand, offset in loops.sites:
                if operand < 0:
                    of_numbers.append((start + word, first + offset))
                else:
                    sites.append((start + word, operand, offset))
            words += loops.words
            numbers += loops.numbers
            counts += [(start + k, times) for k, times in own_counts]
        self._numbers = np.zeros(len(numbers) // 16, np.complex128)
        self._numbers.view(np.uint8)[:] = np.frombuffer(numbers, np.uint8)
        for word, offset in of_numbers:
            words[word] = address(self._numbers) + offset
        return tuple(np.array(x, np.int64) for x in (words, sites, counts))  # type: ignore[return-value]


def pass_of(members: Sequence[Member], own: set[int], tracer: Any) -> Row | None:
    """Return the kernel call that stands for several; None if their loops are not known.

    Args:
        members: The calls, in order.
        own: Values that only they use, which get no memory of the program's.
        tracer: Finds the loops of kernel calls (``tape/kernel_loops.py``).
    """
    operands = list(dict.fromkeys(p for m in members for p in (*m.writes, *m.reads)))
    domain = domain_of(members[0].shape, operands)
    if domain is None:
        return None
    traced = _traced_places(operands, domain, own)
    calls = []
    for m in members:
        found = _sized_loops(m.row, traced, domain.row, tracer)
        if found is None:
            return None
        calls.append(found)
    made = TiledPass([m.row for m in members], calls, domain, operands, own)
    arguments = [operands[k] for k in made.outside]
    written = dict.fromkeys(p.value for m in members for p in m.writes if p.value not in own)
    return Row(made, arguments, [*written])


def _traced_places(
    operands: Sequence[Place], domain: Domain, own: set[int]
) -> list[dict[Place, Place]]:
    # For each of two sizes, what stands for the operands where kernels are traced: their numbers
    # are the values.
    row = domain.row
    strides = [
        (row * p.dtype.itemsize, s[-1]) if p.value in own else (s[-2], s[-1])
        for p, s in zip(operands, domain.strides, strict=True)
    ]
    widest = max(abs(s[0]) for s in strides)
    sizes = next(
        (s for s in _SIZES if s[0] * row <= TILE and s[0] * widest <= _TRACED_BYTES), _SIZES[-1]
    )
    return [
        {
            p: Place(k, 0, (n, row), p.dtype, s) if row > 1 else Place(k, 0, (n,), p.dtype, s[:1])
            for k, (p, s) in enumerate(zip(operands, strides, strict=True))
        }
        for n in sizes
    ]


def _sized_loops(
    call: Row, traced: Sequence[dict[Place, Place]], row: int, tracer: Any
) -> SizedLoops | None:
    # `traced`: for each of two sizes, what stands for an operand. `row`: elements of a row.
    found: list[KernelLoops] = []
    for stand_in in traced:
        arguments = [stand_in[a] if isinstance(a, Place) else a for a in call.arguments]
        taped = tracer.taped(Row(call.function, arguments, call.written))
        if taped is None or taped.loops.asks:
            return None
        sites = [s if s.value < 0 else s._replace(value=taped.values[s.value])
                 for s in taped.loops.sites]  # fmt: skip
        found.append(taped.loops._replace(sites=sites))
    a, b = found
    sizes = [next(iter(stand_in.values())).shape[0] for stand_in in traced]
    multiples = {(sizes[0] * times, sizes[1] * times): times for times in (1, row)}
    pairs = [*zip(a.words, b.words, strict=False)]
    counts = [(k, multiples[pair]) for k, pair in enumerate(pairs) if pair in multiples]
    expected = [*a.words]
    for k, times in counts:
        expected[k] = sizes[1] * times
    if b.words != expected or (a.sites, a.numbers) != (b.sites, b.numbers):
        return None
    return SizedLoops(a, counts)
