"""Which variables a statement reads, assigns and deletes, and which surely have a value after it.

All of it is about the function's own variables: nested functions and comprehensions have theirs.
What is not certain counts as read, and as not assigned.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

NESTED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def parameters_of(given: ast.arguments) -> list[ast.arg]:
    """Return all parameters of a function."""
    found = [*given.posonlyargs, *given.args, *given.kwonlyargs]
    return found + [a for a in (given.vararg, given.kwarg) if a is not None]


def stored(s: ast.AST) -> set[str]:
    """Return the variables that a statement assigns or deletes, anywhere in it."""
    found = set()
    for n in _own(s):
        if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load):
            found.add(n.id)
        elif isinstance(n, ast.alias):
            found.add((n.asname or n.name).partition(".")[0])
        elif isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) or (
            isinstance(n, ast.ExceptHandler) and n.name
        ):
            found.add(str(n.name))
    return found


def deleted(s: ast.AST) -> set[str]:
    """Return the variables that a statement deletes, anywhere in it."""
    found = {n.id for n in _own(s) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Del)}
    return found | {n.name for n in _own(s) if isinstance(n, ast.ExceptHandler) and n.name}


def _own(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    if isinstance(node, (*NESTED, *_COMPREHENSIONS)):
        # The variable of "(y := x)" in a comprehension is the function's.
        yield from (n.target for n in ast.walk(node) if isinstance(n, ast.NamedExpr))
        return
    for child in ast.iter_child_nodes(node):
        yield from _own(child)


def loaded(node: ast.AST) -> set[str]:
    """Return the variables that a statement or an expression reads, also in nested functions."""
    if isinstance(node, ast.Name):
        return set() if isinstance(node.ctx, ast.Store) else {node.id}
    found = set[str]().union(*map(loaded, ast.iter_child_nodes(node)))
    if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
        found.add(node.target.id)
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        outside = [*node.args.defaults, *(d for d in node.args.kw_defaults if d is not None)]
        outside += getattr(node, "decorator_list", [])
        own = {a.arg for a in parameters_of(node.args)}
        return (found - own) | set[str]().union(*map(loaded, outside))
    return found


def surely_assigned(body: list[ast.stmt]) -> set[str]:
    """Return the variables that have a value after some statements, if these come to their end."""
    found: set[str] = set()
    for s in body:
        found -= deleted(s)
        if isinstance(s, ast.Assign):
            found |= set[str]().union(*map(stored, s.targets))
        elif isinstance(s, ast.AugAssign) or (isinstance(s, ast.AnnAssign) and s.value is not None):
            found |= stored(s.target)
        elif isinstance(s, ast.Import | ast.ImportFrom | ast.FunctionDef | ast.ClassDef):
            found |= stored(s)
        elif isinstance(s, ast.With):
            found |= surely_assigned(s.body)
        elif isinstance(s, ast.If):
            found |= _after_either(s.body, s.orelse)
    return found


def _after_either(a: list[ast.stmt], b: list[ast.stmt]) -> set[str]:
    if _leaves(a):
        return surely_assigned(b)
    if _leaves(b):
        return surely_assigned(a)
    return surely_assigned(a) & surely_assigned(b)


def _leaves(body: list[ast.stmt]) -> bool:
    return bool(body) and isinstance(body[-1], ast.Return | ast.Raise)
