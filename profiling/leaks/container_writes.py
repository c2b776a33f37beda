"""Static search for the line of a source file that adds to a container.

The program is read, not run: ``name.append(...)``, ``name[key] = ...`` and ``name += ...`` count.
"""

from __future__ import annotations

import ast
import functools
import linecache

from ...framework.attribution.frames import file_line

_GROWS = {"append", "appendleft", "extend", "insert", "add", "update", "setdefault", "put"}


def place(part: tuple[str, str, str]) -> str | None:
    """Return the function that owns a local variable; None if any function may write to it.

    Args:
        part: (expression, where it was found in words, file), as ``holders`` tells it.
    """
    where = part[1]
    if where.startswith("local variable of ") and "." not in part[0]:
        return where.removeprefix("local variable of ").removesuffix("()")
    return None


def kept_at(name: str, file: str, function: str | None, attribute: bool) -> str | None:
    """Return ``file:line`` of the only statement that can have added to a container, or None.

    Args:
        name: Of the variable or attribute.
        file: Where to look.
        function: Only in this function of it.
        attribute: It is an attribute; else a variable.
    """
    lines = _writes(name, file, function, attribute) if name and file else []
    if len(lines) != 1:
        return None
    return file_line(file, lines[0])


@functools.lru_cache(maxsize=256)
def _writes(name: str, file: str, function: str | None, attribute: bool) -> list[int]:
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return []
    places: list[ast.AST] = [tree]
    if function is not None:
        places = [
            n
            for n in ast.walk(tree)
            if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef) and n.name == function
        ]
        if len(places) != 1:
            return []
    found = set()
    for n in ast.walk(places[0]) if places else ():
        if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute):
            if n.func.attr in _GROWS and _ends_in(n.func.value, name, attribute):
                found.add(n.lineno)
        elif isinstance(n, ast.Assign | ast.AugAssign):
            targets = n.targets if isinstance(n, ast.Assign) else [n.target]
            for t in targets:
                grown = t if isinstance(n, ast.AugAssign) else None
                kept = t.value if isinstance(t, ast.Subscript) else grown
                if kept is not None and _ends_in(kept, name, attribute):
                    found.add(n.lineno)
    return sorted(found)


def _ends_in(expression: ast.AST, name: str, attribute: bool) -> bool:
    while isinstance(expression, ast.Subscript):
        expression = expression.value
    if isinstance(expression, ast.Name):
        return not attribute and expression.id == name
    return attribute and isinstance(expression, ast.Attribute) and expression.attr == name
