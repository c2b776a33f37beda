"""File locks between processes: who may write to a folder, which temporary files are live.

A lock is ``flock`` on an open file. The system drops it when the process ends, however it ends, so
that nothing stale is left to be judged: a lock that can be had is free. The owner's name in the
file is for messages alone.

Three things take care:

- A forked child (a worker of a data loader) inherits the open file, and would keep its parent's
  lock after the parent was killed. It closes what it inherited, first of all.
- Who lets go removes the file while it still holds the lock, and who has got a lock looks whether
  the file is still the one in the folder. So two that come at once cannot both go on.
- Some file systems have no locks. There all goes on without; nothing else is then removed that
  another process might be writing.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import threading
import time
import warnings
import weakref
from typing import Any

from ..errors import SerializationError
from ..interrupts import defer_interrupts

LOCK = ".writer.lock"
WITHOUT_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
_OWNER_TEXT = 4096  # bytes, more than any owner writes
_guard = threading.RLock()


def try_lock(handle: int) -> bool | None:
    """Try to lock an open file; return False if another process holds the lock.

    None where the file system has no locks.
    """
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in WITHOUT_LOCKS:
            return None
        raise
    return True


class FolderLock:
    """The lock that lets this process write to a folder, held until it is freed.

    Attributes:
        exclusive: False where the file system has no locks.
        turn: Held by the thread that writes.
    """

    def __init__(self, path: str, handle: int, exclusive: bool) -> None:
        self.path, self.handle, self.exclusive = path, handle, exclusive
        self.turn = threading.RLock()
        self._end = weakref.finalize(self, _let_go, path, handle, exclusive, os.getpid())

    def is_current(self) -> bool:
        """False if the folder was removed, or this is a fork of the process that holds it."""
        return self.handle >= 0 and _is_at(self.handle, self.path)

    def forget(self) -> None:
        """Close the file and leave the lock to the parent process."""
        self._end.detach()
        os.close(self.handle)
        self.handle = -1


_held: weakref.WeakValueDictionary[str, FolderLock] = weakref.WeakValueDictionary()


def lock_folder(folder: Any) -> FolderLock:
    """Return this process's lock of a folder, acquiring it if needed.

    Raises:
        SerializationError: Another process has it; the message says which.
    """
    path = os.path.join(os.path.realpath(os.fspath(folder)), LOCK)
    with _guard, defer_interrupts():  # a lock that is had and not noted would shut us out too
        lock = _held.get(path)
        if lock is None or not lock.is_current():
            lock = FolderLock(path, *_taken(path))
            _held[path] = lock
        return lock


def _taken(path: str) -> tuple[int, bool]:
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        try:
            got = try_lock(handle)
            if got is False:
                raise SerializationError(_refusal(path, handle))
            if got is None:
                warnings.warn(
                    f"{os.path.dirname(path)} is on a file system without locks: nothing keeps a "
                    "second run from writing to it.",
                    stacklevel=5,
                )
            if _is_at(handle, path):
                owner = {"host": os.uname().nodename, "pid": os.getpid(), "since": _now()}
                os.ftruncate(handle, 0)
                os.pwrite(handle, json.dumps(owner).encode() + b"\n", 0)
                return handle, got is True
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)  # another let go of it, and removed it, between opening and locking


def _is_at(handle: int, path: str) -> bool:
    try:
        there = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(os.fstat(handle), there)


def _refusal(path: str, handle: int) -> str:
    return (
        f"CheckpointDirectory: {os.path.dirname(path)} is being written to by "
        f"{owner_of(handle)}. One run writes to a folder at a time: stop that one, or use another "
        "folder. Reading needs no lock."
    )


def owner_of(handle: int) -> str:
    """Describe the process that holds a lock file."""
    for _ in range(20):  # it has the lock a moment before its name is in the file
        text = os.pread(handle, _OWNER_TEXT, 0)
        try:
            owner = json.loads(text)
            return f"process {owner['pid']} on {owner['host']} since {owner['since']}"
        except (ValueError, KeyError, TypeError):
            time.sleep(0.005)
    return "another process, which has not written its name"


def _now() -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())


def _let_go(path: str, handle: int, exclusive: bool, pid: int) -> None:
    if os.getpid() != pid:  # a forked child: the lock is its parent's
        return
    try:
        if exclusive and _is_at(handle, path):
            os.unlink(path)
    except OSError:
        pass  # it stays, unlocked, and does no harm: this is the end of the process or of a run
    finally:
        os.close(handle)


def _in_child() -> None:
    for lock in list(_held.values()):
        if lock.handle >= 0:
            lock.forget()
    _held.clear()
    _guard.release()


# No lock is half taken, and unknown, when the child begins. Methods of C: an interrupt in a
# Python function here would be swallowed, and leave the guard taken.
os.register_at_fork(before=_guard.acquire, after_in_parent=_guard.release, after_in_child=_in_child)
