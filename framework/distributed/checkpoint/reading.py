"""Reading parts of a checkpoint into tensors: those entries that their rows lie in."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from math import prod
from typing import Any

import numpy as np

from ...autograd.saved import count_write
from ...errors import SerializationError
from ...modes import no_grad
from ...ops.creation.from_data import from_numpy
from ...ops.sparse.sparse_tensor import SparseTensor
from ...serialization.atomic_files import Source
from ...serialization.checksums import check, read_summed, sum_of_file
from ...serialization.map_location import Placement
from ...serialization.own_classes import OwnClasses
from ...serialization.safetensors import Header, read_header
from ...serialization.save_load import structure_of
from ...serialization.structure_decoder import Decoder
from ...tensor import Tensor
from ..shards import shard_of
from .index import SAVE, Index, Piece, Saved


class Files:
    """The files of a checkpoint, opened when they are first asked for."""

    def __init__(self, folder: str, index: Index, stack: ExitStack) -> None:
        self._folder, self._index, self._stack = folder, index, stack
        self._open: dict[int, tuple[Source, Header]] = {}

    def get(self, number: int) -> tuple[Source, Header]:
        """Return a file and its header.

        Raises:
            SerializationError: It is not there, damaged, or of another save.
        """
        found = self._open.get(number)
        if found is None:
            path = os.path.join(self._folder, self._index.files[number])
            try:
                source = self._stack.enter_context(Source(path))
            except FileNotFoundError:
                raise SerializationError(
                    f"load: {path} does not exist, which {self._folder}/index.json names. Copy all "
                    "files of the checkpoint."
                ) from None
            header = read_header(source)
            if header.metadata.get(SAVE) != self._index.save:
                raise source.error(f"it is not of the save {self._index.save} of its index")
            found = self._open[number] = source, header
        return found


def wanted_rows(t: Tensor) -> tuple[int, int]:
    """Return the rows that a tensor has of the tensor of all ranks."""
    shard = shard_of(t)
    if shard is not None:
        return shard.own
    return 0, t.shape[0] if t.dim() else 1


def require(key: str, t: Tensor, index: Index) -> Saved:
    """Return what a checkpoint has for a tensor.

    Raises:
        KeyError: Nothing.
        ValueError: A tensor of another shape or dtype.
    """
    saved = index.tensors.get(key)
    if saved is None:
        raise KeyError(f"load: the checkpoint has no tensor {key!r}; leave it out of the state.")
    shard = shard_of(t)
    shape = tuple(t.shape) if shard is None else shard.shape
    if saved.shape != shape or saved.dtype != t.dtype.name:
        raise ValueError(
            f"load: {key} is {saved.dtype} of shape {saved.shape} in the checkpoint, and "
            f"{t.dtype.name} of shape {shape} in the state."
        )
    return saved


def _overlapping(t: Tensor, saved: Saved) -> Iterator[Piece]:
    first, last = wanted_rows(t)
    for piece in saved.pieces:
        if piece.first < last and first < piece.last:
            yield piece


def require_rows(key: str, t: Tensor, saved: Saved, files: Files) -> None:
    """Look for the entries that a tensor needs.

    Raises:
        SerializationError: One is missing, or has another size, or rows are missing.
    """
    first, last = wanted_rows(t)
    covered = 0
    for piece in _overlapping(t, saved):
        source, header = files.get(piece.file)
        entry = header.entries.get(piece.entry)
        rows = piece.last - piece.first
        if entry is None or entry.nbytes != rows * _row_bytes(saved, t):
            raise source.error(f"the entry {piece.entry!r:.99} that the index names is not in it")
        covered += min(last, piece.last) - max(first, piece.first)
    if covered != last - first:
        raise SerializationError(
            f"load: {key}: the checkpoint has {covered} of the rows {first} to {last}."
        )


def verify_pieces(key: str, t: Tensor, saved: Saved, files: Files) -> None:
    """Compare the checksums of all entries that a tensor needs.

    Raises:
        SerializationError: One is damaged or missing, or rows are missing.
    """
    require_rows(key, t, saved, files)
    for piece in _overlapping(t, saved):
        source, header = files.get(piece.file)
        entry = header.entries[piece.entry]
        found = sum_of_file(source, entry.offset, entry.nbytes)
        check(source, f"entry {piece.entry!r:.99}", found, entry.checksum)


def verify_file(files: Files, number: int, index: Index) -> None:
    """Compare the checksums of all entries of a file.

    Raises:
        SerializationError: It is damaged, or misses an entry that the index names.
    """
    source, header = files.get(number)
    for saved in index.tensors.values():
        for piece in saved.pieces:
            if piece.file == number and piece.entry not in header.entries:
                raise source.error(
                    f"the entry {piece.entry!r:.99} that the index names is not in it"
                )
    for name, entry in header.entries.items():
        found = sum_of_file(source, entry.offset, entry.nbytes)
        check(source, f"entry {name!r:.99}", found, entry.checksum)
    structure_of(source, header)


def _row_bytes(saved: Saved, t: Tensor) -> int:
    return prod(saved.shape[1:]) * t.itemsize


@no_grad()
def read_tensor(t: Tensor, saved: Saved, files: Files) -> None:
    """Fill a tensor with its rows; takes one entry of memory at most.

    Raises:
        SerializationError: An entry is damaged.
    """
    plain = t.detach()
    direct = plain.device.type == "cpu" and plain.is_contiguous()
    first, _ = wanted_rows(t)
    row = _row_bytes(saved, t)
    if direct:
        count_write(t._storage, "load")
    for piece in _overlapping(t, saved):
        start, stop = max(first, piece.first), min(first + _rows(t), piece.last)
        if direct:
            memory: Any = memoryview(plain._array.reshape(-1).view(np.uint8))
            into = memory[(start - first) * row : (stop - first) * row]
            _read(piece, start, stop, row, into, files)
            continue
        part = plain[start - first : stop - first] if plain.dim() else plain
        host: Any = np.empty(tuple(part.shape), t.dtype.np)
        _read(piece, start, stop, row, memoryview(host.reshape(-1).view(np.uint8)), files)
        part.copy_(from_numpy(host))


def _rows(t: Tensor) -> int:
    return t.shape[0] if t.dim() else 1


def _read(piece: Piece, start: int, stop: int, row: int, into: memoryview, files: Files) -> None:
    source, header = files.get(piece.file)
    entry = header.entries[piece.entry]
    whole = (start, stop) == (piece.first, piece.last)
    target = into if whole else memoryview(bytearray(entry.nbytes))
    found = read_summed(source, entry.offset, target)
    check(source, f"entry {piece.entry!r:.99}", found, entry.checksum)
    if not whole:
        into[:] = target[(start - piece.first) * row : (stop - piece.first) * row]


def read_objects(keys: Mapping[str, int], files: Files) -> dict[str, Any]:
    """Return other values than tensors, by path."""
    found: dict[str, Any] = {}
    for number in sorted(set(keys.values())):
        source, header = files.get(number)
        decoder = Decoder(source, header.entries, Placement(None), False, OwnClasses((), False))
        every = decoder.decode(structure_of(source, header))
        found.update({key: every[key] for key, file in keys.items() if file == number})
    return found


def is_plain_tensor(value: Any) -> bool:
    """Whether a value is read in place."""
    return isinstance(value, Tensor) and not isinstance(value, SparseTensor)
