"""The replay of a program: its kernel calls on memory that was bound once.

All values that live inside the call lie in one block of the pool, taken for the call and given back
at its end; results and new gradients are storages of their own. Arrays are made over the pool's
mapping, so they keep no memory alive, and are made again only where an address has changed: in a
loop that is never, for the pool gives the same blocks to the same requests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from ..autograd.node import Node, attach
from ..device import device
from ..devices import backend
from ..dtypes import uint8
from ..errors import GradientError
from ..interop.pytree import tree_unflatten
from ..interrupts import defer_interrupts
from ..memory.ledger import BUFFER, GRADIENT, TEMPORARY
from ..modes import local, run_kernel
from ..spec import Spec
from ..storage import Storage
from ..tensor import Tensor, wrap
from .arena import plan_offsets
from .program import (
    ARENA,
    CONSTANT,
    FRESH,
    OUTSIDE,
    Draw,
    DrawNumber,
    Effects,
    EmptyArray,
    Given,
    LiveCall,
    Place,
    Result,
    Row,
    StepProgram,
    Value,
)

CPU = device("cpu")
_ndarray = np.ndarray
Site = tuple[list[Any], int, Place]  # where in a list of arguments an array of a value stands


class Replay:
    """A program that is ready to run.

    Args:
        program: The recording.

    Attributes:
        program: The recording.
        arena_bytes: Bytes of the block that its inner values lie in.
        greatest_live: The greatest sum of their bytes that live at the same time.
    """

    def __init__(self, program: StepProgram) -> None:
        self.program = program
        self._be = backend(CPU)
        inner = [v for v in program.values if v.kind == ARENA and v.first >= 0]
        lifetimes = [(v.nbytes, v.first, v.last) for v in inner]
        offsets, self.arena_bytes, self.greatest_live = plan_offsets(lifetimes)
        self._offsets = {v.number: offset for v, offset in zip(inner, offsets, strict=True)}
        self._arena = Spec((self.arena_bytes,), uint8, self._be.device)
        self._sites: dict[int, list[Site]] = {}
        self._draw_sites: dict[int, list[tuple[list[Any], int]]] = {}
        self._bound: dict[int, int] = {}  # value -> offset in the mapping that its sites point to
        self._arena_at = -1
        self._borrowed: list[tuple[list[Any], int]] = []  # sites that hold others' arrays
        self._fresh: dict[int, Any] = {}  # storages of a running call
        gradients = {
            place.value
            for e in program.entries
            if isinstance(e, Effects)
            for _, place in e.gradients
            if isinstance(place, Place)
        }
        self._births = {
            v.number: (
                Spec((v.nbytes,), uint8, self._be.device),
                GRADIENT if v.number in gradients else TEMPORARY,
            )
            for v in program.values
            if v.kind == FRESH
        }
        self._constants: list[Any] = []
        self._arguments: Sequence[Tensor] = ()
        self._segments: list[Any] = []
        self._build()
        outside = [v for v in program.values if v.kind == OUTSIDE]
        for value in outside:
            if not self._moves(value):
                self._bind_outside(value)
        self._moving = [v for v in outside if self._moves(v)]

    def __call__(self, arguments: Sequence[Tensor]) -> Any:
        """Run the program on these tensors; return what the function would."""
        program = self.program
        storage = None
        self._arguments = arguments
        try:
            for leaf in program.dropped:
                program.tensors[leaf]._grad = None
            if self.arena_bytes:
                storage, _ = self._be.empty(self._arena, TEMPORARY)
                if storage.offset != self._arena_at:
                    self._move_arena(storage.offset)
            for value in self._moving:
                self._bind_outside(value)
            for segment in self._segments:
                segment()
            results = self._results()
        finally:
            self._arguments = ()
            self._fresh.clear()
            for where, k in self._borrowed:
                where[k] = None
            self._borrowed.clear()
        del storage
        return tree_unflatten(results, program.structure)

    def describe(self) -> str:
        """Return what it consists of, in a few lines."""
        program = self.program
        live = [e for e in program.entries if isinstance(e, LiveCall)]
        named = ", ".join(f"{type(e.owner).__name__}.{e.method.__name__}" for e in live)
        constants = sum(s.nbytes for s in self._constants)
        return (
            f"  {len(program.rows)} kernel calls in {self.arena_bytes} bytes "
            f"({self.greatest_live} live at the most), {constants} bytes of constants; "
            f"called anew: {named or 'nothing'}"
        )

    # Building

    def _build(self) -> None:
        program = self.program
        rows: list[tuple[Callable[..., Any], list[Any]]] = []
        draws = 0
        born: set[int] = set()
        for value in program.values:
            if value.kind == CONSTANT or (value.kind == FRESH and value.contents is not None):
                self._prepare_constant(value, rows, born)
        for entry in program.entries:
            if isinstance(entry, Row):
                for number in self._values_of(entry.arguments):
                    if program.values[number].kind == FRESH and number not in born:
                        born.add(number)
                        rows.append((self._bear, [number]))
                rows.append(self._bound_row(entry))
            elif isinstance(entry, Draw):
                sites = self._draw_sites.setdefault(draws, [])
                rows.append((_draw, [entry.generator, entry.words, sites]))
                draws += 1
            elif isinstance(entry, Effects):
                rows.append((self._apply, [entry]))
            else:
                self._end_segment(rows)
                rows = []
                self._segments.append(
                    partial(entry.method, entry.owner, *entry.args, **entry.kwargs)
                )
        self._end_segment(rows)

    def _end_segment(self, rows: list[Any]) -> None:
        if rows:
            self._segments.append(partial(run_kernel, _run_rows, rows))

    def _prepare_constant(self, value: Value, rows: list[Any], born: set[int]) -> None:
        if value.kind == FRESH:
            born.add(value.number)
            rows.append((self._bear, [value.number]))
        else:
            spec = Spec((value.nbytes,), uint8, self._be.device)
            storage, array = self._be.empty(spec, BUFFER)
            array[...] = value.contents
            self._constants.append(storage)
            self._bound[value.number] = storage.offset
        if value.changed or value.kind == FRESH:
            everything = Place(value.number, 0, (value.nbytes,), np.dtype(np.uint8), (1,))
            arguments: list[Any] = [None, value.contents]
            self._add_site(arguments, 0, everything)
            rows.append((np.copyto, arguments))

    def _bound_row(self, row: Row) -> tuple[Callable[..., Any], list[Any]]:
        arguments = self._with_sites(row.arguments)
        values = self.program.values
        if any(values[n].kind == OUTSIDE for n in row.written):
            return _whole, [row.function, arguments]
        return row.function, arguments

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

    def _values_of(self, arguments: list[Any]) -> list[int]:
        found = []
        for a in arguments:
            if isinstance(a, Place):
                found.append(a.value)
            elif isinstance(a, list):
                found += self._values_of(a)
        return found

    # Binding

    def _array(self, place: Place, at: int) -> np.ndarray:
        _, offset, shape, dtype, strides = place
        return _ndarray(shape, dtype, self._be.arena, at + offset, strides)

    def _bind(self, number: int, at: int) -> None:
        # Let the sites of a value point to an offset of the pool's mapping.
        if self._bound.get(number) == at:
            return
        for where, k, place in self._sites.get(number, ()):
            where[k] = self._array(place, at)
        self._bound[number] = at

    def _move_arena(self, at: int) -> None:
        self._arena_at = -1
        for number, offset in self._offsets.items():
            self._bind(number, at + offset)
        self._arena_at = at

    def _moves(self, value: Value) -> bool:
        # Whether it lies elsewhere at each call: an argument, a gradient, memory of others.
        if value.is_gradient or value.tensor < self.program.argument_count:
            return True
        return not isinstance(self._tensor(value.tensor)._storage.root, Storage)

    def _bind_outside(self, value: Value) -> None:
        t = self._tensor(value.tensor)
        if value.is_gradient:
            t = t._grad
            t._storage.version += 1  # it is added to
        array = t._array
        if isinstance(t._storage.root, Storage):
            address = int(array.__array_interface__["data"][0])
            self._bind(value.number, address - self._be.ledger.base)
        else:
            self._borrow(value, array)

    def _borrow(self, value: Value, array: np.ndarray) -> None:
        # Memory that is not the pool's: arrays over it are made for the call, and go after it.
        self._bound.pop(value.number, None)
        for where, k, (_, offset, shape, dtype, strides) in self._sites.get(value.number, ()):
            if offset == 0 and shape == array.shape and strides == array.strides:
                where[k] = array if array.dtype == dtype else array.view(dtype)
            else:
                where[k] = _ndarray(shape, dtype, array, offset, strides)
            self._borrowed.append((where, k))

    def _tensor(self, number: int) -> Any:
        if number < self.program.argument_count:
            return self._arguments[number]
        return self.program.tensors[number]

    # What happens in the order of the rows

    def _bear(self, number: int) -> None:
        spec, role = self._births[number]
        storage, _ = self._be.empty(spec, role)
        self._fresh[number] = storage
        self._bind(number, storage.offset)

    def _apply(self, effects: Effects) -> None:
        for number, count in effects.versions:
            self._tensor(number)._storage.version += count
        for leaf, place in effects.gradients:
            t = self.program.tensors[leaf]
            if place is None:
                t._grad = None
                continue
            t._grad = self._made(place, t._spec)

    def _made(self, place: Any, spec: Any) -> Tensor:
        if isinstance(place, EmptyArray):
            storage, array = self._be.empty(spec, TEMPORARY)  # no bytes
            return wrap(array, spec, storage)
        storage = self._fresh[place.value]
        return wrap(
            _ndarray(place.shape, place.dtype, storage, place.offset, place.strides), spec, storage
        )

    def _results(self) -> list[Any]:
        found = []
        nodes: dict[str, Node] = {}
        for r in self.program.results:
            if isinstance(r, Given):
                found.append(self._tensor(r.number))
                continue
            if not isinstance(r, Result):
                found.append(r)
                continue
            t = self._made(r.place, r.spec)
            if r.requires_grad:
                attach(t, nodes.setdefault(r.node_name, FreedGraph(r.node_name)))
            if local.state.inference:
                t._extra = {"inference": True}
            found.append(t)
        return found


class FreedGraph(Node):
    """The node of a result whose graph the call's own backward has freed."""

    __slots__ = ("_name",)
    edges = ()
    edge_specs = ()
    runs_without_gradient = True

    def __init__(self, name: str) -> None:
        self._name = name
        self._begin()

    def name(self) -> str:
        """Return the name of the node that the recorded call had."""
        return self._name

    def apply(self, grads: Any, wanted: Any, retain: bool, create: bool) -> Any:
        """Refuse, as the freed graph would.

        Raises:
            GradientError: Always.
        """
        raise GradientError(
            f"The graph of {self._name} was freed by an earlier backward (Trying to backward "
            "through the graph a second time). The compiled function has run it; call backward "
            "there, or return the loss of a function that does not."
        )


def _run_rows(rows: list[tuple[Callable[..., Any], list[Any]]]) -> None:
    for f, arguments in rows:
        f(*arguments)


def _whole(f: Callable[..., Any], arguments: list[Any]) -> None:
    # A write to memory that was there before the call: Ctrl-C may not divide it.
    with defer_interrupts():
        f(*arguments)


def _draw(generator: Any, words: int, sites: list[tuple[list[Any], int]]) -> None:
    start = generator.draw(words)
    for where, k in sites:
        where[k] = start
