"""Checksums of files: CRC-32 of every entry and of the header, in the header's metadata.

``__metadata__["lowtide.crc32"]`` holds numbers of eight hexadecimal digits, separated by blanks:
first that of the header (its eight bytes of length and its JSON, with this number as zeros), then
one of each entry's bytes, in the order in which the header lists them. It is the CRC of zip and
zlib, so any tool can check it. It finds every flipped bit and every run of damage up to 32 bits
for certain, and anything else, blocks that changed places included, but for one case in 2**32.

It is no signature: whoever alters a file on purpose can also alter its checksums.

Bytes are summed while they are hot, block by block behind the read or the write. For a large
entry a second thread sums, since zlib lets go of the interpreter's lock.
"""

from __future__ import annotations

import os
import threading
import zlib
from collections.abc import Callable
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .files import Source
    from .safetensors import Header

CHECKSUMS = "lowtide.crc32"
DIGITS = 8
BLOCK = 1 << 20  # bytes that are moved, then summed
LARGE = 1 << 23  # bytes from which on a second thread sums
_KEY = b'"' + CHECKSUMS.encode() + b'":"'
_ZEROS = "0" * DIGITS


def crc_while(memory: memoryview, move: Callable[[memoryview], Any]) -> int:
    """Move memory block by block, and return the CRC-32 of what lies in it afterwards.

    Args:
        memory: Bytes to be read from or into.
        move: Reads or writes one block.
    """
    follower = _Follower() if memory.nbytes >= LARGE and (os.cpu_count() or 1) > 1 else None
    if follower is None or not follower.start():
        crc = 0
        for start in range(0, memory.nbytes, BLOCK):
            block = memory[start : start + BLOCK]
            move(block)
            crc = zlib.crc32(block, crc)
        return crc
    try:
        for start in range(0, memory.nbytes, BLOCK):
            block = memory[start : start + BLOCK]
            move(block)
            follower.blocks.put(block)
    finally:
        follower.blocks.put(None)
        follower.thread.join()
    return follower.crc


class _Follower:
    """A thread that sums blocks in the order in which they come."""

    def __init__(self) -> None:
        self.blocks: SimpleQueue[memoryview | None] = SimpleQueue()
        self.crc = 0
        self.thread = threading.Thread(target=self._sum, name="lowtide-crc32", daemon=True)

    def start(self) -> bool:
        """False where no further thread can be had."""
        try:
            self.thread.start()
        except RuntimeError:
            return False
        return True

    def _sum(self) -> None:
        while (block := self.blocks.get()) is not None:
            self.crc = zlib.crc32(block, self.crc)


def crc_of_file(source: Source, offset: int, nbytes: int) -> int:
    """The CRC-32 of bytes of a file, read through a small buffer."""
    buffer, crc = memoryview(bytearray(min(nbytes, BLOCK))), 0
    for start in range(0, nbytes, BLOCK):
        block = buffer[: min(BLOCK, nbytes - start)]
        source.read_into(offset + start, block)
        crc = zlib.crc32(block, crc)
    return crc


def check(source: Source, what: str, crc: int, expected: int | None) -> None:
    """Compare a checksum with the file's, if it has one.

    Raises:
        SerializationError: They differ.
    """
    if expected is not None and crc != expected:
        raise source.error(
            f"the checksum of {what} is wrong: {crc:08x}, where the file says {expected:08x}",
            "It was damaged after it was written; load another copy",
        )


def verify(source: Source, header: Header) -> None:
    """Read all entries of a file once and compare their checksums; no tensor is made.

    The header's own was compared by ``read_header``. Entries of a file without checksums pass.

    Args:
        source: The file.
        header: What ``read_header`` returned for it.

    Raises:
        SerializationError: Names the first entry that is damaged.
    """
    for name, entry in header.entries.items():
        if entry.crc is not None:
            crc = crc_of_file(source, entry.offset, entry.nbytes)
            check(source, f"entry {name!r:.99}", crc, entry.crc)


# The field in the header


def blank(count: int) -> str:
    """The field for ``count`` entries before they are summed."""
    return " ".join([_ZEROS] * (count + 1))


def filled(text: bytes, crcs: list[int]) -> bytes:
    """A header's JSON with a blank field, with the checksums of entries and of itself."""
    place = text.index(_KEY) + len(_KEY)
    numbers = "".join(f" {crc:08x}" for crc in crcs).encode()
    start = place + DIGITS
    text = text[:start] + numbers + text[start + len(numbers) :]
    return text[:place] + f"{_of_header(text):08x}".encode() + text[start:]


def parsed(source: Source, text: bytes, field: str, count: int) -> list[int]:
    """Check a header against its own checksum, and return those of its entries.

    Raises:
        SerializationError: The header was damaged.
    """
    words = field.split(" ")
    place = text.find(_KEY) + len(_KEY)
    try:
        numbers = [int(word, 16) for word in words if len(word) == DIGITS]
    except ValueError:
        numbers = []
    if len(numbers) != count + 1 or len(words) != count + 1 or place < len(_KEY):
        raise source.error(
            f"__metadata__['{CHECKSUMS}'] must have {count + 1} numbers of {DIGITS} hexadecimal "
            f"digits, one of the header and one of each entry; got {field!r:.99}"
        )
    zeroed = text[:place] + _ZEROS.encode() + text[place + DIGITS :]
    check(source, "the header", _of_header(zeroed), numbers[0])
    return numbers[1:]


def _of_header(text: bytes) -> int:
    return zlib.crc32(text, zlib.crc32(len(text).to_bytes(8, "little")))
