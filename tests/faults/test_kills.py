"""A sample of kills and disk errors while checkpoints are saved; kills.py has the full counts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import lowtide as lt
from lowtide.utils import CheckpointDirectory
from tests.faults.disk import failing, watched
from tests.faults.kills import ACTIONS, errors_everywhere, kills_everywhere

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = [a for a in ACTIONS if a.name in ("save keep=1 there=1", "save keep=2 there=4")]
FILES = [a for a in ACTIONS if a.name.startswith("save over")]


@pytest.mark.quick(2)
@pytest.mark.parametrize("action", [*FILES, *SAMPLE], ids=lambda a: a.name)
def test_a_kill_at_any_call_to_the_disk_leaves_a_whole_file(action, tmp_path) -> None:
    kills = kills_everywhere(action, tmp_path)
    assert kills["replace"] == 1
    assert kills["fsync"] >= 2  # the file and its folder


@pytest.mark.quick(1)
@pytest.mark.parametrize("action", [*FILES[1:2], *SAMPLE[1:]], ids=lambda a: a.name)
def test_an_error_at_any_call_to_the_disk_leaves_the_old_file_whole(action, tmp_path) -> None:
    outcomes = errors_everywhere(action, tmp_path)
    assert outcomes["refused"] > 10


@pytest.mark.deep
def test_a_run_killed_at_random_instants_ends_with_equal_parameters() -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.faults.kills", "--count", "5", "--only-random"]
    ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("'kills': 5") == 2  # without and with workers


def test_a_full_disk_is_told_with_the_file_its_bytes_and_what_survived(tmp_path) -> None:
    folder = CheckpointDirectory(tmp_path, keep=1)
    folder.save(1, t=lt.ones(1000))
    with (
        watched(lambda n, name: name == "write" and failing(n, 28, False)(n, name)),
        pytest.raises(lt.SerializationError) as caught,
    ):
        folder.save(2, t=lt.ones(1000))
    path = tmp_path / "step_00000002.safetensors"
    text = str(caught.value)
    for part in (
        "step 2, whose tensors take 4000 bytes",
        f"{path} could not be written",
        "No space left",
        "bytes are free there",
        "No file is left",
        "Earlier checkpoints are as they were",
    ):
        assert part in text
    assert caught.value.errno == 28
    assert folder.restore()["step"] == 1


def test_a_disk_that_fails_when_the_folder_is_flushed_says_that_the_file_is_there(tmp_path) -> None:
    lt.save(1, tmp_path / "x")
    names: list[str] = []

    def at(number: int, name: str) -> None:
        names.append(name)
        if names.count("fsync") == 2:
            raise OSError(5, "Input/output error")

    with (
        watched(at),
        pytest.raises(OSError, match=r"x is written and in its place, but its folder"),
    ):
        lt.save(2, tmp_path / "x")
    assert lt.load(tmp_path / "x") == 2


def test_what_cannot_be_pruned_is_a_warning_and_the_save_stands(tmp_path) -> None:
    folder = CheckpointDirectory(tmp_path, keep=1)
    folder.save(1)

    def at(number: int, name: str) -> None:
        if name == "unlink":
            raise OSError(5, "Input/output error")

    with watched(at), pytest.warns(UserWarning, match="step_00000001.* could not be removed"):
        folder.save(2)
    assert folder.steps() == [1, 2]
    folder.save(3)
    assert folder.steps() == [3]
