"""Compiled kernels on disk: one shared library for each kernel and signature.

They lie in the folder ``kernels`` of the cache (:mod:`...runtime.cache_folder`). A library's name
is a hash of its *identity*: kernel, signature, fingerprint of the code as it was imported,
processor, versions of Python, NumPy, Numba, llvmlite and lowtide, and the compiler's settings. So
checkouts, versions and settings share the folder, and none finds the library of another.

A file holds the library, its identity, the identity's length, a BLAKE2 sum of all that, and a mark.
It is opened once: what is checked through that descriptor (owner, mode, sum, identity) is what is
mapped. Where files of the folder may not be run, or there is no folder, a library is mapped from a
file in memory. Where libraries are not supported, such files hold what Numba keeps of a kernel
(:mod:`.numba_dispatcher`).
"""

from __future__ import annotations

import hashlib
import itertools
import os
import platform
import stat
import sys
import sysconfig
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from ...runtime import cache_folder
from . import entry, fingerprint, processor

FOLDER = "kernels"  # of the cache
LIBRARY, NUMBA = ".so", ".numba"  # endings: libraries, and what Numba keeps where there are none
NEEDED = ["libm.so.6"] if platform.libc_ver()[0] == "glibc" else []

_MARK = b"lowtide2"
_TAIL = 8 + 32 + len(_MARK)  # length of the identity, sum, mark
_LARGEST = 1 << 26  # bytes of a file that is read
_TEMPORARY = ".making-"
_UNUSED = 90 * 24 * 3600.0  # seconds after which a library that no process loads is removed
_ABANDONED = 3600.0  # seconds after which a temporary file is: its process was killed
_READ = os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
_CREATE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)

_T = TypeVar("_T")

_numbers = itertools.count(1)  # of paths that the loader has not seen yet, and of temporary files
_swept: list[str] = []  # folders in which this process has looked for old files


class CannotLoad(Exception):
    """A library needs a function that the process does not have."""


@cache
def supported() -> bool:
    """Whether kernels are made into libraries here: Linux on x86-64, CPython with its lock."""
    return (
        sys.platform == "linux"
        and processor.description()[1] != ""
        and not sysconfig.get_config_var("Py_GIL_DISABLED")
        and not hasattr(sys, "getobjects")
        and entry.layout_known()
    )


def folder() -> Path | None:
    """The folder of libraries, made if it is absent; None if it cannot be used."""
    return None if problem() else Path(cache_folder.BASE, FOLDER)


def problem() -> str:
    """Say why libraries cannot be kept, or nothing if they can."""
    try:
        with cache_folder.opened(FOLDER):
            return ""
    except cache_folder.Unusable as error:
        return str(error)


def inventory() -> tuple[int, int]:
    """Return how many libraries are kept, and their bytes.

    Raises:
        Unusable: The folder cannot be used.
    """
    with cache_folder.opened(FOLDER) as place:
        sizes = [
            os.stat(name, dir_fd=place, follow_symlinks=False).st_size
            for name in os.listdir(place)
            if name.endswith((LIBRARY, NUMBA))
        ]
    return len(sizes), sum(sizes)


def clear() -> int:
    """Remove all libraries and what was left of making them; return how many files that were.

    Processes that have loaded one keep it.

    Raises:
        Unusable: The folder cannot be used.
    """
    count = 0
    with cache_folder.opened(FOLDER) as place:
        for name in os.listdir(place):
            if name.endswith((LIBRARY, NUMBA)) or name.startswith(_TEMPORARY):
                with suppress(FileNotFoundError):  # another process clears it, too
                    os.unlink(name, dir_fd=place)
                    count += 1
    return count


def load(kernel: Any, words: str) -> entry.Loaded | None:
    """Return what a library that is kept has, or None.

    A file that is damaged, or that another user may have written, counts as absent.
    """
    return _read(
        kernel, words, LIBRARY, lambda place, data: _map(place, data, kernel.__name__, words)
    )


def load_data(kernel: Any, words: str) -> bytes | None:
    """Return what :func:`keep_data` was given, or None; checked as libraries are."""
    return _read(kernel, words, NUMBA, lambda place, data: data)


def keep(kernel: Any, words: str, data: bytes) -> entry.Loaded:
    """Keep a library, if there is a folder for it, and return what :func:`load` does.

    Raises:
        CannotLoad: It needs a function that the process does not have.
    """
    try:
        return _write(
            kernel, words, LIBRARY, data, lambda file: _map(file, data, kernel.__name__, words)
        )
    except (fingerprint.Unknown, cache_folder.Unusable, OSError):
        # Nothing can be kept, or the folder is full: this process has it all the same.
        return _map_memory(data, kernel.__name__, words)


def keep_data(kernel: Any, words: str, data: bytes) -> None:
    """Keep bytes for a kernel and words under its identity, if there is a folder for them."""
    with suppress(fingerprint.Unknown, cache_folder.Unusable, OSError):
        _write(kernel, words, NUMBA, data, lambda file: None)


