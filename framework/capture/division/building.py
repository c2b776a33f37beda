"""Code from syntax trees: functions of the file, the globals and the closure of another one."""

from __future__ import annotations
import __future__

import ast
import copy
import linecache
import sys
from types import CodeType, FunctionType
from typing import Any

_NAME = "__lowtide_piece__"  # no name of a program's
_FUTURES = sum({getattr(__future__, n).compiler_flag for n in __future__.all_feature_names})


class CannotDivide(Exception):
    """A function whose statements cannot be run in pieces; the text says why."""


def definition_of(function: FunctionType) -> ast.FunctionDef:
    """Return the syntax tree of a function, with the line numbers of its file.

    The file is compiled, and must give the code that runs: it may have changed since, and tools
    change code that they load.

    Raises:
        CannotDivide: There is no source, or it is not what runs.
    """
    code = function.__code__
    text = "".join(linecache.getlines(code.co_filename, function.__globals__))
    try:
        tree = ast.parse(text)
        flags = code.co_flags & _FUTURES
        whole = compile(text, code.co_filename, "exec", flags, dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        raise CannotDivide("its source cannot be read") from error
    if not _contains(whole, code):
        raise CannotDivide("its source is not what runs")
    found = [
        n
        for n in ast.walk(tree)
        if isinstance(n, ast.FunctionDef)
        and n.name == code.co_name
        and _first_line(n) == code.co_firstlineno
    ]
    if len(found) != 1:
        raise CannotDivide("it is no function with statements")
    return found[0]


def _first_line(definition: ast.FunctionDef) -> int:
    return min([definition.lineno, *(d.lineno for d in definition.decorator_list)])


def _contains(whole: CodeType, code: CodeType) -> bool:
    inside = [c for c in whole.co_consts if isinstance(c, CodeType)]
    return code in inside or any(_contains(c, code) for c in inside)


def function_of(
    source: FunctionType, parameters: ast.arguments, body: list[ast.stmt]
) -> FunctionType:
    """Return a function that runs statements with the globals and the closure of ``source``.

    Args:
        source: The function.
        parameters: Its parameters; defaults and annotations are left out.
        body: The statements.
    """
    free = source.__code__.co_freevars
    # Compiled inside of a function that has the closure's variables.
    inner = _definition(_NAME, _plain(parameters), copy.deepcopy(body))
    outer = _definition(
        "outer", ast.arguments([], [*map(ast.arg, free)], None, [], [], None, []), [inner]
    )
    module = ast.fix_missing_locations(ast.Module([outer], []))
    flags = source.__code__.co_flags & _FUTURES
    code = compile(module, source.__code__.co_filename, "exec", flags, dont_inherit=True)
    made_outer = next(c for c in code.co_consts if isinstance(c, CodeType))
    inside = [c for c in made_outer.co_consts if isinstance(c, CodeType)]
    found = next(c for c in inside if c.co_name == _NAME)
    found = found.replace(co_name=source.__code__.co_name, co_qualname=source.__code__.co_qualname)
    cells = dict(zip(free, source.__closure__ or (), strict=True))
    closure = tuple(cells[n] for n in found.co_freevars)
    made = FunctionType(found, source.__globals__, source.__name__, None, closure)
    made.__qualname__, made.__module__ = source.__qualname__, source.__module__
    return made


def _definition(name: str, parameters: ast.arguments, body: list[ast.stmt]) -> ast.FunctionDef:
    more: dict[str, Any] = {"type_params": []} if sys.version_info >= (3, 12) else {}
    return ast.FunctionDef(name=name, args=parameters, body=body, decorator_list=[], **more)


def _plain(given: ast.arguments) -> ast.arguments:
    required: list[ast.expr | None] = [None for _ in given.kwonlyargs]
    return ast.arguments(
        [ast.arg(a.arg) for a in given.posonlyargs],
        [ast.arg(a.arg) for a in given.args],
        given.vararg and ast.arg(given.vararg.arg),
        [ast.arg(a.arg) for a in given.kwonlyargs],
        required,
        given.kwarg and ast.arg(given.kwarg.arg),
        [],
    )
