"""The safetensors format: header length, JSON header, and tensor data without gaps.

The header is checked before anything is allocated: lengths against the file, names, types, shapes
and offsets against one another. What passes can be read without a further check.

Source:
    The format's description at github.com/huggingface/safetensors: 8 bytes little-endian length of
    the header, at most 100 million; ``{name: {dtype, shape, data_offsets}}``; ``__metadata__`` of
    strings; offsets from the end of the header, covering the rest of the file without holes.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterable, Iterator
from math import prod
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from ..dtypes import bfloat16, float8_e4m3fn, float8_e5m2
from ..errors import SerializationError
from .atomic_files import Source
from .checksums import CHECKSUMS, blank, filled, none_expected, parsed, write_summed
from .multilinear_hash import sum_of, sum_of_pieces
from .size_budget import weigh_json

LONGEST_HEADER = 100_000_000  # bytes
MOST_DIMS = 64  # what NumPy can have
LARGEST = 1 << 62  # bytes of a tensor's shape, zeros left out
CHUNK = 1 << 22  # bytes gathered at a time from an array that is not contiguous
METADATA = "__metadata__"

NUMPY: dict[str, Any] = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": bfloat16.np,
    "I64": np.dtype(np.int64),
    "I32": np.dtype(np.int32),
    "I16": np.dtype(np.int16),
    "I8": np.dtype(np.int8),
    "U64": np.dtype(np.uint64),
    "U32": np.dtype(np.uint32),
    "U16": np.dtype(np.uint16),
    "U8": np.dtype(np.uint8),
    "BOOL": np.dtype(np.bool_),
    "C64": np.dtype(np.complex64),
    "F8_E4M3": float8_e4m3fn.np,
    "F8_E5M2": float8_e5m2.np,
}
NAMES = {d: name for name, d in NUMPY.items() if name != "C64"}  # older readers have no complex
WITHOUT_ARRAYS = {"F8_E8M0": 1}  # known, but no dtype here: bytes


class Entry(NamedTuple):
    """The entry of a tensor in the header: dtype, shape and position.

    Attributes:
        dtype: The format's name of its type.
        shape: Its sizes.
        offset: Bytes from the start of the file.
        nbytes: Its bytes.
        checksum: Their sum, None in a file without checksums.
    """

    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int
    checksum: int | None = None


class Header(NamedTuple):
    """The entries by name in file order, and the metadata."""

    entries: dict[str, Entry]
    metadata: dict[str, str]


# Writing


def write(
    out: BinaryIO | Any, arrays: dict[str, Any], metadata: dict[str, str], *, patch: bool = False
) -> None:
    """Write named host arrays with checksums: largest elements first, all aligned.

    Args:
        out: A binary file or file-like object.
        arrays: Each has dtype, shape, nbytes, and ``values()``, which returns a NumPy array of any
            layout when its turn comes.
        metadata: Strings.
        patch: Whether checksums may be put into the header after the values were written, if
            ``out`` is a file that can do so. Else values are gone through once before that.
    """
    ordered = sorted(arrays.items(), key=lambda item: -item[1].dtype.itemsize)
    header: dict[str, Any] = {METADATA: {CHECKSUMS: blank(len(ordered)), **metadata}}
    end = 0
    for name, array in ordered:
        begin, end = end, end + array.nbytes
        header[name] = {
            "dtype": NAMES[array.dtype],
            "shape": list(array.shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > LONGEST_HEADER:
        raise SerializationError(
            f"save: the structure takes {len(text)} bytes of JSON, and a safetensors header holds "
            f"{LONGEST_HEADER}. Put numbers into tensors instead of lists."
        )
    later = patch and _is_file(out)
    if not later:
        text = filled(text, [_sum_of(array.values(), None, end) for _, array in ordered])
    out.write(len(text).to_bytes(8, "little"))
    out.write(text)
    if later:
        sums = [_sum_of(array.values(), out, end) for _, array in ordered]
        out.seek(8)
        out.write(filled(text, sums))
        out.seek(0, os.SEEK_END)
        return
    for _, array in ordered:
        for piece in pieces(array.values()):
            out.write(piece)


def _is_file(out: Any) -> bool:
    seeks = getattr(out, "seekable", None)  # what an estimate opens has none
    return seeks is not None and bool(seeks()) and stat.S_ISREG(os.fstat(out.fileno()).st_mode)


def _sum_of(array: Any, out: Any, total: int) -> int:
    # Of the array's bytes, which are written to `out` on the way, unless that is None.
    if array.flags.c_contiguous:
        for whole in pieces(array):
            return sum_of(whole, total) if out is None else write_summed(out, whole, total)

    def passing() -> Iterator[memoryview]:
        for piece in pieces(array):
            if out is not None:
                out.write(piece)
            yield piece

    return sum_of_pieces(array.nbytes, passing(), total)


def pieces(array: Any) -> Iterable[memoryview]:
    """Iterate over the bytes of an array in C order, copying in small parts if non-contiguous."""
    if array.size == 0:
        return
    if array.flags.c_contiguous:
        yield memoryview(array.reshape(-1).view(np.uint8))
    elif array.nbytes <= CHUNK:
        dense: Any = np.ascontiguousarray(array)
        yield memoryview(dense.reshape(-1).view(np.uint8))
    else:
        rows = max(1, CHUNK // (array.nbytes // array.shape[0]))
        for start in range(0, array.shape[0], rows):
            part = array[start : start + rows]
            yield from pieces(part[0] if rows == 1 and part.nbytes > CHUNK else part)


# Reading


def read_header(source: Source) -> Header:
    """Read and validate the header.

    Raises:
        SerializationError: Names the file, the entry and the rule that it breaks.
    """
    if source.size < 8:
        raise source.error(f"{source.size} bytes are no safetensors file", "It was cut off")
    length = int.from_bytes(source.read(0, 8), "little")
    if length > min(LONGEST_HEADER, source.size - 8):
        raise source.error(
            f"the header's length is {length} bytes, of a file of {source.size} and at most "
            f"{LONGEST_HEADER}",
            "It is no safetensors file, or was cut off",
        )
    text = source.read(8, length)
    fields = _json(source, text)
    metadata = fields.pop(METADATA, {})
    if not isinstance(metadata, dict) or any(type(v) is not str for v in metadata.values()):
        raise source.error(f"{METADATA} must map strings to strings")
    start = 8 + length
    entries = {name: _entry(source, name, value, start) for name, value in fields.items()}
    expected = start
    for name, entry in sorted(entries.items(), key=lambda e: (e[1].offset, e[1].nbytes)):
        if entry.offset != expected:
            raise source.error(
                f"entry {name!r:.99} begins at byte {entry.offset - start} of the data, where "
                f"{expected - start} was expected: entries must neither overlap nor leave holes"
            )
        expected += entry.nbytes
    if expected != source.size:
        raise source.error(
            f"the entries end at byte {expected}, the file at {source.size}", "It was cut off"
        )
    if CHECKSUMS in metadata:
        sums = parsed(source, text, metadata[CHECKSUMS], len(entries))
        pairs = zip(entries.items(), sums, strict=True)
        entries = {name: entry._replace(checksum=s) for (name, entry), s in pairs}
    else:
        none_expected(source, metadata)
    return Header(entries, metadata)


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build the dict of a JSON object, raising an error for duplicate names.

    Raises:
        ValueError: One does.
    """
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name appears twice")
    return found


