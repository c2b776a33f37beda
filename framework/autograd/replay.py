"""Regions of activation checkpointing: what they note, and how they make values again.

While a :class:`Region` is open, the dispatcher tells its thread's :class:`Tape` of every kernel
call, recorded or not, and values saved for backward become :class:`Recomputed` handles. Nothing
else changes: the function runs once, and what nobody holds is freed by reference counts.

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

A policy may say of each value that it is kept after all (``save``), that the region around decides
(``prefer_save``), or in which form it is stashed (:attr:`Content.stash`).
"""

from __future__ import annotations

import sys
import weakref
from typing import Any

from ..devices import backend
from ..dtypes import FLOAT
from ..errors import GradientError
from ..memory.ledger import TEMPORARY
from ..scopes import listening, place
from ..spec import Spec
from ..tensor import Tensor, wrap
from .contents import Content, FillCall, MoveCall, OpCall, StashCall, Window, WriteCall, outside
from .modes import local, quietly
from .saved import OWN, Handle, Held, written_at

SAVE, PREFER_SAVE, RECOMPUTE = "save", "prefer_save", "recompute"


class Region:
    """One stretch of a program whose values are made again instead of kept.

    Args:
        policy: Called with a :class:`Value`, returns what becomes of it; None recomputes all.
        where: The user's line that opened it, for messages.
    """

    __slots__ = ("__weakref__", "demanded", "depth", "parent", "policy", "values", "where")

    def __init__(self, policy: Any, where: str, parent: Region | None) -> None:
        self.policy = policy
        self.where = where
        self.parent = parent
        self.depth = 0 if parent is None else parent.depth + 1
        self.demanded: dict[Content, int] = {}  # what its replay brings back, and for how many
        self.values = 0  # made in it so far

    def want(self, content: Content, tensor: Tensor) -> None:
        """Count one more who may ask for a content made in or below this region."""
        self.demanded[content] = self.demanded.get(content, 0) + 1
        content.demand += 1
        if content.stash is not None and content.maker.__class__ is not StashCall:
            content.maker = StashCall(content.stash(tensor))
            content.index = 0

    def unwant(self, content: Content, unread: bool) -> None:
        """Count one less."""
        left = self.demanded[content] - 1
        if left:
            self.demanded[content] = left
        else:
            del self.demanded[content]
        content.demand -= 1
        if unread:
            content.read()

    def replay(self, asked: Content) -> Any:
        """Make a content again, and with it all that this region's handles still want.

        Returns:
            Its storage.
        """
        wanted = {asked}
        if asked.maker.__class__ is not StashCall:
            wanted.update(
                c
                for c in self.demanded
                if c.maker.__class__ is not StashCall and c.available() is None
            )
        return _Replay(self, wanted).run()[asked]

    def above(self, content: Content) -> Region | None:
        """The region around this one that wants a content, if one does."""
        region = self.parent
        while region is not None and content not in region.demanded:
            region = region.parent
        return region


def common(a: Region, b: Region) -> Region:
    """The innermost region that is around both, or is one of them."""
    while a is not b:
        if a.depth >= b.depth:
            assert a.parent is not None
            a = a.parent
        else:
            assert b.parent is not None
            b = b.parent
    return a


class Crossing:
    """The demand of a call for what an outer region made."""

    __slots__ = ("content", "region", "round")

    def __init__(self, content: Content, region: Region, tensor: Tensor) -> None:
        self.content = content
        self.region = region
        self.round = content.round
        region.want(content, tensor)

    def __del__(self) -> None:
        self.region.unwant(self.content, self.round != self.content.round)


