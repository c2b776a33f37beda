"""Claim: a file of offloaded values is best read and written at places, not mapped.

What offloading is for is a small process. So the ways are compared by speed and by what they add to
the resident memory (RSS) of the process:

- *read and write*: ``preadv`` and ``pwritev``, what ``offload_to_disk`` does;
- *mapped*: the file is allocated (``posix_fallocate``, so that a full disk is an error before the
  first write) and mapped; values are copied to and from the mapping;
- *mapped, given back*: the same, and after each copy ``madvise(MADV_DONTNEED)`` takes its pages
  out of the process. They stay in the system's cache, as they do with the first way.

Each round writes values and reads them in the opposite order, as a backward does. The file is small
enough to stay in the system's cache: the disk's own speed is the same for all. Prints medians of
alternating rounds and ratios to the first way.

    OMP_NUM_THREADS=1 python -m benchmarks.offload_to_disk --dir /tmp
"""

from __future__ import annotations

import argparse
import mmap
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from lowtide.framework.checkpointing.disk import SpillFile

Way = tuple[Callable[[Any, int], None], Callable[[Any, int], None]]  # write, read: array, offset


def at_places(folder: str, size: int) -> Way:
    """What lowtide does."""
    file = SpillFile(folder, None)
    return file.write, file.read


def mapped(folder: str, size: int, give_back: bool) -> Way:
    """Copies to and from a mapping of the whole file."""
    fd = os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o600)
    os.posix_fallocate(fd, 0, size)
    mapping = mmap.mmap(fd, size)
    whole = np.frombuffer(mapping, np.uint8)

    def write(array: Any, offset: int) -> None:
        whole[offset : offset + array.size] = array
        if give_back:
            mapping.madvise(mmap.MADV_DONTNEED, offset, array.size)

    def read(array: Any, offset: int) -> None:
        array[...] = whole[offset : offset + array.size]
        if give_back:
            mapping.madvise(mmap.MADV_DONTNEED, offset, array.size)

    return write, read


def resident() -> int:
    """Bytes of this process that are in memory."""
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * mmap.PAGESIZE


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--dir", default=tempfile.gettempdir())
    parser.add_argument("--mib", type=int, default=4, help="size of a value")
    parser.add_argument("--values", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=11)
    options = parser.parse_args()
    size, values = options.mib << 20, options.values
    rng = np.random.default_rng(0)
    sources = [rng.integers(0, 256, size, np.uint8) for _ in range(4)]
    target = np.zeros(size, np.uint8)
    ways = {
        "read and write": at_places(options.dir, size * values),
        "mapped": mapped(options.dir, size * values, give_back=False),
        "mapped, given back": mapped(options.dir, size * values, give_back=True),
    }
    seconds: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in ways}
    grown = {}
    for round_ in range(options.rounds + 1):  # the first allocates
        for name, (write, read) in ways.items():
            before = resident()
            start = time.perf_counter()
            for k in range(values):
                write(sources[k % 4], k * size)
            middle = time.perf_counter()
            for k in reversed(range(values)):
                read(target, k * size)
            end = time.perf_counter()
            assert np.array_equal(target, sources[0])
            if round_:
                seconds[name][0].append(middle - start)
                seconds[name][1].append(end - middle)
            else:
                grown[name] = resident() - before
    base = [statistics.median(s) for s in seconds["read and write"]]
    print(f"{values} values of {options.mib} MiB in {options.dir}; GB/s, and x the first way")
    for name, both in seconds.items():
        write_s, read_s = (statistics.median(s) for s in both)
        print(
            f"{name:20} write {values * size / write_s / 1e9:5.2f} ({base[0] / write_s:4.2f} x)  "
            f"read {values * size / read_s / 1e9:5.2f} ({base[1] / read_s:4.2f} x)  "
            f"both {sum(base) / (write_s + read_s):4.2f} x  "
            f"RSS {grown[name] / 2**20:+6.1f} MiB"
        )


if __name__ == "__main__":
    main()
