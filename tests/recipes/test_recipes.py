"""Every recipe runs from end to end on what is built in; a stopped run goes on bit for bit."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NAMES = sorted(
    p.stem for p in (ROOT / "recipes").glob("*.py") if '__name__ == "__main__"' in p.read_text()
)


def environment(tmp_path: Path) -> dict[str, str]:
    """Without a network, without packages of data, without a cache."""
    return {
        **{k: v for k, v in os.environ.items() if k != "LOWTIDE_DATA"},
        "PATH": str(tmp_path),  # no apt-get
        "PIP_NO_INDEX": "1",
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
    }


def command(name: str, out: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "lowtide", "run", name, "--quick", "--out", str(out), *options]


def run(name: str, tmp_path: Path, out: Path, *options: str) -> tuple[str, dict]:
    done = subprocess.run(
        command(name, out, *options),
        env=environment(tmp_path),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, json.loads((out / "results.json").read_text())


@pytest.mark.parametrize(
    "name", ["digits", *(pytest.param(n, marks=pytest.mark.deep) for n in NAMES if n != "digits")]
)
def test_it_runs_on_what_is_built_in(name: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    said, record = run(name, tmp_path, out, "--memory-report")
    assert "WARNING" in said  # says what it tried, and what stands in
    assert "tried" in said
    assert record["recipe"] == name
    assert record["steps"] == len(record["losses"]) > 1
    assert record["peak_bytes"] == sum(record["peak_bytes_by_role"].values()) > 0
    assert record["peak_bytes_by_role"]["parameter"] > 0
    assert record["peak_bytes_by_role"]["optimizer"] > 0
    assert (out / "curve.png").read_bytes()[:4] == b"\x89PNG"
    assert json.loads((out / "memory.json").read_text()) == record["peak_bytes_by_role"]
    assert (out / "memory.png").read_bytes()[:4] == b"\x89PNG"
    steps = min(3, record["steps"] - 1)
    assert f"{steps} step{'s' * (steps > 1)} in" in (out / "memory.html").read_text()


@pytest.mark.deep
@pytest.mark.parametrize("name", NAMES)
def test_a_compiled_model_has_the_same_losses(name: str, tmp_path: Path) -> None:
    written = run(name, tmp_path, tmp_path / "written")[1]
    said, compiled = run(name, tmp_path, tmp_path / "compiled", "--compile")
    assert compiled["losses"] == written["losses"]
    assert compiled["measured"] == written["measured"]
    assert "CaptureWarning" not in said


@pytest.mark.deep
@pytest.mark.parametrize("name", ["chargpt", "vowels"])
def test_a_stopped_run_resumes_with_the_same_losses(name: str, tmp_path: Path) -> None:
    _, whole = run(name, tmp_path, tmp_path / "whole", "--checkpoint-every", "1000")
    out = tmp_path / "stopped"
    process = subprocess.Popen(
        command(name, out, "--checkpoint-every", "3"),
        env=environment(tmp_path),
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    while process.poll() is None and not list(out.glob("checkpoints/step_*")):
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=600)
    if not (out / "results.json").exists():  # else it had ended before the signal came
        assert process.returncode == 130
        assert "Go on with --resume" in said
    said, resumed = run(name, tmp_path, out, "--resume", "--checkpoint-every", "3")
    assert "Resumed after step" in said
    assert resumed["losses"] == whole["losses"]
    assert resumed["measured"] == whole["measured"]


@pytest.mark.deep
def test_an_unfinished_run_is_not_overwritten(tmp_path: Path) -> None:
    out = tmp_path / "out"
    run("diamonds", tmp_path, out, "--steps", "4", "--checkpoint-every", "2")
    (out / "results.json").unlink()  # as if it had been killed
    done = subprocess.run(
        command("diamonds", out, "--steps", "4"),
        env=environment(tmp_path),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 1
    assert "unfinished run, at step 4" in done.stderr