class Recomputed:
    """A saved value whose bytes may go: they are found while someone has them, or made again.

    Args:
        tensor: The value.
        content: What its storage holds.
        level: The region whose replay brings it back.
        source: ``OWN`` for an output of the node that saves it; else None.
        index: Which output, with ``OWN``.
    """

    __slots__ = ("content", "index", "level", "place", "round", "source", "spec", "window")

    def __init__(
        self, tensor: Tensor, content: Content, level: Region, source: Any, index: int
    ) -> None:
        self.spec = tensor._spec
        if source is None and tensor._requires_grad:
            source, index = tensor._node, tensor._index
        self.source = source
        self.index = index
        self.window = Window(content, tensor)
        self.content = content
        self.level = level
        self.round = content.round
        level.want(content, tensor)

    def __del__(self) -> None:
        if hasattr(self, "round"):  # else wanting it failed: nothing was counted
            self.level.unwant(self.content, self.round != self.content.round)

    @property
    def nbytes(self) -> int:
        """Bytes of the value."""
        return self.spec.nbytes

    @property
    def held_bytes(self) -> int:
        """Bytes kept alive: of the value made again and not yet read, or of its stash."""
        if self.content.held is not None:
            return int(self.content.held.nbytes)
        maker = self.content.maker
        return maker.stashed.nbytes if isinstance(maker, StashCall) else 0

    def unpack(self, node: Any, label: str) -> Tensor:
        """The value, where the graph has it."""
        content = self.content
        storage = content.available()
        if storage is None:
            storage = self.level.replay(content)
        if self.round != content.round:
            self.round = content.round
            content.read()
        value = wrap(self.window.on(storage), self.spec, storage)
        source = self.source
        if source is not None and self.spec.dtype.category >= FLOAT:
            value._node = node if source is OWN else source
            value._index = self.index
            value._requires_grad = True
        return value


class Value:
    """A value made in a region, as a policy sees it.

    Attributes:
        op: The op that made it, such as ``linear``.
        name: With the name of the result: ``linear.out``, ``max_pool2d.indices``.
        shape: Its shape.
        dtype: Its dtype.
        device: Its device.
        nbytes: Its bytes.
        number: How many values the region made before it.
        depth: 0 in an outermost region.
        inputs: Shapes of the tensors it was computed from.
        module: Path of the module that made it; "" outside of modules.
    """

    __slots__ = ("depth", "module", "name", "number", "op", "plan", "spec")

    def __init__(self, plan: Any, op: str, name: str, spec: Spec, region: Region) -> None:
        self.plan = plan
        self.op = op
        self.name = name
        self.spec = spec
        self.number = region.values
        self.depth = region.depth
        scoped = local.state.scope
        self.module: str = "" if scoped is None else scoped.path

    shape = property(lambda self: tuple(self.spec.shape), doc="Its shape.")
    dtype = property(lambda self: self.spec.dtype, doc="Its dtype.")
    device = property(lambda self: self.spec.device, doc="Its device.")
    nbytes = property(lambda self: self.spec.nbytes, doc="Its bytes.")

    @property
    def inputs(self) -> tuple[tuple[int, ...], ...]:
        """Shapes of the tensors it was computed from."""
        found = () if self.plan is None else self.plan.specs
        return tuple(tuple(s.shape) for s in found if isinstance(s, Spec))

    def __repr__(self) -> str:
        return f"Value({self.name}, shape={self.shape}, nbytes={self.nbytes})"


class _Reference(weakref.ref):  # type: ignore[type-arg]
    # To a storage: takes its content off the tape when it dies.
    __slots__ = ("contents", "key")


def _gone(reference: Any) -> None:
    reference.contents.pop(reference.key, None)


