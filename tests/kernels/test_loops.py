"""Kernels that a reader can follow: no function nests more than five loops."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MOST = 5


def depth(node: ast.AST) -> int:
    """How many loops are inside each other."""
    inside = max((depth(child) for child in ast.iter_child_nodes(node)), default=0)
    return inside + isinstance(node, ast.For | ast.While)


def too_deep(text: str) -> list[str]:
    functions = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef)]
    return [f.name for f in functions if depth(f) > MOST]


def test_no_kernel_nests_more_than_five_loops():
    files = sorted((ROOT / "framework" / "kernels").rglob("*.py"))
    assert len(files) > 50
    assert {f.name: found for f in files if (found := too_deep(f.read_text()))} == {}


def test_six_loops_are_found():
    lines = [" " * (k + 1) + f"for i{k} in range(3):" for k in range(6)]
    text = "\n".join(["def f():", *lines, " " * 7 + "pass"])
    assert too_deep(text) == ["f"]
    assert too_deep("\n".join(["def f():", *lines[:5], " " * 6 + "pass"])) == []
