"""Record PyTorch's numbers for every case: ``python -m tests.modules.goldens [FAMILY ...]``.

For each result, gradient and buffer in float64: how many elements, their sum, the sum of their
absolute values, and four of them. Ten digits; a case is a line of ``golden/FAMILY.json``.
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from tests.modules.table import FAMILIES, Case, family, run

FOLDER = Path(__file__).parent / "golden"


def digest(values: np.ndarray) -> list[float]:
    """[count, sum, absolute sum, four elements]."""
    flat = values.astype(np.float64).ravel()
    picked = [flat[k * (flat.size - 1) // 3] for k in range(4)] if flat.size else []
    return [flat.size, flat.sum(), np.abs(flat).sum(), *picked]


def results(T: Any, case: Case) -> dict[str, dict[str, list[float]]]:
    """Digests by mode and name, of what is not random and PyTorch does as we do."""
    modes = [m for m in case.modes if not (case.random and m == "train")]
    return {m: {n: digest(a) for n, a in run(T, case, m).items()} for m in modes}


def rounded(numbers: list[float]) -> list[float]:
    return [int(numbers[0]), *[float(f"{x:.10g}") for x in numbers[1:]]]


def record(name: str) -> None:
    import torch

    lines = []
    for case in family(name).CASES:
        if not case.differs:
            found = {
                mode: {n: rounded(d) for n, d in parts.items()}
                for mode, parts in results(torch, case).items()
            }
            lines.append(f"{json.dumps(case.id)}: {json.dumps(found, separators=(',', ':'))}")
    text = f"{{\n{json.dumps('source')}: {json.dumps(f'PyTorch {torch.__version__}')},\n"
    (FOLDER / f"{name}.json").write_text(text + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    for each in sys.argv[1:] or FAMILIES:
        record(each)
