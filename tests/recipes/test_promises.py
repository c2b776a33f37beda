"""Each recipe has a promise that its benchmark checks, and its docstring states no less."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from benchmarks.recipes import PROMISES, reached

ROOT = Path(__file__).resolve().parents[2]


def test_every_recipe_has_one():
    runnable = {
        p.stem for p in (ROOT / "recipes").glob("*.py") if '__name__ == "__main__"' in p.read_text()
    }
    assert set(PROMISES) == runnable


@pytest.mark.parametrize("name", PROMISES)
def test_it_is_kept_from_the_right_side(name):
    figure, sign, promise = PROMISES[name]
    assert reached(name, {figure: promise})
    assert reached(name, {figure: promise + sign * 0.01})
    assert not reached(name, {figure: promise - sign * 0.01})


@pytest.mark.parametrize("name", PROMISES)
def test_the_recipe_reports_the_figure(name):
    tree = ast.parse((ROOT / "recipes" / f"{name}.py").read_text())
    finishes = [
        call
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and getattr(call.func, "attr", "") == "finish"
    ]
    assert PROMISES[name][0] in {k.arg for call in finishes for k in call.keywords}
