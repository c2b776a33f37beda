"""``save`` and ``load``: one file, safetensors for values and JSON for the structure.

The JSON lies in the header's ``__metadata__``, so that the result is one ordinary safetensors file:
any tool of that format opens it, and it can be replaced atomically, which a folder cannot.
``load`` also reads safetensors files of others, their indices of several files, and PyTorch's.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from typing import Any, NamedTuple

from ..errors import SerializationError
from .atomic_files import Source, is_path, replacing
from .checksums import OURS
from .json_structure import Encoder, Values
from .map_location import Placement
from .own_classes import OwnClasses
from .safetensors import METADATA, Header, read_header, unique, write
from .size_budget import damage_named, weigh_json
from .structure_decoder import Decoder

FORMAT, STRUCTURE = OURS
VERSION = "1"
LARGEST_INDEX = 100_000_000  # bytes of JSON
LONGEST_NAME = 255  # bytes of a file's name


def save(obj: Any, f: Any, pickle_module: Any = None, pickle_protocol: Any = None) -> None:
    """Save an object atomically to a file that :func:`load` reads.

    The file is safetensors: a state dict's tensors are found under their own names by any tool of
    that format. A path is replaced only when all is written and flushed to the disk. The header
    and each entry have a checksum (in the metadata), which :func:`load` compares.

    Args:
        obj: Tensors, NumPy arrays, numbers, strings, bytes, None, dtypes, devices, generators, and
            any nesting of list, tuple, set, dict of these; plain objects of the standard library
            (Namespace, SimpleNamespace, defaultdict, deque, Path, datetime, range, ...). Enum
            members, dataclasses, named tuples and modules are written as the name of their
            class and their attributes; nothing is pickled.
        f: A path, or a binary file-like object that can be written.
        pickle_module: Accepted; nothing is pickled.
        pickle_protocol: Accepted.

    Raises:
        SerializationError: Something in ``obj`` has no place in a file, or the folder is missing.
            Where the disk is full or the folder may not be written to it is an OSError too, and
            says how many bytes are needed and what was left.

    Example:
        >>> import io
        >>> from lowtide import tensor
        >>> file = io.BytesIO()
        >>> save({"weight": tensor([1.0, 2.0]), "step": 3}, file)
        >>> _ = file.seek(0)
        >>> load(file)
        {'weight': tensor([1., 2.]), 'step': 3}
    """
    write_encoded(encode(obj, classes=True), f)


class Encoded(NamedTuple):
    """What a file of :func:`save` will hold.

    Attributes:
        arrays: By entry name; each is read when it is written.
        metadata: The structure as JSON, under :data:`STRUCTURE`.
    """

    arrays: dict[str, Values]
    metadata: dict[str, str]

    @property
    def nbytes(self) -> int:
        """Bytes of the file, but for the header's list of entries."""
        return len(self.metadata[STRUCTURE]) + sum(int(a.nbytes) for a in self.arrays.values())


def encode(obj: Any, classes: bool) -> Encoded:
    """Return what a file of an object holds.

    Args:
        obj: What is to be written.
        classes: Whether it may hold objects of a program's own classes.
    """
    encoder = Encoder(classes)
    structure = json.dumps(encoder.encode(obj), ensure_ascii=False, separators=(",", ":"))
    _encodable(structure)
    return Encoded(encoder.arrays, {FORMAT: VERSION, STRUCTURE: structure})


def write_encoded(encoded: Encoded, f: Any) -> None:
    """Write a file to a path, which it replaces, or to a file-like object."""
    if is_path(f):
        with replacing(f, encoded.nbytes) as out:
            write(out, encoded.arrays, encoded.metadata, patch=True)
    elif hasattr(f, "write"):
        write(f, encoded.arrays, encoded.metadata)
    else:
        raise TypeError(f"save takes a path or a binary file-like object; got {type(f).__name__}.")


