"""Versions of values in a checkpointed region, and the calls that produce them.

A :class:`ValueVersion` is what one storage holds from one write to the next. It refers to the
storage weakly, and to its *producer*: the kernel call that wrote it, with that call's arguments. An
argument is a :class:`StridedView` on another value (offset, shape and strides: whatever chain of
views led there needs no replay), a ``Held`` value that flowed in from outside, or a scalar. So the
versions of a region form the recipe of each of its values, and reference counts keep of it exactly
what some handle may still ask for.

A write in place makes a new version, whose producer is the write; handles of the old one never read
the overwritten bytes.
"""

from __future__ import annotations

import weakref
from itertools import count
from typing import TYPE_CHECKING, Any, Protocol

from ...devices import backend, on_device
from ...memory.ledger import TEMPORARY
from ...modes import run_kernel
from ..saved import OWN, Held, Pin

if TYPE_CHECKING:
    from ...attribution.call_stacks import CallLine
    from ...spec import Spec
    from ...tensor import Tensor
    from .replay import Region

_order = count(1)


class ValueVersion:
    """The values of a storage between two writes.

    Attributes:
        producer: The call that can recompute it; None if it is kept.
        index: Which of the producer's results it is.
        owner_region: The region whose replay brings it back; None if a handle simply holds it.
        version: The storage's version for which it holds.
        consumers: How many handles, and calls of inner regions, may ask for it.
        pending_reads: How many of them have not read it since it was last recomputed.
        generation: Counts how often it was recomputed.
        held: A pin on the recomputed storage, until all readers have read it.
        stash: How to keep it (``checkpointing.stashes``), once a handle wants it; None to replay.
        saved: A node saves it, so it lives until backward, whatever is made from it; or the
            program gave it a name for a policy to keep.
    """

    __slots__ = (
        "__weakref__",
        "_storage",
        "consumers",
        "generation",
        "held",
        "index",
        "owner_region",
        "pending_reads",
        "producer",
        "saved",
        "stash",
        "version",
    )

    kept = False  # held until the bytes are needed, not until it is read (``evictable.py``)

    def __init__(self, producer: Producer, index: int, owner_region: Region | None) -> None:
        self.producer: Any = producer
        self.index = index
        self.owner_region = owner_region
        self.stash: Any = None
        self.held: Any = None
        self.saved = False
        self.consumers = self.pending_reads = self.generation = 0
        self._storage: Any = None
        self.version = 0

    def lies_in(self, reference: Any, version: int) -> None:
        """Set the storage that holds the values (a weak reference)."""
        self._storage = reference
        self.version = version

    def available(self) -> Any:
        """Return the storage if it is alive and unchanged, else None."""
        storage = self._storage()
        return storage if storage is not None and storage.version == self.version else None

    def hold(self, storage: Any) -> None:
        """Keep recomputed values until all pending readers have read them."""
        reference = weakref.ref(storage)
        held = Pin(storage) if self.consumers else None
        self._storage = reference  # no calls: recomputed, for all readers
        self.version = storage.version
        self.generation += 1
        self.pending_reads = self.consumers
        self.held = held

    def drop(self) -> None:
        """Release recomputed values; they live on while others use them."""
        self.held = None


class StridedView:
    """A strided view of a recorded value, as an argument of a call.

    Attributes:
        value: Whose.
        spec: Shape, dtype and device.
        place: (offset in bytes, strides), or None for all of the storage in C order.
    """

    __slots__ = ("place", "spec", "value")

    def __init__(self, value: ValueVersion, tensor: Tensor) -> None:
        self.value = value
        self.spec = tensor._spec
        self.place = place_of(tensor)

    def on(self, storage: Any) -> Any:
        """Return the view as an array on a storage."""
        return backend(self.spec.device).strided_view(storage, self.spec, self.place)


def place_of(tensor: Tensor) -> tuple[int, tuple[int, ...]] | None:
    """Return (offset in bytes, strides) of a tensor in its storage; None if it covers all of it."""
    array, storage = tensor._array, tensor._storage
    if array.flags.c_contiguous and tensor._spec.nbytes == storage.nbytes:
        return None
    offset = backend(tensor._spec.device).address(array) - storage.address
    return offset, tuple(array.strides)


class Producer(Protocol):
    """Protocol of recorded calls that can recompute values.

    Attributes:
        order: Producers run in this order.
        arguments: Windows, ``Held`` values and scalars, as the call had them.
        name: For messages, such as ``linear``.
        site: Where the call stood, while a profiler listened.
        crossings: Keep what flowed in from outer regions wanted there.
        scope: The scope it was called in.
    """

    order: int
    arguments: tuple[Any, ...]
    name: str
    site: tuple[str, CallLine] | None
    crossings: Any
    scope: Any

    def run(self, arrays: list[Any], old: Any) -> list[Any]:
        """Recompute the values: one storage per result. ``old`` is what may be overwritten."""


class _RecordedCall:
    __slots__ = ("__weakref__", "arguments", "crossings", "order", "scope", "site")

    def __init__(self, arguments: tuple[Any, ...]) -> None:
        self.arguments = arguments
        self.order = next(_order)
        self.site: tuple[str, CallLine] | None = None
        self.crossings: Any = None
        self.scope: Any = None


