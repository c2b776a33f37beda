"""What a statement of a function calls, as far as that can be told without running it."""

from __future__ import annotations

import ast
import builtins
import dis
import inspect
from itertools import pairwise
from types import CodeType, FunctionType, MethodType
from typing import Any

UNKNOWN = object()


def calls_and_drops(code: CodeType) -> bool:
    """True if code may have a statement that is a call, whose result it drops."""
    names = [i.opname for i in dis.get_instructions(code) if i.opname != "CACHE"]
    return any(a.startswith("CALL") and b == "POP_TOP" for a, b in pairwise(names))


def callee_of(call: ast.Call, function: FunctionType, arguments: dict[str, Any]) -> Any:
    """Return what a call in a function calls; ``UNKNOWN`` if it is reached by a local variable.

    Args:
        call: The call.
        function: The function it is in.
        arguments: What that was called with, by name.
    """
    return _value_of(call.func, function, arguments)


def _value_of(node: ast.expr, function: FunctionType, arguments: dict[str, Any]) -> Any:
    if isinstance(node, ast.Name):
        return _variable(node.id, function, arguments)
    if isinstance(node, ast.Attribute):
        owner = _value_of(node.value, function, arguments)
        if owner is UNKNOWN:
            return UNKNOWN
        # Properties and __getattr__ are not run.
        held = inspect.getattr_static(owner, node.attr, UNKNOWN)
        if isinstance(held, FunctionType) and not isinstance(owner, type):
            return MethodType(held, owner)
        if hasattr(type(held), "__get__") and not callable(held):
            return UNKNOWN
        return held
    return UNKNOWN


def _variable(name: str, function: FunctionType, arguments: dict[str, Any]) -> Any:
    if name in arguments:
        return arguments[name]
    code = function.__code__
    if name in code.co_varnames or name in code.co_cellvars:
        return UNKNOWN
    if name in code.co_freevars:
        cell = (function.__closure__ or ())[code.co_freevars.index(name)]
        try:
            return cell.cell_contents
        except ValueError:  # it has no value yet
            return UNKNOWN
    if name in function.__globals__:
        return function.__globals__[name]
    return getattr(builtins, name, UNKNOWN)


def is_of_lowtide(callee: Any) -> bool:
    """True for a function, a class or a method of lowtide's, or one that may be."""
    if callee is UNKNOWN:
        return True
    owner = getattr(callee, "__self__", None)
    found = [callee] if owner is None or inspect.ismodule(owner) else [owner, type(owner), callee]
    return any(_module_of(x).partition(".")[0] == "lowtide" for x in found)


def _module_of(x: Any) -> str:
    module = getattr(x, "__module__", None)
    return module if isinstance(module, str) else ""