def _read(kernel: Any, words: str, kind: str, use: Callable[[int, bytes], _T]) -> _T | None:
    try:
        wanted = _identity(kernel, words)
        with cache_folder.opened(FOLDER) as place:
            descriptor = os.open(_file_name(kernel, wanted, kind), _READ, dir_fd=place)
    except (fingerprint.Unknown, cache_folder.Unusable, OSError):
        return None
    try:
        data = _verified(descriptor, wanted)
        if data is None:
            return None
        _note_use(descriptor)
        return use(descriptor, data)
    except (OSError, CannotLoad):
        return None
    finally:
        os.close(descriptor)


def _write(kernel: Any, words: str, kind: str, data: bytes, use: Callable[[int], _T]) -> _T:
    # ``use`` is given the file before it has its name: a library that cannot be used is not kept.
    identity = _identity(kernel, words, compiled=True)
    with cache_folder.opened(FOLDER) as place:
        body = data + identity + len(identity).to_bytes(8, "little")
        temporary = f"{_TEMPORARY}{os.getpid()}-{next(_numbers)}-{os.urandom(4).hex()}"
        descriptor = os.open(temporary, _CREATE, 0o600, dir_fd=place)
        try:
            with os.fdopen(os.dup(descriptor), "wb") as file:
                file.write(body + hashlib.blake2b(body, digest_size=32).digest() + _MARK)
            found = use(descriptor)
            name = _file_name(kernel, identity, kind)
            os.replace(temporary, name, src_dir_fd=place, dst_dir_fd=place)
        except BaseException:
            os.unlink(temporary, dir_fd=place)
            raise
        finally:
            os.close(descriptor)
        _sweep(place)
        return found


def _verified(descriptor: int, identity: bytes) -> bytes | None:
    # The library in a file that only its owner can have written, all of whose bytes are right.
    status = os.fstat(descriptor)
    regular = stat.S_ISREG(status.st_mode) and status.st_size <= _LARGEST
    if not regular or not cache_folder.trusted(status):
        return None
    with os.fdopen(os.dup(descriptor), "rb") as file:
        data = file.read(_LARGEST)
    body, tail = data[:-_TAIL], data[-_TAIL:]
    if len(data) < _TAIL or tail[-len(_MARK) :] != _MARK:
        return None
    if hashlib.blake2b(body + tail[:8], digest_size=32).digest() != tail[8:40]:
        return None
    length = int.from_bytes(tail[:8], "little")
    return body[: len(body) - length] if body[len(body) - length :] == identity else None


def _map(descriptor: int, data: bytes, name: str, words: str) -> entry.Loaded:
    # By the descriptor: a path could name another file by now.
    try:
        return entry.load(_new_path(descriptor), name, words.split(","))
    except OSError:  # where no file may be run (a mount with noexec), or for a reason that stays
        return _map_memory(data, name, words)


def _map_memory(data: bytes, name: str, words: str) -> entry.Loaded:
    descriptor = os.memfd_create(name)
    try:
        with os.fdopen(os.dup(descriptor), "wb") as file:
            file.write(data)
        return entry.load(_new_path(descriptor), name, words.split(","))
    except OSError as error:
        raise CannotLoad(str(error)) from error
    finally:
        os.close(descriptor)


def _new_path(descriptor: int) -> str:
    # The system's loader takes a path that it knows for the library that it was. Descriptors are
    # numbered anew all the time, so each path is spelled as none was before.
    spelled = "".join("./" if bit == "1" else "/" for bit in f"{next(_numbers):b}")
    return f"/proc/self/fd/{spelled}{descriptor}"


def _note_use(descriptor: int) -> None:
    # Once a day: its time of modification says when it was last used.
    if time.time() - os.fstat(descriptor).st_mtime > 24 * 3600:
        with suppress(OSError):  # a folder that root keeps for all
            os.utime(descriptor)


def _sweep(place: int) -> None:
    # Once a process: libraries of versions and settings that are not installed any more.
    if cache_folder.BASE in _swept:
        return
    _swept.append(cache_folder.BASE)
    now = time.time()
    for name in os.listdir(place):
        limit = _ABANDONED if name.startswith(_TEMPORARY) else _UNUSED
        if not name.endswith((LIBRARY, NUMBA)) and not name.startswith(_TEMPORARY):
            continue
        with suppress(OSError):  # another process was faster
            status = os.stat(name, dir_fd=place, follow_symlinks=False)
            if now - status.st_mtime > limit:
                os.unlink(name, dir_fd=place)


def _identity(kernel: Any, words: str, compiled: bool = False) -> bytes:
    # ``compiled``: of code that this process has compiled just now.
    function = kernel.py_func
    parts = [
        f"lowtide {getattr(sys.modules.get(__name__.partition('.')[0]), '__version__', '')}",
        f"python {sys.version} {sys.implementation.cache_tag} {sys.flags.optimize}",
        *processor.versions(check=compiled),
        *processor.description(),
        *processor.settings(check=compiled),
        f"{function.__module__} {function.__qualname__}",
        words,
        f"kernel {fingerprint.of_kernel(kernel)}",
        f"compiler {fingerprint.of_compiler()}",
    ]
    return "\n".join(parts).encode("utf-8", "surrogateescape")


def _file_name(kernel: Any, identity: bytes, kind: str) -> str:
    key = hashlib.blake2b(identity, digest_size=16).hexdigest()
    return f"{kernel.__name__.strip('_')}-{key}{kind}"
