"""Files underneath: replacing one atomically, and reading pieces of one without trusting it.

A file is written under a temporary name in the same folder, flushed to the disk, and renamed over
the old one; then the folder is flushed too. Whoever is killed at any instant leaves either the
old file or the new one, whole.
"""

from __future__ import annotations

import contextlib
import io
import mmap
import os
import secrets
from collections.abc import Iterator
from typing import Any, BinaryIO

from ..errors import SerializationError

TEMPORARY_SUFFIX = ".tmp"


def is_path(f: Any) -> bool:
    """True for what ``open`` takes as a path."""
    return isinstance(f, str | os.PathLike)


@contextlib.contextmanager
def replacing(path: Any) -> Iterator[BinaryIO]:
    """Open a file for writing that takes ``path``'s place when the block ends without an error.

    A link is followed: what it points to is replaced. A device or a pipe is written directly.

    Raises:
        SerializationError: The folder does not exist.
    """
    target = os.path.realpath(os.fspath(path))
    folder, name = os.path.split(target)
    if not os.path.isdir(folder):
        raise SerializationError(f"save: Parent directory {folder} does not exist. Create it.")
    if os.path.isdir(target):
        raise IsADirectoryError(f"save writes a file, and {target} is a directory.")
    if os.path.exists(target) and not os.path.isfile(target):
        with open(target, "wb") as out:
            yield out
        return
    temporary = os.path.join(folder, f".{name}.{secrets.token_hex(6)}{TEMPORARY_SUFFIX}")
    try:
        with open(temporary, "xb") as out:
            yield out
            out.flush()
            os.fsync(out.fileno())
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
    flush_folder(folder)


def flush_folder(folder: str) -> None:
    """Make renames and removals in a folder survive a loss of power."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError:  # a file system without it: nothing more can be done
        pass
    finally:
        os.close(handle)


class Source:
    """Pieces of a file, or of a binary file-like object from its present position on.

    Attributes:
        name: For messages.
        size: Bytes that are there.
    """

    def __init__(self, f: Any) -> None:
        self._mapping: mmap.mmap | None = None
        self._owned = is_path(f)
        if self._owned:
            self.name = os.fspath(f)
            self._file: Any = open(f, "rb")  # noqa: SIM115  # closed by close()
            self._start = 0
            self.size = os.fstat(self._file.fileno()).st_size
            return
        if not hasattr(f, "read"):
            raise TypeError(
                f"load takes a path or a binary file-like object; got {type(f).__name__}."
            )
        self.name = str(getattr(f, "name", "") or f"<{type(f).__name__}>")
        seekable = getattr(f, "seekable", lambda: hasattr(f, "seek"))()
        self._file = f if seekable else io.BytesIO(f.read())
        self._start = self._file.tell()
        self.size = self._file.seek(0, os.SEEK_END) - self._start

    def read(self, offset: int, count: int) -> bytes:
        """Read ``count`` bytes at ``offset``.

        Raises:
            SerializationError: They are not there.
        """
        self._check(offset, count)
        self._file.seek(self._start + offset)
        data: bytes = self._file.read(count)
        if len(data) != count:
            raise self.error(f"{count} bytes at {offset} are not there", "It was cut off")
        return data

    def read_into(self, offset: int, memory: memoryview) -> None:
        """Fill ``memory`` from ``offset``."""
        self._check(offset, memory.nbytes)
        self._file.seek(self._start + offset)
        done, total = 0, memory.nbytes
        while done < total:
            if hasattr(self._file, "readinto"):
                got = self._file.readinto(memory[done:])
            else:
                data = self._file.read(min(total - done, 1 << 24))
                got = len(data)
                memory[done : done + got] = data
            if not got:
                raise self.error(f"{total} bytes at {offset} are not there", "It was cut off")
            done += got

    def _check(self, offset: int, count: int) -> None:
        if offset < 0 or count < 0 or offset + count > self.size:
            raise self.error(
                f"{count} bytes at {offset} are asked for, and there are {self.size} in all",
                "It was cut off or is damaged",
            )

    def mapping(self) -> mmap.mmap:
        """The file in memory, copied on write: changes stay in this process.

        Raises:
            SerializationError: It is no file of its own.
        """
        if self._mapping is None:
            if not self._owned:
                raise SerializationError("load: mmap=True needs a path, not a file-like object.")
            self._mapping = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_COPY)
        return self._mapping

    def error(self, problem: str, hint: str = "") -> SerializationError:
        """The exception that names this file and a problem."""
        return SerializationError(f"load: {self.name}: {problem}." + (f" {hint}." if hint else ""))

    def close(self) -> None:
        """Close the file, unless it was given open."""
        if self._owned:
            self._file.close()

    def __enter__(self) -> Source:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
