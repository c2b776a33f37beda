"""What a rank writes: its rows of shards, and of other values those that no lower rank has."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from math import prod
from typing import Any, NamedTuple

from ...devices import backend
from ...ops.sparse.sparse_tensor import SparseTensor
from ...serialization.atomic_files import TEMPORARY_SUFFIX, remove_leftover, replacing
from ...serialization.json_structure import Encoder, Values
from ...serialization.safetensors import write
from ...serialization.save_load import FORMAT as FILE_FORMAT
from ...serialization.save_load import STRUCTURE
from ...serialization.save_load import VERSION as FILE_VERSION
from ...tensor import Tensor
from ..objects import all_gather_object
from ..process_group import ProcessGroup
from ..shards import shard_of
from .index import SAVE, Index, Piece, Saved, file_of, is_part, pieces_of


class Part(NamedTuple):
    """What one rank writes.

    Attributes:
        checkpoint: All of it.
        rank: Whose part.
        tensors: (tensor, the row of the whole tensor that its first one is, its pieces) by path.
        objects: Other values by path.
    """

    checkpoint: Index
    rank: int
    tensors: dict[str, tuple[Tensor, int, list[Piece]]]
    objects: dict[str, Any]


def plan(flat: Mapping[str, Any], group: ProcessGroup | None) -> Part:
    """Agree with the other ranks who writes what; all ranks call it.

    Raises:
        ValueError: Ranks have different shards under one path.
        NotImplementedError: A tensor of a shard's state has another shape.
    """
    rank, size = (0, 1) if group is None else (group.rank(), group.size())
    own = {key: _described(key, value) for key, value in flat.items()}
    every: list[Any] = [[secrets.token_hex(4), own]]
    if group is not None and size > 1:
        every = [None] * size
        all_gather_object(every, [secrets.token_hex(4), own], group)
    save = every[0][0]
    tensors: dict[str, Saved] = {}
    objects: dict[str, int] = {}
    rows: dict[str, set[tuple[int, int]]] = {}
    for r, (_, described) in enumerate(every):
        for key, entry in described.items():
            if entry is None:
                if key not in tensors:
                    objects.setdefault(key, r)
            elif key not in objects:
                _note(tensors, rows, key, entry, r)
    index = Index(save, [file_of(r, save) for r in range(size)], tensors, objects)
    mine = {
        key: (flat[key], _first_row(flat[key]), [p for p in saved.pieces if p.file == rank])
        for key, saved in tensors.items()
        if any(p.file == rank for p in saved.pieces)
    }
    return Part(index, rank, mine, {key: flat[key] for key, r in objects.items() if r == rank})


def _described(key: str, value: Any) -> Any:
    # (dtype, shape of the whole tensor, bytes of a row, the rows of a shard); None if no tensor.
    if not isinstance(value, Tensor) or isinstance(value, SparseTensor):
        return None
    shard = shard_of(value)
    shape, own = tuple(value.shape), None
    if shard is not None:
        own = first, last = shard.own
        if shape != (last - first, *shard.shape[1:]):
            raise NotImplementedError(
                f"save: {key} of shape {shape} belongs to a shard of {shard.shape}, and is not "
                "cut as it is. The optimizer's state cannot be saved in parts."
            )
        shape = shard.shape
    row = prod(shape[1:]) * value.itemsize
    return [value.dtype.name, list(shape), row, own]


def _note(
    tensors: dict[str, Saved],
    rows: dict[str, set[tuple[int, int]]],
    key: str,
    entry: Any,
    rank: int,
) -> None:
    # `rows`: of the shards of each path that lower ranks write.
    dtype, shape, row, own = entry
    found = tensors.get(key)
    if found is None:
        found = tensors[key] = Saved(dtype, tuple(shape), [])
        if own is None:
            found.pieces.extend(pieces_of(key, 0, shape[0] if shape else 1, row, rank))
    elif (found.dtype, found.shape) != (dtype, tuple(shape)) and own is not None:
        raise ValueError(
            f"save: {key} is {dtype} {tuple(shape)} in rank {rank}, and {found.dtype} "
            f"{found.shape} in a lower one."
        )
    if own is None:
        return
    first, last = own
    others = rows.setdefault(key, set())
    if (first, last) in others:  # a group of other ranks has the same shards
        return
    if any(a < last and first < b for a, b in others):
        raise ValueError(
            f"save: {key}: rank {rank} has rows {first} to {last}, of which a lower rank has some, "
            "but not the same. Share a tensor out among as many ranks in each group."
        )
    others.add((first, last))
    found.pieces.extend(pieces_of(key, first, last, row, rank))


def _first_row(t: Tensor) -> int:
    shard = shard_of(t)
    return 0 if shard is None else shard.own[0]


def snapshot(part: Part) -> Part:
    """Return the part with copies of its tensors, so that training can go on."""
    copied = {
        key: (t.detach().clone(), first, pieces) for key, (t, first, pieces) in part.tensors.items()
    }
    return part._replace(tensors=copied)


def write_part(folder: str, part: Part) -> None:
    """Write a rank's file.

    Raises:
        SerializationError: A value has no place in a file, or the disk is full.
    """
    encoder = Encoder(True)
    structure = json.dumps(encoder.encode(part.objects), ensure_ascii=False, separators=(",", ":"))
    arrays: dict[str, Any] = dict(encoder.arrays)
    for t, first, pieces in part.tensors.values():
        for piece in pieces:
            arrays[piece.entry] = _rows(t, piece.first - first, piece.last - first)
    metadata = {FILE_FORMAT: FILE_VERSION, STRUCTURE: structure, SAVE: part.checkpoint.save}
    needed = len(structure) + sum(array.nbytes for array in arrays.values())
    with replacing(os.path.join(folder, part.checkpoint.files[part.rank]), needed) as out:
        write(out, arrays, metadata, patch=True)


def _rows(t: Tensor, first: int, last: int) -> Values:
    rows = t.detach()[first:last] if t.dim() else t.detach()
    be, array = backend(rows.device), rows._array
    return Values(rows.dtype.np, tuple(rows.shape), lambda: be.to_host(array))


def remove_others(folder: str, index: Index) -> None:
    """Remove the files of earlier saves, and what killed ones left."""
    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        if name.endswith(TEMPORARY_SUFFIX):
            remove_leftover(path)
        elif name not in index.files and is_part(name.removesuffix(".failed")):
            os.unlink(path)
