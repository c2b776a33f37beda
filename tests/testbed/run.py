"""Run programs of the test bed with PyTorch, or with lowtide in its place.

``python -m tests.testbed.run FILE OUT [--as-torch] [--repeat N] [--compiled WHAT] [NAME...]`` runs
the programs of ``programs/FILE.py``, all or those whose names hold a NAME, and writes to the folder
OUT what each found (``NAME.npz``) and ``report.json``: seconds of import, seconds of each program
(with the import of its package), errors; what was recorded of functions that ``--compiled`` (loss
or step) compiles; seconds of each of N runs after the first; and the most memory that the process
has had.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

import numpy as np


def main(arguments: list[str]) -> int:
    """Run the programs that the arguments name; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.testbed.run")
    parser.add_argument("file")
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--as-torch", action="store_true")
    parser.add_argument("--repeat", type=int, default=0)
    parser.add_argument("--compiled", choices=["loss", "step"], default="")
    given = parser.parse_args(arguments)
    given.out.mkdir(parents=True, exist_ok=True)
    warnings.simplefilter("ignore")  # libraries warn of one another's ages
    started = time.perf_counter()
    if given.as_torch:
        importlib.import_module("lowtide.as_torch")
    training: Any = importlib.import_module("tests.testbed.training")
    imported = time.perf_counter() - started
    if not given.as_torch:
        _without_compiled_torchvision(training.torch)
    importlib.import_module(f"tests.testbed.programs.{given.file}")
    report: dict[str, Any] = {
        "import": imported,
        "seconds": {},
        "again": {},
        "errors": {},
        "compiled": {},
        "tolerances": training.TOLERANCES,
    }
    for name, function in training.PROGRAMS.items():
        if given.names and not any(part in name for part in given.names):
            continue
        started = time.perf_counter()
        training.COMPILED.update(what=given.compiled, functions=[])
        try:
            rows = function()
        except Exception:  # one program's failure must not hide the others
            report["errors"][name] = traceback.format_exc()
        else:
            np.savez(given.out / f"{name.replace(':', '-')}.npz", **rows)
        report["seconds"][name] = time.perf_counter() - started
        report["compiled"][name] = [f.explain() for f in training.COMPILED["functions"]]
        report["again"][name] = [_seconds(function) for _ in range(given.repeat)]
    report["peak"] = _most_memory()
    (given.out / "report.json").write_text(json.dumps(report, indent=1))
    return 0


def _seconds(function: Any) -> float:
    started = time.perf_counter()
    function()
    return time.perf_counter() - started


def _most_memory() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def _without_compiled_torchvision(torch: Any) -> None:
    """Declare the ops whose compiled code torchvision does without beside a PyTorch for CPUs."""
    operators = torch.library.Library("torchvision", "DEF")
    operators.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    operators.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    torch._lowtide_keeps = operators  # a library's operators live as long as it does


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
