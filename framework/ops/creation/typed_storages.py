"""``TypedStorage``, and PyTorch's older classes for each dtype: ``FloatStorage`` and its kin."""

from __future__ import annotations

from typing import Any

from ... import dtypes
from ...device import device
from ...dtypes import dtype as dtype_class
from ..registry import public
from .factory import dtype_of
from .legacy_types import LEGACY_NAMES
from .storages import StorageHandle, UntypedStorage, elements


@public
class TypedStorage(StorageHandle):
    """The storage of a tensor as elements, shared by its views.

    Args:
        args: Nothing, the number of elements, or their values.
        wrap_storage: The bytes to take, in place of new ones.
        dtype: Of the elements; by default the default dtype.
        device: Where they shall lie.
    """

    def __init__(
        self,
        *args: Any,
        wrap_storage: UntypedStorage | None = None,
        dtype: Any = None,
        device: Any = None,
        _internal: bool = False,
    ) -> None:
        wanted = dtypes.get_default_dtype() if dtype is None else dtype_of("TypedStorage", dtype)
        if wrap_storage is None:
            found: Any = elements(type(self).__name__, args, wanted, device)
        elif args or not isinstance(wrap_storage, UntypedStorage):
            raise TypeError(
                f"{type(self).__name__}: wrap_storage is an UntypedStorage, without further "
                f"arguments; got {type(wrap_storage).__name__} and {len(args)} arguments."
            )
        else:
            found = wrap_storage
        self._storage, self.device, self._dtype = found._storage, found.device, wanted

    @classmethod
    def _handle(cls, storage: Any, where: device, dtype: dtype_class) -> TypedStorage:
        found = object.__new__(cls)
        found._storage, found.device, found._dtype = storage, where, dtype
        return found

    @property
    def dtype(self) -> dtype_class:
        """The type of the elements that ``size()`` counts."""
        return self._dtype

    _untyped_storage = property(StorageHandle.untyped)

    def _of(self, storage: Any) -> TypedStorage:
        return TypedStorage._handle(storage, self.device, self._dtype)

    def _new_wrapped_storage(self, untyped_storage: UntypedStorage) -> TypedStorage:
        return TypedStorage(wrap_storage=untyped_storage, dtype=self._dtype)

    def __getitem__(self, index: Any) -> Any:
        """Return an element."""
        if isinstance(index, slice):
            raise RuntimeError(
                "slices are only supported in UntypedStorage.__getitem__. Take them of untyped()."
            )
        return self._values("__getitem__")[self._index(index)].item()

    def type(self, dtype: Any = None, non_blocking: bool = False) -> Any:
        """Return the name of the older class; with a dtype or its name, convert."""
        if dtype is None:
            return f"lowtide.{self.pickle_storage_type()}"
        if isinstance(dtype, str):
            dtype = LEGACY_STORAGES[dtype.rpartition(".")[2]]
        return self._converted(getattr(dtype, "dtype", dtype))

    def pickle_storage_type(self) -> str:
        """The name of the older class, such as ``'FloatStorage'``."""
        return _NAME_OF[self._dtype]

    def _converted(self, dtype: dtype_class) -> TypedStorage:
        out = self._values("type").to(dtype, copy=True)
        return TypedStorage._handle(out._storage, out.device, dtype)

    @classmethod
    def from_file(cls, filename: Any, shared: bool = False, size: int = 0) -> TypedStorage:
        """Map a file as elements; see :meth:`UntypedStorage.from_file`."""
        dtype = _class_dtype(cls)
        found = UntypedStorage.from_file(filename, shared, size * dtype.itemsize)
        out = TypedStorage(wrap_storage=found, dtype=dtype)
        out.filename = found.filename
        return out

    @classmethod
    def from_buffer(
        cls, buffer: Any, byte_order: str = "native", count: int = -1, offset: int = 0
    ) -> TypedStorage:
        """Copy elements of a buffer; see :meth:`UntypedStorage.from_buffer`."""
        dtype = _class_dtype(cls)
        found = UntypedStorage.from_buffer(buffer, byte_order, count, offset, dtype=dtype)
        return TypedStorage(wrap_storage=found, dtype=dtype)

    _from_buffer = from_buffer


def _class_dtype(cls: Any) -> dtype_class:
    if cls is TypedStorage:
        raise RuntimeError(
            "from_file and from_buffer may only be called of a class with a dtype, such as "
            "lowtide.FloatStorage, or of lowtide.UntypedStorage."
        )
    found: dtype_class = cls.dtype
    return found


class _OfDtype(type):
    """Makes ``isinstance(x, FloatStorage)`` ask for x's dtype."""

    dtype: Any

    def __call__(cls, *args: Any, wrap_storage: Any = None) -> TypedStorage:
        return TypedStorage(*args, wrap_storage=wrap_storage, dtype=cls.dtype)

    def __instancecheck__(cls, x: Any) -> bool:
        return isinstance(x, TypedStorage) and x.dtype is cls.dtype and x.device.type == "cpu"


LEGACY_STORAGES: dict[str, Any] = {}
for _name, _of in LEGACY_NAMES.items():
    LEGACY_STORAGES[f"{_name}Storage"] = public(
        _OfDtype(
            f"{_name}Storage",
            (),
            {
                "dtype": _of,
                "from_file": classmethod(TypedStorage.from_file.__func__),  # type: ignore[attr-defined]
                "from_buffer": classmethod(TypedStorage.from_buffer.__func__),  # type: ignore[attr-defined]
                "_from_buffer": classmethod(TypedStorage.from_buffer.__func__),  # type: ignore[attr-defined]
                "__doc__": f"Storages of {_of.name} on the CPU: PyTorch's older constructor.",
                "__module__": __name__,
            },
        )
    )
_NAME_OF = {cls.dtype: name for name, cls in LEGACY_STORAGES.items()}

# Storages of bytes convert them as elements of uint8.
_CONVERSIONS = {
    "float": "float32",
    "double": "float64",
    "half": "float16",
    "bfloat16": "bfloat16",
    "long": "int64",
    "int": "int32",
    "short": "int16",
    "char": "int8",
    "byte": "uint8",
    "bool": "bool_",
    "complex_float": "complex64",
    "complex_double": "complex128",
    "float8_e5m2": "float8_e5m2",
    "float8_e4m3fn": "float8_e4m3fn",
}


def _conversion(name: str, to: dtype_class) -> Any:
    def convert(self: StorageHandle) -> TypedStorage:
        typed = TypedStorage._handle(self._storage, self.device, self._dtype)
        return typed._converted(to)

    convert.__name__, convert.__qualname__ = name, f"StorageHandle.{name}"
    convert.__doc__ = f"Return a copy of the elements as {to.name}."
    return convert


for _name, _dtype in _CONVERSIONS.items():
    setattr(StorageHandle, _name, _conversion(_name, getattr(dtypes, _dtype)))
