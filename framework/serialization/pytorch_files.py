"""Reader of PyTorch files without PyTorch: the zip format and the legacy pickles.

Both hold a pickle of the object, in which a tensor is a call of ``_rebuild_tensor_v2`` on a
storage that the pickle only names, and the raw bytes of the storages. The pickle is run by
:mod:`unpickle`, with the table below; sizes and strides are checked against the storage before a
view is made of it, and storages against the file before memory is taken.

Source:
    Found by reading files that ``torch.save`` wrote. Zip: ``<name>/data.pkl``,
    ``<name>/byteorder``, uncompressed ``<name>/data/<key>``. Legacy: pickles of a magic number,
    the protocol, the system, the object and the list of storage keys; then, for each key, an int64
    count of elements and the bytes.

Not optimal: tensors that share a storage share it again on the CPU only.
"""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ..device import device
from ..dtypes import BY_NAME, dtype, uint8
from ..spec import Size, Spec
from ..tensor import Tensor, wrap
from .atomic_files import Source
from .json_structure import with_class
from .map_location import CPU, META, Placement, read_tensor
from .safe_unpickle import Function, short_repr, unpickle
from .size_budget import OBJECT, TENSOR, Budget, UnsafeContentError, damage_named
from .sparse_parts import rebuilt

MAGIC = 0x1950A86A20F9469CFC6C
PROTOCOL = 1001
MOST_DIMS = 64
BUFFER = 1 << 14  # bytes that are read at a time
SMALL = 1 << 16  # bytes that the pickles beside the object may take, besides those of their text
LONGEST_NAME = 1000  # letters of a storage's key or location
LONGEST_KEY = 4096  # letters of a key in a mapping or set that a call builds
LARGEST = 1 << 63  # of sizes, strides and offsets; products of larger ones could take minutes
_COSTS = {  # bytes of a call, and for each item or letter of its arguments
    "_rebuild_sparse_tensor": (TENSOR, 16), "_rebuild_tensor": (TENSOR, 16),
    "_rebuild_tensor_v2": (TENSOR, 16), "_rebuild_tensor_v3": (TENSOR, 16),
    "_rebuild_parameter": (TENSOR, 0), "OrderedDict": (OBJECT, 200), "Counter": (OBJECT, 200),
    "set": (OBJECT, 120), "encode": (40, 1),
}  # fmt: skip
STORAGES = {
    "DoubleStorage": "float64", "FloatStorage": "float32", "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16", "LongStorage": "int64", "IntStorage": "int32",
    "ShortStorage": "int16", "CharStorage": "int8", "ByteStorage": "uint8", "BoolStorage": "bool",
    "ComplexFloatStorage": "complex64", "ComplexDoubleStorage": "complex128",
    "UntypedStorage": "uint8",  # bytes of newer types, which the tensor names
}  # fmt: skip
DTYPES = {t.name for t in BY_NAME.values()}


class Extent(NamedTuple):
    """The byte range of a storage in the file, and its checksum if there is one."""

    offset: int
    nbytes: int
    crc: int | None


class StorageRef(NamedTuple):
    """A reference from a pickle to a storage."""

    key: str
    dtype: dtype
    location: str
    elements: int


def load_pytorch(source: Source, placement: Placement, mapped: bool) -> Any:
    """Read a file of ``torch.save``.

    Raises:
        SerializationError: It is damaged, or holds anything but tensors and containers.
    """
    try:
        with damage_named(source, "it is no whole PyTorch file", calls=placement):
            if source.read(0, 2) == b"PK":
                return _load_zip(source, placement, mapped)
            return _load_legacy(source, placement, mapped)
    except zipfile.BadZipFile as error:
        raise source.error(f"it is no whole PyTorch file: {error}", "It was cut off") from None
    except UnsafeContentError as error:
        raise source.error(
            f"{error}. Only tensors and containers are read: OrderedDict, list, dict, numbers, str",
            "Save a state_dict() of it with PyTorch, and load that",
        ) from None


# The two formats


