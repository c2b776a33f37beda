"""Stashes: saved values kept in another form, such as offloaded or packed.

A :class:`Stash` turns the bytes of a storage into something that can bring them back: a smaller
array (``packing.py``), a buffer on another device (``offload.py``), a place in a file
(``disk.py``). It is taken once for each storage, when something first wants the value for backward,
and holds until nothing wants it any more.

Each serves in three places:

- as the decision of a policy on one value: ``policy({"bytes>=1MiB": offload()})``;
- as the policy of a region, ``checkpoint(block, x, policy=offload())``: whatever the region would
  keep without checkpointing is stashed, and so is what inner regions need from it;
- as a context manager or decorator outside of any region: the same.

So ``with offload():`` around blocks that are checkpointed recomputes inside the blocks and has
their inputs elsewhere.

Leaves, parameters and buffers are never stashed: they live anyway.
"""

from __future__ import annotations

from threading import get_ident
from typing import Any, Protocol

from ..autograd.remat.recorder import RegionRecorder, _gone, _Reference
from ..autograd.remat.replay import Region
from ..autograd.remat.values import StashCall, ValueVersion
from ..autograd.saved import Pin, written_at
from ..devices import backend
from ..dtypes import uint8
from ..errors import GradientError
from ..interrupts import RestoringExit, WholeContext
from ..memory.ledger import SAVED, TEMPORARY
from ..memory.sizes import as_bytes
from ..modes import local, run_kernel, state_of_thread
from ..spec import Spec
from ..tensor import Tensor


class Stashed(Protocol):
    """Protocol of one storage's bytes in another form."""

    @property
    def nbytes(self) -> int:
        """Bytes that the stashed form takes, as the ledgers count them."""

    def restore(self) -> Any:
        """Return a storage with the original bytes."""


class Stash(WholeContext):
    """Base class of stashes: a subclass defines in :meth:`stash` how to keep a tensor's bytes.

    Args:
        min_bytes: Storages smaller than this are kept as they are; bytes, or text: "1MiB".
    """

    speed = 1e9  # bytes a second, out and back each: by it a budget compares it with recomputing

    def __init__(self, min_bytes: int | str = 0) -> None:
        self.min_bytes = as_bytes(min_bytes, f"{type(self).__name__}: min_bytes")
        self._open: dict[int, list[Any]] = {}  # regions that are entered, by thread

    def stash(self, tensor: Tensor) -> Stashed:
        """Keep the whole storage of ``tensor``, whose dtype says how to read the bytes."""
        raise NotImplementedError

    def at_once(self) -> Stash:
        """Return a stash like this whose values leave the device before the call returns."""
        return self

    def __call__(self, what: Any) -> Any:
        """Stash a tensor; decide, as a policy, to stash a value; or decorate a function."""
        if isinstance(what, Tensor):
            if what._storage.nbytes < max(self.min_bytes, 1):
                return UncopiedStorage(what._storage)
            with unrecorded():
                return self.stash(what)
        if callable(what):
            from .regions import checkpointing

            return checkpointing(self)(what)
        return self

    def _enter(self) -> Any:
        from .regions import checkpointing

        region = checkpointing(self)
        region._enter()
        self._open.setdefault(get_ident(), []).append(region)
        return self

    def _leave(self) -> None:
        mine = self._open[get_ident()]
        region = mine.pop()
        if not mine:
            del self._open[get_ident()]
        region._leave()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": {}}


class unrecorded:
    """A context in which no graph and no region records, so that a stash may call ops."""

    def __init__(self) -> None:
        self._before: list[Any] = [None] * 4

    def __enter__(self) -> None:
        state = local.state
        self._before[:] = state.grad, state.recorder, state.saver, state.notes_results
        state.grad, state.recorder, state.saver, state.notes_results = (
            False,
            None,
            None,
            state.inference,
        )

    __exit__ = RestoringExit(state_of_thread, "grad", "recorder", "saver", "notes_results")


