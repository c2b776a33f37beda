"""``map_location``: the device on which each tensor of a file is created.

A tensor of the CPU is read straight into memory of the pool, with role *input*. With ``mmap`` it
lies over the file's mapping instead: its pages come when they are read, belong to the system's
cache, and are not counted. Writing to it copies the page for this process; the file stays.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..device import device
from ..devices import backend
from ..dtypes import BOOL, dtype
from ..errors import SerializationError
from ..memory.ledger import INPUT
from ..spec import Spec
from ..tensor import Tensor, wrap
from .atomic_files import Source
from .checksums import check, crc_of_file, crc_while, read_summed, sum_of_file

CPU, META = device("cpu"), device("meta")


class Placement:
    """A parsed ``map_location``: maps the locations named in a file to devices.

    Args:
        map_location: None keeps locations; a device or its name takes all; a dict maps locations
            to others; a function gets (tensor on the CPU, location) and returns a tensor, a
            device, or None to keep the location.

    Raises:
        TypeError: It is none of these.
    """

    def __init__(self, map_location: Any = None) -> None:
        self._where: device | None = None
        self._by_name: dict[str, device] = {}
        self._function: Any = None
        self.failed: BaseException | None = None  # what the function raised
        if map_location is None:
            return
        if isinstance(map_location, str | device):
            self._where = device(map_location)
        elif isinstance(map_location, dict):
            self._by_name = {str(_named(k)): device(v) for k, v in map_location.items()}
        elif callable(map_location):
            self._function = map_location
        else:
            raise TypeError(
                "map_location must be None, a device, its name, a dict or a function; got "
                f"{type(map_location).__name__}."
            )

    def of(self, location: str) -> device:
        """Return the device for tensors saved from ``location``.

        Raises:
            SerializationError: This machine does not have it.
        """
        if self._function is not None:
            return CPU
        try:
            where = self._where or self._by_name.get(str(_named(location))) or device(location)
            backend(where)
        except (RuntimeError, ImportError, ValueError) as error:
            raise SerializationError(
                f"load: a tensor was saved on {location!s:.99}, which is not there "
                f"({error!s:.300}). Pass map_location='cpu'."
            ) from None
        return where

    def finish(self, t: Tensor, location: str) -> Tensor:
        """Apply a ``map_location`` function to a tensor."""
        if self._function is None:
            return t
        try:
            placed = self._function(t, location)
        except BaseException as error:
            self.failed = error  # no fault of the file
            raise
        if placed is None:
            placed = Placement().of(location)
        return placed if isinstance(placed, Tensor) else t.to(placed)


def _named(location: Any) -> Any:
    # "cuda" and "cuda:0" are one device; a location that is no device of ours is only a name
    try:
        return device(location)
    except (RuntimeError, ValueError):
        return location


def read_tensor(
    source: Source,
    offset: int,
    d: dtype,
    shape: tuple[int, ...],
    where: device,
    mapped: bool,
    crc: int | None = None,
    what: str = "a tensor",
    checksum: int | None = None,
) -> Tensor:
    """Read a tensor from a range of a file that was checked.

    Args:
        source: The file.
        offset: Where the bytes begin.
        d: The type of the elements.
        shape: The sizes; their bytes are there.
        where: The device; on meta nothing is read.
        mapped: Whether it may lie over the file's mapping.
        crc: The CRC-32 that a zip file says the bytes have, None if it says none.
        what: What it is called in the file, for messages.
        checksum: The sum that a file of ours says they have, None if it says none.

    Raises:
        SerializationError: The checksum is another.
    """
    spec = Spec(shape, d, META if where.type == "meta" else CPU)
    be = backend(spec.device)
    if mapped and spec.device is CPU and spec.nbytes:
        array: Any = np.ndarray(shape, d.np, source.mapping(), offset)
        if be.address(array) % d.itemsize == 0 and not _odd(array, d):  # kernels can read it
            # read through once, past the mapping: no page of it becomes ours
            if checksum is not None:
                check(source, what, sum_of_file(source, offset, spec.nbytes), checksum)
            if crc is not None:
                check(source, what, crc_of_file(source, offset, spec.nbytes), crc)
            storage, array = be.adopt(array, INPUT)
            return _moved(wrap(array, spec, storage), where)
    storage, array = be.empty(spec, INPUT)
    if spec.device is CPU and spec.nbytes:
        memory = memoryview(storage)
        if crc is None:
            read_checked(source, offset, memory, checksum, what)
        else:
            check(source, what, _read_zipped(source, offset, memory), crc)
        if d.category == BOOL:  # one byte, but only 0 and 1 have a meaning
            np.minimum(array.view(np.uint8), 1, out=array.view(np.uint8))
    return _moved(wrap(array, spec, storage), where)


def read_checked(
    source: Source, offset: int, memory: memoryview, checksum: int | None, what: str
) -> None:
    """Fill ``memory`` from ``offset``, and verify its checksum if there is one."""
    if checksum is None:
        source.read_into(offset, memory)
    else:
        check(source, what, read_summed(source, offset, memory), checksum)


def _read_zipped(source: Source, offset: int, memory: memoryview) -> int:
    at = offset

    def read(block: memoryview) -> None:
        nonlocal at
        source.read_into(at, block)
        at += block.nbytes

    return crc_while(memory, read)


def _odd(array: Any, d: dtype) -> bool:
    # bools of a file that are neither 0 nor 1 are mended in a copy
    return d.category == BOOL and bool((array.view(np.uint8) > 1).any())


def _moved(t: Tensor, where: device) -> Tensor:
    if where.type in ("cpu", "meta"):
        return t
    out: Tensor = t.to(where)
    out._storage.set_role(INPUT)
    return out
