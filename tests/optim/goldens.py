"""Recorded results of PyTorch, so that a machine without it still checks parity.

    python -m tests.optim.goldens     # writes goldens.json anew; needs PyTorch

For every case of ``cases.py`` the parameters after ten steps in float64, for L-BFGS the losses of
ten steps, for every schedule the rates and momenta of sixty steps. Lion is not in PyTorch: its
values come from the four lines of NumPy below, after program 1 of Chen et al. 2023. Nor are the
optimizers of eight bits, whose values are Adam's and AdamW's: the parameters here are so small that
their state is not rounded.
"""

from __future__ import annotations

import importlib
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from tests.optim.cases import CASES, EXACT, STEPS, gradient, identity, start
from tests.optim.runs import rosenbrock, run
from tests.optim.schedules import SCHEDULES, course

PLACE = Path(__file__).with_name("goldens.json")
LBFGS = [
    {"line_search_fn": "strong_wolfe"},
    {"line_search_fn": "strong_wolfe", "history_size": 3, "max_iter": 4},
    {"lr": 1e-3, "max_iter": 5},
]


def lion(options: dict[str, Any]) -> dict[str, Any]:
    """Lion in NumPy."""
    found = {}
    lr, decay = options["lr"], options.get("weight_decay", 0)
    for key, p in start("Lion").items():
        m = np.zeros_like(p)
        for step in range(STEPS):
            g = gradient(key, p, step) * (-1 if options.get("maximize") else 1)
            p = p - lr * (np.sign(0.9 * m + 0.1 * g) + decay * p)
            m = 0.99 * m + 0.01 * g
        found[key] = p
    return found


def record() -> dict[str, Any]:
    """Everything, as lists of numbers."""
    torch = importlib.import_module("torch")
    torch.set_default_dtype(torch.float64)
    cases = {}
    for name, options in CASES:
        peer = EXACT.get(name, name)
        found = lion(options) if name == "Lion" else run(torch, peer, options)[0]
        cases[identity((name, options))] = {k: v.ravel().tolist() for k, v in found.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        schedules = {n: course(torch, torch.optim.lr_scheduler, n) for n in SCHEDULES}
    losses = [rosenbrock(torch, **options)[0] for options in LBFGS]
    return {"torch": torch.__version__, "cases": cases, "lbfgs": losses, "schedules": schedules}


if __name__ == "__main__":
    text = (
        json.dumps(record(), separators=(",", ":"))
        .replace('},"', '},\n"')
        .replace(']],"', ']],\n"')
    )
    PLACE.write_text(text + "\n", encoding="utf-8")
    print(f"{PLACE.name}: {len(text)} bytes")