class OpCall(_RecordedCall):
    """A recorded call of a registered op."""

    __slots__ = ("plan",)

    def __init__(self, plan: Any, arguments: tuple[Any, ...]) -> None:
        super().__init__(arguments)
        self.plan = plan

    @property
    def name(self) -> str:
        """The op's name."""
        return self.plan.op.display_name  # type: ignore[no-any-return]

    def run(self, arrays: list[Any], old: Any) -> list[Any]:
        """Run the kernel again, over ``old`` if that is a storage."""
        plan = self.plan
        if old is not None:
            array = plan.backend.strided_view(old, plan.results[0], None)
            return [r._storage for r in plan.results_over(arrays, old, array)]
        if plan.simple:  # as in the dispatcher: nothing but a kernel and a result
            storage, array = plan.backend.empty(plan.results[0])
            if plan.run is not None:
                run_kernel(plan.run, array, *arrays)
            return [storage]
        return plan.storages(arrays)  # type: ignore[no-any-return]


class WriteCall(_RecordedCall):
    """A recorded in-place op.

    Attributes:
        target: The view that was written; its value is the one before.
    """

    __slots__ = ("plan", "target")

    def __init__(self, plan: Any, arguments: tuple[Any, ...], target: StridedView) -> None:
        super().__init__(arguments)
        self.plan = plan
        self.target = target

    @property
    def name(self) -> str:
        """The op's name with PyTorch's trailing underscore."""
        return f"{self.plan.op.display_name}_"

    def run(self, arrays: list[Any], old: Any) -> list[Any]:
        """Repeat the write into ``old``: the storage before it, or a copy of it."""
        self.plan.write(arrays, old, self.target.on(old), self.target.spec)
        old.version += 1
        return [old]


class FillCall(_RecordedCall):
    """A recorded factory call: a function that writes values into a new array."""

    __slots__ = ("args", "f", "name", "spec")

    def __init__(self, name: str, spec: Spec, f: Any, args: tuple[Any, ...]) -> None:
        super().__init__(())
        self.name = name
        self.spec = spec
        self.f = f
        self.args = args

    def run(self, arrays: list[Any], old: Any) -> list[Any]:
        """Write the values into new memory."""
        be = backend(self.spec.device)
        storage, array = be.empty(self.spec, TEMPORARY)
        if be.xp is not None:
            run_kernel(on_device(be, self.f), array, *self.args)
        return [storage]


class MoveCall(_RecordedCall):
    """A recorded copy from another device."""

    __slots__ = ("source", "spec")
    name = "to"

    def __init__(self, argument: Any, source: Any, spec: Spec) -> None:
        super().__init__((argument,))
        self.source = source
        self.spec = spec

    def run(self, arrays: list[Any], old: Any) -> list[Any]:
        """Copy again."""
        target = backend(self.spec.device)
        if target.xp is None:
            return [target.empty(self.spec)[0]]
        host = backend(self.source).to_host(arrays[0])
        return [target.from_host(host, self.spec, TEMPORARY)[0]]


class StashCall(_RecordedCall):
    """A value kept in another form: packed, in host memory, on disk.

    Attributes:
        stashed: Has ``restore() -> storage``.
    """

    __slots__ = ("stashed",)
    name = "stash"

    def __init__(self, stashed: Any, instead: Any) -> None:
        super().__init__(())
        self.stashed = stashed
        self.order = 0 if instead is None else instead.order  # of the producer it stands for

    def run(self, arrays: list[Any], old: Any) -> list[Any]:
        """Restore the stashed value."""
        return [self.stashed.restore()]


class RegionInput(Held):
    """A value that a region reads but did not compute; kept without its history.

    Attributes:
        value: Of a value that the region did compute, but its policy keeps; else None.
    """

    __slots__ = ("__weakref__", "value")

    def __init__(self, tensor: Tensor, value: ValueVersion | None) -> None:
        super().__init__(tensor, OWN)
        self.value = value

    def keep_copy(self, copies: dict[Any, Any]) -> None:
        """Replace the value by a copy with the same strides, before it is overwritten.

        Args:
            copies: What was copied for this write already, by place and spec.
        """
        spec, array = self.spec, self.array
        be = backend(spec.device)
        key = (spec, place := (be.address(array), tuple(array.strides)))
        if key not in copies:
            steps = zip(spec.shape, array.strides, strict=True)
            span = sum((n - 1) * s for n, s in steps) // spec.dtype.itemsize + 1
            storage, _ = be.empty(spec.like((span if spec.numel else 0,)), TEMPORARY)
            copy = be.strided_view(storage, spec, (0, place[1]))
            if be.xp is not None:
                run_kernel(be.copy, copy, array)
            copies[key] = storage, copy
        storage, copy = copies[key]
        pin = Pin(storage)  # this handle takes it over, and gives the one it had, without a call
        self.storage, self.array, pin.storage = storage, copy, self.storage
        self.version = storage.version


__all__ = [
    "FillCall",
    "MoveCall",
    "OpCall",
    "Producer",
    "RegionInput",
    "StashCall",
    "StridedView",
    "ValueVersion",
    "WriteCall",
    "place_of",
]
