"""Offload to disk: values saved for backward wait in a file.

One file for each run and folder. It has no name: made so where the system can (``O_TMPFILE``), or
made and unlinked in one breath, so the system takes it away with the process, however that ends.
Should a process die in that breath, the next run in the same folder removes what it left: the lock
on the file died with its owner.

The file is read and written at places (``preadv``, ``pwritev``), straight from and into the pool's
memory, and not through a mapping. A mapping would save no copy, since values have to lie in the
pool. Its copies are twice as fast, but only while the whole file counts as this process's memory,
which is what offloading is there to lower; given back after each copy, they are as fast as these on
ext4 and half as fast on tmpfs (``benchmarks/offload_to_disk.py``). And where a mapping meets a full
or a failing disk, the system kills the process by a signal; here these are errors.

Not optimal: copies are synchronous, though the system writes behind and reads ahead. The file keeps
its size until it is closed; freed places are used again.
"""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
import time
import warnings
import weakref
from typing import Any

from ..device import device as _device
from ..devices import backend
from ..memory.block import Block
from ..memory.ledger import TEMPORARY, WORKSPACE, format_bytes
from ..memory.pool import Pool
from ..memory.sizes import as_bytes
from ..modes import run_kernel
from ..tensor import Tensor
from .stash import Stash, Stashed, UncopiedStorage, array_of, new_storage

PREFIX = "lowtide-offload-"
_PAGE = 4096
_TRIAL = 1 << 24  # bytes that are written and read to measure a disk
_NO_LIMIT = 1 << 62
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # the disk, a quota, the largest file allowed
_HOST = _device("cpu")


class offload_to_disk(Stash):
    """Offload saved values to a file; a stash (decision, policy or context manager).

    Args:
        dir: Folder of the file; the system's for temporary files if None. It is made if missing.
        limit: Bytes, or text ("20GiB"), that the file may have; what does not fit stays in memory.
            None for no limit. Likewise once the disk is full, with a warning.
        min_bytes: Smaller values stay in memory.
        speed: Bytes a second that the disk takes and gives, or text such as ``"1GiB"``. By it a
            byte budget compares it with recomputing. It is measured, once, if None.

    Memory:
        None but the workspace of one value for a device that is not the CPU. The file goes when
        this object and the values in it are gone, with :meth:`close`, and with the process.

    Example:
        >>> import lowtide as lt
        >>> x = lt.ones(2000, requires_grad=True)
        >>> with lt.checkpointing.offload_to_disk() as disk:
        ...     y = x.exp().sum()
        >>> disk.used_bytes
        8192
        >>> y.backward()
        >>> disk.used_bytes
        0
    """

    def __init__(
        self,
        dir: Any = None,
        limit: int | str | None = None,
        min_bytes: int | str = _PAGE,
        speed: int | str | None = None,
    ) -> None:
        super().__init__(min_bytes)
        self._speed = None if speed is None else float(as_bytes(speed, "offload_to_disk: speed"))
        self.dir = os.path.abspath(tempfile.gettempdir() if dir is None else os.fspath(dir))
        self.limit = (
            None if limit is None else as_bytes(limit, "offload_to_disk: limit", "no limit")
        )
        self._file: SpillFile | None = None

    def __repr__(self) -> str:
        return f"offload_to_disk({self.dir!r}, limit={self.limit})"

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_file": None}

    @property
    def speed(self) -> float:  # type: ignore[override]
        """Bytes a second that the disk takes and gives."""
        if self._speed is None:
            self._speed = _measured(self.dir)
        return self._speed

    @property
    def used_bytes(self) -> int:
        """Bytes of the file that hold values, in pages of 4096."""
        return 0 if self._file is None else self._file.pool.used

    @property
    def file_bytes(self) -> int:
        """Size of the file in bytes."""
        return 0 if self._file is None else self._file.pool.top

    def close(self) -> None:
        """Stop writing to this file; it is removed with the last value in it."""
        self._file = None

    def stash(self, tensor: Tensor) -> Stashed:
        """Write the storage of ``tensor`` to the file."""
        storage, device = tensor._storage, tensor._spec.device
        file = self._file
        if file is None or file.owner != os.getpid():  # a forked process has a file of its own
            file = self._file = SpillFile(self.dir, self.limit)
        block = file.put(storage, device)
        return (
            UncopiedStorage(storage)
            if block is None
            else OnDisk(file, block, storage.nbytes, device)
        )


class OnDisk:
    """The bytes of one storage in a file."""

    __slots__ = ("block", "device", "file", "size")
    nbytes = 0

    def __init__(self, file: SpillFile, block: Block, size: int, device: Any) -> None:
        self.file = file
        self.block = block
        self.size = size
        self.device = device

    def restore(self) -> Any:
        """Read the bytes back into a new storage."""
        storage, array = new_storage(self.device, self.size, role=TEMPORARY)
        if self.device == _HOST:
            run_kernel(self.file.read, array, self.block.offset)
        elif backend(self.device).xp is not None:
            held, host = new_storage(_HOST, self.size, role=WORKSPACE)
            run_kernel(self.file.read, host, self.block.offset)
            run_kernel(_upload, array, host)
            backend(self.device).synchronize()  # a GPU may still be reading it
            del held
        return storage


