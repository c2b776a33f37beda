"""Ctrl-C after the last step of a recipe, while its results are made."""

from __future__ import annotations

import importlib
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import lowtide as lt

training = importlib.import_module("lowtide.recipes.training")


def run(out: Path, *more: str) -> Any:
    args = training.options("For a test.", batch_size=2, lr=0.1).parse_args(
        ["--out", str(out), *more]
    )
    return training.Run("digits", args, 2, Console(quiet=True), model=lt.nn.Linear(2, 2))


def test_it_names_the_checkpoint_and_the_way_on(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGINT)
    out = tmp_path / "out"
    first = run(out)
    try:
        for step in first:
            first.log(float(step))
        with pytest.raises(KeyboardInterrupt, match=r"after step 2 of 2; its .* with --resume"):
            os.kill(os.getpid(), signal.SIGINT)
        del first, step  # the lock of the folder is given back
        resumed = run(out, "--resume")
        assert [*resumed] == []
        resumed.finish(accuracy=1.0)
    finally:
        found = signal.signal(signal.SIGINT, before)
    assert found is before
    assert (out / "results.json").exists()
    assert resumed.losses == [0.0, 1.0]
