"""The replay of a call that runs its own backward, or has none.

Small values that live inside the call lie in one block of the pool, taken for the call and given
back at its end. Large ones, results and new gradients are separate storages, which live from
their first row to their last: so a replay peaks no higher than the call as it is written.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from functools import partial
from typing import Any

from ..autograd.node import Node, attach
from ..errors import GradientError
from ..interop.pytree import tree_unflatten
from ..memory.ledger import GRADIENT, TEMPORARY
from ..modes import local, run_kernel
from ..random.generator import put_back
from ..tensor import Tensor
from .arena import plan_offsets
from .binding import OWN, Binding, Call, run_rows
from .program import (
    ARENA,
    CONSTANT,
    FRESH,
    OUTSIDE,
    Draw,
    Effects,
    LiveCall,
    Place,
    Result,
    Row,
    StepProgram,
    Value,
    values_of,
)
from .value_reads import Reads, ValueChanged, is_read


class Replay(Binding):
    """A program that is ready to run.

    Args:
        program: The recording.
        like: As of :class:`Binding`.

    Attributes:
        arena_bytes: Bytes of the block that small inner values lie in.
        peak_bytes: The most bytes that a call takes beyond those that live when it begins, without
            what live calls take. It counts old gradients as freed.
    """

    again, lacks, takes_arrived = 0, False, False  # as of SplitReplay

    def __init__(self, program: StepProgram, like: Binding | None = None) -> None:
        super().__init__(program, like)
        program = self.program
        inner = [v for v in program.values if v.kind == ARENA and v.first >= 0 and v.nbytes < OWN]
        lifetimes = [(v.nbytes, v.first, v.last) for v in inner]
        offsets, self.arena_bytes, _ = plan_offsets(lifetimes)
        self._offsets = {v.number: offset for v, offset in zip(inner, offsets, strict=True)}
        self._arena = self._bytes(self.arena_bytes)
        self._arena_at = -1
        self._gradients = {
            place.value
            for e in program.entries
            if isinstance(e, Effects)
            for _, place in e.gradients
            if isinstance(place, Place)
        }
        # In the reverse of the order in which they are born: the pool gives a block that was freed
        # last first, so each gradient gets the memory that it had.
        births = {
            leaf: program.values[place.value].first
            for e in program.entries
            if isinstance(e, Effects)
            for leaf, place in e.gradients
            if isinstance(place, Place)
        }
        self._dropped = sorted(program.dropped, key=lambda leaf: -births.get(leaf, -1))
        self._segments: list[Any] = []
        self._reads = Reads(program)
        self._build()
        self._tracer = None  # all rows are bound: what was found is in the tapes
        self._bind_fixed()
        self._moving = [v for v in program.values if v.kind == OUTSIDE and self._moves(v)]
        self._fixed = [
            (t, weakref.ref(t._array))
            for t in program.tensors[program.argument_count :]
            if t is not None
        ]

    def __call__(self, call: Any) -> Any:
        """Run the program on the tensors of a call; return what the function would."""
        program = self.program
        storage = None
        self._arguments = call.tensors
        positions = self._reads.positions()
        try:
            if self._reads.last < 0:
                self._drop()
            if self.arena_bytes:
                storage, _ = self._empty(self._arena, TEMPORARY)
                if storage.offset != self._arena_at:
                    self._move_arena(storage.offset)
            for value in self._moving:
                self._bind_outside(value)
            for segment in self._segments:
                segment()
            results = self._results()
        except ValueChanged:
            put_back(positions)
            for value in self._moving:
                if value.is_gradient:  # it is not added to
                    self._tensor(value.tensor)._grad._storage.version -= 1
            raise
        except BaseException:
            self._count_writes(program.entries)  # it is not known which of them happened
            raise
        finally:
            self._arguments = ()
            self._storages.clear()
            self._give_back()
        del storage
        return tree_unflatten(results, program.structure)

    def begins_with(self, layouts: Any) -> bool:
        """True if there are none: no backward of it runs later."""
        return layouts is None

    def describe(self) -> str:
        """Return what it consists of, in a few lines."""
        program = self.program
        live = [e for e in program.entries if isinstance(e, LiveCall)]
        named = ", ".join(f"{type(e.owner).__name__}.{e.method.__name__}" for e in live)
        constants = sum(s.nbytes for s in self.constants.values())
        return (
            f"  {calls(self.recorded.rows)}{self._on_tapes_in_words()}; small values in "
            f"{self.arena_bytes} bytes, {constants} bytes of constants; at most {self.peak_bytes} "
            "bytes more than before a call; "
            f"called anew: {named or 'nothing'}{reads_of(program)}"
        )

    # Building

    def _build(self) -> None:
        program = self.program
        rows: list[Call] = []
        draws = 0
        born: set[int] = set()
        old = sum(program.tensors[leaf]._spec.nbytes for leaf in self._dropped)
        live = self.arena_bytes - (old if self._reads.last < 0 else 0)
        for value in program.values:
            if value.kind == FRESH and value.contents is not None:
                born.add(value.number)
                live += value.nbytes
                rows += [self._born(value), self._filling(value)]
            elif value.kind == CONSTANT and value.contents is not None:
                filling = self._prepare_constant(value)
                rows += [] if filling is None else [filling]
        self.peak_bytes = max(live, 0)
        for k, entry in enumerate(program.entries):
            if isinstance(entry, Row):
                used = [program.values[n] for n in dict.fromkeys(values_of(entry.arguments))]
                own = [v for v in used if v.kind == FRESH or (v.kind == ARENA and v.nbytes >= OWN)]
                new = [v for v in own if v.number not in born]
                gone = [v for v in own if v.kind == ARENA and self._ends[v.number] == k]
                over = self._ends_in(k)
                born.update(v.number for v in new)
                if over >= 0:
                    first = program.values[entry.written[0]]
                    rows.append(self._taking_over(over, self._born(first)))
                    new = [v for v in new if v is not first]
                    gone = [v for v in gone if v.number != over]
                live += sum(v.nbytes for v in new)
                self.peak_bytes = max(self.peak_bytes, live)
                live -= sum(v.nbytes for v in gone)
                rows += [self._born(v) for v in new]
                rows.append(self._bound_row(entry))
                rows += [(self._release, [[v.number for v in gone]])] if gone else []
                if k == self._reads.last:
                    rows.append((self._drop, []))
                    live -= old
            elif isinstance(entry, Draw):
                sites = self._draw_sites.setdefault(draws, [])
                rows.append((_draw, [entry.generator, entry.words, sites]))
                draws += 1
            elif isinstance(entry, Effects):
                rows.append((self._apply, [entry]))
            else:
                self._end_segment(rows)
                rows = []
                call = partial(entry.method, entry.owner, *entry.args, **entry.kwargs)
                self._segments += [call, self._need_unmoved]
            rows += self._role_changes(k + 1)
        if not rows and self._segments:
            self._segments.pop()  # nothing follows the last call that is made anew
        self._end_segment(rows)

    def _end_segment(self, rows: list[Call]) -> None:
        if rows:
            self._segments.append(partial(run_kernel, run_rows, self._on_tapes(rows)))

    def _born(self, value: Value) -> Call:
        return self._birth(value, GRADIENT if value.number in self._gradients else TEMPORARY)

    # What happens at a call

    def _drop(self) -> None:
        # Gradients that nothing reads go first, or, where the call may be undone, after that.
        tensors = self.program.tensors
        for leaf in self._dropped:
            tensors[leaf]._grad = None

    def _move_arena(self, at: int) -> None:
        self._arena_at = -1
        for number, offset in self._offsets.items():
            self._bind(number, at + offset)
        self._arena_at = at

    def _bind_outside(self, value: Value) -> None:
        t = self._tensor(value.tensor)
        if value.is_gradient:
            t = t._grad
            t._storage.version += 1  # it is added to
        self._bind_to(value.number, t._array, t._storage)

    def _need_unmoved(self) -> None:
        # After a call that was made anew: later rows point to the memory that tensors had.
        for t, array in self._fixed:
            if t._array is not array():
                raise RuntimeError(
                    "compile: an optimizer's step, or another call that a replay makes anew, has "
                    "given a tensor other memory. Keep it out of the compiled function."
                )

    def _apply(self, effects: Effects) -> None:
        self._count_writes([effects])
        for leaf, place in effects.gradients:
            t = self.program.tensors[leaf]
            t._grad = None if place is None else self._made(place, t._spec)

    def _results(self) -> list[Any]:
        nodes: dict[str, Node] = {}

        def join(t: Tensor, r: Result) -> None:
            if r.requires_grad:
                attach(t, nodes.setdefault(r.node_name, FreedGraph(r.node_name)))
            if local.state.inference:
                t._extra = {"inference": True}

        return self._returned(join)


def calls(rows: Sequence[Any]) -> str:
    """Return how many kernel calls there are, in words."""
    return f"{len(rows)} kernel call{'' if len(rows) == 1 else 's'}"


def reads_of(program: StepProgram) -> str:
    """Return how many numbers Python has read, in words, or nothing."""
    count = sum(map(is_read, program.entries))
    return f"; {count} numbers that Python reads are compared" if count else ""


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
        raise freed(self._name)


def freed(name: str) -> GradientError:
    """Return the error of a backward through a graph that was freed."""
    return GradientError(
        f"The graph of {name} was freed by an earlier backward (Trying to backward through the "
        "graph a second time). Pass retain_graph=True there, or compute the loss again."
    )


def _draw(generator: Any, words: int, sites: list[tuple[list[Any], int]]) -> None:
    start = generator.draw(words)
    for where, k in sites:
        where[k] = start
