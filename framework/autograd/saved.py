"""Saved tensors: handles of the values that nodes keep for backward.

A node never keeps a bare array or the user's tensor. It keeps a handle, and asks it for the value
when backward comes: ``handle.unpack(node)``. How the handle gets it is its state. Here is the
state *held* (the array itself) and the state *hooked* (what ``saved_tensors_hooks`` packed);
recomputing, packing and offloading are further classes with the same four members, and whatever
decides (``modes.State.saver``) picks the class, at save time or later by replacing the handle in
``node.handles``.

A handle to a node's own output refers to the node by None: a reference would be a cycle, and
cycles keep memory until the garbage collector comes.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol

from ..attribution.frames import user_line
from ..dtypes import FLOAT
from ..errors import GradientError
from ..interrupts import finalizer
from ..memory.events import publish
from ..memory.ledger import SAVED, TEMPORARY
from ..modes import local
from ..tensor import Tensor, wrap
from .node import Alias, _sequence, attach

if TYPE_CHECKING:
    from ..spec import Spec

OWN = object()  # the source of a node's own output


class Handle(Protocol):
    """Protocol of handles of saved values."""

    spec: Spec

    @property
    def nbytes(self) -> int:
        """Bytes of the value as backward reads it."""

    @property
    def held_bytes(self) -> int:
        """Bytes of storage that this handle keeps alive."""

    def unpack(self, node: Any, label: str) -> Tensor:
        """Return the value, connected to the graph as when it was saved."""


class Pin:
    """A pin of a storage: as long as it lives, a graph holds the storage."""

    __slots__ = ("storage",)

    def __init__(self, storage: Any) -> None:
        self.storage = storage  # no call before the next line
        storage.pins += 1
        if storage.role == TEMPORARY:
            storage.set_role(SAVED)

    @finalizer
    def __del__(self) -> None:
        try:
            storage = self.storage
        except AttributeError:  # interrupted at its birth
            return
        storage.pins -= 1  # no call since the test: an interrupt comes before or after both
        if storage.pins == 0 and storage.role == SAVED:
            n, ledger = storage.nbytes, storage.ledger
            storage.role = TEMPORARY
            if ledger is not None:
                ledger.roles[TEMPORARY] += n
                ledger.roles[SAVED] -= n
                if ledger.observers:
                    publish(ledger, "role", storage, SAVED)


class Held(Pin):
    """A saved value that is kept unchanged.

    Args:
        tensor: The value.
        source: ``OWN`` for an output of the node that saves it; else unused.
        index: Which output, with ``OWN``.
    """

    __slots__ = ("array", "index", "source", "spec", "version")

    def __init__(self, tensor: Tensor, source: Any = None, index: int = 0) -> None:
        storage = tensor._storage
        self.array = tensor._array
        self.spec = tensor._spec
        # Pin.__init__, written out: every saved value comes by here.
        self.storage = storage  # no call in between: __del__ takes it back in any case
        storage.pins += 1
        self.version = storage.version
        if source is None:
            if tensor._requires_grad:
                source = tensor._node
                if source is None:
                    source = tensor  # a leaf: a later gradient of this value is its gradient
                else:
                    index = tensor._index
            elif tensor._extra is not None:
                check_savable(tensor)
        self.source = source
        self.index = index
        # LedgerEntry.set_role, written out: every saved value comes by here.
        if storage.role == TEMPORARY:
            ledger = storage.ledger
            if ledger is not None:
                n = storage.nbytes
                roles = ledger.roles
                storage.role = SAVED
                roles[TEMPORARY] -= n
                roles[SAVED] += n
                if ledger.live == ledger.peak:
                    ledger.peak_roles = roles[:]
                if ledger.observers:
                    publish(ledger, "role", storage, TEMPORARY)

    @property
    def nbytes(self) -> int:
        """Bytes of the value."""
        return self.spec.nbytes

    @property
    def held_bytes(self) -> int:
        """Bytes of the storage kept alive: a view keeps all of its base."""
        return int(self.storage.nbytes)

    def unpack(self, node: Any, label: str) -> Tensor:
        """Return the value; raises if it was modified in place since."""
        if self.storage.version != self.version and not self.storage.restore(self.version):
            raise GradientError(
                f"A tensor kept by {node.name()} ({label}, shape {tuple(self.spec.shape)}) has "
                f"been modified by an inplace operation{written_at(self.storage)} after it was "
                f"kept: version {self.version} then, {self.storage.version} now. Use the "
                "out-of-place op, or clone before changing it."
            )
        if _behind:
            warn_of_write_behind(self, node, label)
        source = self.source
        if source is None or self.spec.dtype.category < FLOAT:  # indices carry no gradient
            return wrap(self.array, self.spec, self.storage)
        if source is OWN:
            source = node
        elif isinstance(source, Tensor):
            if source._array is self.array:
                return source
            # The leaf got other data (`p.data = ...`): backward needs the value it had.
            return as_value_of(source, wrap(self.array, self.spec, self.storage))
        value = wrap(self.array, self.spec, self.storage)
        value._node = source
        value._index = self.index
        value._requires_grad = True
        return value


_writes: dict[int, tuple[Any, str]] = {}  # of values a graph keeps: weak storage, op and line


def remember_write(storage: Any, op: str) -> None:
    """Record, for error messages, where a saved value was overwritten."""
    try:
        key = id(storage)
        gone = weakref.ref(storage, lambda _: _writes.pop(key, None))
    except TypeError:  # memory that belongs to someone else
        return
    line = user_line()
    _writes[key] = (gone, f"({op}{' at ' + line if line else ''})")


def count_write(storage: Any, by: str) -> None:
    """Increment the version of a storage after a write, and record the writer."""
    storage.version += 1
    if storage.pins:
        remember_write(storage, by)
        if storage.root is not storage:
            _remember_write_behind(storage)


def count_writes(storages: Iterable[Any], by: str) -> None:
    """Do what :func:`count_write` does, for many storages."""
    for storage in storages:
        if storage.pins:
            count_write(storage, by)
        else:
            storage.version += 1


# Writes through `.data` into what a graph keeps, by id of the storage that owns the bytes: (weak
# storage, number of nodes recorded by then, op and line).
_behind: dict[int, tuple[Any, int, str]] = {}
_warned: set[str] = set()


def _remember_write_behind(alias: Any) -> None:
    root = alias.root
    try:
        key = id(root)
        gone = weakref.ref(root, lambda _: _behind.pop(key, None))
    except TypeError:  # memory that belongs to someone else
        return
    _behind[key] = (gone, next(_sequence), written_at(alias))


def warn_of_write_behind(handle: Held, node: Any, label: str) -> None:
    """Warn, once for each line that writes, if a kept value was written through ``.data`` since."""
    root = handle.storage.root
    found = _behind.get(id(root))
    if found is None or found[0]() is not root or node.seq > found[1] or found[2] in _warned:
        return
    _warned.add(found[2])
    warnings.warn(
        f"A tensor kept by {node.name()} ({label}, shape {tuple(handle.spec.shape)}) was written "
        f"through .data{found[2]} after it was kept, which no version counts: its gradients are "
        "those of the new values. Write after backward, or through .detach() to make this an "
        "error; clone before changing it if backward needs the old values.",
        UserWarning,
        stacklevel=2,
    )


def written_at(storage: Any) -> str:
    """Format where a storage was last overwritten, if known: `` (relu_ at train.py:12)``."""
    found = _writes.get(id(storage))
    return f" {found[1]}" if found is not None and found[0]() is storage else ""


def check_savable(tensor: Tensor, label: str = "") -> None:
    """Raise an error for an inference tensor, which cannot be saved for backward.

    Args:
        tensor: What would be saved.
        label: The op and its operand, such as ``mul.other``.

    Raises:
        GradientError: It is one, and no gradient leads to it.
    """
    if tensor._extra is not None and tensor._extra.get("inference") and not tensor._requires_grad:
        op, _, operand = label.rpartition(".")
        whose = f"; backward of {op} reads its {operand}" if label else ""
        raise GradientError(
            f"Inference tensors cannot be saved for backward{whose}, of shape "
            f"{tuple(tensor.shape)} and dtype {tensor.dtype}, which was made under inference_mode. "
            "Use its .clone(), made outside inference_mode, or make it under no_grad instead."
        )


def as_value_of(leaf: Tensor, value: Tensor) -> Tensor:
    """Connect another tensor of a leaf's values to the leaf, so that gradients reach it."""
    if local.state.grad and leaf._requires_grad:
        attach(value, Alias(leaf))
    return value


