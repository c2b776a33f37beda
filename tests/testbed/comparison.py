"""Runs of a program file by two frameworks, and the comparison of what they found."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = Path(__file__).with_name("programs")


def files() -> list[str]:
    """Return the names of the files of programs."""
    return sorted(path.stem for path in PROGRAMS.glob("*.py"))


def programs(file: str) -> list[tuple[str, str]]:
    """Return package and name of the programs of a file, without importing it."""
    found = []
    for node in ast.parse((PROGRAMS / f"{file}.py").read_text(encoding="utf-8")).body:
        for decorator in getattr(node, "decorator_list", []):
            if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "program":
                found.append((ast.literal_eval(decorator.args[0]), node.name))  # type: ignore[attr-defined]
    return found


def run(
    file: str,
    out: Path,
    packages: str,
    as_torch: bool,
    names: list[str] | None = None,
    repeat: int = 0,
    compiled: str = "",
) -> Any:
    """Run a file's programs in a process of its own; return its report."""
    # PyTorch's folder must not stand before lowtide's: what answers is chosen in the process.
    search = [str(ROOT), packages, *[path for path in sys.path if path]]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(search), "HF_HUB_OFFLINE": "1"}
    words = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "tests.testbed.run",
        file,
        str(out),
        *(names or []),
        f"--repeat={repeat}",
    ]
    if as_torch:
        words.append("--as-torch")
    if compiled:
        words.append(f"--compiled={compiled}")
    done = subprocess.run(words, capture_output=True, text=True, env=environment, cwd=ROOT)
    if done.returncode:
        raise RuntimeError(f"programs of {file} did not run:\n{done.stderr}")
    return json.loads((out / "report.json").read_text())


@dataclass(frozen=True)
class Difference:
    """A row in which two runs differ, ``relative`` to its largest number or to the program's."""

    row: str
    relative: float


def largest_difference(ours: Path, theirs: Path) -> Difference:
    """Compare two files of rows; return the worst row.

    A row is measured by its largest number, gradients and states at least by a part of the largest
    in the program: what is zero but for rounding has no digits to compare. That part is a
    thousandth in float64. It is a hundredth in float32, where ``1e-4`` of a thousandth is less than
    one rounding of the largest.
    """
    a, b = np.load(ours), np.load(theirs)
    if set(a) != set(b):
        return Difference(f"rows {sorted(set(a) ^ set(b))[:5]}", float("inf"))
    floors: dict[str, float] = {}
    for row in b:
        kind = row.partition(" ")[0]
        part = 1e-3 if b[row].dtype.itemsize >= 8 else 1e-2
        floors[kind] = max(floors.get(kind, 0.0), part * _largest(b[row]))
    worst = Difference("none", 0.0)
    for row in b:
        if a[row].shape != b[row].shape:
            return Difference(f"{row}: shapes {a[row].shape} and {b[row].shape}", float("inf"))
        scale = max(_largest(b[row]), floors[row.partition(" ")[0]], 1e-12)
        ours, theirs = a[row].astype(b[row].dtype), b[row]
        with np.errstate(invalid="ignore"):  # infinities that agree
            apart = np.where(ours == theirs, 0, np.abs(ours - theirs))
        relative = float(apart.max(initial=0)) / scale
        if not relative <= worst.relative:  # NaN counts as the worst
            worst = Difference(row, relative)
    return worst


def _largest(row: np.ndarray) -> float:
    return float(np.abs(row[np.isfinite(row)]).max(initial=0))
