"""The bytes of a storage, ours or not: how many there are, and arrays that read them."""

from __future__ import annotations

from typing import Any

from ..dtypes import uint8
from ..kernels.common.strided import strided
from ..spec import Spec
from ..storage import ExternalStorage
from . import backend


def length_of(storage: Any) -> int:
    """Bytes from the first to the last; an array of someone else may have gaps."""
    if not isinstance(storage.root, ExternalStorage):
        return int(storage.nbytes)
    owner = storage.root.owner
    if not owner.size:
        return 0
    gaps = zip(owner.shape, owner.strides, strict=True)
    return int(owner.itemsize + sum([(n - 1) * s for n, s in gaps]))


def bytes_of(storage: Any, where: Any) -> Any:
    """Return the bytes of a storage as an array that keeps them alive.

    Args:
        storage: One of ``where``.
        where: Its device.
    """
    be, length = backend(where), length_of(storage)
    if not isinstance(storage.root, ExternalStorage):
        return be.strided_view(storage, Spec((length,), uint8, where), None)
    owner = storage.root.owner
    flat = (length // owner.itemsize,)
    line: Any = strided(be.xp, owner, flat, (owner.itemsize,))  # type: ignore[no-untyped-call]
    return line.view("u1")


def window_on(storage: Any, spec: Spec, offset: int, strides: tuple[int, ...]) -> Any:
    """Return the array of ``spec`` on bytes of a storage, which the caller knows to be there.

    Args:
        storage: One of the spec's device.
        spec: Shape and dtype.
        offset: Where it starts, in bytes.
        strides: Its steps, in bytes.
    """
    be = backend(spec.device)
    if not isinstance(storage.root, ExternalStorage):
        return be.strided_view(storage, spec, (offset, strides))
    last = sum([(n - 1) * s for n, s in zip(spec.shape, strides, strict=True)])
    end = offset + last + spec.dtype.itemsize if spec.numel else offset
    line = bytes_of(storage, spec.device)[offset:end].view(spec.np_dtype)
    return strided(be.xp, line, spec.shape, strides)  # type: ignore[no-untyped-call]