class _FileSlice(io.RawIOBase):
    """A source as a stream that never reads past its end."""

    def __init__(self, source: Source) -> None:
        self._source, self._at = source, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = max(0, offset + (0, self._at, self._source.size)[whence])
        return self._at

    def read(self, count: int | None = -1) -> bytes:
        left = max(0, self._source.size - self._at)
        data = self._source.read(self._at, left if count is None or count < 0 else min(count, left))
        self._at += len(data)
        return data

    def readinto(self, buffer: Any) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


def _load_zip(source: Source, placement: Placement, mapped: bool) -> Any:
    with zipfile.ZipFile(_FileSlice(source)) as archive:
        members = {m.filename: m for m in archive.infolist()}
        pickles = [n for n in members if n.count("/") == 1 and n.endswith("/data.pkl")]
        if len(pickles) != 1:
            raise ValueError("a zip file without data.pkl")
        folder = pickles[0].removesuffix("data.pkl")
        if folder + "constants.pkl" in members:
            raise UnsafeContentError("it is a TorchScript program")
        extents = {
            name.removeprefix(folder + "data/"): _extent(source, member)
            for name, member in members.items()
            if name.startswith(folder + "data/")
        }
        texts = {}
        for name in ("data.pkl", "byteorder"):
            if folder + name in members:
                place = _extent(source, members[folder + name])
                texts[name] = source.read(place.offset, place.nbytes)
                if zlib.crc32(texts[name]) != place.crc:
                    raise ValueError(f"the checksum of {name} is wrong")
    if texts.get("byteorder", b"little") != b"little":
        raise ValueError("its numbers are big-endian")
    builder = TensorBuilder(source, placement, mapped, extents)
    return unpickle(io.BytesIO(texts["data.pkl"]), builder.find, builder.storage, builder.failed)


def _extent(source: Source, member: zipfile.ZipInfo) -> Extent:
    if member.compress_type != zipfile.ZIP_STORED or member.file_size != member.compress_size:
        raise ValueError(f"{member.filename} is compressed")
    local = source.read(member.header_offset, 30)  # its lengths of name and extra may differ
    if local[:4] != b"PK\x03\x04":
        raise ValueError(f"{member.filename} is not where the directory says")
    name, extra = struct.unpack("<HH", local[26:30])
    start = member.header_offset + 30 + name + extra
    if start + member.file_size > source.size:
        raise ValueError(f"{member.filename} reaches past the end")
    return Extent(start, member.file_size, member.CRC)


def _load_legacy(source: Source, placement: Placement, mapped: bool) -> Any:
    stream = io.BufferedReader(_FileSlice(source), BUFFER)

    def plain(module: str, name: str) -> Any:
        raise UnsafeContentError(f"it names {module}.{name} before the object begins")

    if unpickle(stream, plain, _no_storage, base=SMALL) != MAGIC:
        raise ValueError("a pickle, but not one of torch.save")
    if unpickle(stream, plain, _no_storage, base=SMALL) != PROTOCOL:
        raise ValueError(f"not protocol {PROTOCOL}")
    system = unpickle(stream, plain, _no_storage, base=SMALL)
    if not isinstance(system, dict) or system.get("little_endian") is not True:
        raise ValueError("its numbers are big-endian")
    start = stream.tell()
    scout = (
        StorageScanner()
    )  # the storages lie behind the pickle: a first run only asks which there are
    unpickle(stream, scout.find, scout.storage)
    keys = unpickle(stream, plain, _no_storage, base=SMALL)
    strings = isinstance(keys, list) and all(type(key) is str for key in keys)
    if not strings or set(keys) != set(scout.refs) or len(set(keys)) != len(keys):
        raise ValueError("its list of storages does not fit the object")
    extents = {}
    for key in keys:
        ref = scout.refs[key]
        count = int.from_bytes(source.read(stream.tell(), 8), "little", signed=True)
        if count != ref.elements:
            raise ValueError(f"storage {key} has {count} elements, the object says {ref.elements}")
        place = Extent(stream.tell() + 8, count * ref.dtype.itemsize, None)
        if place.offset + place.nbytes > source.size:
            raise ValueError(f"storage {key} reaches past the end")
        extents[key] = place
        stream.seek(place.offset + place.nbytes)
    stream.seek(start)
    builder = TensorBuilder(source, placement, mapped, extents)
    return unpickle(stream, builder.find, builder.storage, builder.failed)


