"""The recorder of checkpointed regions: which kernels ran, and what the policy decided.

While a region is open, the dispatcher tells its thread's :class:`RegionRecorder` of each kernel
call, and the factories of what they wrote. The recorder knows the version of the value that each
live storage holds (``values.py``), and gives values that are saved for backward their handles.

A policy says of each value that it is recomputed (``recompute``), kept after all (``save``), that
the region around decides (``prefer_save``), or in which form it is stashed
(:attr:`ValueVersion.stash`).
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterable
from typing import Any

from ...attribution.scopes import listening, path_within, place
from ...interrupts import finalizer
from ...modes import local
from ...spec import Spec
from ...tensor import Tensor
from ..saved import Handle, Held
from .replay import CrossRegionUse, Recomputed, Region, common
from .values import FillCall, MoveCall, OpCall, RegionInput, StridedView, ValueVersion, WriteCall

SAVE, PREFER_SAVE, RECOMPUTE = "save", "prefer_save", "recompute"


class Value:
    """A value made in a region, as a policy sees it.

    Attributes:
        op: The op that made it, such as ``linear``; ``relu_`` where it wrote in place.
        name: With the name of the result: ``linear.out``, ``max_pool.index``.
        shape: Its shape.
        dtype: Its dtype.
        device: Its device.
        nbytes: Its bytes.
        number: How many values the region made before it.
        depth: 0 in an outermost region.
        inputs: Shapes of the tensors it was computed from.
    """

    __slots__ = ("_module", "depth", "name", "number", "op", "plan", "spec")

    def __init__(self, plan: Any, op: str, name: str, spec: Spec, region: Region) -> None:
        self.plan = plan
        self.op = op
        self.name = name
        self.spec = spec
        self.number = region.values
        self.depth = region.depth
        self._module = path_within(region.scope) if region.by_module else None

    shape = property(lambda self: tuple(self.spec.shape), doc="Its shape.")
    dtype = property(lambda self: self.spec.dtype, doc="Its dtype.")
    device = property(lambda self: self.spec.device, doc="Its device.")
    nbytes = property(lambda self: self.spec.nbytes, doc="Its bytes.")

    @property
    def inputs(self) -> tuple[tuple[int, ...], ...]:
        """Shapes of the input tensors it was computed from."""
        found = () if self.plan is None else self.plan.specs
        return tuple(tuple(s.shape) for s in found if isinstance(s, Spec))

    @property
    def module(self) -> str:
        """Path of the module that computed it, relative to the region.

        It is empty for that one itself.

        Raises:
            RuntimeError: The policy does not say that it asks.
        """
        if self._module is None:
            raise RuntimeError(
                "value.module is not known: to follow the modules that are called takes time, so a "
                "policy has to say that it asks. Its own code was looked through for `.module`; if "
                "something that it calls reads it, set by_module = True on the policy."
            )
        return self._module

    def __repr__(self) -> str:
        return f"Value({self.name}, shape={self.shape}, nbytes={self.nbytes})"


class _Reference(weakref.ref):  # type: ignore[type-arg]
    # To a storage: takes its value off the recorder when it dies.
    __slots__ = ("key", "recorded")
    recorded: dict[int, ValueVersion]
    key: int


@finalizer
def _gone(reference: Any) -> None:
    reference.recorded.pop(reference.key, None)


class _Holder(weakref.ref):  # type: ignore[type-arg]
    # To what a producer holds from outside: takes itself off the list below when that dies. One
    # that an interrupt kept from being put there has no hash of its referent's by then.
    __slots__ = ("key",)
    __hash__ = object.__hash__
    __eq__ = object.__eq__
    key: int


# All that producers hold from outside, of regions that are open and of those that are not, by the
# id of its storage. Should two threads be here at once, one may be missed when it is overwritten:
# then its replay refuses, as after any write that leaves no copy.
_flowed: dict[int, set[_Holder]] = {}


def flows_in(tensor: Tensor, value: ValueVersion | None) -> RegionInput:
    """Hold a value that a recorded call reads and no region makes again."""
    held = RegionInput(tensor, value)
    key = id(held.storage)
    holder = _Holder(held, _left)  # no call in between: the callback reads it
    holder.key = key
    _flowed.setdefault(key, set()).add(holder)
    return held


@finalizer
def _left(holder: Any) -> None:
    holders = _flowed.get(holder.key)
    if holders is not None:
        holders.discard(holder)
        if not holders:
            _flowed.pop(holder.key, None)


def _held(storage: Any) -> list[RegionInput]:
    # What producers hold of the present bytes of a storage.
    found = [holder() for holder in list(_flowed.get(id(storage), ()))]
    return [
        h for h in found if h is not None and h.storage is storage and h.version == storage.version
    ]


def leave_copies(storage: Any) -> None:
    """Copy a storage before a write, for regions that will read its present values again."""
    copies: dict[Any, Any] = {}
    for held in _held(storage):
        held.keep_copy(copies)


class RegionRecorder:
    """Records the kernels of a thread's open regions, and saves their tensors for backward."""

    __slots__ = ("recorded", "region")
    version_class: type[ValueVersion] = ValueVersion
    records_backward = False  # one with ``create_graph``

    def __init__(self) -> None:
        self.recorded: dict[int, ValueVersion] = {}  # by the id of the storage
        self.region: Region | None = None

    def value_of(self, storage: Any) -> ValueVersion | None:
        """Return the recorded version of a storage's present values."""
        value = self.recorded.get(id(storage))
        return value if value is not None and value.available() is storage else None

    def makes_again(self, tensor: Tensor) -> bool:
        """True if a handle recomputes the present values even after a later write."""
        if local.state.saver is not self:
            return False
        value = self.value_of(tensor._storage)
        return value is not None and value.owner_region is not None

    def aliased_in_place(self, tensor: Tensor) -> None:
        """Record that a tensor became another view of its storage in place."""
        value = self.value_of(tensor._storage)
        if value is not None:
            value.version += 1
        for held in _held(tensor._storage):
            held.version += 1

    def arguments(self, inputs: Any) -> tuple[tuple[Any, ...], list[CrossRegionUse] | None]:
        """Return the inputs of a call as recorded, and the values that cross into its region."""
        region = self.region
        assert region is not None
        found: list[Any] = []
        crossings: list[CrossRegionUse] | None = None
        for x in inputs:
            if not isinstance(x, Tensor):
                found.append(x)
                continue
            value = self.value_of(x._storage)
            if value is None or value.owner_region is None:  # kept, as if from outside
                found.append(flows_in(x, value))
                continue
            found.append(StridedView(value, x))
            if value.owner_region is not region:
                around = common(value.owner_region, region)
                if around is not region:
                    crossings = crossings or []
                    crossings.append(CrossRegionUse(value, around, x))
        return tuple(found), crossings

    def note(self, plan: Any, inputs: Any, outputs: Any, saves: Any = ()) -> None:
        """Record a kernel that ran, and what its node is about to save: (of outputs, position)."""
        for of_outputs, i in saves:
            if not of_outputs and isinstance(inputs[i], Tensor):
                value = self.value_of(inputs[i]._storage)
                if value is not None:
                    value.saved = True
        arguments, crossings = self.arguments(inputs)
        call = OpCall(plan, arguments)
        call.crossings = crossings
        names = (*plan.op.returns, *plan.op.aux)
        for k, out in enumerate(outputs):
            self._add(call, k, out, plan, names[k] if k < len(names) else "out")

    def wrote(self, plan: Any, noted: Any, target: Tensor) -> None:
        """Record an in-place write into ``target``; ``noted`` came from :meth:`before_write`."""
        if noted is None:
            return
        arguments, crossings, written = noted
        call = WriteCall(plan, arguments, written)
        call.crossings = crossings
        self._add(call, 0, target, plan, "out")

    def before_step(self, parameters: Iterable[Tensor]) -> None:
        """Note that an optimizer will overwrite parameters, before it does.

        What a region recomputes after that is refused, as after any write to what it reads.
        """

    def before_write(self, inputs: Any) -> Any:
        """Record the arguments of an in-place write before it happens.

        Returns:
            None if it flowed in from outside, or is kept by the policy: then what is written there
            is kept. What this region and others have read of it before, they keep a copy of.
        """
        storage = inputs[0]._storage
        value = self.value_of(storage)
        if value is None or value.owner_region is None:
            leave_copies(storage)
            return None
        arguments, crossings = self.arguments(inputs)
        first = arguments[0]
        return arguments, crossings, first

    def filled(self, name: str, tensor: Tensor, f: Any, args: tuple[Any, ...]) -> None:
        """Record that a factory wrote values into new memory."""
        self._add(FillCall(name, tensor._spec, f, args), 0, tensor, None, "out")

    def moved(self, source: Tensor, out: Tensor) -> None:
        """Record a copy to another device."""
        (argument,), crossings = self.arguments((source,))
        call = MoveCall(argument, source._spec.device, out._spec)
        call.crossings = crossings
        self._add(call, 0, out, None, "out")

    def pass_ended(self) -> None:
        """Note that a backward pass has ended."""

    def became_writable(self, storage: Any) -> None:
        """Stop recomputing a storage that others can write to; keep its values instead."""
        self.recorded.pop(id(storage), None)

    def _add(self, call: Any, index: int, out: Tensor, plan: Any, result: str) -> ValueVersion:
        region = self.region
        assert region is not None
        storage = out._storage
        value = self.version_class(call, index, region)
        if region.policy is not None:
            name = call.name
            described = Value(plan, name, f"{name}.{result}", out._spec, region)
            value.owner_region, value.stash = _decide(region, described)
            if getattr(region.policy, "reconsiders", False):
                value.saved = True  # what it keeps by name is for what is made from it
            else:
                if value.stash is None and _reads_unsaved(call):
                    value.owner_region = None
                if value.owner_region is None:
                    value.producer = None  # it would keep what the value was computed from
        region.values += 1
        if listening():
            call.site = place(sys._getframe(2))
        recorded, key = self.recorded, id(storage)
        reference = _Reference(storage, _gone)  # no call in between: the callback reads them
        reference.recorded, reference.key = recorded, key
        value.lies_in(reference, storage.version)
        recorded[key] = value
        return value

    def save(self, tensor: Tensor, source: Any, index: int) -> Handle:
        """Return the handle of a value saved for backward."""
        value = self.value_of(tensor._storage)
        leaf = source is None and tensor._requires_grad and tensor._node is None
        if value is None or value.owner_region is None or leaf:
            if value is not None:
                value.saved = True
            return Held(tensor, source, index)
        assert self.region is not None
        owner_region = common(value.owner_region, self.region)
        return self._handle(tensor, value, owner_region, source, index)

    def _handle(
        self, tensor: Tensor, value: Any, owner_region: Region, source: Any, index: int
    ) -> Handle:
        # Of a value that a replay of the region brings back.
        return Recomputed(tensor, value, owner_region, source, index)


def _reads_unsaved(call: Any) -> bool:
    # It reads a value that the policy keeps and no node saves, such as the product before a ReLU,
    # of which backward wants a bit. To keep that for a replay, beside what the replay makes, takes
    # more than the step without a region: what is made from it is kept where a node saves it, and
    # lets go of it as ever. So a region holds nothing that the plain step would not.
    return any(
        a.__class__ is RegionInput and a.value is not None and not a.value.saved
        for a in call.arguments
    )


def _decide(region: Region, value: Value) -> tuple[Region | None, Any]:
    # The region whose replay brings the value back (None: it is kept), and how it is stashed.
    decision = region.policy(value)
    owner_region: Region | None = region
    while decision == PREFER_SAVE:
        assert owner_region is not None
        owner_region = owner_region.parent
        if owner_region is None:
            return None, None
        decision = RECOMPUTE if owner_region.policy is None else owner_region.policy(value)
    if decision == SAVE:
        return None, None
    if decision == RECOMPUTE:
        return owner_region, None
    if callable(decision):
        return owner_region, decision
    raise ValueError(
        f"A checkpointing policy must return 'save', 'prefer_save', 'recompute' or a stash such as "
        f"checkpointing.pack(); for {value.name} it returned {decision!r}."
    )
