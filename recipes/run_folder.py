"""The folder of a run: nothing that an earlier run left is written over.

Without ``--out`` each run has a separate folder: ``runs/digits``, then ``runs/digits-2``. With it
a folder that holds a run is refused.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import lowtide as lt
from lowtide.distributed.checkpoint import CheckpointDirectory as PartedCheckpoints
from lowtide.utils import CheckpointDirectory

RESULTS = "results.json"  # there when a run has ended


class RunFolder:
    """A folder that this process alone writes to.

    Args:
        name: Of the recipe.
        out: The folder that was asked for, or None.
        resume: Whether to go on with a run.

    Attributes:
        path: The folder.
        checkpoints: What is in ``path / "checkpoints"``.
        skipped: What was passed by on the way to it, in words.

    Raises:
        SystemExit: It holds a run and ``resume`` was not asked for, or another process has it.
    """

    def __init__(self, name: str, out: Path | None, resume: bool) -> None:
        self.skipped: list[str] = []
        if out is not None:
            self.path = out
            self.checkpoints = self._claimed()
            newest = max(_steps(out), default=0)
            if newest and not resume:
                ended = (out / RESULTS).is_file()
                kind = "a finished run" if ended else "an unfinished run"
                way = "Write elsewhere" if ended else "Go on with --resume, or write elsewhere"
                raise SystemExit(f"{out} holds {kind}, at step {newest}. {way} with --out.")
            return
        if resume:
            for path in reversed(list(_earlier(name))):
                if (path / RESULTS).is_file() or not _steps(path):
                    continue
                self.path = path
                try:
                    self.checkpoints = self._claimed()
                    return
                except SystemExit as in_use:
                    self.skipped.append(str(in_use))
        for path in _folders(name):
            self.path = path
            if (path / RESULTS).is_file() or _steps(path):
                if not (path / RESULTS).is_file():
                    self.skipped.append(f"{path} holds an unfinished run: --resume goes on with it")
                continue
            try:
                self.checkpoints = self._claimed()
                return
            except SystemExit as in_use:
                self.skipped.append(str(in_use))

    def _claimed(self) -> CheckpointDirectory:
        found = CheckpointDirectory(self.path / "checkpoints", keep=2)
        try:
            found.claim()  # so that a second run in the folder ends now, not at its save
        except (lt.SerializationError, OSError) as error:
            raise SystemExit(str(error)) from None
        return found


def _folders(name: str) -> Iterator[Path]:
    yield Path("runs") / name
    yield from (Path("runs") / f"{name}-{n}" for n in itertools.count(2))


def _earlier(name: str) -> Iterator[Path]:
    return itertools.takewhile(Path.is_dir, _folders(name))


def _steps(path: Path) -> list[int]:
    # Of one process, and of several.
    there = path / "checkpoints"
    return [*CheckpointDirectory(there).steps(), *PartedCheckpoints(there).steps()]