def _no_storage(persistent_id: Any) -> Any:
    raise UnsafeContentError("it refers to a storage before the object begins")


# What a pickle may name


class StorageScanner:
    """Collects the storages that an object refers to, without building anything.

    Attributes:
        refs: By key.
    """

    def __init__(self) -> None:
        self.refs: dict[str, StorageRef] = {}

    def storage(self, persistent_id: Any) -> StorageRef:
        """Parse a persistent id: ('storage', type, key, location, elements[, view])."""
        if type(persistent_id) is not tuple or len(persistent_id) not in (5, 6):
            raise ValueError(
                f"a persistent id must be a tuple of 5 or 6; got {short_repr(persistent_id)}"
            )
        word, kind, key, location, elements, *view = persistent_id
        if word != "storage" or type(key) is not str or type(location) is not str:
            raise ValueError("a persistent id names no storage")
        if len(key) > LONGEST_NAME or len(location) > LONGEST_NAME:
            raise ValueError(f"a storage's name has more than {LONGEST_NAME} letters")
        if view and view[0] is not None:
            raise UnsafeContentError("it has a storage that is a view of another")
        if type(kind) is not Function or kind.name.rpartition(".")[2] not in STORAGES:
            raise UnsafeContentError(f"a storage is a {short_repr(kind)}")
        if type(elements) is not int or not 0 <= elements < LARGEST:
            raise ValueError(f"storage {key} has {short_repr(elements)} elements")
        d = BY_NAME[STORAGES[kind.name.rpartition(".")[2]]]
        ref = StorageRef(key, d, location, elements)
        if self.refs.setdefault(key, ref) != ref:
            raise ValueError(f"storage {key} is described in two ways")
        return ref

    def find(self, module: str, name: str) -> Any:
        """Return the replacement of a global name.

        Raises:
            UnsafeContentError: It is none of the names that data needs.
        """
        full = f"{module}.{name}"
        if module in ("torch", "torch.cuda", "torch.storage") and name in STORAGES:
            return Function(full, None)
        if module == "torch" and name in DTYPES:
            return BY_NAME[name]
        call = self.calls().get(full)
        if call is None:
            raise UnsafeContentError(f"it names {full}")
        return Function(full, call, *_COSTS.get(name, (OBJECT, 16)))

    def calls(self) -> dict[str, Callable[..., Any]]:
        """Return the functions that data may call."""
        return {
            "collections.OrderedDict": _ordered,
            "collections.Counter": lambda items=(): Counter(dict(_pairs(items))),
            "torch.Size": lambda sizes: Size(_integers(sizes, "a torch.Size")),
            "torch.device": _device,
            "torch._utils._rebuild_tensor": self.tensor,
            "torch._utils._rebuild_tensor_v2": self.tensor,
            "torch._utils._rebuild_tensor_v3": self.untyped_tensor,
            "torch._utils._rebuild_parameter": self.parameter,
            "torch._utils._rebuild_sparse_tensor": self.sparse,
            "torch.serialization._get_layout": _layout,
            "_codecs.encode": _bytes,
            **{f"{b}.set": _set for b in ("builtins", "__builtin__")},
            **{f"{b}.complex": _complex for b in ("builtins", "__builtin__")},
        }

    def failed(self) -> BaseException | None:
        """Return the exception that a function of the caller raised."""
        return None

    def tensor(self, *args: Any) -> Any:
        """Return a placeholder for a tensor."""
        return None

    def untyped_tensor(self, *args: Any) -> Any:
        """Return a placeholder for a tensor that names its own dtype."""
        return None

    def parameter(self, *args: Any) -> Any:
        """Return a placeholder for a parameter."""
        return None

    def sparse(self, *args: Any) -> Any:
        """Return a placeholder for a sparse tensor."""
        return None


