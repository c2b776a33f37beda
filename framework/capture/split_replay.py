"""The replay of a call whose backward runs later, outside: a model's forward.

What forward leaves for backward lives in separate storages, held by the node of the results: so
several calls may wait for their backward at once, and memory goes as soon as backward has used it.
Small values share a block: one for what forward alone uses, one for what backward reads, one for
backward alone.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from ..autograd.node import attach
from ..autograd.saved import Pin
from ..distributed.unsharded_storage import release_unused
from ..errors import GradientError
from ..interop.pytree import tree_unflatten
from ..memory.ledger import SAVED, TEMPORARY
from ..modes import local
from ..random.generator import positions_of, put_back
from ..tensor import Tensor, wrap
from .arena import plan_offsets
from .binding import OWN, Binding, Call
from .program import (
    ARENA,
    CONSTANT,
    FRESH,
    GIVEN,
    OUTSIDE,
    Draw,
    Effects,
    EmptyArray,
    Result,
    Row,
    StepProgram,
    Value,
    values_of,
)
from .replay import calls, reads_of
from .replayed_backward import ForwardPass, ReplayedBackward
from .value_reads import Reads, ValueChanged

# Sites point to one call's memory at a time: threads that share a model run their forward and
# backward one after the other.
_replaying = threading.RLock()
if hasattr(os, "register_at_fork"):  # a child must not inherit a replay that will never end
    os.register_at_fork(
        before=_replaying.acquire,
        after_in_parent=_replaying.release,
        after_in_child=_replaying.release,
    )


Layouts = tuple[list[Any], list[Any]]  # specs and strides; None where no gradient arrives


class SplitReplay(Binding):
    """A program in two parts: forward, and a backward that a node runs later.

    Args:
        program: The recording.
        layouts: Of the gradients that arrived when its backward was recorded
            (:func:`layouts_of`).
        like: As of :class:`Binding`.

    Attributes:
        layouts: Of the gradients that arrive: those of the outputs, and then what has arrived at
            values before (``partial_sums.py``).
        output_count: The number of outputs.
        again: How often a backward had to run the function once more.
        takes_arrived: Its backward begins with gradients that have arrived at values before.
        lacks: More gradients had arrived at values in a backward than at the recording.
    """

    def __init__(self, program: StepProgram, layouts: Layouts, like: Binding | None = None) -> None:
        super().__init__(program, like)
        program = self.program
        assert program.backward_at is not None
        self._at = program.backward_at
        self.layouts = layouts
        self.again = 0
        self.lacks = False
        self.output_count = len(layouts[0]) - len(program.several)
        self.takes_arrived = any(s is not None for s in layouts[0][self.output_count :])
        self._blocks = [_Block(self, self._small(part)) for part in range(3)]
        self._own = {
            v.number: v
            for v in program.values
            if v.kind in (FRESH, GIVEN) or (v.kind == ARENA and v.first >= 0 and v.nbytes >= OWN)
        }
        self._kept = [
            n for n, v in self._own.items() if v.first < self._at <= self._ends.get(n, -1)
        ]
        self._read_later = [
            v
            for v in program.values
            if v.kind == OUTSIDE and self._ends.get(v.number, -1) >= self._at
        ]
        self._given = [v for v in program.values if v.kind == GIVEN]
        self._writes_given = any(v.number in program.written() for v in self._given)
        self._pass: Any = None
        self._retained: set[int] = set()  # values that a backward leaves for a later one
        self._lease: Any = None  # a weak reference
        self._reads = Reads(program)
        self._arriving: dict[int, Tensor] = {}  # gradients that arrive, by their value
        self._forward: list[Call] = []
        for value in program.values:
            if value.kind == FRESH and value.contents is not None:
                self._forward += [self._birth(value, TEMPORARY), self._filling(value)]
            elif value.kind == CONSTANT and value.contents is not None:
                filling = self._prepare_constant(value)
                self._forward += [] if filling is None else [filling]
        self._forward += self._rows(0, self._at)
        self._later = self._rows(self._at, len(program.entries))
        self._tracer = None  # all rows are bound: what was found is in the tapes
        self._bind_fixed()
        self._moving = [v for v in program.values if v.kind == OUTSIDE and self._moves(v)]
        self._writes = [n for n in sorted(program.written()) if program.values[n].kind == OUTSIDE]
        self._reads_only = [
            v.tensor
            for v in program.values
            if v.kind == OUTSIDE
            and not v.is_gradient
            and not program.is_gathered(v)  # whose bytes come and go
            and v.number not in self._writes
        ]

    def lease(self) -> Lease:
        """Return what keeps the replay ready to run: who may run it holds that."""
        lease = None if self._lease is None else self._lease()
        if lease is None:
            lease = Lease(self)
            self._lease = weakref.ref(lease)
        return lease

    # Building

    def _small(self, part: int) -> list[Value]:
        # Small values of forward alone, of both, of backward alone.
        found = []
        for v in self.program.values:
            if v.kind == ARENA and v.first >= 0 and v.nbytes < OWN:
                of = 2 if v.first >= self._at else int(v.last >= self._at)
                if of == part:
                    found.append(v)
        return found

    def _rows(self, begin: int, end: int) -> list[Call]:
        found: list[Call] = []
        entries = self.program.entries
        results = {
            r.place.value
            for r in self.program.results
            if isinstance(r, Result) and not isinstance(r.place, EmptyArray)
        }
        gradients = {
            p.value
            for p in self.program.gradients
            if p is not None and not isinstance(p, EmptyArray)
        }
        draws = 0
        brought: set[int] = set()  # gathered parameters whose bytes backward has brought back
        for k in range(begin, end):
            entry = entries[k]
            if isinstance(entry, Draw):
                found.append((self._draw, [entry, draws]))
                draws += 1
            elif isinstance(entry, Effects):
                found.append((self._apply, [entry]))
            elif isinstance(entry, Row):
                used = [n for n in dict.fromkeys(values_of(entry.arguments)) if n in self._own]
                over = self._ends_in(k) if k >= self._at else -1
                for n in used:
                    value = self._own[n]
                    born = value.kind != GIVEN and value.contents is None
                    if born and value.first == k:
                        saved = value.kind == ARENA and self._ends[n] >= self._at > k
                        birth = self._birth(value, SAVED if saved else TEMPORARY)
                        takes = over >= 0 and n == entry.written[0]
                        found.append(self._taking_over(over, birth) if takes else birth)
                gathered = self._gathered_in(entry) if k >= self._at else []
                found += [(self._bring_back, [n]) for n in gathered if n not in brought]
                brought.update(gathered)
                found.append(self._bound_row(entry))
                found += [(self._give_up, [n]) for n in gathered if self._ends[n] == k]
                stay = gradients if k >= self._at else gradients | results
                gone = [n for n in used if self._ends[n] == k and n not in stay and n != over]
                if gone:
                    found.append((self._release, [gone]))
            found += self._role_changes(k + 1)
        return self._on_tapes(found)

    def _gathered_in(self, row: Row) -> list[int]:
        # The gathered parameters that a row reads.
        numbers = dict.fromkeys(values_of(row.arguments))
        return [n for n in numbers if self.program.is_gathered(self.program.values[n])]

    # Forward

    def __call__(self, call: Any) -> Any:
        """Run forward on the tensors of a call; return what the function would."""
        with _replaying:
            return self._run_forward(call)

    def _run_forward(self, call: Any) -> Any:
        program = self.program
        self._arguments = call.tensors
        left = self._pass = self._new_pass(call)
        self._storages = left.storages
        block = None
        positions = self._reads.positions()
        try:
            if self._reads.last < 0:
                for leaf in program.dropped:
                    program.tensors[leaf]._grad = None
            block = self._blocks[0].take(TEMPORARY)
            left.block = self._blocks[1].take(SAVED)
            for value in self._moving:
                t = self._tensor(value.tensor)
                self._bind_to(value.number, t._array, t._storage)
            self._run(self._forward)
            for value in self._read_later:
                t = self._tensor(value.tensor)
                if program.is_gathered(value):
                    left.gathered[value.number] = Pin(t._storage)
                    continue
                left.held[value.number] = (t._array, t._storage, t._storage.version)
            results = self._results(left)
            for number in list(left.storages):
                if number not in self._kept:
                    del left.storages[number]
            left.versions = {n: left.storages[n].version for n in left.storages}
        except ValueChanged:
            put_back(positions)
            raise
        except BaseException:
            self._count_writes(program.entries[: self._at])
            raise
        finally:
            self._arguments = ()
            self._pass = None
            self._storages = {}
            self._give_back()
        del block
        return tree_unflatten(results, program.structure)

    def _new_pass(self, call: Any) -> ForwardPass:
        left = ForwardPass(call)
        left.read = self.versions(call)
        return left

    def versions(self, call: Any) -> list[int]:
        """Return the versions of the memory from outside that it reads, and does not write."""
        given, found, count = call.tensors, self.program.tensors, self.program.argument_count
        return [(given[k] if k < count else found[k])._storage.version for k in self._reads_only]

    def _results(self, left: ForwardPass) -> list[Any]:
        node = ReplayedBackward(self, left, [self._tensor(k) for k in self.program.sources])

        def join(t: Tensor, r: Result) -> None:
            if r.output >= 0:
                attach(t, node, r.output)
                node.display = r.node_name

        return self._returned(join)

    def _draw(self, entry: Draw, number: int) -> None:
        start = entry.generator.draw(entry.words)
        self._pass.starts.append(start)
        for where, k in self._draw_sites.get(number, ()):
            where[k] = start

    def _apply(self, effects: Effects) -> None:
        self._count_writes([effects])
        for leaf, _ in effects.gradients:  # to None: the recorder allows nothing else
            self.program.tensors[leaf]._grad = None

    def _release(self, numbers: list[int]) -> None:
        super()._release(numbers)
        for number in numbers:
            self._arriving.pop(number, None)

    # Backward

    def _bring_back(self, number: int) -> None:
        # The bytes of a gathered parameter, for the kernel call that follows.
        storage = self._pass.gathered[number].storage
        if not storage.there and not storage.restore(storage.THERE):
            raise GradientError(
                f"A gathered parameter of shape {tuple(storage.spec.shape)} has been modified by "
                "an inplace operation since the forward whose backward runs. Write the shards, "
                "after backward."
            )
        self._bind_to(number, storage.array, storage)

    def _give_up(self, number: int) -> None:
        release_unused(self._pass.call.tensors[self.program.values[number].tensor])

    def begins_with(self, layouts: Layouts | None) -> bool:
        """True if its backward was recorded with gradients of these layouts."""
        return layouts == self.layouts

    def fits(self, gradients: Sequence[Tensor | None]) -> bool:
        """True if the recorded backward holds for gradients of these layouts."""
        for g, spec, strides in zip(gradients, *self.layouts, strict=True):
            if g is None or spec is None:
                if g is not None or spec is not None:
                    return False
            elif g._spec is not spec or g._array.strides != strides or not g._array.flags.aligned:
                return False
        return not (self._writes_given and shares_memory(gradients))

    def fill_up(self, arrived: list[Tensor | None]) -> None:
        """Let zeros stand for what has not arrived at values, and had at the recording.

        If more has arrived, the recording ``lacks`` it.
        """
        for k, spec in enumerate(self.layouts[0][self.output_count :]):
            if spec is None:
                self.lacks |= arrived[k] is not None
            elif arrived[k] is None and spec.np_dtype.kind in "fc":
                storage, array = self._be.empty(spec, TEMPORARY)
                array.fill(-0.0)  # added to anything, it gives that, with its sign
                arrived[k] = wrap(array, spec, storage)

    def run_backward(
        self, left: ForwardPass, gradients: list[Any], retain: bool
    ) -> list[Tensor | None]:
        """Compute the gradients of the sources from what forward has left.

        Args:
            left: By forward.
            gradients: Those that arrive. The list is emptied: each goes when it has been used.
            retain: Keep what forward has left.
        """
        with _replaying:
            return self._run_backward(left, gradients, retain)

    def _run_backward(
        self, left: ForwardPass, gradients: list[Any], retain: bool
    ) -> list[Tensor | None]:
        self._storages = dict(left.storages) if retain else left.storages
        self._retained = {*left.storages} if retain else set()
        self._pass = left
        arriving = self._arriving
        block = None
        try:
            for number, (array, storage, _) in left.held.items():
                self._bind_to(number, array, storage)
            for number in left.storages:
                self._bind(number, left.storages[number].offset)
            for value in self._given:
                g = arriving[value.number] = gradients[value.tensor]
                self._bind_to(value.number, g._array, g._storage)
            g = None
            gradients[:] = [None] * len(gradients)
            for number, start in enumerate(left.starts):
                for where, k in self._draw_sites.get(number, ()):
                    where[k] = start
            self._blocks[1].bind(left.block)
            block = self._blocks[2].take(TEMPORARY)
            self._run(self._later)
            found: list[Tensor | None] = []
            for source, place in zip(self.program.sources, self.program.gradients, strict=True):
                if place is None:
                    found.append(None)
                    continue
                spec = self._spec_of(left, source)
                passed = None if isinstance(place, EmptyArray) else arriving.get(place.value)
                found.append(
                    self._made(place, spec) if passed is None else _view_of(passed, place, spec)
                )
            return found
        finally:
            self._pass = None
            self._storages, self._retained = {}, set()
            arriving.clear()
            self._give_back()
            del block

    def _take_over(self, old: int, number: int, spec: Any, role: int) -> None:
        if old in self._retained:  # a later backward reads it
            self._bear(number, spec, role)
            self._release([old])
        else:
            super()._take_over(old, number, spec, role)

    def _spec_of(self, left: ForwardPass, source: int) -> Any:
        if source < self.program.argument_count:
            return left.call.tensors[source]._spec
        return self.program.tensors[source]._spec

    def runs_again(self) -> bool:
        """True if the function gives the same results when it runs once more.

        That is, if what it writes of memory that was there before matters only for what it writes
        there: running averages do not matter for a normalization by the batch.
        """
        writes = set(self._writes)
        for row in self.program.entries[: self._at]:
            if not isinstance(row, Row) or writes.isdisjoint(values_of(row.arguments)):
                continue
            if not writes.issuperset(row.written):
                return False
        return True

    @contextmanager
    def as_it_was(self, left: ForwardPass) -> Iterator[None]:
        """Let the function run again as in the call that left this, and undo what it changes."""
        state, autocast = local.state, local.state.autocast
        entries = [e for e in self.program.entries if isinstance(e, Draw)]
        generators = [e.generator for e in entries]
        positions = positions_of(generators)
        values = [self.program.values[n].tensor for n in self._writes]
        count = self.program.argument_count
        written = [left.call.tensors[k] if k < count else self.program.tensors[k] for k in values]
        bits = [(t, t._array.copy(), t._storage.version) for t in written]
        state.autocast = left.call.autocast
        for g, start in zip(reversed(generators), reversed(left.starts), strict=True):
            g._seed, g._offset = start
        try:
            yield
        finally:
            state.autocast = autocast
            put_back(positions)
            for t, array, version in bits:
                np.copyto(t._array, array)
                t._storage.version = version

    def describe(self) -> str:
        """Return what it consists of, in a few lines."""
        rows, at = self.recorded.rows, self.recorded.backward_at
        forward = [e for e in self.recorded.entries[:at] if isinstance(e, Row)]
        kept = sum(self._own[n].nbytes for n in self._kept) + self._blocks[1].nbytes
        return (
            f"  {calls(forward)} forward, {len(rows) - len(forward)} backward"
            f"{self._on_tapes_in_words()}; "
            f"{kept} bytes kept for backward{reads_of(self.program)}"
        )


class Lease:
    """Held by what may run a replay: its recording, and nodes of calls before their backward.

    A replay's steps refer to it, so that it would wait for the collector. It lets go of everything
    when the last of them goes.
    """

    __slots__ = ("__weakref__", "_replay")

    def __init__(self, replay: SplitReplay) -> None:
        self._replay = replay

    def __del__(self) -> None:
        self._replay.close()


class _Block:
    # Small values that share a storage.

    def __init__(self, owner: SplitReplay, values: list[Value]) -> None:
        self.owner = owner
        lifetimes = [(v.nbytes, v.first, v.last) for v in values]
        offsets, self.nbytes, _ = plan_offsets(lifetimes)
        self.offsets = {v.number: offset for v, offset in zip(values, offsets, strict=True)}
        self.spec = owner._bytes(self.nbytes)
        self.at = -1

    def take(self, role: int) -> Any:
        # A storage, with the values bound to it; None if there are no values.
        if not self.nbytes:
            return None
        storage, _ = self.owner._empty(self.spec, role)
        self.bind(storage)
        return storage

    def bind(self, storage: Any) -> None:
        if storage is None or storage.offset == self.at:
            return
        self.at = -1
        for number, offset in self.offsets.items():
            self.owner._bind(number, storage.offset + offset)
        self.at = storage.offset


def layouts_of(gradients: Sequence[Tensor | None]) -> Layouts:
    """Return the specs and the strides of gradients."""
    specs = [None if g is None else g._spec for g in gradients]
    return specs, [None if g is None else g._array.strides for g in gradients]


def shares_memory(gradients: Sequence[Tensor | None]) -> bool:
    """True if two gradients have one storage."""
    roots = [id(g._storage.root) for g in gradients if g is not None]
    return len({*roots}) < len(roots)


def _view_of(g: Tensor, place: Any, spec: Any) -> Tensor:
    # A gradient that arrives, passed on, perhaps as a view.
    array = g._array
    if place.offset == 0 and place.shape == array.shape and place.strides == array.strides:
        return wrap(array, spec, g._storage)
    view = np.lib.stride_tricks.as_strided(array, place.shape, place.strides)
    return wrap(view, spec, g._storage)
