"""Functions compiled from text, with separate parameters, as dataclasses make ``__init__``.

A function that passed its arguments on by ``*args`` and ``**kwargs`` would take longer than one
plain call, and would not show which it takes.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from functools import cache
from types import CodeType, FunctionType
from typing import Any

from ..memory.short_traceback import RAISED_ON, shorten


def compiled(
    name: str,
    parameters: Iterable[inspect.Parameter],
    body: str,
    names: dict[str, Any],
    origin: str,
) -> Any:
    """Compile ``def name(parameters): body``.

    Args:
        name: Of the function.
        parameters: Its parameters, in order; a default is the object itself. Annotations are
            left out.
        body: One statement a line.
        names: The function's globals: those that the body speaks of. The function joins them.
        origin: What a traceback shows for a file.
    """
    head, starred = [], False
    plain: list[Any] = []  # defaults of those that may come by position
    named: dict[str, Any] = {}
    for p in parameters:
        text = p.name
        if p.kind is p.VAR_POSITIONAL:
            text, starred = f"*{text}", True
        elif p.kind is p.VAR_KEYWORD:
            text = f"**{text}"
        elif p.kind is p.KEYWORD_ONLY and not starred:
            head.append("*")
            starred = True
        if p.default is not p.empty:
            text += "=None"
            if p.kind is p.KEYWORD_ONLY:
                named[p.name] = p.default
            else:
                plain.append(p.default)
        head.append(text)
    code = _code(", ".join(head), body)
    code = code.replace(co_name=name, co_qualname=name, co_filename=origin)
    names["_shorten"] = shorten
    names[name] = f = FunctionType(code, names, name, tuple(plain))
    f.__kwdefaults__ = named or None
    return f


@cache  # half of the ops share their text with another: compiling it takes most of an import
def _code(head: str, body: str) -> CodeType:
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    module = compile(f"def f({head}):\n try:\n{lines}{RAISED_ON}", "<template>", "exec")
    return next(c for c in module.co_consts if isinstance(c, CodeType))


def parameter_names(f: Any) -> tuple[str, ...]:
    """A function's parameters by name: ``inspect.signature`` takes ten times as long."""
    code = getattr(inspect.unwrap(f), "__code__", None)
    if code is None or code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS):
        return tuple(inspect.signature(f).parameters)
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]


def passed(parameters: Iterable[inspect.Parameter]) -> str:
    """The arguments of a call that hands a function's parameters on, as text."""
    return ", ".join(map(_handed_on, parameters))


def _handed_on(p: inspect.Parameter) -> str:
    if p.kind is p.VAR_POSITIONAL:
        return f"*{p.name}"
    return f"{p.name}={p.name}" if p.kind is p.KEYWORD_ONLY else p.name
