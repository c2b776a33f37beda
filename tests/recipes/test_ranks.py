"""Recipes in several processes: one model, one folder, and a run that goes on as it was."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from .test_recipes import environment


def command(out: Path, *more: str, name: str = "chargpt") -> list[str]:
    launch = [sys.executable, "-m", "lowtide", "launch", "-n", "2", "--recipe", name, "--"]
    return [*launch, "--quick", "--out", str(out), *more]


def run(folder: Path, out: Path, name: str, *more: str) -> tuple[str, dict[str, Any]]:
    done = subprocess.run(
        command(out, *more, name=name),
        env=environment(folder),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, json.loads((out / "results.json").read_text())


@pytest.mark.deep
@pytest.mark.parametrize("name", ["chargpt", "resnet"])
def test_a_stopped_run_of_two_processes_resumes_with_the_same_losses(
    name: str, tmp_path: Path
) -> None:
    said, whole = run(tmp_path, tmp_path / "whole", name, "--checkpoint-every", "1000")
    assert said.count("Everything is in") == 1  # rank 0 alone speaks
    assert len(whole["losses"]) == whole["steps"]
    out = tmp_path / "stopped"
    process = subprocess.Popen(
        command(out, "--checkpoint-every", "1", name=name),
        env=environment(tmp_path),
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    while process.poll() is None and not list(out.glob("checkpoints/step_*/index.json")):
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=600)
    if not (out / "results.json").exists():  # else it had ended before the signal came
        assert "Go on with --resume" in said
    said, resumed = run(tmp_path, out, name, "--resume", "--checkpoint-every", "1")
    assert "Resumed after step" in said
    assert resumed["losses"] == whole["losses"]
    assert resumed["measured"] == whole["measured"]


@pytest.mark.deep
def test_one_process_goes_on_with_a_run_of_two(tmp_path: Path) -> None:
    out = tmp_path / "out"
    run(tmp_path, out, "chargpt", "--checkpoint-every", "1000")
    (out / "results.json").unlink()
    alone = [sys.executable, "-m", "lowtide", "run", "chargpt", "--quick", "--out", str(out)]
    options: Any = {"env": environment(tmp_path), "cwd": tmp_path, "capture_output": True}
    done = subprocess.run(alone, text=True, timeout=600, **options)
    assert "holds an unfinished run" in done.stdout + done.stderr
    done = subprocess.run([*alone, "--resume"], text=True, timeout=600, **options)
    assert "Resumed after step" in done.stdout, done.stdout + done.stderr
    single = tmp_path / "single"
    subprocess.run([*alone[:-1], str(single)], text=True, timeout=600, check=True, **options)
    done = subprocess.run(command(single, "--resume"), text=True, timeout=600, **options)
    assert done.returncode == 1
    assert "holds a run of one process" in done.stdout + done.stderr


@pytest.mark.deep
def test_a_batch_that_cannot_be_shared_out_is_refused(tmp_path: Path) -> None:
    done = subprocess.run(
        command(tmp_path / "out", "--batch-size", "33"),
        env=environment(tmp_path),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 1
    assert (
        "A batch of 33 cannot be shared out evenly among 2 processes" in done.stdout + done.stderr
    )


@pytest.mark.deep
def test_a_recipe_of_one_process_says_so(tmp_path: Path) -> None:
    done = subprocess.run(
        command(tmp_path / "out", name="digits"),
        env=environment(tmp_path),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 1
    assert "digits trains in one process: `lowtide run digits`" in done.stdout + done.stderr