def _encodable(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise SerializationError(
            f"save: a string holds {error.object[error.start]!r}, half of a surrogate pair, which "
            "no file of text can hold. Encode it to bytes."
        ) from None


def load(
    f: Any,
    map_location: Any = None,
    pickle_module: Any = None,
    *,
    weights_only: bool | None = None,
    mmap: bool | None = None,
    allow: Iterable[type] = (),
    **pickle_load_args: Any,
) -> Any:
    """Load a file written by :func:`save`, a safetensors file, or a PyTorch file.

    Nothing that a file says can run code: PyTorch's files are read by a reader that builds tensors
    and containers and refuses all else by name. A file is checked before memory is taken for it,
    and one that asks for more than its size warrants (its bytes, twelve times its text, of JSON
    twenty-four times, and 20 MiB) is refused. No flipped bit of a file of :func:`save` is accepted,
    nor one of a storage in PyTorch's zip format: their checksums are compared. Files of others,
    PyTorch's older format and what earlier versions of lowtide saved have none; of those, sizes and
    bounds are checked.

    Args:
        f: A path, or a binary file-like object at the beginning of the file.
        map_location: Where tensors go: None for where they were saved from, a device or its name,
            a dict from locations to others, or a function of (tensor on the CPU, location).
        pickle_module: Accepted; it is never used.
        weights_only: False builds objects of any class that a file of :func:`save` names: it
            imports the module of the class, which runs that module's code. PyTorch's files are read
            in one way only.
        mmap: Lay tensors over the mapped file: their bytes are counted nowhere, and belong to the
            system's cache. What has a checksum is read through once, past the mapping. A write
            changes the tensor, never the file. Needs a path.
        allow: Classes of which objects may be built: Enum, dataclasses, named tuples, modules. With
            them come lowtide's own modules. No ``__init__`` is called: attributes are set.
        **pickle_load_args: Accepted.

    Returns:
        The object; for others' safetensors, a dict of tensors by name.

    Raises:
        SerializationError: It cannot be read; the message names the file, the entry and the rule.
        FileNotFoundError: There is no such file.

    Example:
        >>> import io
        >>> from lowtide import nn
        >>> file = io.BytesIO()
        >>> save(nn.Linear(2, 3), file)
        >>> _ = file.seek(0)
        >>> load(file, allow=[nn.Linear])
        Linear(in_features=2, out_features=3, bias=True)
    """
    placement = Placement(map_location)
    classes = OwnClasses(allow, weights_only is False)
    if is_path(f) and os.fspath(f).endswith(".index.json"):
        return _load_index(os.fspath(f), placement, bool(mmap))
    with Source(f) as source, damage_named(source, "it is damaged", calls=placement):
        first = source.read(0, min(source.size, 200))
        _refuse_texts(source, first)
        if first.startswith((b"PK\x03\x04", b"PK\x05\x06")) or _is_pickle(first):
            from .pytorch_files import load_pytorch

            return load_pytorch(source, placement, bool(mmap))
        header = read_header(source)
        decoder = Decoder(source, header.entries, placement, bool(mmap), classes)
        if FORMAT not in header.metadata:
            return {name: decoder.tensor_of(name) for name in header.entries}
        return decoder.decode(structure_of(source, header))


def _refuse_texts(source: Source, first: bytes) -> None:
    # what stands under the name of a file that was never downloaded
    text = first.removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    if text.startswith((b"<!doctype", b"<html")):
        raise source.error(
            "it is a web page (HTML), not a saved file",
            "A download gave the page of an error or a login in its place: open it in a browser to "
            "see which, and download the file itself",
        )
    if text.startswith(b"version https://git-lfs.github.com/spec/"):
        raise source.error(
            "it is a git LFS pointer, a text that stands for the file in a repository",
            "Run git lfs pull there, or download the file itself",
        )


def structure_of(source: Source, header: Header) -> Any:
    """Return the JSON structure of a file written by :func:`save`."""
    version = header.metadata.get(FORMAT)
    if version != VERSION:
        raise source.error(
            f"it has version {version} of the format, and this lowtide reads {VERSION}",
            "Update lowtide" if version else "It is a safetensors file of another program",
        )
    text = header.metadata.get(STRUCTURE, "")
    weigh_json(source, text, "the structure")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise source.error(f"{METADATA}['{STRUCTURE}'] is no valid JSON: {error}") from None


def _is_pickle(first: bytes) -> bool:
    # Protocol 2 to 5. As a safetensors length, that would ask for a header past 100 million bytes
    # unless the next bytes are zero, and then it is no pickle.
    return first[:1] == b"\x80" and first[1:2] in b"\x02\x03\x04\x05" and first[2:8] != b"\0" * 6


def _load_index(path: str, placement: Placement, mapped: bool) -> dict[str, Any]:
    # The index of a model in several files: {"weight_map": {tensor: file beside this one}}.
    with Source(path) as source:
        if source.size > LARGEST_INDEX:
            raise source.error(f"an index of {source.size} bytes is more than {LARGEST_INDEX}")
        with damage_named(source, "it is no index with a weight_map"):
            text = source.read(0, source.size).decode("utf-8")
            weigh_json(source, text, "the index")
            index = json.loads(text, object_pairs_hook=unique)
            names: dict[str, Any] = index["weight_map"]
            if not isinstance(names, dict):
                raise ValueError(f"weight_map is a {type(names).__name__}")
        parts: dict[str, list[str]] = {}  # each file is opened once
        for name, file in names.items():
            if not isinstance(file, str) or not _is_plain(file):
                raise source.error(
                    f"tensor {name!r:.99} lies in {file!r:.99}, which must be a plain name"
                )
            parts.setdefault(file, []).append(name)
    found: dict[str, Any] = {}
    for file in sorted(parts):
        with (
            Source(os.path.join(os.path.dirname(path), file)) as part,
            damage_named(part, "it is damaged", calls=placement),
        ):
            header = read_header(part)
            decoder = Decoder(part, header.entries, placement, mapped)
            for name in parts[file]:
                if name not in header.entries:
                    raise part.error(f"the index promises tensor {name!r:.99}, which is not there")
                found[name] = placement.finish(decoder.tensor_of(name), "cpu")
    return {name: found[name] for name in names}


def _is_plain(file: str) -> bool:
    if os.path.basename(file) != file or file in ("", ".", "..") or "\0" in file:
        return False
    try:
        return len(os.fsencode(file)) <= LONGEST_NAME
    except UnicodeEncodeError:  # half of a surrogate pair
        return False
