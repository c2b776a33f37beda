"""Atomic file replacement, and bounded reads of untrusted files.

A file is written under a temporary name in the same folder, flushed to the disk, and renamed over
the old one; then the folder is flushed too. A process that is killed at any instant leaves either
the old file or the new one, complete. While it is written the temporary file is locked, so that
what a killed process left behind can be told from what a living one is writing.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import io
import mmap
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any, BinaryIO

from .. import execution
from ..errors import SerializationError
from ..interrupts import defer_interrupts
from .file_locks import WITHOUT_LOCKS, try_lock

TEMPORARY_SUFFIX = ".tmp"
_LONGEST_STEM = 64  # bytes of the name in that of its temporary file, which must stay below 255
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # the disk, a quota, the largest file allowed
_NOT_ALLOWED = (errno.EACCES, errno.EPERM, errno.EROFS)
_NO_FLUSH = (errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.EROFS)  # folders cannot be flushed


class UnwrittenError(OSError, SerializationError):
    """A file could not be written; says what became of the old one, ``errno`` says why."""


def is_path(f: Any) -> bool:
    """True for what ``open`` takes as a path."""
    return isinstance(f, str | os.PathLike)


def replacing(path: Any, needed: int = 0) -> AbstractContextManager[BinaryIO]:
    """Open a temporary file for writing that replaces ``path`` when the block succeeds.

    A link is followed: what it points to is replaced. A device or a pipe is written directly.
    The new file has the old one's mode, or without an old one what the umask leaves.

    Args:
        path: Of the file.
        needed: Bytes that it will have at least, for the message on a full disk.

    Raises:
        SerializationError: The folder does not exist.
        UnwrittenError: The disk is full or fails, or the folder may not be written to: the message
            says what is there now.
    """
    found: AbstractContextManager[BinaryIO] = execution.current.replacing(
        functools.partial(_replacing, needed=needed), path
    )
    return found


@contextlib.contextmanager
def _replacing(path: Any, needed: int = 0) -> Iterator[BinaryIO]:
    target = os.path.realpath(os.fspath(path))
    folder, name = os.path.split(target)
    if os.path.lexists(folder) and not os.path.isdir(folder):
        raise SerializationError(
            f"save: {folder}, the parent of {name}, is a file and no folder. Save to another one."
        )
    if not os.path.isdir(folder):
        raise SerializationError(f"save: Parent directory {folder} does not exist. Create it.")
    if os.path.isdir(target):
        raise IsADirectoryError(f"save writes a file, and {target} is a directory.")
    if os.path.exists(target) and not os.path.isfile(target):
        try:
            with open(target, "wb") as device:
                yield device
        except OSError as error:
            text = f"save: {target} could not be written: {error.strerror or error}"
            text += f"; {needed} bytes are needed." if needed and error.errno in _NO_ROOM else "."
            raise UnwrittenError(error.errno, text) from error
        return
    temporary = os.path.join(folder, temporary_name(name))
    replaced = False
    out: BinaryIO | None = None
    try:
        mode = _mode_of(target)
        with _created(temporary, mode) as out:
            yield out
            out.flush()
            if mode is not None:
                os.fchmod(out.fileno(), mode)  # what the umask took
            os.fsync(out.fileno())
            # while it is still locked: it is not taken for a dead process's
            os.replace(temporary, target)
            replaced = True
        flush_folder(folder)
    except BaseException as error:
        # A failure here is not what went wrong first; what stays is removed with the next save.
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        if isinstance(error, OSError):
            raise _unwritten(error, target, replaced, out, needed) from error
        raise


def temporary_name(name: str) -> str:
    """Make a unique hidden file name from ``name``, short enough for the file system."""
    stem = name[:_LONGEST_STEM]
    while len(os.fsencode(stem)) > _LONGEST_STEM:
        stem = stem[:-1]
    return f".{stem}.{secrets.token_hex(6)}{TEMPORARY_SUFFIX}"


def _mode_of(target: str) -> int | None:
    try:
        return stat.S_IMODE(os.stat(target).st_mode) & 0o777
    except FileNotFoundError:
        return None


def _created(temporary: str, mode: int | None) -> BinaryIO:
    # Never more open than the file it replaces. Who looks for leftovers may come before the lock:
    # then the file is gone again when the lock is got, and is made anew.
    while True:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with defer_interrupts():  # between the two nothing would close the file
            handle = os.open(temporary, flags, 0o666 if mode is None else mode)
            out = open(handle, "wb")  # noqa: SIM115  # closed by the caller
        try:
            _lock_own(out.fileno())
            if os.fstat(out.fileno()).st_nlink:
                return out
        except BaseException:
            out.close()
            raise
        out.close()


def _lock_own(handle: int) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)  # waits for who is just looking whether it is alive
    except OSError as error:
        if error.errno not in WITHOUT_LOCKS:
            raise


def remove_leftover(temporary: str) -> bool:
    """Remove a temporary file unless a live process is writing it; True if removed.

    Where the file system has no locks this cannot be known, and it stays.
    """
    try:
        handle = os.open(temporary, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return False
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode) or try_lock(handle) is not True:
            return False
        os.unlink(temporary)
    except FileNotFoundError:  # its writer had finished, and renamed it, before the lock was got
        return False
    finally:
        os.close(handle)
    return True


def _unwritten(
    error: OSError, target: str, replaced: bool, out: BinaryIO | None, needed: int
) -> UnwrittenError:
    reason = error.strerror or str(error)
    if replaced:
        text = (
            f"save: {target} is written and in its place, but its folder could not be flushed to "
            f"the disk ({reason}): a loss of power may undo it. Look after the disk, and save again"
        )
        return UnwrittenError(error.errno, text + ".")
    there = "The file that was there is as it was" if os.path.lexists(target) else "No file is left"
    text = f"save: {target} could not be written: {reason}"
    if error.errno in _NOT_ALLOWED and out is None:
        refusal = why_unwritable(os.path.dirname(target))
        return UnwrittenError(error.errno, f"{text}; {refusal}. {there}. {WAY_OUT}")
    try:
        done = f"after {out.tell()} bytes" if out is not None else "at its creation"
    except (ValueError, OSError):  # closed; what is in the buffer cannot be written either
        done = "when it was closed"
    text += f" {done}; "
    if needed:
        text += f"the file takes at least {needed} bytes, and "
    room = free_bytes(os.path.dirname(target))
    return UnwrittenError(
        error.errno, f"{text}{room}. {there}. Make room, or save to another folder."
    )


WAY_OUT = "Change its permissions, or save to another folder."


def why_unwritable(folder: str) -> str:
    """Describe who may not write to a folder, or to the first above it that exists."""
    while not os.path.isdir(folder) and os.path.dirname(folder) != folder:
        folder = os.path.dirname(folder)
    try:
        mode = stat.S_IMODE(os.stat(folder).st_mode)
        if os.statvfs(folder).f_flag & os.ST_RDONLY:
            return f"{folder} is on a file system that is mounted read-only"
    except OSError as unknown:
        return f"{folder} cannot be looked at ({unknown.strerror})"
    return f"user {os.geteuid()} may not write to {folder} (mode {mode:o})"


def free_bytes(folder: str) -> str:
    """Describe how many bytes are free where a folder is."""
    try:
        room = os.statvfs(folder)
    except OSError as unknown:
        return f"how many bytes are free cannot be told: {unknown.strerror}"
    return f"{room.f_bavail * room.f_frsize} bytes are free there"


def flush_folder(folder: str) -> None:
    """Flush renames and removals in a folder to disk, where the system supports it."""
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    except PermissionError:  # it may be written to and not be read
        return
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in _NO_FLUSH:
            raise
    finally:
        os.close(handle)


class Source:
    """A readable file, or a binary file-like object from its present position on.

    Attributes:
        name: For messages.
        size: Bytes that are there.
        has_places: Whether several threads may read at once, each from a separate place.
    """

    def __init__(self, f: Any) -> None:
        self._mapping: mmap.mmap | None = None
        self._owned = self.has_places = is_path(f)
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

    def read_beside(self, offset: int, memory: memoryview) -> None:
        """Fill ``memory`` from ``offset``; several threads may call it at once."""
        self._check(offset, memory.nbytes)
        handle, done = self._file.fileno(), 0
        while done < memory.nbytes:
            got = os.preadv(handle, [memory[done:]], offset + done)
            if not got:
                raise self.error(
                    f"{memory.nbytes} bytes at {offset} are not there", "It was cut off"
                )
            done += got

    def _check(self, offset: int, count: int) -> None:
        if offset < 0 or count < 0 or offset + count > self.size:
            raise self.error(
                f"{count} bytes at {offset} are asked for, and there are {self.size} in all",
                "It was cut off or is damaged",
            )

    def mapping(self) -> mmap.mmap:
        """Map the file into memory, copy-on-write: changes stay in this process.

        Raises:
            SerializationError: It is not a separate file.
        """
        if self._mapping is None:
            if not self._owned:
                raise SerializationError("load: mmap=True needs a path, not a file-like object.")
            self._mapping = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_COPY)
        return self._mapping

    def error(self, problem: str, hint: str = "") -> SerializationError:
        """Build an exception that names this file and a problem."""
        return SerializationError(f"load: {self.name}: {problem}." + (f" {hint}." if hint else ""))

    def close(self) -> None:
        """Close the file, unless it was given open."""
        if self._owned:
            self._file.close()

    def __enter__(self) -> Source:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
