"""The index of a checkpoint in parts: which rows of which tensor lie in which file.

A checkpoint is a folder with a safetensors file of each rank and ``index.json``. The files are
named after the save; the index is written last, and renamed into its place. So a folder has the
older checkpoint until the newer one is complete. An entry of a file has some rows of a
tensor, at most 4 MiB of them, and a checksum: who needs a part reads no more than the entries that
it lies in, and knows that they are as they were written.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any, NamedTuple

from ...errors import SerializationError
from ...serialization.atomic_files import replacing

NAME = "index.json"
FORMAT = "lowtide checkpoint in parts"
VERSION = 1
PIECE = 4 << 20  # bytes of an entry
SAVE = "lowtide.save"  # metadata of a file: the save that it is of


class Piece(NamedTuple):
    """Some rows of a tensor.

    Attributes:
        file: Number of the file.
        entry: Name of the entry in it.
        first: The first row.
        last: The first row that is not in it.
    """

    file: int
    entry: str
    first: int
    last: int


class Saved(NamedTuple):
    """A tensor in a checkpoint.

    Attributes:
        dtype: The name of its dtype.
        shape: Of all of it.
        pieces: Where its rows are.
    """

    dtype: str
    shape: tuple[int, ...]
    pieces: list[Piece]


class Index(NamedTuple):
    """What a checkpoint contains.

    Attributes:
        save: Names the save.
        files: Names of the files.
        tensors: By path in the state.
        objects: The number of the file that has the object of a path.
    """

    save: str
    files: list[str]
    tensors: dict[str, Saved]
    objects: dict[str, int]


def file_of(rank: int, save: str) -> str:
    """Return the name of a rank's file."""
    return f"rank_{rank}.{save}.safetensors"


def is_part(name: str) -> bool:
    """Whether a file name is one of those that ``file_of`` makes."""
    return name.startswith("rank_") and name.endswith(".safetensors") and name.count(".") == 2


def pieces_of(key: str, first: int, last: int, row_bytes: int, file: int) -> Iterator[Piece]:
    """Cut rows of a tensor into pieces."""
    step = max(1, PIECE // max(1, row_bytes))
    for start in range(first, last, step):
        stop = min(last, start + step)
        yield Piece(file, f"{key} rows {start}:{stop}", start, stop)


def write_index(folder: str, index: Index) -> None:
    """Write the index, which makes the checkpoint the folder's."""
    tensors = {
        key: {"dtype": t.dtype, "shape": list(t.shape), "pieces": [list(p) for p in t.pieces]}
        for key, t in index.tensors.items()
    }
    text = json.dumps(
        {
            "format": FORMAT,
            "version": VERSION,
            "save": index.save,
            "files": index.files,
            "tensors": tensors,
            "objects": index.objects,
        },
        indent=1,
    ).encode()
    with replacing(os.path.join(folder, NAME), len(text)) as out:
        out.write(text)


def read_index(folder: str) -> Index:
    """Read the index of a folder.

    Raises:
        FileNotFoundError: There is none, so no save to this folder has ended.
        SerializationError: It is damaged, or of another format.
    """
    path = os.path.join(folder, NAME)
    try:
        with open(path, "rb") as file:
            data: Any = json.loads(file.read())
    except FileNotFoundError:
        raise FileNotFoundError(
            f"load: {path} does not exist: no save to this folder has ended."
        ) from None
    except ValueError as error:
        raise SerializationError(f"load: {path} is no valid JSON: {error}.") from None
    try:
        if data["format"] != FORMAT or data["version"] != VERSION:
            raise SerializationError(
                f"load: {path} has format {data['format']!r:.60}, version {data['version']!r:.20}; "
                f"this lowtide reads {FORMAT!r}, version {VERSION}."
            )
        tensors = {
            key: Saved(t["dtype"], tuple(t["shape"]), [Piece(*p) for p in t["pieces"]])
            for key, t in data["tensors"].items()
        }
        return Index(data["save"], list(data["files"]), tensors, dict(data["objects"]))
    except (KeyError, TypeError, AttributeError) as error:
        raise SerializationError(
            f"load: {path} is damaged: {type(error).__name__}: {error}."
        ) from None
