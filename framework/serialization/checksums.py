"""Checksums of entries and headers, stored in the header's metadata.

``__metadata__["lowtide.sums"]`` holds hexadecimal numbers, separated by blanks: first the CRC-32
of the header (its eight bytes of length and its JSON, with this number as zeros), of eight digits;
then, of sixteen, the sum of each entry's bytes that ``multilinear_hash.py`` defines, in the order
in which the header lists them. Every flipped bit and every run of damage up to 32 bits is found for
certain; that page lists the other errors that are found, and with what probability.

It is no signature: who alters a file on purpose can also alter its checksums.

Bytes are summed while they are hot, block by block behind the read or the write. The blocks of a
large entry are shared by threads, each of which moves and sums its own.
"""

from __future__ import annotations

import os
import threading
import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .. import execution
from ..kernels.runtime import threads
from .multilinear_hash import BLOCK, LARGE, sum_while

if TYPE_CHECKING:
    from .atomic_files import Source
    from .safetensors import Header

CRC_BLOCK = 1 << 22  # bytes
CHECKSUMS = "lowtide.sums"
OURS = ("lowtide.format", "lowtide.structure")  # what a file of ours without checksums says
HEADER_DIGITS, DIGITS = 8, 16
_KEY = b'"' + CHECKSUMS.encode() + b'":"'
_ZEROS = "0" * HEADER_DIGITS


def read_summed(source: Source, offset: int, memory: memoryview) -> int:
    """Fill ``memory`` from ``offset`` of a file, and return its checksum."""
    shared = source.has_places and memory.nbytes >= LARGE
    fill = source.read_beside if shared else source.read_into

    def read(start: int, stop: int) -> memoryview:
        block = memory[start:stop]
        fill(offset + start, block)
        return block

    return sum_while(memory.nbytes, read, source.size, shared)


def write_summed(out: Any, memory: memoryview, total: int) -> int:
    """Write ``memory`` to a file at its position, and return the checksum.

    Args:
        out: The file.
        memory: The bytes.
        total: How many the whole file will have.
    """
    if memory.nbytes < LARGE:

        def append(start: int, stop: int) -> memoryview:
            out.write(memory[start:stop])
            return memory[start:stop]

        return sum_while(memory.nbytes, append, total, False)

    out.flush()
    handle, offset = out.fileno(), out.tell()

    def write(start: int, stop: int) -> memoryview:
        block = memory[start:stop]
        done = 0
        while done < block.nbytes:
            done += os.pwrite(handle, block[done:], offset + start + done)
        return block

    found = sum_while(memory.nbytes, write, total, True)
    out.seek(offset + memory.nbytes)
    return found


def sum_of_file(source: Source, offset: int, nbytes: int) -> int:
    """Return the checksum of a byte range of a file, read through small buffers."""
    shared = source.has_places and nbytes >= LARGE
    fill = source.read_beside if shared else source.read_into
    own = threading.local()

    def read(start: int, stop: int) -> memoryview:
        if not hasattr(own, "buffer"):
            own.buffer = memoryview(bytearray(min(nbytes, BLOCK)))
        block: memoryview = own.buffer[: stop - start]
        fill(offset + start, block)
        return block

    return sum_while(nbytes, read, source.size, shared)


def crc_while(memory: memoryview, move: Callable[[memoryview], Any]) -> int:
    """Copy memory block by block, and return its CRC-32, as PyTorch's archives store it.

    That sum has an order. A large memory's is taken by one thread while another moves the next.
    """
    blocks = [memory[start : start + CRC_BLOCK] for start in range(0, memory.nbytes, CRC_BLOCK)]
    crc = 0

    def run(k: int, moves: int) -> None:
        nonlocal crc
        if moves:
            move(blocks[k])
        else:
            crc = zlib.crc32(blocks[k], crc)

    workers = threads.get_num_threads() if memory.nbytes >= LARGE else 1
    for k in range(len(blocks) + 1):
        calls = [(k, 1)] * (k < len(blocks)) + [(k - 1, 0)] * (k > 0)
        if workers > 1:
            threads.parallel_calls(run, calls, 2)
        else:
            for call in calls:
                run(*call)
    return crc


