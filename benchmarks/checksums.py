"""What checksums cost: saving and loading with and without them, in turns, medians and ratios.

Twice without: *moved alike*, where threads share the blocks as they do with sums, and only the sum
of each block is left out; and *as before*, where one thread moves an entry in one go, as files
were written and read before there were checksums. Run from the root::

    python -m benchmarks.checksums --mib 1024 --rounds 5

``--threads 1`` is the cost on one core. Without ``--cold`` Numba is imported before anything is
timed, as in a process that trains.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import lowtide as lt
from lowtide.framework.serialization import checksums, map_location, multilinear_hash, safetensors
from lowtide.framework.serialization.atomic_files import Source


@contextmanager
def moved_alike() -> Iterator[None]:
    """Move blocks as ever and sum nothing."""
    with (
        mock.patch.object(multilinear_hash, "summer_for", return_value=lambda block: 0),
        mock.patch.object(map_location, "check"),
    ):
        yield


@contextmanager
def as_before() -> Iterator[None]:
    """Move whole entries by one thread, as before there were checksums."""

    def write(out: Any, memory: memoryview, total: int) -> int:
        out.write(memory)
        return 0

    def read(source: Source, offset: int, memory: memoryview) -> int:
        source.read_into(offset, memory)
        return 0

    with ExitStack() as stack:
        for module, name, function in (
            (safetensors, "write_summed", write),
            (map_location, "read_summed", read),
            (map_location, "check", mock.Mock()),
        ):
            stack.enter_context(mock.patch.object(module, name, function))
        yield


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
    parser.add_argument("--threads", type=int, help="all cores by default")
    parser.add_argument("--cold", action="store_true", help="do not import Numba first")
    parser.add_argument("--no-fsync", action="store_true", help="leave the disk out of saving")
    options = parser.parse_args()
    if options.threads:
        lt.set_num_threads(options.threads)
    if not options.cold:
        import numba  # noqa: F401
    count = max(1, options.mib // 64)
    state = {f"layer.{k}": lt.rand(16 << 20) for k in range(count)}
    ways = {"with": ExitStack, "alike": moved_alike, "before": as_before}
    times: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(dir=options.folder) as folder, ExitStack() as stack:
        if options.no_fsync:
            stack.enter_context(mock.patch("os.fsync"))
        path = Path(folder) / "x.safetensors"
        for turn in range(options.rounds + 1):  # the first is not counted
            for name, call in (("save", partial(lt.save, state)), ("load", lt.load)):
                for k in range(len(ways)):  # each is the first in turn: memory warms up
                    way, context = list(ways.items())[(turn + k) % len(ways)]
                    with context():
                        s = seconds(partial(call, path))
                    if turn:
                        times.setdefault(f"{name} {way}", []).append(s)
                if name == "save":
                    lt.save(state, path)  # with checksums, for loading
            times.setdefault("verify", []).append(seconds(partial(verified, path)))
    medians = {name: statistics.median(row) for name, row in times.items()}
    for name in ("save", "load"):
        print(f"{name} {count * 64} MiB: {medians[f'{name} with']:.3f} s with checksums")
        for way, words in (("alike", "moved alike"), ("before", "as before")):
            pairs = zip(times[f"{name} with"], times[f"{name} {way}"], strict=True)
            ratio = statistics.median(a / b for a, b in pairs)
            best = min(times[f"{name} with"]) / min(times[f"{name} {way}"])
            seconds_without = medians[f"{name} {way}"]
            print(
                f"  {seconds_without:.3f} s without, {words}: ratio {ratio:.3f}, of the fastest "
                f"{best:.3f}"
            )
    print(f"verify: {medians['verify']:.3f} s")


def verified(path: Path) -> None:
    """Read a file through and build nothing."""
    with Source(path) as source:
        checksums.verify(source, safetensors.read_header(source))


if __name__ == "__main__":
    main()