class TensorBuilder(StorageScanner):
    """Builds the tensors of a file.

    Args:
        source: The file.
        placement: Where tensors go.
        mapped: Whether they may lie over the file's mapping.
        extents: Where each storage lies in the file.
    """

    def __init__(
        self, source: Source, placement: Placement, mapped: bool, extents: dict[str, Extent]
    ) -> None:
        super().__init__()
        self.source, self.placement, self.mapped = source, placement, mapped
        self.extents = extents
        self._flat: dict[tuple[str, device], Tensor] = {}
        self._moved: dict[Any, Tensor] = {}
        self._copies = Budget(2 * source.size, lambda: 0)  # to other devices, view by view
        self._left = source.size  # storages that overlap in the file must not multiply

    def tensor(
        self, storage: Any, offset: Any, size: Any, stride: Any, requires_grad: Any = False,
        hooks: Any = None, metadata: Any = None,
    ) -> Tensor:  # fmt: skip
        """Build a view of a storage, after its bounds are checked."""
        if type(storage) is not StorageRef:
            raise ValueError("a tensor of no storage")
        return self._view(storage, storage.dtype, offset, size, stride, requires_grad)

    def untyped_tensor(
        self, storage: Any, offset: Any, size: Any, stride: Any, requires_grad: Any, hooks: Any,
        kind: Any, metadata: Any = None,
    ) -> Tensor:  # fmt: skip
        """Build a view of a storage of bytes, as elements of a dtype."""
        if type(storage) is not StorageRef or storage.dtype is not uint8:
            raise ValueError("a tensor with a dtype of its own, of no untyped storage")
        if type(kind) is not dtype:
            raise ValueError(f"a tensor's dtype is {short_repr(kind)}")
        return self._view(storage, kind, offset, size, stride, requires_grad)

    def _view(
        self, storage: StorageRef, kind: dtype, offset: Any, size: Any, stride: Any,
        requires_grad: Any,
    ) -> Tensor:  # fmt: skip
        shape, strides = _integers(size, "a size"), _integers(stride, "a stride")
        if type(offset) is not int or not 0 <= offset < LARGEST:
            raise ValueError(f"a tensor begins at element {short_repr(offset)}")
        if len(shape) != len(strides) or len(shape) > MOST_DIMS:
            raise ValueError(f"a tensor of size {shape} has strides {strides}")
        elements = storage.elements * storage.dtype.itemsize // kind.itemsize
        empty = 0 in shape
        last = offset + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
        if not empty and last >= elements:
            raise ValueError(
                f"a tensor of size {shape} and strides {strides} from element {offset} reaches "
                f"element {last} of storage {storage.key}, which has {elements}"
            )
        where = self.placement.of(storage.location)
        spec = Spec(shape, kind, META if where.type == "meta" else CPU)
        if spec.nbytes > 1 << 45 or any(n > 1 << 45 for n in shape):
            raise ValueError(f"a tensor of size {shape} is more than any memory")
        # overlapping elements (an expanded tensor) are kept as they are: a view, as in PyTorch
        flat = self._flat_of(storage, META if spec.device is META else CPU)
        item = kind.itemsize
        steps = (0,) * len(shape) if empty else tuple(s * item for s in strides)
        base = flat._array
        array = np.ndarray(shape, kind.np, base, 0 if empty else offset * item, steps)
        t = wrap(array, spec, flat._storage)
        if where.type not in ("cpu", "meta"):
            t = self._on(where, t, (storage.key, kind, offset, shape, strides))
        t = self.placement.finish(t, storage.location)
        return t.requires_grad_() if requires_grad is True else t

    def failed(self) -> BaseException | None:
        """Return the exception that a ``map_location`` function raised."""
        return self.placement.failed

    def _on(self, where: device, t: Tensor, view: Any) -> Tensor:
        # expanded views become as large as they seem, and tied ones stay tied
        first = self._moved.get((where, view))
        if first is None:
            self._copies.spend(t.nbytes)
            first = self._moved[where, view] = t.to(where)
        return wrap(first._array, first._spec, first._storage)

    def parameter(self, data: Any, requires_grad: Any = True, hooks: Any = None) -> Tensor:
        """Build a parameter that shares a tensor's memory."""
        if not isinstance(data, Tensor):
            raise ValueError("a parameter of no tensor")
        return with_class("Parameter", data.detach(), requires_grad is True)

    def sparse(self, layout: Any, data: Any) -> Tensor:
        """Build a sparse tensor of its parts, after its indices are checked."""
        if type(data) is not tuple or not 3 <= len(data) <= 4:
            raise ValueError(f"the parts of a sparse tensor are {_listed(data)}")
        coalesced = False
        if layout == "sparse_coo":
            *data, coalesced = (*data, False)[:4]
        *parts, size = data
        return rebuilt(layout, _integers(size, "a size"), parts, coalesced is True)

    def _flat_of(self, ref: StorageRef, where: device) -> Tensor:
        found = self._flat.get((ref.key, where))
        if found is not None:
            return found
        place = self.extents.get(ref.key)
        nbytes = ref.elements * ref.dtype.itemsize
        if place is None or place.nbytes != nbytes:
            raise ValueError(
                f"storage {ref.key} should have {nbytes} bytes, and the file has "
                f"{'none' if place is None else place.nbytes}"
            )
        self._left -= nbytes
        if self._left < 0:
            raise ValueError("its storages overlap in the file")
        t = read_tensor(
            self.source, place.offset, ref.dtype, (ref.elements,), where, self.mapped,
            place.crc, f"storage {ref.key}",
        )  # fmt: skip
        self._flat[ref.key, where] = t
        return t