class UncopiedStorage:
    """The storage itself, where another form has no room for it or gains nothing."""

    __slots__ = ("pin", "version")

    def __init__(self, storage: Any) -> None:
        self.pin = Pin(storage)
        self.version = storage.version

    @property
    def storage(self) -> Any:
        """The storage."""
        return self.pin.storage

    @property
    def nbytes(self) -> int:
        """Bytes of the storage."""
        return int(self.storage.nbytes)

    def restore(self) -> Any:
        """Return the storage.

        Raises:
            GradientError: It was written in place since.
        """
        if self.storage.version != self.version and not self.storage.restore(self.version):
            raise written_since(self.storage, self.version)
        return self.storage

    def before_write(self) -> None:
        """Copy the storage before it is overwritten inside the region."""
        storage = self.storage
        if storage.version == self.version:
            be = backend(storage.ledger.device)
            fresh, copy = new_storage(be.device, storage.nbytes)
            if be.xp is not None:
                run_kernel(be.copy, copy, array_of(storage, be.device))
            pin = Pin(fresh)
            self.pin, self.version = pin, fresh.version


def written_since(storage: Any, version: int) -> GradientError:
    """Build the error for a value that was overwritten while its stash still needed it."""
    return GradientError(
        f"A value of {storage.nbytes} bytes that a checkpointed region keeps has been modified by "
        f"an inplace operation{written_at(storage)}: version {version} then, {storage.version} "
        "now. Use the out-of-place op, or clone before changing it."
    )


def array_of(storage: Any, device: Any, dtype: Any = uint8) -> Any:
    """View all of a storage as one flat array."""
    spec = Spec((storage.nbytes // dtype.itemsize,), dtype, device)
    return backend(device).strided_view(storage, spec, None)


def new_storage(device: Any, count: int, dtype: Any = uint8, role: int = SAVED) -> tuple[Any, Any]:
    """Allocate a storage of ``count`` elements; return it and an array on all of it."""
    return backend(device).empty(Spec((count,), dtype, device), role)


class StashRegion(Region):
    """A region whose policy is a stash: it also stashes what inner regions read from outside."""

    __slots__ = ()

    def stash(self, value: ValueVersion, tensor: Tensor) -> None:
        """Stash a version of a value before it is needed; only the first call does it."""
        if value.stash is None:
            value.stash = self.policy
        super().stash(value, tensor)


class WriteCheckingRecorder(RegionRecorder):
    """A recorder that tells stashes of in-place writes to what they may still be copying."""

    __slots__ = ()

    def before_write(self, inputs: Any) -> Any:
        """Record the arguments of an in-place write before it happens."""
        value = self.value_of(inputs[0]._storage)
        noted = super().before_write(inputs)  # wants the value again: that may stash it
        if value is not None and isinstance(value.producer, StashCall):
            stashed = value.producer.stashed
            if hasattr(stashed, "before_write"):
                stashed.before_write()
        return noted


class StashRecorder(WriteCheckingRecorder):
    """The recorder of an outermost stash region: also stashes values computed before it."""

    __slots__ = ("around",)

    def __init__(self, around: StashRegion) -> None:
        super().__init__()
        self.around = around

    def arguments(self, inputs: Any) -> Any:
        """Return the inputs of a call as recorded."""
        for x in inputs:
            if isinstance(x, Tensor):
                self._adopt(x)
        return super().arguments(inputs)

    def save(self, tensor: Tensor, source: Any, index: int) -> Any:
        """Return the handle of a value saved for backward."""
        self._adopt(tensor)
        return super().save(tensor, source, index)

    def _adopt(self, tensor: Tensor) -> None:
        # What flowed in becomes known, unless it lives anyway: a leaf, or a view of one.
        viewed = tensor._viewed
        root = tensor if viewed is None else viewed.base
        storage = tensor._storage
        if root._node is None or storage.ledger is None or storage.role not in (TEMPORARY, SAVED):
            return
        if self.value_of(storage) is not None:
            return
        value = ValueVersion(None, 0, self.around)  # type: ignore[arg-type]  # stashed before asked
        value.stash = self.around.policy
        recorded, key = self.recorded, id(storage)
        reference = _Reference(storage, _gone)  # no call in between: the callback reads them
        reference.recorded, reference.key = recorded, key
        value.lies_in(reference, storage.version)
        recorded[key] = value


__all__ = [
    "Stash",
    "StashRecorder",
    "StashRegion",
    "Stashed",
    "UncopiedStorage",
    "WriteCheckingRecorder",
    "array_of",
    "new_storage",
    "unrecorded",
    "written_since",
]
