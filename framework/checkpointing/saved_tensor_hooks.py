"""Saved-tensor hooks around a checkpointed region.

``saved_tensors_hooks`` outside of a region would see nothing of it: inside, values saved for
backward are the region's. So a region that is opened within hooks stands in a region whose stash
they are. They get what the blocks keep, as under any stash: each storage once, and no leaves.
"""

from __future__ import annotations

from typing import Any

from ..autograd.saved import HookSaver
from ..dtypes import uint8
from ..spec import Spec
from ..tensor import Tensor, wrap
from .stash import Stash, Stashed, UncopiedStorage, array_of, unrecorded


class Hooks(Stash):
    """A stash that packs values by a pair of hooks.

    Args:
        saver: Has them.
    """

    def __init__(self, saver: HookSaver) -> None:
        super().__init__()
        self.saver = saver

    def stash(self, tensor: Tensor) -> Stashed:
        """Pack the storage of ``tensor``."""
        return Packed(_whole(tensor), self.saver)


class Packed:
    """The result of a pack hook for one storage."""

    __slots__ = ("kept", "packed", "saver", "spec")

    def __init__(self, tensor: Tensor, saver: HookSaver) -> None:
        storage = tensor._storage
        version = storage.version
        self.saver = saver
        self.spec = tensor._spec
        self.packed = saver.pack(tensor)
        if storage.version != version:
            raise RuntimeError(
                "A saved tensor pack hook is modifying its input in place. Clone it first."
            )
        same = isinstance(self.packed, Tensor) and self.packed._storage is storage
        self.kept = UncopiedStorage(storage) if same else None  # it watches for writes

    @property
    def nbytes(self) -> int:
        """Bytes kept by a packed tensor; 0 for anything else the hook returned."""
        return int(self.packed._storage.nbytes) if isinstance(self.packed, Tensor) else 0

    def restore(self) -> Any:
        """Call the unpack hook and return a storage with its result.

        Raises:
            GradientError: The hook kept the storage itself, and it was written since.
            RuntimeError: What the unpack hook returns is not what was packed.
        """
        if self.kept is not None:
            self.kept.restore()
        with unrecorded():
            value = self.saver.unpack(self.packed)
            spec = self.spec
            if not isinstance(value, Tensor) or value._spec.shape != spec.shape:
                got = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
                raise RuntimeError(
                    f"The unpack hook must return the tensor of shape {tuple(spec.shape)} that a "
                    f"checkpointed region keeps; it returned {got}."
                )
            value = value.to(spec.device, spec.dtype).contiguous()
            storage = value._storage
            if storage.ledger is None or storage.nbytes != spec.nbytes:  # of NumPy, or a part
                storage = value.clone()._storage
        return storage


def _whole(tensor: Tensor) -> Tensor:
    # All of the storage: the tensor itself, or one dimension of it.
    storage, spec = tensor._storage, tensor._spec
    if spec.nbytes == storage.nbytes and tensor._array.flags.c_contiguous:
        return wrap(tensor._array, spec, storage)
    dtype = uint8 if storage.nbytes % spec.dtype.itemsize else spec.dtype
    flat = Spec((storage.nbytes // dtype.itemsize,), dtype, spec.device)
    return wrap(array_of(storage, spec.device, dtype), flat, storage)


__all__ = ["Hooks", "Packed"]
