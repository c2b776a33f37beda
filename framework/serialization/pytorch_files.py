"""Reader of PyTorch files without PyTorch: the zip format and the legacy pickles.

Both hold a pickle of the object, in which a tensor is a call of ``_rebuild_tensor_v2`` on a
storage that the pickle only names, and the raw bytes of the storages. The pickle is run by
:mod:`unpickle`, with the table below; sizes and strides are checked against the storage before a
view is made of it, and storages against the file before memory is taken. What the calls say of a
tensor is in :mod:`pytorch_tensors`, what else a pickle may hold in :mod:`pickled_values`.

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
from typing import Any

from .atomic_files import Source
from .map_location import Placement
from .pickled_values import complete, finished
from .pytorch_tensors import Extent, StorageRef, StorageScanner, TensorBuilder
from .safe_unpickle import Function, unpickle
from .size_budget import UnsafeContentError, damage_named

MAGIC = 0x1950A86A20F9469CFC6C
PROTOCOL = 1001
SMALL = 1 << 16  # bytes that the pickles beside the object may take, besides those of their text
BUFFER = 1 << 14  # bytes that are read at a time


def load_pytorch(source: Source, placement: Placement, mapped: bool) -> Any:
    """Read a file of ``torch.save``.

    Raises:
        SerializationError: It is damaged, or holds anything but tensors and containers.
    """
    try:
        with damage_named(source, "it is no complete PyTorch file", calls=placement):
            if source.read(0, 2) == b"PK":
                return _load_zip(source, placement, mapped)
            return _load_legacy(source, placement, mapped)
    except zipfile.BadZipFile as error:
        raise source.error(f"it is no complete PyTorch file: {error}", "It was cut off") from None
    except UnsafeContentError as error:
        raise source.error(
            f"{error}. Only tensors and containers are read, NumPy arrays, and plain objects of "
            "the standard library such as Path, datetime and Namespace",
            error.hint or "Save a state_dict() of it with PyTorch, and load that",
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
    return _whole(io.BytesIO(texts["data.pkl"]), builder)


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
    scout = StorageScanner()  # the storages lie behind the pickle: a first run asks which
    unpickle(stream, scout.find, scout.storage, complete=complete)
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
    return _whole(stream, builder)


def _whole(stream: Any, builder: TensorBuilder) -> Any:
    """Build the object, and refuse one with parts that only its pickle could use."""
    made = unpickle(stream, builder.find, builder.storage, builder.failed, complete=complete)
    return finished(made, (Function, StorageRef))


def _no_storage(persistent_id: Any) -> Any:
    raise UnsafeContentError("it refers to a storage before the object begins")
