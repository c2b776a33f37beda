"""A key-value store in a file that all processes reach."""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import time
import weakref
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any, BinaryIO

from .stores import Deadline, Store, Table, is_owner

_ENTRY = struct.Struct("<II")  # bytes of a key, and of its value
_DELETED = 0xFFFFFFFF  # in place of the bytes of a value
_NAP = 0.01  # seconds between two looks at the file
_LEFT = "lowtide/left"  # the key that counts the processes that have let go of their store


class FileStore(Store):
    """Store in a file. Each change is an entry at its end; a lock keeps processes apart.

    A process that is killed while it writes leaves half an entry, which the next writer removes.

    Args:
        file_name: The file; it is made if it is not there. One that an earlier run left has its
            values.
        world_size: How many processes use the store: the last one that lets go of it removes the
            file. -1 if that is not known; then it stays.

    Attributes:
        path: The file.
    """

    def __init__(self, file_name: str, world_size: int = -1) -> None:
        super().__init__()
        self.path = os.path.abspath(os.fspath(file_name))
        self.world_size = world_size
        with self._locked():
            pass
        if world_size > 0:
            weakref.finalize(self, _let_go, self.path, world_size, os.getpid())

    @contextlib.contextmanager
    def _locked(self) -> Iterator[_Log]:
        with _opened(self.path) as log:
            yield log

    def _run(self, name: str, *args: Any) -> Any:
        with self._locked() as log:
            return getattr(log, name)(*args)

    def _await(self, keys: Sequence[str], timeout: timedelta) -> bool:
        deadline = Deadline(timeout)
        while not self.check(keys):
            if not deadline.left:
                return False
            time.sleep(_NAP)
        return True

    def list_keys(self) -> list[str]:
        """Return all keys but those of the store itself."""
        return [key for key in super().list_keys() if key != _LEFT]


class _Log(Table):
    """The table that a file's entries make; a change is written to it at once."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__()
        self._file = file
        self._end = 0
        data = file.read()
        while True:
            head = data[self._end : self._end + _ENTRY.size]
            if len(head) < _ENTRY.size:
                return
            length, size = _ENTRY.unpack(head)
            start = self._end + _ENTRY.size
            end = start + length + (0 if size == _DELETED else size)
            if end > len(data):
                return
            key = data[start : start + length].decode()
            if size == _DELETED:
                self.values.pop(key, None)
            else:
                self.values[key] = data[start + length : end]
            self._end = end

    def set(self, key: str, value: bytes) -> None:
        """Write a value."""
        super().set(key, value)
        self._write(key, value)

    def delete_key(self, key: str) -> bool:
        """Remove a key; return whether it was there."""
        found = super().delete_key(key)
        if found:
            self._write(key, None)
        return found

    def _write(self, key: str, value: bytes | None) -> None:
        name = key.encode()
        size = _DELETED if value is None else len(value)
        entry = _ENTRY.pack(len(name), size) + name + (value or b"")
        self._file.truncate(self._end)  # half an entry of a process that was killed
        self._file.seek(self._end)
        self._file.write(entry)
        self._file.flush()
        self._end += len(entry)


@contextlib.contextmanager
def _opened(path: str) -> Iterator[_Log]:
    while True:
        file = open(os.open(path, os.O_RDWR | os.O_CREAT, 0o644), "r+b")  # noqa: SIM115
        with file:
            fcntl.flock(file, fcntl.LOCK_EX)  # it goes with the file's closing
            if _is_at(file, path):
                yield _Log(file)
                return


def _is_at(file: BinaryIO, path: str) -> bool:
    # Whether the file is still there, and not removed since it was opened.
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    return False


def _let_go(path: str, world_size: int, process: int) -> None:
    if not is_owner(process) or not os.path.exists(path):
        return
    with _opened(path) as log:
        if log.add(_LEFT, 1) >= world_size:
            os.unlink(path)
