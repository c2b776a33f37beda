"""What a forked process calls in place of ``open`` and functions of ``os``: the overlay's versions.

Each does what the real one does with the files that the overlay has (``overlay_files.py``), and
leaves the disk as it is. Compiled code and temporary files reach the disk.
"""

from __future__ import annotations

import builtins
import errno
import functools
import io
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from typing import Any

from .overlay_files import (
    HANDLES,
    NAMELESS,
    NO_LINKS,
    WRITES,
    Overlay,
    is_folder,
    path_of,
    real_open,
    real_os_open,
    real_stat,
)

real_lstat, real_scandir, real_listdir, real_rmtree = (
    os.lstat,
    os.scandir,
    os.listdir,
    shutil.rmtree,
)
_COMPILER = "lowtide.framework.kernels.cpu.compiler."
_theirs = (_COMPILER, "numba.", "multiprocessing.", "tempfile", "importlib")  # who may write
_laid: Overlay | None = None


def lay() -> Overlay:
    """Install the overlay in this process: later writes go to it."""
    global _laid
    if _laid is None:  # else a copy of a copy
        _laid = Overlay()
        OverlayCalls(_laid).install()
    return _laid


class OverlayCalls:
    """The functions of an overlay, by the names of those that they replace."""

    def __init__(self, overlay: Overlay) -> None:
        self.overlay = overlay

    def install(self) -> None:
        """Replace the functions of this process."""
        for owner in (builtins, io):
            setattr(owner, "open", self.open)  # noqa: B010 - they are not to be assigned, says mypy
        for name, instead in self._changes().items():
            if hasattr(os, name):
                setattr(os, name, _in_place_of(getattr(os, name), instead))
        new: dict[str, Callable[..., Any]] = {
            "open": self.os_open,
            "stat": self._looking(real_stat),
            "lstat": self._looking(real_lstat),
            "scandir": self.scandir,
            "listdir": self.listdir,
        }
        for name, f in new.items():
            setattr(os, name, f)
        drop = self.overlay.drop
        removed = _in_place_of(real_rmtree, lambda path, *_: drop(path_of(path) or ""))
        setattr(shutil, "rmtree", removed)  # noqa: B010

    def _changes(self) -> dict[str, Callable[..., Any]]:
        # What changes the disk, and what is done instead, with paths.
        o = self.overlay
        does: dict[str, Callable[..., Any]] = {
            "mkdir": lambda path, *_: self.mkdir(path_of(path) or ""),
            "rmdir": lambda path: o.drop(path_of(path) or ""),
            "remove": lambda path: o.drop(path_of(path) or ""),
            "unlink": lambda path: o.drop(path_of(path) or ""),
            "rename": lambda a, b: o.move(path_of(a) or "", path_of(b) or ""),
            "replace": lambda a, b: o.move(path_of(a) or "", path_of(b) or ""),
            "link": lambda a, b: self.link(os.path.abspath(a), path_of(b) or ""),
            "symlink": lambda a, b, *_: self.link(a, path_of(b) or ""),
            "truncate": lambda path, length: self.truncate(path_of(path) or "", length),
            "listxattr": lambda *_: [],
        }
        for name in ("chmod", "chown", "lchown", "utime", "setxattr", "removexattr", "mkfifo"):
            does[name] = lambda path, *_: os.stat(path) and None
        return does

    def open(self, file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        """Replace ``open``."""
        path = path_of(file)
        if path is None or may_write(sys._getframe(1)):
            return real_open(file, mode, *args, **kwargs)
        if not set(mode) & set("wax+"):
            return real_open(self.overlay.to_read(path, file), mode, *args, **kwargs)
        if "x" in mode and os.path.exists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), file)
        if mode.startswith("r") and not os.path.exists(path):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), file)
        kwargs.pop("opener", None)
        instead = self.overlay.to_write(path, bool(set(mode) & set("wx")))
        return real_open(instead, mode.replace("x", "w"), *args, **kwargs)

    def os_open(self, path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        """Replace ``os.open``."""
        known = None if kwargs.get("dir_fd") is not None else path_of(path)
        nameless = flags & NAMELESS == NAMELESS != 0
        if known is None or nameless or may_write(sys._getframe(1)):
            return real_os_open(path, flags, *args, **kwargs)
        if not flags & WRITES:
            if known in self.overlay.folders and not is_folder(known):
                found = os.sep  # any folder, to flush or to lock
            else:
                found = self.overlay.to_read(known, path)
            flags = flags if found is path else flags & ~NO_LINKS
            return real_os_open(found, flags, *args, **kwargs)
        there = os.path.exists(known)
        if there and flags & os.O_EXCL:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        if not there and not flags & os.O_CREAT:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        flags &= ~(os.O_CREAT | os.O_EXCL | NO_LINKS)
        return real_os_open(self.overlay.to_write(known, False), flags)

    def _looking(self, really: Callable[..., Any]) -> Callable[..., Any]:
        def look(path: Any, **kwargs: Any) -> Any:
            known = None if kwargs.get("dir_fd") is not None else path_of(path)
            if known is None or may_write(sys._getframe(1)):
                return really(path, **kwargs)
            if known in self.overlay.files:
                return real_stat(f"{HANDLES}/{self.overlay.files[known]}")
            if known in self.overlay.folders:
                return real_stat(os.sep)
            return really(self.overlay.to_read(known, path), **kwargs)

        return functools.wraps(really)(look)

    def scandir(self, path: Any = ".") -> Any:
        """Replace ``os.scandir``."""
        folder = path_of(path)
        if folder is None or isinstance(path, bytes) or may_write(sys._getframe(1)):
            return real_scandir(path)
        mine: list[Any] = [
            OverlayDirEntry(os.fspath(path), name) for name in sorted(self.overlay.inside(folder))
        ]
        names = {entry.name for entry in mine}
        try:
            self.overlay.to_read(folder, path)
            with real_scandir(path) as found:
                for entry in found:
                    gone = os.path.join(folder, entry.name) in self.overlay.gone
                    if entry.name not in names and not gone:
                        mine.append(entry)
        except FileNotFoundError:
            if folder not in self.overlay.folders:
                raise
        return ScandirIterator(mine)

    def listdir(self, path: Any = ".") -> list[Any]:
        """Replace ``os.listdir``."""
        if not isinstance(path, str | os.PathLike):
            return real_listdir(path)
        with self.scandir(path) as found:
            return [entry.name for entry in found]

    def mkdir(self, path: str) -> None:
        """Make a folder of the overlay."""
        if os.path.exists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        if not os.path.isdir(os.path.dirname(path)):  # makedirs and pathlib make it then
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        self.overlay.folders.add(path)
        self.overlay.gone.discard(path)

    def link(self, source: Any, path: str) -> None:
        """Copy the file that a link leads to."""
        # Of a symbolic link, the source counts from the link's folder.
        source = os.path.join(os.path.dirname(path), os.fspath(source))
        if os.path.isfile(source):
            found = self.overlay.to_read(os.path.abspath(source), source)
            self.overlay.put(path, real_os_open(found, os.O_RDONLY))

    def truncate(self, path: str, length: int) -> None:
        """Replace ``os.truncate``."""
        handle = real_os_open(self.overlay.to_write(path, False), os.O_RDWR)
        os.ftruncate(handle, length)
        os.close(handle)


def _in_place_of(really: Callable[..., Any], instead: Callable[..., Any]) -> Callable[..., Any]:
    # What is done by those who may, or relative to an open folder, is done.
    @functools.wraps(really)
    def changed(*args: Any, **kwargs: Any) -> Any:
        if may_write(sys._getframe(1)) or (args and isinstance(args[0], int)):
            return really(*args, **kwargs)
        if any(value is not None for name, value in kwargs.items() if name.endswith("dir_fd")):
            return None
        names = {"path", "name", "src", "dst", "length"}
        paths = [value for name, value in kwargs.items() if name in names]
        return instead(*args, *paths)

    return changed


def may_write(frame: Any) -> bool:
    # What keeps compiled code, and files that no other process knows of.
    name = frame.f_globals.get("__name__", "")
    while name in ("os", "shutil", "genericpath", "posixpath") and frame.f_back is not None:
        frame = frame.f_back
        name = frame.f_globals.get("__name__", "")
    return bool(name.startswith(_theirs))


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


__all__ = ["OverlayCalls", "lay"]