def crc_of_file(source: Source, offset: int, nbytes: int) -> int:
    """Return the CRC-32 of a byte range of a file, read through a small buffer."""
    buffer, crc = memoryview(bytearray(min(nbytes, BLOCK))), 0
    for start in range(0, nbytes, BLOCK):
        block = buffer[: min(BLOCK, nbytes - start)]
        source.read_into(offset + start, block)
        crc = zlib.crc32(block, crc)
    return crc


def check(source: Source, what: str, found: int, expected: int | None) -> None:
    """Compare a checksum with the one in the file, if it has one.

    Raises:
        SerializationError: They differ.
    """
    # An estimate writes no values, so it finds other bytes than it summed.
    if expected is not None and found != expected and execution.current.computes:
        raise source.error(
            f"the checksum of {what} is wrong: {found:08x}, where the file says {expected:08x}",
            "It was damaged after it was written; load another copy",
        )


def verify(source: Source, header: Header) -> None:
    """Read all entries of a file and compare their checksums, without creating tensors.

    The header's own was compared by ``read_header``. Entries of a file without checksums pass.

    Args:
        source: The file.
        header: What ``read_header`` returned for it.

    Raises:
        SerializationError: Names the first entry that is damaged.
    """
    for name, entry in header.entries.items():
        if entry.checksum is not None:
            found = sum_of_file(source, entry.offset, entry.nbytes)
            check(source, f"entry {name!r:.99}", found, entry.checksum)


# The field in the header


def blank(count: int) -> str:
    """Return the placeholder for the checksums of ``count`` entries."""
    return " ".join([_ZEROS] + ["0" * DIGITS] * count)


def filled(text: bytes, sums: list[int]) -> bytes:
    """Fill the checksums of entries and header into a header's JSON."""
    place = text.index(_KEY) + len(_KEY)
    numbers = "".join(f" {found:016x}" for found in sums).encode()
    start = place + HEADER_DIGITS
    text = text[:start] + numbers + text[start + len(numbers) :]
    return text[:place] + f"{_of_header(text):08x}".encode() + text[start:]


def none_expected(source: Source, metadata: dict[str, str]) -> None:
    """Accept a file without checksums, from other software or an earlier version.

    Raises:
        SerializationError: It is ours and has a field of another name: so it may be the
            checksums', damaged, which must not switch them off.
    """
    others = metadata.keys() - {*OURS}
    if len(others) < len(metadata) and others:
        raise source.error(
            f"a file with {OURS[0]} and without {CHECKSUMS} can have no other metadata than "
            f"{OURS[1]}; got {min(others)!r:.99}",
            "It was damaged after it was written; load another copy",
        )


def parsed(source: Source, text: bytes, field: str, count: int) -> list[int]:
    """Check a header against its own checksum, and return the checksums of its entries.

    Raises:
        SerializationError: The header was damaged.
    """
    words = field.split(" ")
    place = text.find(_KEY) + len(_KEY)
    try:
        numbers = [int(word, 16) for word in words]
    except ValueError:
        numbers = []
    lengths = [HEADER_DIGITS] + [DIGITS] * count
    if not numbers or [*map(len, words)] != lengths or place < len(_KEY):
        raise source.error(
            f"__metadata__['{CHECKSUMS}'] must have a number of {HEADER_DIGITS} hexadecimal digits "
            f"of the header and one of {DIGITS} of each entry, {count} in all; got {field!r:.99}"
        )
    zeroed = text[:place] + _ZEROS.encode() + text[place + HEADER_DIGITS :]
    check(source, "the header", _of_header(zeroed), numbers[0])
    return numbers[1:]


def _of_header(text: bytes) -> int:
    return zlib.crc32(text, zlib.crc32(len(text).to_bytes(8, "little")))
