"""Replay of checkpointed regions: recompute by running recorded kernels again.

While a :class:`Region` is open, the dispatcher tells its thread's recorder (``recorder.py``) of
every kernel call, recorded or not, and values saved for backward become :class:`Recomputed`
handles. Nothing else changes: the function runs once, and what nothing holds is freed by reference
counts.

When backward asks for a value that is gone, its region is replayed: the kernels that lead to it
and to every other value of the region that a handle still wants, in their order, without any of the
user's Python. What a handle wants is kept until it has read it; the rest goes as soon as the next
kernels have read it. So a region comes back as its plain activations, once, and they fall as
backward passes.

**Nesting.** A value belongs to the region that made it. What an inner region reads from outside
itself is wanted by the region around both: replaying that one brings back what flows into its inner
regions, and passes through their insides without keeping them. Recursive nesting is therefore the
logarithmic scheme of Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016, and one
level of sqrt(n) regions its first one.
"""

from __future__ import annotations

import weakref
from functools import partial
from typing import Any

from ...devices import backend
from ...dtypes import FLOAT, uint8
from ...errors import GradientError
from ...interrupts import finalizer
from ...memory.ledger import TEMPORARY
from ...modes import local, run_kernel
from ...spec import Spec
from ...tensor import Tensor, wrap
from ..node import OpNode
from ..overwriting import LEAST_ROOM
from ..saved import OWN, Held, written_at
from .values import OpCall, StashCall, StridedView, ValueVersion, WriteCall


class Region:
    """A checkpointed region: its values are recomputed in backward instead of kept.

    Args:
        policy: Called with a :class:`Value`, returns what becomes of it; None recomputes all.
        where: The user's line that opened it, for messages.
        parent: The region around it.

    Attributes:
        by_module: Values know the modules that made them: its policy asks, or one around.
        evictor: Of the budget of bytes around it (``evictor.py``), or None.
    """

    __slots__ = (
        "__weakref__",
        "by_module",
        "crossed",
        "demanded",
        "depth",
        "evictor",
        "parent",
        "policy",
        "scope",
        "values",
        "where",
    )

    def __init__(self, policy: Any, where: str, parent: Region | None) -> None:
        self.policy = policy
        self.where = where
        scope = local.state.scope
        while scope is not None and scope.closed:  # left, and still to be taken off
            scope = scope.outer
        self.scope = scope  # in which it was opened
        self.parent = parent
        self.by_module: bool = asks_for_modules(policy) or (parent is not None and parent.by_module)
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.demanded: dict[ValueVersion, int] = {}  # what its replay brings back, and for how many
        self.crossed: dict[ValueVersion, int] = {}  # the part of it that is for regions further in
        self.values = 0  # made in it so far
        self.evictor: Any = None if parent is None else parent.evictor
        if self.evictor is not None:
            self.evictor.regions.add(self)

    def stash(self, value: ValueVersion, tensor: Tensor) -> None:
        """Stash a version of a value before it is needed in or below this region, if it is to be.

        May fail, or be interrupted: nothing is counted yet. A handle then counts itself in one
        statement, and takes itself off in one statement (:class:`Recomputed`,
        :class:`CrossRegionUse`).
        """
        if value.stash is not None and value.producer.__class__ is not StashCall:
            call = StashCall(value.stash(tensor), value.producer)
            value.producer, value.index = call, 0

    def replay(self, asked: ValueVersion) -> Any:
        """Recompute a value, and with it all that backward still needs of this region.

        Returns:
            Its storage.
        """
        runs = [_Replay(self, asked)]  # each waits for the next, of a region around it
        while True:
            needed = runs[-1].plan()
            if needed is not None:
                runs.append(_Replay(*needed))
                continue
            done = runs.pop()
            found = done.run()
            if not runs:
                return found[done.asked]
            runs[-1].found[done.asked] = found[done.asked]
            del done, found  # what they hold is to go as soon as the next run is through with it

    def wanted(self, asked: ValueVersion) -> set[ValueVersion]:
        """Return the values that a replay for ``asked`` recomputes."""
        running = local.state.running
        found = {asked}
        if running is not None and asked.producer.__class__ is not StashCall:
            read = _read_by(running)
            found.update(
                c
                for c in list(self.demanded)  # a garbage collection may end a handle meanwhile
                if (id(c) in read or c in self.crossed)
                and c.producer.__class__ is not StashCall
                and c.available() is None
            )
        return found

    def above(self, value: ValueVersion) -> Region | None:
        """Return the enclosing region that needs a value, or None."""
        region = self.parent
        while region is not None and value not in region.demanded:
            region = region.parent
        return region