class Tape:
    """What the open regions of a thread have noted; also their saver (``modes.State.saver``)."""

    __slots__ = ("contents", "region")

    def __init__(self) -> None:
        self.contents: dict[int, Content] = {}  # by the id of the storage
        self.region: Region | None = None

    def content_of(self, storage: Any) -> Content | None:
        """What is known of the present bytes of a storage."""
        content = self.contents.get(id(storage))
        return content if content is not None and content.available() is storage else None

    def arguments(self, inputs: Any) -> tuple[tuple[Any, ...], list[Crossing] | None]:
        """Inputs of a call as its maker keeps them, and what crosses into its region."""
        region = self.region
        assert region is not None
        found: list[Any] = []
        crossings: list[Crossing] | None = None
        for x in inputs:
            if not isinstance(x, Tensor):
                found.append(x)
                continue
            content = self.content_of(x._storage)
            if content is None:
                found.append(outside(x))
                continue
            level = content.level
            found.append(Window(content, x, outside(x) if level is None else None))
            if level is not region and level is not None:
                around = common(level, region)
                if around is not region:
                    crossings = crossings or []
                    crossings.append(Crossing(content, around, x))
        return tuple(found), crossings

    def note(self, plan: Any, inputs: Any, outputs: Any) -> None:
        """A kernel ran."""
        arguments, crossings = self.arguments(inputs)
        call = OpCall(plan, arguments)
        call.crossings = crossings
        names = (*plan.op.returns, *plan.op.aux)
        for k, out in enumerate(outputs):
            self._add(call, k, out, plan, names[k] if k < len(names) else "out")

    def wrote(self, plan: Any, noted: Any, target: Tensor) -> None:
        """A kernel wrote into ``target``; ``noted`` is what :meth:`before_write` returned."""
        if noted is None:
            return
        arguments, crossings, window = noted
        call = WriteCall(plan, arguments, window)
        call.crossings = crossings
        self._add(call, 0, target, plan, "out")

    def before_write(self, inputs: Any) -> Any:
        """Note the arguments of a write into the first input, while they are what they were.

        Returns:
            None if it flowed in from outside: then what is written there is kept, as it was.
        """
        target = inputs[0]
        content = self.content_of(target._storage)
        if content is None:
            return None
        arguments, crossings = self.arguments(inputs)
        first = arguments[0]
        return arguments, crossings, first

    def filled(self, name: str, tensor: Tensor, f: Any, args: tuple[Any, ...]) -> None:
        """A factory wrote values into new memory."""
        self._add(FillCall(name, tensor._spec, f, args), 0, tensor, None, "out")

    def moved(self, source: Tensor, out: Tensor) -> None:
        """A tensor was copied to another device."""
        (argument,), crossings = self.arguments((source,))
        call = MoveCall(argument, source._spec.device, out._spec)
        call.crossings = crossings
        self._add(call, 0, out, None, "out")

    def escaped(self, storage: Any) -> None:
        """Others can write to a storage from now on: what it holds is kept, not made again."""
        self.contents.pop(id(storage), None)

    def _add(self, call: Any, index: int, out: Tensor, plan: Any, result: str) -> None:
        region = self.region
        assert region is not None
        storage = out._storage
        content = Content(call, index, region)
        if region.policy is not None:
            name = call.name
            value = Value(plan, name, f"{name}.{result}", out._spec, region)
            content.level, content.stash = _decide(region, value)
        region.values += 1
        if listening():
            call.site = place(sys._getframe(2))
        contents = self.contents
        reference = _Reference(storage, _gone)
        reference.contents, reference.key = contents, id(storage)
        content.lies_in(reference, storage.version)
        contents[reference.key] = content

    def save(self, tensor: Tensor, source: Any, index: int) -> Handle:
        """The handle for a value saved for backward."""
        content = self.content_of(tensor._storage)
        leaf = source is None and tensor._requires_grad and tensor._node is None
        if content is None or content.level is None or leaf:
            return Held(tensor, source, index)
        assert self.region is not None
        level = common(content.level, self.region)
        return Recomputed(tensor, content, level, source, index)


def _decide(region: Region, value: Value) -> tuple[Region | None, Any]:
    # The region whose replay brings the value back (None: it is kept), and how it is stashed.
    decision = region.policy(value)
    level: Region | None = region
    while decision == PREFER_SAVE:
        assert level is not None
        level = level.parent
        if level is None:
            return None, None
        decision = RECOMPUTE if level.policy is None else level.policy(value)
    if decision == SAVE:
        return None, None
    if decision == RECOMPUTE:
        return level, None
    if callable(decision):
        return level, decision
    raise ValueError(
        f"A checkpointing policy must return 'save', 'prefer_save', 'recompute' or a stash such as "
        f"checkpointing.pack(); for {value.name} it returned {decision!r}."
    )