def _integers(values: Any, what: str) -> tuple[int, ...]:
    if not isinstance(values, tuple | list) or any(
        type(n) is not int or not 0 <= n < LARGEST for n in values
    ):
        raise ValueError(f"{what} must be integers >= 0, below 2**63; got {_listed(values)}")
    return tuple(values)


def _listed(values: Any) -> str:
    if not isinstance(values, tuple | list):
        return short_repr(values)
    return f"({', '.join(map(short_repr, values[:9]))}{', ...' if len(values) > 9 else ''})"


def _is_key(key: Any) -> bool:
    # larger integers may all have one hash, and a dict of them takes for ever
    # and so does comparing long texts that are equal
    if type(key) is str:
        return len(key) <= LONGEST_KEY
    return type(key) in (float, bool) or (type(key) is int and -(1 << 60) < key < 1 << 60)


def _pairs(items: Any) -> list[Any]:
    pairs = list(items.items()) if isinstance(items, dict) else list(items)
    if any(type(p) not in (tuple, list) or len(p) != 2 or not _is_key(p[0]) for p in pairs):
        raise ValueError("pairs of a plain key and a value were expected")
    return pairs


def _ordered(items: Any = ()) -> OrderedDict[Any, Any]:
    return OrderedDict(_pairs(items))


def _set(items: Any = ()) -> set[Any]:
    if not isinstance(items, list | tuple) or not all(i is None or _is_key(i) for i in items):
        raise UnsafeContentError("a set of anything but plain values")
    return set(items)


def _complex(real: Any, imag: Any) -> complex:
    if type(real) not in (int, float) or type(imag) not in (int, float):
        raise ValueError("the parts of a complex number must be numbers")
    return complex(float(real), float(imag))


def _device(kind: Any, index: Any = None) -> Any:
    if type(kind) is not str or not (index is None or type(index) is int):
        raise ValueError("a device is a name and an index")
    try:
        return device(kind, index)
    except RuntimeError as error:
        raise UnsafeContentError(str(error)) from None


def _layout(name: Any) -> str:
    if type(name) is not str or not name.startswith("torch.sparse_"):
        raise UnsafeContentError(f"a layout is {short_repr(name)}")
    return name.removeprefix("torch.")


def _bytes(text: Any, encoding: Any = "latin1") -> bytes:
    # how protocol 2 spells bytes
    if type(text) is not str or encoding != "latin1":
        raise UnsafeContentError("it encodes a text")
    return text.encode("latin1")
