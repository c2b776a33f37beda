"""File overlay: a forked process writes to anonymous files, and reads back what it wrote.

A file that is opened for writing is one without a name, remembered under its path; whoever opens
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
import functools
import io
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

LARGEST = 1 << 26  # bytes of a file that are copied for one who goes on writing it; else holes
SMALL = 1 << 16  # bytes of a value that are written into a file of weights; larger ones are holes
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_NO_LINKS = getattr(os, "O_NOFOLLOW", 0)  # paths of descriptors are links
_NAMELESS = getattr(os, "O_TMPFILE", 0)  # it is gone with the copy anyway
HANDLES = "/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"
_COMPILER = "lowtide.framework.kernels.cpu.compiler."
_theirs = (_COMPILER, "numba.", "multiprocessing.", "tempfile", "importlib")  # who may write


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
            there = not anew and path not in self.gone and _size(path)
            handle = self.put(path, _nameless())
            if there and there > LARGEST:
                os.ftruncate(handle, there)
            elif there:
                with _open(path, "rb") as source, _open(handle, "wb", closefd=False) as out:
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
        elif _size(source) is not None:
            self.put(target, _os_open(source, os.O_RDONLY))
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
            return path not in self.files and not stat.S_ISREG(_stat(path).st_mode)
        except OSError:
            return False


# What is put in the place of Python's own

_open, _os_open, _stat, _lstat = builtins.open, os.open, os.stat, os.lstat
_scandir, _listdir, _rmtree = os.scandir, os.listdir, shutil.rmtree
_laid: Overlay | None = None


def lay() -> Overlay:
    """Install the overlay in this process: later writes go to it."""
    global _laid
    if _laid is not None:  # a copy of a copy
        return _laid
    o = _laid = Overlay()

    def opened(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        path = _path(file)
        if path is None or _may(sys._getframe(1)):
            return _open(file, mode, *args, **kwargs)
        if not set(mode) & set("wax+"):
            return _open(o.to_read(path, file), mode, *args, **kwargs)
        if "x" in mode and os.path.exists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), file)
        if mode.startswith("r") and not os.path.exists(path):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), file)
        kwargs.pop("opener", None)
        instead = o.to_write(path, bool(set(mode) & set("wx")))
        return _open(instead, mode.replace("x", "w"), *args, **kwargs)

    def os_open(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        known = None if kwargs.get("dir_fd") is not None else _path(path)
        nameless = flags & _NAMELESS == _NAMELESS != 0
        if known is None or nameless or _may(sys._getframe(1)):
            return _os_open(path, flags, *args, **kwargs)
        if not flags & _WRITES:
            made = known in o.folders and not _is_folder(known)
            found = os.sep if made else o.to_read(known, path)  # any folder, to flush or to lock
            return _os_open(found, flags if found is path else flags & ~_NO_LINKS, *args, **kwargs)
        there = os.path.exists(known)
        if there and flags & os.O_EXCL:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        if not there and not flags & os.O_CREAT:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return _os_open(o.to_write(known, False), flags & ~(os.O_CREAT | os.O_EXCL | _NO_LINKS))

    def looks(really: Callable[..., Any]) -> Callable[..., Any]:
        def look(path: Any, **kwargs: Any) -> Any:
            known = None if kwargs.get("dir_fd") is not None else _path(path)
            if known is None or _may(sys._getframe(1)):
                return really(path, **kwargs)
            if known in o.files:
                return _stat(f"{HANDLES}/{o.files[known]}")
            if known in o.folders:
                return _stat(os.sep)
            return really(o.to_read(known, path), **kwargs)

        return functools.wraps(really)(look)

    def scandir(path: Any = ".") -> Any:
        folder = _path(path)
        if folder is None or isinstance(path, bytes) or _may(sys._getframe(1)):
            return _scandir(path)
        mine: list[Any] = [
            OverlayDirEntry(os.fspath(path), name) for name in sorted(o.inside(folder))
        ]
        names = {entry.name for entry in mine}
        with contextlib.suppress(FileNotFoundError) if folder in o.folders else _nothing():
            o.to_read(folder, path)
            with _scandir(path) as found:
                mine += [
                    entry for entry in found
                    if entry.name not in names and os.path.join(folder, entry.name) not in o.gone
                ]  # fmt: skip
        return ScandirIterator(mine)

    def listdir(path: Any = ".") -> list[Any]:
        if not isinstance(path, str | os.PathLike):
            return _listdir(path)
        with scandir(path) as found:
            return [entry.name for entry in found]

    def mkdir(path: str) -> None:
        if os.path.exists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        if not os.path.isdir(os.path.dirname(path)):  # makedirs and pathlib make it then
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        o.folders.add(path)
        o.gone.discard(path)

    def linked(source: Any, path: str) -> None:
        # Of a symbolic link, the source counts from the link's folder.
        source = os.path.join(os.path.dirname(path), os.fspath(source))
        if os.path.isfile(source):
            o.put(path, _os_open(o.to_read(os.path.abspath(source), source), os.O_RDONLY))

    def truncate(path: str, length: int) -> None:
        handle = _os_open(o.to_write(path, False), os.O_RDWR)
        os.ftruncate(handle, length)
        os.close(handle)

    for owner in (builtins, io):
        setattr(owner, "open", opened)  # noqa: B010 - they are not to be assigned, says mypy
    does: dict[str, Callable[..., Any]] = {
        "mkdir": lambda path, *_: mkdir(_path(path) or ""),
        "rmdir": lambda path: o.drop(_path(path) or ""),
        "remove": lambda path: o.drop(_path(path) or ""),
        "unlink": lambda path: o.drop(_path(path) or ""),
        "rename": lambda a, b: o.move(_path(a) or "", _path(b) or ""),
        "replace": lambda a, b: o.move(_path(a) or "", _path(b) or ""),
        "link": lambda a, b: linked(os.path.abspath(a), _path(b) or ""),
        "symlink": lambda a, b, *_: linked(a, _path(b) or ""),
        "truncate": lambda path, length: truncate(_path(path) or "", length),
    }
    for name in ("chmod", "chown", "lchown", "utime", "setxattr", "removexattr", "mkfifo"):
        does[name] = lambda path, *_: os.stat(path) and None
    does["listxattr"] = lambda *_: []
    for name, instead in does.items():
        if hasattr(os, name):
            setattr(os, name, _in_place_of(getattr(os, name), instead))
    new = {"open": os_open, "stat": looks(_stat), "lstat": looks(_lstat), "scandir": scandir}
    for name, f in {**new, "listdir": listdir}.items():
        setattr(os, name, f)
    setattr(shutil, "rmtree", _in_place_of(_rmtree, lambda path, *_: o.drop(_path(path) or "")))  # noqa: B010
    return o


def _in_place_of(really: Callable[..., Any], instead: Callable[..., Any]) -> Callable[..., Any]:
    # What is done by those who may, or relative to an open folder, is done.
    @functools.wraps(really)
    def changed(*args: Any, **kwargs: Any) -> Any:
        if _may(sys._getframe(1)) or (args and isinstance(args[0], int)):
            return really(*args, **kwargs)
        if any(value is not None for name, value in kwargs.items() if name.endswith("dir_fd")):
            return None
        names = {"path", "name", "src", "dst", "length"}
        paths = [value for name, value in kwargs.items() if name in names]
        return instead(*args, *paths)

    return changed


def _may(frame: Any) -> bool:
    # What keeps compiled code, and files that nobody else knows of.
    name = frame.f_globals.get("__name__", "")
    while name in ("os", "shutil", "genericpath", "posixpath") and frame.f_back is not None:
        frame = frame.f_back
        name = frame.f_globals.get("__name__", "")
    return bool(name.startswith(_theirs))


def _path(file: Any) -> str | None:
    # None for a descriptor.
    return None if isinstance(file, int) else os.path.abspath(os.fsdecode(file))


def _size(path: str) -> int | None:
    try:
        found = _stat(path)
    except OSError:
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None


def _is_folder(path: str) -> bool:
    try:
        return stat.S_ISDIR(_stat(path).st_mode)
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


def _nothing() -> contextlib.AbstractContextManager[None]:
    return contextlib.nullcontext()


class OverlayDirEntry:
    """The ``os.DirEntry`` of a file or folder of the overlay."""

    def __init__(self, folder: str, name: str) -> None:
        self.name, self.path = name, os.path.join(folder, name)

    def __fspath__(self) -> str:
        return self.path

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        """True for a folder."""
        return os.path.isdir(self.path)

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        """True for a file."""
        return os.path.isfile(self.path)

    def is_symlink(self) -> bool:
        """Return False: the overlay has no symbolic links."""
        return False

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """Return the ``os.stat`` result."""
        return os.stat(self.path)


class ScandirIterator:
    """The iterator that ``os.scandir`` returns, also a context manager."""

    def __init__(self, entries: list[Any]) -> None:
        self.rest = iter(entries)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return next(self.rest)

    def __enter__(self) -> ScandirIterator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the iterator."""
        self.rest = iter(())


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


__all__ = ["Overlay", "lay", "replacing"]
