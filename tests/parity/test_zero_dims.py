"""Layers whose inputs have sizes of 0, beside PyTorch: what it accepts is accepted and equal.

Only inputs are cut, not arguments: PyTorch divides by some of those, and reads out of bounds.
"""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import lowtide as lt
from tests.faults.zero_dims import of_case
from tests.modules.table import family, run
from tests.samples import fresh_start

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.parity

FAMILIES = (
    "activation",
    "attention",
    "convolution",
    "linear",
    "loss",
    "normalization",
    "recurrent",
)
ELSEWHERE = {
    "EmbeddingBag": "PyTorch crashes where entries belong to no bag",
    "BatchNorm1d": "PyTorch compares no statistics with the channels where nothing is normalized",
    "BatchNorm2d": "as BatchNorm1d",
    "BatchNorm3d": "as BatchNorm1d",
    "InstanceNorm1d": "as BatchNorm1d",
    "MultiMarginLoss": "PyTorch's mean over no rows is what the memory held; ours is NaN",
    "MultiLabelMarginLoss": "as MultiMarginLoss",
    "LinearCrossEntropyLoss": "PyTorch ignores the targets of no rows",
}


def outcome(T, case, mode):
    try:
        with fresh_start(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return run(T, case, mode)
    except Exception as error:
        return error


def compared(case, mode):
    """Say what is wrong; None if both agree, "" if PyTorch refuses."""
    theirs = outcome(torch, case, mode)
    if isinstance(theirs, Exception):
        return ""
    ours = outcome(lt, case, mode)
    if isinstance(ours, Exception):
        return f"refused: {ours}"
    for name in {*ours, *theirs}:
        a, b = ours.get(name), theirs.get(name)
        if a is None or b is None:
            if np.any(b if a is None else a):
                return f"{name} is missing"
        elif a.shape != b.shape or not np.allclose(a, b, 1e-7, 1e-7, equal_nan=True):
            return f"{name}: {a.ravel()[:3]} and {b.ravel()[:3]}"
    return None


@pytest.mark.parametrize("name", FAMILIES)
def test_what_is_accepted_is_accepted_and_equal(name):
    agreed, wrong = 0, []
    for case in family(name).CASES:
        packed = name == "recurrent" and case.forward  # PyTorch crashes without features
        if case.differs or case.layer in ELSEWHERE or packed:
            continue
        for what, changed, mode in of_case(case):
            if changed.args != case.args or (case.random and mode == "train"):
                continue
            found = compared(changed, mode)
            agreed += found is None
            if found:
                wrong.append(f"{what}: {found}")
    assert not wrong, "\n".join(wrong)
    assert agreed > 10
