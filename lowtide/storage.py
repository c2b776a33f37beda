"""Storages: handles of the memory that tensors share."""

from lowtide.framework.ops import TypedStorage as TypedStorage
from lowtide.framework.ops import UntypedStorage as UntypedStorage

_StorageBase = UntypedStorage