def asks_for_modules(policy: Any) -> bool:
    """True if a policy needs module paths: it declares ``by_module``, or its code reads them."""
    said = getattr(policy, "by_module", None)
    if said is None:
        while isinstance(policy, partial):
            policy = policy.func
        code = getattr(policy, "__code__", None) or getattr(type(policy).__call__, "__code__", None)
        said = code is not None and "module" in code.co_names
    return bool(said)


def common(a: Region, b: Region) -> Region:
    """Return the innermost region that encloses (or is) both regions."""
    while a is not b:
        if a.depth >= b.depth:
            assert a.parent is not None
            a = a.parent
        else:
            assert b.parent is not None
            b = b.parent
    return a


def _read_by(running: Any) -> set[int]:
    # The versions that a backward pass asks for, and none of nodes that it leaves out: their ids.
    # A reference would keep what flowed into their regions. An id that was given out again costs a
    # kernel, no more.
    found: set[int] | None = running.reads
    if found is None:
        found = running.reads = set()
        for node in running.seen:
            if running.wanted is not None and True not in running.wanted[node]:
                continue
            handles = node.handles if node.__class__ is OpNode else getattr(node, "_handles", None)
            found.update(id(h.value) for h in handles or () if h.__class__ is Recomputed)
    return found


class CrossRegionUse:
    """The use of an outer region's value by a call in an inner region."""

    __slots__ = ("generation", "region", "value")

    def __init__(self, value: ValueVersion, region: Region, tensor: Tensor) -> None:
        region.stash(value, tensor)
        self.value = value
        self.region = region
        demanded, crossed = region.demanded, region.crossed  # no calls from here on
        demanded[value] = demanded[value] + 1 if value in demanded else 1
        crossed[value] = crossed[value] + 1 if value in crossed else 1
        value.consumers += 1
        self.generation = value.generation

    @finalizer
    def __del__(self) -> None:
        try:
            made = self.generation
        except AttributeError:  # stashing failed: nothing was counted
            return
        value, region = self.value, self.region
        demanded, crossed = region.demanded, region.crossed  # no calls from here on
        crossed[value] -= 1
        if not crossed[value]:
            del crossed[value]
        demanded[value] -= 1
        if not demanded[value]:
            del demanded[value]
        value.consumers -= 1
        if value.kept:
            if not value.consumers and value.held is not None:
                released = region.evictor.released
                if released is None:  # nothing is gone that could be made from it
                    value.held = None
                else:
                    released.append(value)
        elif made != value.generation:  # and it has not read what was recomputed
            value.pending_reads -= 1
            if value.pending_reads <= 0:
                value.held = None


