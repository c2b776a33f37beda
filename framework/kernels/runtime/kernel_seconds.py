"""How long kernels take on this machine: measured once, and kept in the cache.

A kernel is known by its op, the shapes, dtypes and layouts of what it reads, its attributes, and
the number of threads. What is kept depends on the processor, on the versions of the packages
that compute, and on whether MKL is used. It only decides what a plan prefers and predicts, never
what is computed.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import sys
from contextlib import suppress
from typing import Any

import numpy as np

from . import cache_folder, mkl, threads

FOLDER = "times"
FAULT = "page fault of a byte"
MOST = 1 << 23  # bytes of a file that is read
# Values of just these types are part of a name; others, such as numbers to scale by, take no time.
_TELLING = (bool, str, tuple, list, type(None))
Times = tuple[float, float, float]  # least, typical, most: seconds of a call


def name_of(name: str, values: Any, attributes: Any) -> str:
    """Return the name under which a kernel's times are kept.

    Args:
        name: Of the op, or of another function that writes arrays.
        values: What it reads: arrays or specs, which have shapes, and scalars.
        attributes: By name; or None.
    """
    parts = []
    for value in values:
        dtype = value.dtype if isinstance(value, np.ndarray) else getattr(value, "np_dtype", None)
        if dtype is not None:
            parts.append(f"{dtype.str}{list(value.shape)}")
        else:
            parts.append(repr(value) if type(value) in _TELLING else "-")
    rest = "" if not attributes else repr(sorted(attributes.items()))
    return f"{name}({', '.join(parts)}){rest}"


def layout_of(arrays: Any) -> str:
    """Return the strides of the arrays that are not contiguous, by their place."""
    return "".join(
        f" {k}:{array.strides}"
        for k, array in enumerate(arrays)
        if isinstance(array, np.ndarray) and not array.flags.c_contiguous
    )


class KernelSeconds:
    """Times of kernels with one number of threads.

    Args:
        threads: How many.

    Attributes:
        times: By name and layout.
    """

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.times: dict[str, Times] = {}
        self._typical: dict[str, float] = {}  # by name, whatever the layout

    def typical(self, name: str) -> float | None:
        """Return the seconds of a call, in any layout that was measured; None if none was."""
        return self._typical.get(name)

    def add(self, found: dict[str, Times]) -> None:
        """Add times by name and layout."""
        self.times.update(found)
        for key, (_, typical, _) in found.items():
            name = key.partition("\t")[0]
            self._typical[name] = max(typical, self._typical.get(name, 0.0))

    def load(self) -> KernelSeconds:
        """Add what the cache has; nothing of a file that is damaged."""
        with suppress(cache_folder.Unusable, OSError, ValueError, TypeError, AttributeError):
            with cache_folder.opened(FOLDER) as folder:
                file = os.open(self._file(), os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder)
                with open(file, "rb") as stream:
                    text = stream.read(MOST)
            self.add({k: _checked(v) for k, v in json.loads(text)["kernels"].items()})
        return self

    def save(self) -> None:
        """Write all to the cache, if it can be written: an older file stays valid until then."""
        kept = {k: v for k, v in self.times.items() if " at 0x" not in k}  # addresses change
        text = json.dumps({"threads": self.threads, "kernels": kept}, indent=0).encode()
        if len(text) > MOST:
            return
        with suppress(cache_folder.Unusable, OSError), cache_folder.opened(FOLDER) as folder:
            draft = f"{self._file()}.{os.getpid()}"
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
            with open(os.open(draft, flags, 0o600, dir_fd=folder), "wb") as stream:
                stream.write(text)
            os.replace(draft, self._file(), src_dir_fd=folder, dst_dir_fd=folder)

    def _file(self) -> str:
        return f"{_machine()}-{self.threads}.json"


def _checked(times: Any) -> Times:
    least, typical, most = map(float, times)
    if not 0 <= least <= typical <= most < math.inf:
        raise ValueError(times)
    return least, typical, most


def _machine() -> str:
    # What the times depend on.
    lowtide = sys.modules.get(__name__.partition(".")[0])
    parts = [getattr(lowtide, "__version__", ""), np.__version__, _processor()]
    parts += [f"{k}={v}" for k, v in sorted(os.environ.items()) if k.startswith("NUMBA_")]
    parts.append(mkl.version() or "")
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            lines = file.read(1 << 14).partition("\n\n")[0].splitlines()
    except OSError:
        return ""
    return "\n".join(line for line in lines if line.startswith(("model", "flags", "cpu family")))


def clear() -> int:
    """Remove all times from the cache; return how many files that were.

    Raises:
        Unusable: The cache cannot be used.
    """
    _stores.clear()
    removed = 0
    with cache_folder.opened(FOLDER) as folder:
        for name in os.listdir(folder):
            with suppress(OSError):
                os.unlink(name, dir_fd=folder)
                removed += 1
    return removed


_stores: dict[int, KernelSeconds] = {}


def of_machine() -> KernelSeconds:
    """Return the times with the present number of threads, read from the cache once."""
    count = threads.get_num_threads()
    found = _stores.get(count)
    if found is None:
        found = _stores[count] = KernelSeconds(count).load()
    return found


__all__ = ["FAULT", "KernelSeconds", "Times", "clear", "layout_of", "name_of", "of_machine"]
