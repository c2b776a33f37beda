"""A writer that keeps one checkpoint, and two readers beside it that must always find one.

    python -m tests.faults.readers --count 5000

Each restore must give a whole checkpoint, never an older one than the last, without a warning.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import warnings
from pathlib import Path

import numpy as np

from lowtide.utils import CheckpointDirectory


class Holder:
    """An object with an array that says of which step it is."""

    def __init__(self, step: int) -> None:
        self.w = np.full(1000, step)

    def state_dict(self) -> dict[str, object]:
        """Its state."""
        return {"w": self.w}

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Take another."""
        self.w = state["w"]


def _read(folder: Path, last: int, report: int) -> None:
    directory, holder, done, newest = CheckpointDirectory(folder), Holder(0), 0, 0
    while newest < last:
        found = directory.restore(holder=holder)
        assert found is not None, "no checkpoint was found"
        assert found["step"] >= newest, (found, newest)
        newest = found["step"]
        assert (holder.w == newest).all(), (holder.w, newest)
        done += 1
    os.write(report, f"{done} ".encode())


def rounds(folder: Path, count: int) -> tuple[int, list[int]]:
    """Write ``count`` checkpoints beside two readers; returns writes, and restores of each.

    Raises:
        AssertionError: A reader failed.
    """
    CheckpointDirectory(folder, keep=1).save(1, holder=Holder(1))
    reading, report = os.pipe()
    children = []
    for _ in range(2):
        child = os.fork()
        if child == 0:
            try:
                warnings.simplefilter("error")
                _read(folder, count, report)
                os._exit(0)
            except BaseException as error:
                os.write(report, f"{error!r} ".encode())
                raise
            finally:
                os._exit(1)
        children.append(child)
    os.close(report)
    writer = CheckpointDirectory(folder, keep=1)
    for step in range(2, count + 1):
        writer.save(step, holder=Holder(step))
    codes = [os.waitstatus_to_exitcode(os.waitpid(c, 0)[1]) for c in children]
    with os.fdopen(reading) as file:
        text = file.read()
    assert codes == [0, 0], text
    return count, [int(n) for n in text.split()]


def main() -> None:
    """Run it and print the counts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=5000, help="checkpoints that are written")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        writes, reads = rounds(Path(folder), args.count)
    print(
        f"{writes} checkpoints written, {reads} restored beside it; each time the newest was found"
    )


if __name__ == "__main__":
    main()