def _json(source: Source, text: bytes) -> dict[str, Any]:
    try:
        words = text.decode("utf-8")
        weigh_json(source, words, "the header")
        fields = json.loads(words, object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise source.error(f"the header is no valid JSON: {error}") from None
    if not isinstance(fields, dict):
        raise source.error(f"the header must be a JSON object; got {type(fields).__name__}")
    return fields


def _entry(source: Source, name: str, value: Any, start: int) -> Entry:
    if not isinstance(value, dict) or set(value) != {"dtype", "shape", "data_offsets"}:
        raise source.error(
            f"entry {name!r:.99} must have dtype, shape and data_offsets, nothing else"
        )
    dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(dtype, str) or (dtype not in NUMPY and dtype not in WITHOUT_ARRAYS):
        raise source.error(
            f"entry {name!r:.99} has dtype {dtype!r:.99}, which is none of {_known()}"
        )
    if not _naturals(shape) or len(shape) > MOST_DIMS:
        raise source.error(
            f"entry {name!r:.99} has shape {shape!r:.99}; at most {MOST_DIMS} sizes >= 0"
        )
    if not _naturals(offsets) or len(offsets) != 2:
        raise source.error(
            f"entry {name!r:.99} has data_offsets {offsets!r:.99}; two integers >= 0"
        )
    itemsize = WITHOUT_ARRAYS.get(dtype) or NUMPY[dtype].itemsize
    if prod(n for n in shape if n) * itemsize > LARGEST:
        raise source.error(f"entry {name!r:.99} has shape {shape!s:.99}, more than any memory")
    nbytes = prod(shape) * itemsize
    begin, end = offsets
    if end - begin != nbytes:
        raise source.error(
            f"entry {name!r:.99} of {dtype} {tuple(shape)} takes {nbytes} bytes, its data_offsets "
            f"say {end - begin}"
        )
    if start + end > source.size:
        raise source.error(
            f"entry {name!r:.99} ends at byte {start + end}, the file at {source.size}",
            "It was cut off",
        )
    return Entry(dtype, tuple(shape), start + begin, nbytes)


def _naturals(value: Any) -> bool:
    return isinstance(value, list) and all(type(n) is int and n >= 0 for n in value)


def _known() -> str:
    return ", ".join([*NUMPY, *WITHOUT_ARRAYS])
