"""How long a save stops the training loop: ``save`` beside ``async_save``.

    python -m benchmarks.async_save [--mib N] [--rounds N] [--folder FOLDER]

A model and its AdamW state of N MiB are saved after each of some steps, alternately in both ways.
Printed are medians of the seconds that a call takes, of the step after it, and of the time until
the file is written, and the bytes that the copies add to the ledger.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from typing import Any

import lowtide as lt
from lowtide import nn
from lowtide.utils import CheckpointDirectory


def trained(mib: int) -> Any:
    """Return a model and an optimizer that hold N MiB together, and their step."""
    width = int((mib * 2**20 / 3 / 4 / 4) ** 0.5) // 8 * 8
    model = nn.Sequential(*[nn.Linear(width, width, bias=False) for _ in range(4)])
    optimizer = lt.optim.AdamW(model.parameters(), lr=1e-4)
    x = lt.randn(64, width)

    def step() -> None:
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return model, optimizer, step


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--mib", type=int, default=384)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--folder", help="where files are written; by default a temporary folder")
    args = parser.parse_args()
    model, optimizer, step = trained(args.mib)
    for _ in range(3):
        step()
    found: dict[str, list[tuple[float, float, float, int]]] = {"save": [], "async_save": []}
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        checkpoints = CheckpointDirectory(folder, keep=1)
        for number in range(2 * args.rounds):
            name = list(found)[number % 2]
            before, start = lt.memory_allocated(), time.perf_counter()
            saved = getattr(checkpoints, name)(number, model=model, optimizer=optimizer)
            called, copies = time.perf_counter(), lt.memory_allocated() - before
            step()
            stepped = time.perf_counter()
            if name == "async_save":
                saved.result()
            found[name].append(
                (called - start, stepped - called, time.perf_counter() - start, copies)
            )
    print(f"{args.mib} MiB      call s    step s    all s   copies, MiB")
    for name, rows in found.items():
        call, after, whole, copies = (statistics.median(v) for v in zip(*rows, strict=True))
        print(f"{name:12} {call:8.3f} {after:9.3f} {whole:8.3f} {copies / 2**20:9.1f}")


if __name__ == "__main__":
    main()