class _Replay:
    """One run of kernels: finds which, then runs them in their order."""

    def __init__(self, region: Region, wanted: set[Content]) -> None:
        self.region = region
        self.wanted = wanted
        self.found: dict[Content, Any] = {}  # storages, held while this runs
        self.uses: dict[Content, int] = {}  # kernels still to read each
        self.makes: dict[Any, list[Content]] = {}
        self._plan()

    def _plan(self) -> None:
        found, uses, makes = self.found, self.uses, self.makes
        planned: set[Content] = set()
        stack = list(self.wanted)
        while stack:
            content = stack.pop()
            if content in planned or content in found:
                continue
            storage = content.available()
            if storage is None:
                around = self.region.above(content)
                if around is not None:
                    storage = around.replay(content)
            if storage is not None:
                found[content] = storage
                continue
            planned.add(content)
            maker = content.maker
            makes.setdefault(maker, []).append(content)
            if len(makes[maker]) > 1:
                continue
            for argument in _windows(maker):
                uses[argument.content] = uses.get(argument.content, 0) + 1
                stack.append(argument.content)

    def run(self) -> dict[Content, Any]:
        """Run the kernels; return the storages of what was wanted, and of what was there."""
        state = local.state
        before = (state.phase, state.site, state.tape, state.saver, state.watch)
        state.phase, state.tape, state.saver, state.watch = "recompute", None, None, False
        try:
            for maker in sorted(self.makes, key=lambda m: m.order):
                site = maker.site
                if site is not None:
                    state.site = (site[0], maker.name, "recompute", site[1])
                self._again(maker)
        finally:
            state.phase, state.site, state.tape, state.saver, state.watch = before
        return self.found

    def _again(self, maker: Any) -> None:
        found, uses, wanted = self.found, self.uses, self.wanted
        arrays = [self._array(maker, a) for a in maker.arguments]
        results = maker.run(arrays, self._old(maker) if isinstance(maker, WriteCall) else None)
        del arrays
        for argument in _windows(maker):
            content = argument.content
            uses[content] -= 1
            if not uses[content] and content not in wanted:
                found.pop(content, None)
        running = local.state.running
        for content in self.makes[maker]:
            storage = results[content.index]
            content.lies_in(weakref.ref(storage), storage.version)
            if content in wanted and running is not None:
                content.hold(storage)
                running.replayed.append(weakref.ref(content))
            if content in wanted or uses.get(content):
                found[content] = storage

    def _array(self, maker: Any, argument: Any) -> Any:
        if isinstance(argument, Window):
            keep = argument.keep
            if keep is not None and keep.storage.version == keep.version:
                return keep.array
            return argument.on(self.found[argument.content])
        if not isinstance(argument, Held):
            return argument
        if argument.storage.version != argument.version:
            _refuse(self.region, maker, argument)
        return argument.array

    def _old(self, maker: WriteCall) -> Any:
        # The storage that a write may write into: that of the content before, if nobody else reads
        # it any more and it was made by this run; else a copy.
        before = maker.target.content
        storage = self.found.get(before)
        if storage is None:  # kept by the policy
            assert maker.target.keep is not None
            storage = maker.target.keep.storage
        elif (
            self.uses[before] == _reads(maker, before)
            and before not in self.wanted
            and before.maker in self.makes
        ):
            return storage
        target = maker.target.spec
        whole = Spec((storage.nbytes // target.dtype.itemsize,), target.dtype, target.device)
        be = backend(target.device)
        copy, array = be.empty(whole, TEMPORARY)
        if be.xp is not None:
            quietly(be.copy, array, be.window(storage, whole, None))
        return copy


def _windows(maker: Any) -> list[Window]:
    # The contents a maker reads, as often as it does. What the policy keeps needs no making.
    found = [
        a
        for a in maker.arguments
        if isinstance(a, Window) and (a.keep is None or a.keep.storage.version != a.keep.version)
    ]
    if isinstance(maker, WriteCall):
        target = maker.target
        if target.keep is None or target.keep.storage.version != target.keep.version:
            found.append(target)
    return found


def _reads(maker: Any, content: Content) -> int:
    return sum(w.content is content for w in _windows(maker))


def _refuse(region: Region, maker: Any, held: Held) -> None:
    place = f", called at {maker.site[1]}" if maker.site is not None and maker.site[1] else ""
    raise GradientError(
        f"A value that flowed into the checkpointed region begun at {region.where} cannot be used "
        f"to make the region's values again: {maker.name}{place} read shape "
        f"{tuple(held.spec.shape)} at version {held.version}, and an inplace operation"
        f"{written_at(held.storage)} has made it version {held.storage.version} since. Write after "
        "the backward, use the out-of-place op, or clone the value before the region."
    )
