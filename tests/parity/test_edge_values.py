"""The page of edge values is what a run gives, and nothing differs without a reason."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("expecttest", reason="PyTorch's test suite needs it")
pytestmark = pytest.mark.parity
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from tests.parity import edge_values


def test_the_page_is_current():
    assert edge_values.PAGE.read_text(encoding="utf-8") == edge_values.page(), (
        "run python -m tests.parity.edge_values"
    )


def test_what_differs_needs_a_reason(monkeypatch):
    program = edge_values.programs()["hypot"]
    monkeypatch.setattr(edge_values, "programs", lambda: {"hypot": program})
    with pytest.raises(ValueError, match="reasons without numbers"):
        edge_values.page()


def test_kinds_of_differences():

    nan, inf = float("nan"), float("inf")
    ours = np.array([nan, 1.0, nan, inf, -0.0, 2.0])
    theirs = np.array([nan, 1.0, 1.0, 1.0, 0.0, 3.0])
    found = edge_values.kinds(ours, theirs, (1e-8, 1e-12))
    assert found.tolist() == ["", "", "nan", "infinite", edge_values.SIGN, "number"]