class PackedValue:
    """A saved value that a user's pack hook converted.

    The tensors among what the hook returned (itself, or elements of a list, tuple or dict) are what
    the graph holds: their bytes count as saved.

    Source:
        The contract of ``torch.autograd.graph.saved_tensors_hooks``.
    """

    __slots__ = ("index", "packed", "pinned", "source", "spec", "unpack_hook", "version")

    def __init__(self, tensor: Tensor, source: Any, index: int, pack: Any, unpack: Any) -> None:
        self.pinned: tuple[Pin, ...] = ()
        self.spec = tensor._spec
        if source is None and tensor._requires_grad:
            source = tensor._node
            if source is None:
                source = tensor
            else:
                index = tensor._index
        self.source = source
        self.index = index
        self.unpack_hook = unpack
        storage = tensor._storage
        version = storage.version
        value = tensor.detach() if source is OWN else tensor
        state = local.state
        before, state.saver = state.saver, None
        try:
            # Without its history: a hook that keeps the tensor must not keep a cycle.
            self.packed = pack(value)
        finally:
            state.saver = before
        if storage.version != version:
            raise RuntimeError(
                "A saved tensor pack hook is modifying its input in place. Tensors provided as "
                "input to pack hook can not be modified by in-place operations as this can lead "
                "to unexpected side-effects. Clone it first."
            )
        # A keeper of the very bytes is warned of a write, as the graph itself would be.
        same = isinstance(self.packed, Tensor) and self.packed._storage is storage
        self.version = version if same else None
        self.pinned = tuple(Pin(t._storage) for t in _tensors_in(self.packed))

    @property
    def nbytes(self) -> int:
        """Bytes of the value."""
        return self.spec.nbytes

    @property
    def held_bytes(self) -> int:
        """Bytes kept by the tensors that the hook returned; 0 for anything else."""
        held = [pin.storage for pin in self.pinned]
        return sum({id(storage.root): int(storage.nbytes) for storage in held}.values())

    def unpack(self, node: Any, label: str) -> Tensor:
        """Call the unpack hook and return its result as the saved value."""
        kept = self.packed._storage if self.version is not None else None
        if kept is not None and kept.version != self.version and not kept.restore(self.version):
            raise GradientError(
                f"A tensor kept by {node.name()} ({label}, shape {tuple(self.spec.shape)}) has "
                "been modified by an inplace operation after a pack hook kept it as it was: "
                f"version {self.version} then, {self.packed._storage.version} now. Clone it in "
                "the hook, or before changing it."
            )
        value = self.unpack_hook(self.packed)
        if not isinstance(value, Tensor) or value._spec.shape != self.spec.shape:
            got = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise RuntimeError(
                f"The unpack hook must return the tensor of shape {tuple(self.spec.shape)} that "
                f"{node.name()} saved as {label}; it returned {got}."
            )
        source = self.source
        if source is None or value is source:
            return value
        out = wrap(value._array, value._spec, value._storage)
        if isinstance(source, Tensor):
            return source if value._array is source._array else as_value_of(source, out)
        out._node = node if source is OWN else source
        out._index = self.index
        out._requires_grad = True
        return out


def _tensors_in(packed: Any) -> list[Tensor]:
    if isinstance(packed, Tensor):
        return [packed]
    inner = packed.values() if isinstance(packed, dict) else packed
    several = isinstance(packed, dict | list | tuple)
    return [t for t in inner if isinstance(t, Tensor)] if several else []


class HookSaver:
    """Saves tensors for backward through a pair of hooks."""

    __slots__ = ("pack", "unpack")

    def __init__(self, pack: Any, unpack: Any) -> None:
        self.pack = pack
        self.unpack = unpack

    def save(self, tensor: Tensor, source: Any, index: int) -> Handle:
        """Return the handle of one value; the dispatcher calls it once per value."""
        return PackedValue(tensor, source, index, self.pack, self.unpack)
