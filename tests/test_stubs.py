"""The generated stubs say what the functions do."""

from __future__ import annotations

import ast
from typing import Any

import pytest

import lowtide as lt
from lowtide.framework.codegen import stubs
from lowtide.framework.ops.registry import FUNCTIONS
from lowtide.framework.testing import Make

STUBS = {name: ast.parse(text) for name, text in stubs.generate().items()}
TENSOR = next(
    n for n in STUBS["tensor.pyi"].body if isinstance(n, ast.ClassDef) and n.name == "Tensor"
)
RESULT = {
    n.name: ast.unparse(n.returns)
    for n in STUBS["ops/__init__.pyi"].body
    if isinstance(n, ast.FunctionDef) and n.returns is not None
}
SAMPLED = sorted(
    n for n, f in FUNCTIONS.items() if getattr(getattr(f, "op", f), "samples", None) is not None
)
KINDS = {"Tensor": lt.Tensor, "bool": bool, "int": int, "float": float}


def test_the_stubs_on_disk_are_current() -> None:
    assert stubs.stale() == [], "run python -m lowtide.framework.codegen.stubs"


def test_every_public_function_has_a_stub() -> None:
    body = STUBS["ops/__init__.pyi"].body
    classes = {ast.unparse(n.target) for n in body if isinstance(n, ast.AnnAssign)}
    assert set(FUNCTIONS) - set(RESULT) - classes == set()


def test_every_public_tensor_attribute_has_a_stub() -> None:
    stubbed = {n.name for n in TENSOR.body if isinstance(n, ast.FunctionDef)}
    for node in TENSOR.body:
        if isinstance(node, ast.AnnAssign):
            stubbed.add(ast.unparse(node.target))
        elif isinstance(node, ast.Assign):
            stubbed.update(map(ast.unparse, node.targets))
    assert {n for n in vars(lt.Tensor) if not n.startswith("_")} - stubbed == set()


def conforms(value: Any, kind: str) -> bool:
    """Whether a value is of a kind that a stub names."""
    if kind == "Any":
        return True
    if kind.startswith("tuple["):
        return isinstance(value, tuple) and all(isinstance(v, lt.Tensor) for v in value)
    if kind.startswith("list["):
        return isinstance(value, list)
    return any(
        conforms(value, k) if "[" in k else type(value) is KINDS.get(k, type(None))
        for k in kind.replace("_", "").split(" | ")
    )


@pytest.mark.parametrize("name", SAMPLED)
def test_a_function_returns_what_its_stub_says(name: str) -> None:
    function = FUNCTIONS[name]
    with lt.no_grad():
        for inputs, attributes in getattr(function, "op", function).samples(Make()):
            assert conforms(function(*inputs, **attributes), RESULT[name])
