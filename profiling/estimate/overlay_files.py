"""File overlay: a forked process writes to anonymous files, and reads back what it wrote.

A file that is opened for writing is one without a name, remembered under its path; code that opens
that path afterwards, asks whether it exists or lists its folder gets what was written, renamed or
removed. The disk stays as it is, and all of it is gone with the copy. So a script that keeps its
best weights and loads them at the end can be estimated.

It holds for ``open``, ``os``, ``pathlib``, ``shutil`` and ``glob``, in Python. Libraries that open
files in C (SQLite, HDF5) and other programs that the step starts reach the disk. Temporary files
and compiled kernels are left alone.
"""

from __future__ import annotations

import builtins
import contextlib
import errno
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from typing import Any

LARGEST = 1 << 26  # bytes of a file that are copied for one who goes on writing it; else holes
SMALL = 1 << 16  # bytes of a value that are written into a file of weights; larger ones are holes
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
NO_LINKS = getattr(os, "O_NOFOLLOW", 0)  # paths of descriptors are links
NAMELESS = getattr(os, "O_TMPFILE", 0)  # it is gone with the copy anyway
HANDLES = "/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"


real_open, real_os_open, real_stat = builtins.open, os.open, os.stat  # before they are replaced


class Overlay:
    """Files and folders written by the forked process, by path.

    Attributes:
        files: Descriptors of those written.
        folders: Those made.
        gone: Paths on the disk that were removed or moved away.
    """

    def __init__(self) -> None:
        self.files: dict[str, int] = {}
        self.folders: set[str] = set()
        self.gone: set[str] = set()

    def put(self, path: str, handle: int) -> int:
        """Map a path to a file descriptor."""
        self.files[path] = handle
        self.gone.discard(path)
        return handle

    def to_write(self, path: str, anew: bool) -> str:
        """Return the file to write in place of ``path``, created empty or as a copy."""
        if self._is_special(path):
            return os.devnull
        if anew or path not in self.files:
            there = not anew and path not in self.gone and size_of(path)
            handle = self.put(path, _nameless())
            if there and there > LARGEST:
                os.ftruncate(handle, there)
            elif there:
                with real_open(path, "rb") as source, real_open(handle, "wb", closefd=False) as out:
                    shutil.copyfileobj(source, out)
        return f"{HANDLES}/{self.files[path]}"

    def to_read(self, path: str, given: Any) -> Any:
        """Return the file to open in place of ``given``, whose absolute path is ``path``."""
        if path in self.files:
            return f"{HANDLES}/{self.files[path]}"
        if path in self.gone:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), given)
        return given

    def inside(self, folder: str) -> set[str]:
        """Return the names that the overlay has in a folder."""
        paths = [*self.files, *self.folders]
        return {os.path.basename(p) for p in paths if os.path.dirname(p) == folder != p}

    def move(self, source: str, target: str) -> None:
        """Rename a file or a folder."""
        if source in self.files:
            self.put(target, self.files.pop(source))
            return
        if source in self.folders:
            below, n = source + os.sep, len(source)
            inner = {p for p in self.folders if f"{p}{os.sep}".startswith(below)}
            moved = {target + p[n:] for p in inner}
            self.folders = self.folders - inner | moved
            self.gone -= moved
            for path in [p for p in self.files if p.startswith(below)]:
                self.put(target + path[n:], self.files.pop(path))
        elif size_of(source) is not None:
            self.put(target, real_os_open(source, os.O_RDONLY))
        self.gone.add(source)

    def drop(self, path: str) -> None:
        """Remove a file, or a folder with everything in it."""
        below = path + os.sep
        for known in [p for p in self.files if p == path or p.startswith(below)]:
            del self.files[known]
        self.folders -= {p for p in self.folders if p == path or p.startswith(below)}
        self.gone.add(path)

    def _is_special(self, path: str) -> bool:
        try:
            return path not in self.files and not stat.S_ISREG(real_stat(path).st_mode)
        except OSError:
            return False


def path_of(file: Any) -> str | None:
    """Return the absolute path of a file; None for a descriptor."""
    return None if isinstance(file, int) else os.path.abspath(os.fsdecode(file))


def size_of(path: str) -> int | None:
    """Return the bytes of a file; None for what is none."""
    try:
        found = real_stat(path)
    except OSError:
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None


def is_folder(path: str) -> bool:
    """True for a folder of the disk."""
    try:
        return stat.S_ISDIR(real_stat(path).st_mode)
    except OSError:
        return False


def _nameless() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("lowtide-estimate")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def private(handle: int, size: int) -> int:
    """Copy an open file into an anonymous file."""
    copy, done = _nameless(), 0
    while done < size:
        piece = os.pread(handle, 1 << 20, done)
        if not piece:
            break
        done += os.pwrite(copy, piece, done)
    return copy


# Files of weights


class SparseWriter:
    """A writer that stores small data and leaves holes for the rest, whose values are unknown."""

    def __init__(self, file: Any) -> None:
        self.file = file

    def write(self, piece: Any) -> int:
        """Write bytes, or advance by as many."""
        n = memoryview(piece).nbytes
        if isinstance(piece, bytes) or n <= SMALL:
            self.file.write(piece)
        else:
            self.file.truncate(self.file.tell() + n)
            self.file.seek(n, os.SEEK_CUR)
        return n


@contextlib.contextmanager
def replacing(path: Any) -> Iterator[Any]:
    """Replace ``serialization.atomic_files.replacing`` within the overlay."""
    with open(path, "wb") as file:
        yield SparseWriter(file)


__all__ = ["Overlay", "replacing"]
