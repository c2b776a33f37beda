"""Private copies of shared memory mappings that a forked process inherits.

``fork`` copies a process's own memory on writing, but a shared mapping stays shared: what the copy
wrote into an ``np.memmap`` would be in the file, and in the original. So the copy maps the same
file once more at the same address, privately. Semaphores and devices are left alone. Linux only:
``/proc/self/maps`` says what there is.
"""

from __future__ import annotations

import ctypes
import mmap
import os

LARGEST = 1 << 28  # bytes of a mapping without a file that are copied
_FIXED = 0x10  # MAP_FIXED: in the place of what is there
_LEFT = ("/dev/shm/sem.", "/dev/nvidia", "/dev/dri", "/SYSV", "anon_inode:")


def make_private() -> None:
    """Remap shared mappings privately, so that what this process writes stays its own."""
    try:
        with open("/proc/self/maps", errors="surrogateescape") as file:
            lines = file.read().splitlines()
    except OSError:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_long,
    ]
    for line in lines:
        where, modes, offset, _, inode, *path = line.split(maxsplit=5)
        name = path[0] if path else ""
        if modes.startswith("rw") and "s" in modes and not name.startswith(_LEFT):
            first, last = (int(part, 16) for part in where.split("-"))
            _replace(libc, first, last - first, name, int(offset, 16), int(inode))


def _replace(libc: ctypes.CDLL, at: int, n: int, path: str, offset: int, inode: int) -> None:
    writable = mmap.PROT_READ | mmap.PROT_WRITE
    try:
        file = os.open(path, os.O_RDONLY)
    except OSError:  # it has no name any more
        if n <= LARGEST:
            values = ctypes.string_at(at, n)
            fixed = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _FIXED
            if libc.mmap(at, n, writable, fixed, -1, 0) == at:
                ctypes.memmove(at, values, n)
        return
    try:
        if os.fstat(file).st_ino == inode:  # else another file has its name by now
            libc.mmap(at, n, writable, mmap.MAP_PRIVATE | _FIXED, file, offset)
    finally:
        os.close(file)
