"""Claim: chained adds of 10 million elements are no slower than NumPy's with ``out=``.

``x = x + y`` reads like code that allocates 40 MB per line. It does not: the block of the old
``x`` is the block of the next one, because the pool hands freed blocks out again, and its pages
have long been there. So a chain costs what NumPy costs when the programmer keeps two buffers by
hand. Plain NumPy without ``out=`` asks the system for fresh pages each time; it is shown for
comparison, and so is the first, cold chain, which pays for the pages once.

Prints medians of alternating runs, and ratios to NumPy with ``out=``. Exits with 1 if a warm
chain is slower than it by more than the noise allowed with ``--tolerance``.

    OMP_NUM_THREADS=1 python benchmarks/adds.py
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable

import numpy as np

import lowtide as lt


def chains(n: int, adds: int) -> dict[str, Callable[[], None]]:
    """The contestants: each runs a whole chain."""
    y_array = np.full(n, 0.5, np.float32)
    x_array = np.zeros(n, np.float32)
    buffers = [np.zeros(n, np.float32), np.zeros(n, np.float32)]
    x_tensor, y_tensor = lt.tensor(x_array), lt.tensor(y_array)
    in_place_array, in_place_tensor = x_array.copy(), lt.tensor(x_array)

    def numpy_out() -> None:
        source = x_array
        for k in range(adds):
            source = np.add(source, y_array, out=buffers[k % 2])

    def numpy_plain() -> None:
        source = x_array
        for _ in range(adds):
            source = source + y_array

    def lowtide() -> None:
        x = x_tensor
        for _ in range(adds):
            x = x + y_tensor

    def numpy_in_place() -> None:
        for _ in range(adds):
            np.add(in_place_array, y_array, out=in_place_array)

    def lowtide_in_place() -> None:
        for _ in range(adds):
            in_place_tensor.add_(y_tensor)

    return {
        "numpy out=": numpy_out,
        "lowtide": lowtide,
        "numpy in place": numpy_in_place,
        "lowtide in place": lowtide_in_place,
        "numpy allocating": numpy_plain,
    }


def main() -> int:
    """Run, print, judge."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--elements", type=int, default=10_000_000)
    parser.add_argument("--adds", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--tolerance", type=float, default=0.05, help="a ratio above 1 that passes")
    options = parser.parse_args()
    contestants = chains(options.elements, options.adds)
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    cold = {}
    for round_ in range(options.rounds + 1):
        for name, run in contestants.items():
            start = time.perf_counter()
            run()
            elapsed = time.perf_counter() - start
            if round_ == 0:
                cold[name] = elapsed
            else:
                seconds[name].append(elapsed)
    median = {name: statistics.median(times) for name, times in seconds.items()}
    print(f"{options.adds} adds of {options.elements} float32, median of {options.rounds}")
    print(f"{'':18}{'cold ms/add':>12}{'warm ms/add':>12}{'ratio':>8}")
    peer = {"lowtide in place": "numpy in place", "numpy in place": "numpy in place"}
    slow = []
    for name, value in median.items():
        ratio = value / median[peer.get(name, "numpy out=")]
        per = 1e3 / options.adds
        print(f"{name:18}{cold[name] * per:12.3f}{value * per:12.3f}{ratio:8.3f}")
        if name.startswith("lowtide") and ratio > 1 + options.tolerance:
            slow.append(name)
    return len(slow) > 0


if __name__ == "__main__":
    sys.exit(main())