class SpillFile:
    """An anonymous file and the allocation of its space."""

    def __init__(self, folder: str, limit: int | None) -> None:
        try:
            os.makedirs(folder, exist_ok=True)
            sweep(folder)
            self.fd, name = _open(folder)
        except OSError as error:
            raise _cannot(folder, error) from error
        self.owner = os.getpid()
        self.pool = Pool(_NO_LIMIT if limit is None else limit)
        self.folder = folder
        self.full = False
        weakref.finalize(self, _close, self.fd, name, self.owner)

    def put(self, storage: Any, device: Any) -> Block | None:
        """Write a storage to free space of the file; return None if there is none."""
        try:
            block = Block(self.pool, -(-storage.nbytes // _PAGE) * _PAGE)
        except MemoryError:
            return None
        try:
            self._put(array_of(storage, device), block.offset, device)
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise
            self._warn(storage.nbytes)
            return None
        return block

    def _put(self, array: Any, offset: int, device: Any) -> None:
        be = backend(device)
        if be.xp is None:
            return
        if device == _HOST:
            run_kernel(self.write, array, offset)
            return
        held, host = new_storage(_HOST, array.size, role=WORKSPACE)
        run_kernel(_download, host, array, be)
        run_kernel(self.write, host, offset)
        del held

    def _warn(self, nbytes: int) -> None:
        if not self.full:
            self.full = True
            warnings.warn(
                f"offload_to_disk: the disk of {self.folder} has no room for another "
                f"{format_bytes(nbytes)}; values stay in memory from now on where it has none.",
                RuntimeWarning,
                stacklevel=2,
            )

    def write(self, array: Any, offset: int) -> None:
        """Write an array of bytes."""
        view = memoryview(array)
        done = 0
        while done < len(view):
            done += os.pwritev(self.fd, [view[done:]], offset + done)

    def read(self, array: Any, offset: int) -> None:
        """Read into an array of bytes."""
        view = memoryview(array)
        done = 0
        while done < len(view):
            found = os.preadv(self.fd, [view[done:]], offset + done)
            if not found:
                raise OSError(errno.EIO, f"a file of offloaded values in {self.folder} is cut off")
            done += found


def _measured(folder: str) -> float:
    # Of a file that is written to the disk, and read again, perhaps from the system's memory.
    data = os.urandom(_TRIAL)
    try:
        os.makedirs(folder, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            began = time.perf_counter()
            file.write(data)
            file.flush()
            os.fdatasync(file.fileno())
            file.seek(0)
            file.read()
            return 2 * _TRIAL / (time.perf_counter() - began)
    except OSError as error:
        raise _cannot(folder, error) from error


def _cannot(folder: str, error: OSError) -> OSError:
    return OSError(  # of the same kind: the number says which
        error.errno,
        f"offload_to_disk cannot make a file in dir={folder!r}: {error.strerror}. Pass a folder "
        "of a disk with room, in which this process may write",
    )


def _download(out: Any, array: Any, be: Any) -> None:
    if be.kernel_key == "cuda":
        array.get(out=out)
    else:
        out[...] = be.to_host(array)


def _upload(out: Any, array: Any) -> None:
    out.set(array)


def _open(folder: str) -> tuple[int, str | None]:
    # (descriptor, name that has to be removed at the end, if any)
    if hasattr(os, "O_TMPFILE"):
        with contextlib.suppress(OSError):  # a file system that cannot
            return os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o600), None
    fd, name = tempfile.mkstemp(prefix=PREFIX, dir=folder)
    _lock(fd)
    try:
        os.unlink(name)
    except FileNotFoundError:  # swept by another run before it was locked
        return fd, None
    except OSError:
        return fd, name
    return fd, None


def _close(fd: int, name: str | None, owner: int) -> None:
    os.close(fd)
    if name is not None and owner == os.getpid():
        with contextlib.suppress(OSError):
            os.unlink(name)


def _lock(fd: int) -> bool:
    import fcntl

    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def sweep(folder: str) -> None:
    """Remove offload files of processes that have ended, whose locks are free."""
    for name in os.listdir(folder):
        if not name.startswith(PREFIX):
            continue
        path = os.path.join(folder, name)
        with contextlib.suppress(OSError):  # another process's, or gone by now
            fd = os.open(path, os.O_RDWR)
            try:
                if _lock(fd):
                    os.unlink(path)
            finally:
                os.close(fd)


__all__ = ["OnDisk", "SpillFile", "offload_to_disk", "sweep"]
