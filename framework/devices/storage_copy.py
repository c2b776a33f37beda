"""``copy.deepcopy`` of memory: each storage once, and each tensor's copy as a view of its copy.

What tensors share, their copies share: the storage is copied whole, as PyTorch does it, and each
copy has the offset and the strides of its original. So a tied state dict stays tied, and an
expanded tensor as small as it is. The price is PyTorch's, too: the copy of a small view takes the
bytes of all its base; ``view.clone()`` takes only its own.
"""

from __future__ import annotations

from typing import Any

from ..dtypes import uint8
from ..memory.ledger import SAVED, TEMPORARY
from ..spec import Spec
from ..storage import AliasStorage
from . import backend
from .storage_bytes import bytes_of, length_of

_MEMO = "lowtide storages"  # a key of deepcopy's memo, whose other keys are ids


def copied_storage(storage: Any, where: Any, memo: dict[Any, Any]) -> Any:
    """Return the copy of a storage: that of ``memo``, or a new one.

    An alias (``Tensor.data``) becomes an alias of the copy, with a separate version.

    Args:
        storage: That of a tensor.
        where: Its device.
        memo: The one of ``copy.deepcopy``.
    """
    done = memo.setdefault(_MEMO, {})
    found = done.get(id(storage))
    if found is None:
        if isinstance(storage, AliasStorage):
            copied = AliasStorage(copied_storage(storage.root, where, memo))
        else:
            copied = _copy(storage, where)
        found = done[id(storage)] = storage, copied  # both, so that no other gets this id
    return found[1]


def copied_array(array: Any, spec: Spec, storage: Any, memo: dict[Any, Any]) -> tuple[Any, Any]:
    """Copy the memory of a tensor.

    Returns:
        (storage, array): The copy of its storage, and the array of the same place in it.
    """
    be = backend(spec.device)
    start = be.address(array) - storage.address if spec.numel else 0
    last = sum([(n - 1) * s for n, s in zip(spec.shape, array.strides, strict=True)])
    length = length_of(storage)
    if spec.numel and not 0 <= start <= start + last <= length - spec.dtype.itemsize:
        # It reaches beyond the array that it was made from, whose bytes are not ours to copy.
        alone, out = be.empty(spec, role_of_copy(storage))
        be.copy(out, array)
        return alone, out
    copied = copied_storage(storage, spec.device, memo)
    return copied, be.strided_view(copied, spec, (start, array.strides))


def role_of_copy(storage: Any) -> int:
    """Return the role for a copy: that of the storage, but nothing saved it."""
    role: int = storage.role
    return TEMPORARY if role == SAVED else role


def _copy(storage: Any, where: Any) -> Any:
    be = backend(where)
    spec = Spec((length_of(storage),), uint8, where)
    copied, out = be.empty(spec, role_of_copy(storage))
    if be.xp is not None and spec.numel:
        be.copy(out, bytes_of(storage, where))
    return copied