class Recomputed:
    """A saved value that is recomputed, unless its storage is still alive.

    Args:
        tensor: The value.
        value: What its storage holds.
        owner_region: The region whose replay brings it back.
        source: ``OWN`` for an output of the node that saves it; else None.
        index: Which output, with ``OWN``.
    """

    __slots__ = (
        "generation",
        "index",
        "owner_region",
        "place",
        "source",
        "spec",
        "value",
        "view",
    )

    def __init__(
        self, tensor: Tensor, value: ValueVersion, owner_region: Region, source: Any, index: int
    ) -> None:
        self.spec = tensor._spec
        if source is None and tensor._requires_grad:
            source, index = tensor._node, tensor._index
        self.source = source
        self.index = index
        self.view = StridedView(value, tensor)
        owner_region.stash(value, tensor)
        self.value = value
        self.owner_region = owner_region
        demanded = owner_region.demanded  # no calls from here on
        demanded[value] = demanded[value] + 1 if value in demanded else 1
        value.consumers += 1
        self.generation = value.generation

    @finalizer
    def __del__(self) -> None:
        try:
            made = self.generation
        except AttributeError:  # stashing failed: nothing was counted
            return
        value, demanded = self.value, self.owner_region.demanded  # no calls from here on
        demanded[value] -= 1
        if not demanded[value]:
            del demanded[value]
        value.consumers -= 1
        if value.kept:
            if not value.consumers and value.held is not None:
                released = self.owner_region.evictor.released
                if released is None:  # nothing is gone that could be made from it
                    value.held = None
                else:
                    released.append(value)
        elif made != value.generation:  # and it has not read what was recomputed
            value.pending_reads -= 1
            if value.pending_reads <= 0:
                value.held = None

    @property
    def nbytes(self) -> int:
        """Bytes of the value."""
        return self.spec.nbytes

    @property
    def held_bytes(self) -> int:
        """Bytes kept alive: of the recomputed value until it is read, or of its stash."""
        if self.value.held is not None:
            return int(self.value.held.storage.nbytes)
        producer = self.value.producer
        return producer.stashed.nbytes if isinstance(producer, StashCall) else 0

    def unpack(self, node: Any, label: str) -> Tensor:
        """Return the value, connected to the graph."""
        value = self.value
        storage = value.available()
        if storage is None:
            storage = self.owner_region.replay(value)
        elif value.producer.__class__ is StashCall and hasattr(
            value.producer.stashed, "look_ahead"
        ):
            value.producer.stashed.look_ahead()
        if self.generation != value.generation:  # read, without a call
            self.generation = value.generation
            value.pending_reads -= 1
            if value.pending_reads <= 0 and not value.kept:
                value.held = None
        return self._connected(storage, node)

    def _connected(self, storage: Any, node: Any) -> Tensor:
        value = wrap(self.view.on(storage), self.spec, storage)
        source = self.source
        if source is not None and self.spec.dtype.category >= FLOAT:
            value._node = node if source is OWN else source
            value._index = self.index
            value._requires_grad = True
        return value


