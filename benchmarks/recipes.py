"""Recipes reach the results they state, at their default options.

``python -m benchmarks.recipes [NAME ...]`` runs each in a process of its own, as a user would, and
compares what its ``results.json`` says with the least that is promised. It takes about an hour for
all of them on one core. The exit code is 1 if one falls short.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

# recipe -> (figure, sign, promise): figure * sign must reach promise * sign.
PROMISES = {
    "digits": ("accuracy", 1, 0.93),
    "vowels": ("accuracy", 1, 0.96),
    "diamonds": ("r2", 1, 0.989),
    "autoencoder": ("bound", -1, 245.0),
    "deepnet": ("accuracy", 1, 0.92),
    "fashion": ("accuracy", 1, 0.91),
    "resnet": ("accuracy", 1, 0.90),
    "sentiment": ("accuracy", 1, 0.79),
    "chargpt": ("validation_loss", -1, 1.6),
}


def reached(name: str, results: dict[str, float]) -> bool:
    """Whether a recipe's results keep its promise."""
    figure, sign, promise = PROMISES[name]
    return sign * results[figure] >= sign * promise


def main() -> int:
    """Run recipes and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="all by default")
    names = parser.parse_args().names or list(PROMISES)
    short = []
    print(f"{'recipe':<12} {'figure':<16} {'reached':>8} {'promise':>8} {'s':>7} {'peak MiB':>9}")
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "lowtide", "run", name, "--out", folder]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            record = json.loads((Path(folder) / "results.json").read_text())
        figure, _, promise = PROMISES[name]
        value = record["results"][figure]
        mark = "" if reached(name, record["results"]) else "  FALLS SHORT"
        short += [name] if mark else []
        print(
            f"{name:<12} {figure:<16} {value:>8.4f} {promise:>8} {record['seconds']:>7.0f} "
            f"{record['peak_bytes'] / 2**20:>9.1f}{mark}",
            flush=True,
        )
    return 1 if short else 0


if __name__ == "__main__":
    sys.exit(main())
