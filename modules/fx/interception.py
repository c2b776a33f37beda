"""Interception of functions while a module is traced: with a proxy among them they become nodes.

Replaced are the functions of lowtide's namespaces, also where the module's own files have imported
them by name, those that :func:`wrap` names, and Tensor's operators, which leave a proxy on their
right to it.
"""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Iterator
from typing import Any

from .proxy import Proxy

NAMESPACES = (
    "lowtide",
    "lowtide.nn.functional",
    "lowtide.special",
    "lowtide.linalg",
    "lowtide.fft",
    "torch",
    "math",
)
OURS = ("lowtide.",)
OPERATORS = ["add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor"]
_wrapped: dict[tuple[int, str], tuple[dict[str, Any], str]] = {}


def wrap(fn_or_name: Any) -> Any:
    """Let a function be one node, instead of what it calls; call it at the level of a module.

    Args:
        fn_or_name: The function, or its name: then it may be defined later. As a decorator too.

    Returns:
        What was given.

    Raises:
        RuntimeError: It is neither.
        NotImplementedError: It is called inside a function.
    """
    if not callable(fn_or_name) and not isinstance(fn_or_name, str):
        raise RuntimeError(
            "Unsupported type for global function! Must be either a callable or name"
        )
    name = fn_or_name if isinstance(fn_or_name, str) else fn_or_name.__name__
    frame = sys._getframe(1)
    if frame.f_code.co_name != "<module>":
        raise NotImplementedError("wrap must be called at the top level of a module")
    _wrapped[id(frame.f_globals), name] = frame.f_globals, name
    return fn_or_name


def function_patches(
    root: Any, function: Any, extra: Any, functions: Any, create: Any
) -> Iterator[tuple[dict[str, Any], str, Any]]:
    """Yield what to replace while a module is traced: (namespace, name, (value, replacement)).

    Args:
        root: The module.
        function: What is called.
        extra: More modules whose functions become nodes.
        functions: More functions that do.
        create: Makes a node's proxy, as ``Tracer.create_proxy``.
    """
    made: dict[int, Any] = {}
    known: set[int] = {id(f) for f in functions}
    spaces: list[dict[str, Any]] = []
    for name in NAMESPACES:
        module = sys.modules.get(name)
        if module is not None and name != "math":
            spaces.append(vars(module))
    for more in extra:
        spaces.append(vars(more))
    for space in spaces:
        known |= {id(f) for n, f in space.items() if _is_function(f) and n[:1] != "_"}
    homes = {id(space): space for space in spaces}
    for m in root.modules():
        module = sys.modules.get(type(m).__module__)
        if module is not None and not type(m).__module__.startswith(OURS):
            homes[id(vars(module))] = vars(module)
    own = getattr(function, "__globals__", None)
    if own is not None and not own.get("__name__", "").startswith(OURS):
        homes[id(own)] = own
    for space in homes.values():
        for name, value in list(space.items()):
            if _is_function(value) and id(value) in known:
                yield space, name, (value, _noting(value, made, create))
    for space, name in _wrapped.values():
        if callable(space.get(name)):
            yield space, name, (space[name], _noting(space[name], made, create))


def _noting(function: Any, made: dict[int, Any], create: Any) -> Any:
    found = made.get(id(function))
    if found is not None:
        return found

    @functools.wraps(function)
    def noting(*args: Any, **kwargs: Any) -> Any:
        if _has_proxy(args) or _has_proxy(list(kwargs.values())):
            return create("call_function", function, args, kwargs)
        return function(*args, **kwargs)

    made[id(function)] = noting
    return noting


def yielding(function: Any) -> Any:
    """Return an operator of Tensor that leaves it to a proxy on its right."""

    @functools.wraps(function)
    def operator(self: Any, other: Any) -> Any:
        return NotImplemented if isinstance(other, Proxy) else function(self, other)

    return operator


def _is_function(value: Any) -> bool:
    kinds: Any = types.FunctionType | types.BuiltinFunctionType | functools.partial
    return isinstance(value, kinds) or (hasattr(value, "__wrapped__") and callable(value))


def _has_proxy(values: Any) -> bool:
    for value in values:
        if isinstance(value, Proxy):
            return True
        if isinstance(value, list | tuple) and _has_proxy(value):
            return True
        if isinstance(value, dict) and _has_proxy(value.values()):
            return True
    return False