class _Replay:
    """One replay: selects the kernels to run and runs them in order."""

    def __init__(self, region: Region, asked: ValueVersion) -> None:
        self.region = region
        self.asked = asked
        self.wanted = region.wanted(asked)
        self.found: dict[ValueVersion, Any] = {}  # storages, held while this runs
        self.uses: dict[ValueVersion, int] = {}  # kernels still to read each
        self.makes: dict[Any, list[ValueVersion]] = {}
        self.reads: dict[Any, list[StridedView]] = {}  # by producer
        self._planned: set[ValueVersion] = set()
        self._stack = list(self.wanted)

    def plan(self) -> tuple[Region, ValueVersion] | None:
        """Select the kernels to run.

        Returns:
            None; or a region around this one, and the value that it must make first: then put its
            storage into ``found``, and call again.
        """
        found, uses, makes = self.found, self.uses, self.makes
        planned, stack = self._planned, self._stack
        while stack:
            value = stack.pop()
            if value in planned or value in found:
                continue
            storage = value.available()
            if storage is None:
                around = self.region.above(value)
                if around is not None:
                    stack.append(value)
                    return around, value
            if storage is not None:
                found[value] = storage
                continue
            planned.add(value)
            producer = value.producer
            makes.setdefault(producer, []).append(value)
            if len(makes[producer]) > 1:
                continue
            self.reads[producer] = views = _views_read(producer)
            for argument in views:
                uses[argument.value] = uses.get(argument.value, 0) + 1
                stack.append(argument.value)
        return None

    def run(self) -> dict[ValueVersion, Any]:
        """Run the kernels; return the storages of the requested values, and existing ones."""
        state = local.state
        before = (state.phase, state.site, state.recorder, state.saver, state.notes_results)
        state.phase, state.recorder, state.saver, state.notes_results = (
            "recompute",
            None,
            None,
            False,
        )
        try:
            for producer in sorted(self.makes, key=lambda m: m.order):
                site = producer.site
                if site is not None:
                    state.site = (site[0], producer.name, "recompute", site[1])
                self._again(producer)
        finally:
            state.phase, state.site, state.recorder, state.saver, state.notes_results = before
        return self.found

    def _again(self, producer: Any) -> None:
        found, uses, wanted = self.found, self.uses, self.wanted
        old = self._old(producer) if isinstance(producer, WriteCall) else self._room(producer)
        arrays = [self._array(producer, a, old) for a in producer.arguments]
        results = producer.run(arrays, old)
        del arrays, old
        for argument in self.reads[producer]:
            value = argument.value
            uses[value] -= 1
            if not uses[value] and value is not self.asked:
                found.pop(value, None)  # what is wanted later is held by its version
        running = local.state.running
        for value in self.makes[producer]:
            storage = results[value.index]
            kept = value in wanted
            if kept and running is not None:
                running.replayed.append(weakref.ref(value))  # first: the pass lets it go again
                value.hold(storage)
            else:
                value.lies_in(weakref.ref(storage), storage.version)
            if value is self.asked or uses.get(value) or (kept and running is None):
                found[value] = storage

    def _array(self, producer: Any, argument: Any, old: Any) -> Any:
        if isinstance(argument, StridedView):
            if isinstance(producer, WriteCall) and argument.value is producer.target.value:
                return argument.on(old)  # what is written is also read where it is written
            return argument.on(self.found[argument.value])
        if not isinstance(argument, Held):
            return argument
        storage, version = argument.storage, argument.version
        if storage.version != version and not storage.restore(version):
            _raise_written(self.region, producer, argument)
        return argument.array

    def _is_last_read(self, producer: Any, value: ValueVersion) -> bool:
        # Whether nothing else reads a value any more, and it was made by this run.
        return (
            self.uses[value] == _reads(producer, value)
            and value not in self.wanted
            and value.producer in self.makes
        )

    def _room(self, producer: Any) -> Any:
        # A storage over which a kernel can write its result, or None: see `overwriting.py`.
        if producer.__class__ is not OpCall or self.region.evictor is not None:
            return None
        plan = producer.plan
        if not plan.overwrites or plan.results[0].nbytes < LEAST_ROOM:
            return None
        names = plan.op.names_of(len(producer.arguments))
        for name, view in zip(names, producer.arguments, strict=True):
            if (
                name in plan.overwrites
                and isinstance(view, StridedView)
                and view.place is None
                and view.spec is plan.results[0]
                and self._is_last_read(producer, view.value)
            ):
                return self.found[view.value]
        return None

    def _old(self, producer: WriteCall) -> Any:
        # The storage that a write may write into: that of the value before, or a copy.
        before = producer.target.value
        storage = self.found[before]
        if self._is_last_read(producer, before):
            return storage
        where = producer.target.spec.device
        whole = Spec((storage.nbytes,), uint8, where)
        be = backend(where)
        copy, array = be.empty(whole, TEMPORARY)
        if be.xp is not None:
            run_kernel(be.copy, array, be.strided_view(storage, whole, None))
        return copy


def _views_read(producer: Any) -> list[StridedView]:
    # The versions a producer reads, as often as it does.
    found = [a for a in producer.arguments if isinstance(a, StridedView)]
    if isinstance(producer, WriteCall):
        found.append(producer.target)
    return found


def _reads(producer: Any, value: ValueVersion) -> int:
    return sum(w.value is value for w in _views_read(producer))


def _raise_written(region: Region, producer: Any, held: Held) -> None:
    line = "" if producer.site is None else producer.site[1].line
    place = f", called at {line}" if line else ""
    raise GradientError(
        f"A value that flowed into the checkpointed region begun at {region.where} cannot be used "
        f"to make the region's values again: {producer.name}{place} read shape "
        f"{tuple(held.spec.shape)} at version {held.version}, and an inplace operation"
        f"{written_at(held.storage)} has made it version {held.storage.version} since. Write after "
        "the backward, use the out-of-place op, or clone the value before the region."
    )
