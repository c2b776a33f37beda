"""What checksums cost: saving and loading with and without them, in turns, medians and ratios.

Without: the sum of each block is left out, all else is the same. Run from the root::

    python -m benchmarks.checksums --mib 1024 --rounds 5
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import lowtide as lt
from lowtide.framework.serialization import checksums, placing, safetensors
from lowtide.framework.serialization.files import Source


@contextmanager
def without_checksums() -> Iterator[None]:
    """Move blocks and sum nothing, as files were written and read before there were checksums."""

    def only_move(memory: memoryview, move: Callable[[memoryview], Any]) -> int:
        move(memory)
        return 0

    kept = safetensors.crc_while, placing.crc_while, placing.check
    safetensors.crc_while = placing.crc_while = only_move
    placing.check = lambda *_: None
    try:
        yield
    finally:
        safetensors.crc_while, placing.crc_while, placing.check = kept


def seconds(call: Callable[[], Any]) -> float:
    """How long ``call`` takes; what it returns is freed outside of that."""
    start = time.perf_counter()
    result = call()
    elapsed_s = time.perf_counter() - start
    del result
    return elapsed_s


def main() -> None:
    """Print a row for saving and one for loading."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", help="where to write; a temporary folder by default")
    options = parser.parse_args()
    count = max(1, options.mib // 64)
    state = {f"layer.{k}": lt.rand(16 << 20) for k in range(count)}
    times: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        path, bare = Path(folder) / "with.safetensors", Path(folder) / "without.safetensors"
        for _ in range(options.rounds):
            for name, call in (("save", partial(lt.save, state)), ("load", lt.load)):
                times.setdefault(f"{name} with", []).append(seconds(partial(call, path)))
                with without_checksums():
                    times.setdefault(f"{name} without", []).append(seconds(partial(call, bare)))
            times.setdefault("verify", []).append(seconds(partial(verified, path)))
    medians = {name: statistics.median(row) for name, row in times.items()}
    for name in ("save", "load"):
        a, b = medians[f"{name} with"], medians[f"{name} without"]
        print(f"{name} {count * 64} MiB: {a:.3f} s with, {b:.3f} s without, ratio {a / b:.3f}")
    print(f"verify: {medians['verify']:.3f} s")


def verified(path: Path) -> None:
    """Read a file through and build nothing."""
    with Source(path) as source:
        checksums.verify(source, safetensors.read_header(source))


if __name__ == "__main__":
    main()
