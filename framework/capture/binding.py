"""Arrays of a program's kernel calls, bound to memory.

A site is a place in a list of arguments where an array of a value stands. Arrays over the pool's
mapping keep no memory alive, and are recreated only where an address has changed: in a loop that
is never, for the pool gives the same blocks to the same requests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..autograd.view_history import mark_view
from ..device import device
from ..devices import backend
from ..dtypes import uint8
from ..interrupts import defer_interrupts
from ..kernels.common.copy import rows_known
from ..memory.ledger import BUFFER, TEMPORARY
from ..modes import run_kernel
from ..spec import Spec
from ..storage import Storage
from ..tensor import Tensor, wrap
from .passes.joining import with_passes
from .passes.tiled_pass import TiledPass
from .program import (
    ARENA,
    OUTSIDE,
    DrawNumber,
    Effects,
    EmptyArray,
    Given,
    Place,
    Result,
    Row,
    StepProgram,
    Value,
    values_of,
)
from .returned_numbers import Number
from .tape.tape import AddressSites

if TYPE_CHECKING:
    from .tape.kernel_loops import KernelTracer
    from .tape.tape import Tape, TapedRow

CPU = device("cpu")
OWN = 1 << 14  # bytes from which a value inside a call has a storage of its own
_ndarray = np.ndarray
Call = tuple[Callable[..., Any], list[Any]]


class Binding:
    """A program's rows with arguments whose arrays can be bound.

    Args:
        program: The recording.
        like: One of the same recording, whose passes and constants this one uses. It has no tapes.

    Attributes:
        recorded: The recording.
        program: The same with passes in place of elementwise kernel calls.
        constants: Storages of values that were made from Python's numbers, by value.
    """

    def __init__(self, program: StepProgram, like: Binding | None = None) -> None:
        self.program = self.recorded = program
        self.constants: dict[int, Any] = {} if like is None else like.constants
        self._be: Any = backend(CPU)
        self._empty: Any = self._be.empty  # gives a block of small values
        self._sites: dict[int, list[tuple[list[Any], int, Place]]] = {}
        self._draw_sites: dict[int, list[tuple[list[Any], int]]] = {}
        self._bound: dict[int, int] = {}  # value -> offset in the mapping that its sites point to
        self._borrowed: list[tuple[list[Any], int]] = []  # sites that hold others' arrays
        self._storages: dict[int, Any] = {}  # of values that have storages of their own
        self._arguments: Sequence[Tensor] = ()
        self._tracer = _tracer() if like is None and rows_known() else None
        self._tapes: list[Tape] = []
        self._tape_sites: dict[int, list[AddressSites]] = {}  # of each value
        self._ends: dict[int, int] = {}  # the last row that uses each value
        if like is not None:
            self.program = program = like.program
        elif self._tracer is not None:
            self.program = program = with_passes(program, self._tracer, self._takes_tapes)
        first = {id(r): k for k, r in reversed([*enumerate(program.results)])}
        own = [(k, r) for k, r in enumerate(program.results) if isinstance(r, Result)]
        self._again = [(k, first[id(r)]) for k, r in own if first[id(r)] != k]  # the same tensor
        self._views = [(k, first[id(r.base)]) for k, r in own if r.base is not None]
        for k, entry in enumerate(program.entries):
            if isinstance(entry, Row):
                self._ends |= dict.fromkeys(values_of(entry.arguments), k)

    def close(self) -> None:
        """Let go of everything. Its steps refer to it, so it would wait for the collector."""
        self.__dict__.clear()

    # Building

    def _bytes(self, nbytes: int) -> Spec:
        return Spec((nbytes,), uint8, self._be.device)

    def _prepare_constant(self, value: Value) -> Call | None:
        # Take memory for a constant; return the call that fills it, if rows write over it.
        storage = self.constants.get(value.number)
        if storage is None:
            storage, array = self._be.empty(self._bytes(value.nbytes), BUFFER)
            array[...] = value.contents
            self.constants[value.number] = storage
        self._bound[value.number] = storage.offset
        return self._filling(value) if value.changed else None

    def _filling(self, value: Value) -> Call:
        arguments: list[Any] = [None, value.contents]
        everything = Place(value.number, 0, (value.nbytes,), np.dtype(np.uint8), (1,))
        self._add_site(arguments, 0, everything)
        return np.copyto, arguments

    def _bound_row(self, row: Row) -> Call:
        if isinstance(row.function, TiledPass):
            return self._bound_pass(row.function, row.arguments)
        if self._tracer is not None and self._takes_tapes(self.program, row):
            taped = self._tracer.taped(row)
            if taped is not None:
                call = self._as_recorded(row) if taped.loops.asks else None
                return _taped, [taped._replace(call=call)]
        return self._as_recorded(row)

    def _bound_pass(self, found: TiledPass, places: list[Place]) -> Call:
        for k, place in zip(found.outside, places, strict=True):
            sites = AddressSites(found.bases, np.array([k]), np.array([place.offset]))
            self._add_address(place.value, sites)
        return found.call

    def _as_recorded(self, row: Row) -> Call:
        arguments = self._with_sites(row.arguments)
        values = self.program.values
        if any(values[n].kind == OUTSIDE for n in row.written):
            return _whole, [row.function, arguments]
        return row.function, arguments

    def _takes_tapes(self, program: StepProgram, row: Row) -> bool:
        # Loops in C take no memory that is not aligned, as a tensor over NumPy's may have it.
        for number in values_of(row.arguments):
            value = program.values[number]
            if value.kind == OUTSIDE and value.tensor >= program.argument_count:
                t = program.tensors[value.tensor]
                if not value.is_gradient and not t._array.flags.aligned:
                    return False
        return True

    def _on_tapes(self, calls: list[Call]) -> list[Call]:
        # Join kernel calls that go onto a tape. Storages that are born between them are born
        # before: nothing is freed between them, so the peak is the same. So are those that are
        # taken over: the value that ends there stays bound to its memory.
        found: list[Call] = []
        rows: list[TapedRow] = []
        for function, arguments in calls:
            if function is _taped:
                rows.append(arguments[0])
                continue
            if rows and function not in (self._bear, self._take_over):
                found.append(self._tape(rows))
                rows = []
            found.append((function, arguments))
        return [*found, self._tape(rows)] if rows else found

    def _tape(self, rows: list[TapedRow]) -> Call:
        assert self._tracer is not None
        tape = self._tracer.tape(rows)
        self._tapes.append(tape)
        for number, sites in tape.sites.items():
            self._add_address(number, sites)
        return tape.call

    def _add_address(self, number: int, sites: AddressSites) -> None:
        self._tape_sites.setdefault(number, []).append(sites)
        at = self._bound.get(number)
        if at is not None:
            sites.bind(self._be.ledger.base + at)

    def _with_sites(self, arguments: list[Any]) -> list[Any]:
        found: list[Any] = []
        for k, a in enumerate(arguments):
            if isinstance(a, Place):
                found.append(None)
                self._add_site(found, k, a)
            elif isinstance(a, EmptyArray):
                found.append(np.empty(a.shape, a.dtype))
            elif isinstance(a, DrawNumber):
                found.append(None)
                self._draw_sites.setdefault(a.number, []).append((found, k))
            elif isinstance(a, list):
                found.append(self._with_sites(a))
            else:
                found.append(a)
        return found

    def _add_site(self, where: list[Any], k: int, place: Place) -> None:
        self._sites.setdefault(place.value, []).append((where, k, place))
        at = self._bound.get(place.value)
        if at is not None:
            where[k] = self._array(place, at)

    # Binding

    def _array(self, place: Place, at: int) -> np.ndarray:
        _, offset, shape, dtype, strides = place
        return _ndarray(shape, dtype, self._be.arena, at + offset, strides)

    def _bind(self, number: int, at: int) -> None:
        # Let the sites of a value point to an offset of the pool's mapping.
        if self._bound.get(number) == at:
            return
        self._bound.pop(number, None)  # an interrupt may come between two sites
        for where, k, place in self._sites.get(number, ()):
            where[k] = self._array(place, at)
        for sites in self._tape_sites.get(number, ()):
            sites.bind(self._be.ledger.base + at)
        self._bound[number] = at

    def _bind_to(self, number: int, array: np.ndarray, storage: Any) -> None:
        # Let them point to the memory of a tensor.
        if isinstance(storage.root, Storage):
            address = int(array.__array_interface__["data"][0])
            self._bind(number, address - self._be.ledger.base)
        else:
            self._borrow(number, array)

    def _borrow(self, number: int, array: np.ndarray) -> None:
        # Memory that is not the pool's: arrays over it are made for the call, and go after it.
        self._bound.pop(number, None)
        for where, k, (_, offset, shape, dtype, strides) in self._sites.get(number, ()):
            if offset == 0 and shape == array.shape and strides == array.strides:
                where[k] = array if array.dtype == dtype else array.view(dtype)
            else:
                where[k] = _ndarray(shape, dtype, array, offset, strides)
            self._borrowed.append((where, k))
        for sites in self._tape_sites.get(number, ()):
            assert array.flags.aligned  # as `_takes_tapes`, arguments and gradients are
            sites.bind(int(array.__array_interface__["data"][0]))

    def _give_back(self) -> None:
        for where, k in self._borrowed:
            where[k] = None
        self._borrowed.clear()

    def _moves(self, value: Value) -> bool:
        # Whether an outside value lies elsewhere at each call: an argument, a gradient, memory of
        # others.
        return value.is_gradient or value.tensor not in self.program.addresses

    def _bind_fixed(self) -> None:
        for value in self.program.values:
            if value.kind == OUTSIDE and not self._moves(value):
                address = self.program.addresses[value.tensor]
                self._bind(value.number, address - self._be.ledger.base)

    def _on_tapes_in_words(self) -> str:
        # How many kernel calls are made by tapes, and how many in passes.
        rows, found = self.program.rows, ""
        passes = [r.function for r in rows if isinstance(r.function, TiledPass)]
        if passes:
            inside, several = sum(p.count for p in passes), "es" if len(passes) > 1 else ""
            twice = len(rows) - len(passes) + inside - len(self.recorded.rows)
            found = f"; {inside - twice} elementwise ones in {len(passes)} pass{several}"
            found += f", {twice} of them twice to keep less" if twice else ""
        count = sum(tape.count for tape in self._tapes)
        return found + (f"; {count} small ones on {len(self._tapes)} tapes" if count else "")

    def _tensor(self, number: int) -> Any:
        if number < self.program.argument_count:
            return self._arguments[number]
        return self.program.tensors[number]

    def _count_writes(self, entries: Sequence[Any]) -> None:
        # Count what rows have written of memory that was there before.
        for entry in entries:
            if isinstance(entry, Effects):
                for number, count in entry.versions:
                    self._tensor(number)._storage.version += count

    # Values with storages of their own

    def _birth(self, value: Value, role: int) -> Call:
        return self._bear, [value.number, self._bytes(value.nbytes), role]

    def _taking_over(self, old: int, birth: Call) -> Call:
        # The call that gives a value the storage of another one, in place of its birth.
        return self._take_over, [old, *birth[1]]

    def _ends_in(self, k: int) -> int:
        # The value whose storage row `k` may take over for its first result; -1 if there is none.
        row = self.program.entries[k]
        assert isinstance(row, Row)
        if row.over < 0:
            return -1
        old, new = self.program.values[row.over], self.program.values[row.written[0]]
        fits = old.kind == ARENA and old.nbytes == new.nbytes >= OWN and new.first == k
        return old.number if fits and self._ends[old.number] == k else -1

    def _take_over(self, old: int, number: int, spec: Spec, role: int) -> None:
        # Give a value the storage of one that ends where it begins.
        storage = self._storages.pop(old)
        self._storages[number] = storage
        storage.set_role(role)
        self._bind(number, storage.offset)

    def _run(self, rows: list[Call]) -> None:
        run_kernel(run_rows, rows)

    def _role_changes(self, k: int) -> list[Call]:
        # What tells the roles of values before entry `k`, where someone sees them.
        return []

    def _release(self, numbers: list[int]) -> None:
        for number in numbers:
            self._storages.pop(number, None)

    def _bear(self, number: int, spec: Spec, role: int) -> None:
        storage, _ = self._be.empty(spec, role)
        self._storages[number] = storage
        self._bind(number, storage.offset)

    def _returned(self, join: Callable[[Tensor, Result], None]) -> list[Any]:
        # The leaves of what the call returns; `join` gives a result its place in a graph.
        found = []
        for r in self.program.results:
            if isinstance(r, Result):
                t = self._made(r.place, r.spec)
                join(t, r)
                found.append(t)
            elif isinstance(r, Given):
                found.append(self._tensor(r.number))
            else:
                found.append(r.value if type(r) is Number else r)
        for k, first in self._again:
            found[k] = found[first]
        for k, base in self._views:
            mark_view("a compiled function", k, found[k], found[base])
        return found

    def _made(self, place: Any, spec: Any) -> Tensor:
        # A tensor of a value with a storage of its own.
        if isinstance(place, EmptyArray):
            storage, array = self._be.empty(spec, TEMPORARY)  # of no bytes
            return wrap(array, spec, storage)
        storage = self._storages[place.value]
        array = _ndarray(place.shape, place.dtype, storage, place.offset, place.strides)
        return wrap(array, spec, storage)


def run_rows(rows: list[Call]) -> None:
    """Make kernel calls, one after the other."""
    for f, arguments in rows:
        f(*arguments)


def _tracer() -> KernelTracer:
    from .tape.kernel_loops import KernelTracer

    return KernelTracer()


def _taped(row: TapedRow) -> None:
    # Stands for a kernel call until it is put onto a tape.
    raise AssertionError(row)


def _whole(f: Callable[..., Any], arguments: list[Any]) -> None:
    # A write to memory that was there before the call: Ctrl-C may not divide it.
    with defer_interrupts():
        f(*arguments)
