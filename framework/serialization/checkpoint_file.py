"""One file of a :class:`.CheckpointDirectory`: checked before anything is changed, then given."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..errors import SerializationError
from .atomic_files import Source
from .checksums import verify
from .map_location import Placement
from .restore import check_generators, give
from .safetensors import Header, read_header
from .save_load import structure_of
from .structure_decoder import Decoder

_GONE = (errno.ENOENT, errno.ESTALE)  # removed; removed by another host
_NOWHERE = Placement("meta")  # what is decoded there has been checked, and takes no memory


class GoneError(Exception):
    """A checkpoint was removed after it was listed."""


class DamagedError(Exception):
    """A checkpoint is damaged: names its file, the entry, the rule."""


def mark_of(path: Path) -> tuple[int, ...]:
    """Return what tells a file from another under its name."""
    found = os.stat(path)
    return found.st_ino, found.st_size, found.st_mtime_ns


def as_read(error: Exception, path: Path) -> Exception:
    """Return what to raise for an error of reading.

    :class:`GoneError`: look again. :class:`DamagedError`: pass the file over. Any other is the
    caller's.
    """
    if isinstance(error, OSError) and error.errno in _GONE:
        return GoneError(str(error))
    if isinstance(error, SerializationError):
        return DamagedError(str(error))
    if isinstance(error, OSError) and error.errno != errno.EIO:
        return error  # no permission, too many open files: an older file is no better
    return DamagedError(f"load: {path}: {error!r}.")


def checked(source: Source, names: Iterable[str]) -> tuple[Header, dict[str, Any]]:
    """Return the header and the structure of a file in which nothing is damaged.

    Args:
        source: The file.
        names: Whose states will be wanted.
    """
    header = read_header(source)
    verify(source, header)
    content = structure_of(source, header)
    for part in ("states", "values", "generators"):
        if not isinstance(content, dict) or not isinstance(content.get(part), dict):
            raise source.error(f"its structure has no dict of {part}", "It is no checkpoint")
    check_generators(content["generators"])
    states = content["states"]
    for node in (content["values"], *(states[n] for n in names if n in states)):
        decoded = Decoder(source, header.entries, _NOWHERE, False).decode(node)
        if node is content["values"] and type(decoded) is not dict:
            raise source.error(f"its values are a {type(decoded).__name__}, not a dict")
        del decoded
    return header, structure_of(source, header)  # what was decoded is used up


def take_states(
    source: Source,
    header: Header,
    content: dict[str, Any],
    placement: Placement,
    objects: dict[str, Any],
) -> dict[str, Any]:
    """Give objects their states; return the plain values.

    Args:
        source: The file, which is checked.
        header: Of it.
        content: Its structure.
        placement: Where tensors go.
        objects: By the name of their state.

    Raises:
        SerializationError: The file lacks a state.
    """
    states = content["states"]
    missing = sorted(set(objects) - set(states))
    if missing:
        raise source.error(
            f"it has no state of {', '.join(missing)}; it has {', '.join(states)}",
            "Name objects as they were saved",
        )
    entries = {
        name: e._replace(checksum=None) for name, e in header.entries.items()
    }  # just verified
    # Values are the caller's, and change nothing: they come before what does.
    values: dict[str, Any] = Decoder(source, entries, placement, False).decode(content["values"])
    give(source, entries, placement, states, content["generators"], objects)
    return values
