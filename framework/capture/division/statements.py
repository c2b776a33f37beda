"""A function's statements, and pieces of it that run one after another in its place.

A piece is a function of consecutive statements of the body. It takes the local variables that they
read, and returns ``(False, variables that later pieces read)``, or ``(True, result)`` where the
function returns. Pieces have the file, the lines, the globals and the closure of the function.

Not all functions can be cut: :class:`Body` says why. No cut is made where a variable may be without
a value, or where a nested function sees a variable change.
"""

from __future__ import annotations

import ast
import copy
import inspect
from collections.abc import Iterable
from types import FunctionType
from typing import Any

from .building import CannotDivide, definition_of, function_of
from .callees import callee_of, is_of_lowtide
from .variables import NESTED, deleted, loaded, parameters_of, stored, surely_assigned

_SEE_VARIABLES = {"locals", "vars", "dir", "eval", "exec", "_getframe", "currentframe"}
_SUSPENDING = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


class Piece:
    """Consecutive statements of a function, as a function.

    Attributes:
        first: The first statement.
        last: The one behind the last.
        takes: The variables that ``function`` is called with, in order.
        results: Those that it returns.
        function: Returns ``(True, what the function returns)`` or ``(False, results)``.
        ends: Variables that no later piece takes.
    """

    def __init__(
        self, first: int, last: int, takes: list[str], results: list[str], function: Any
    ) -> None:
        self.first, self.last = first, last
        self.takes, self.results = takes, results
        self.function = function
        self.ends: list[str] = []


class Body:
    """The statements of a function.

    Args:
        function: The function.

    Attributes:
        count: How many statements there are.

    Raises:
        CannotDivide: It cannot be cut.
    """

    def __init__(self, function: FunctionType) -> None:
        self._function = function
        code = function.__code__
        if code.co_flags & _SUSPENDING:
            raise CannotDivide("it is a generator or a coroutine")
        if not _SEE_VARIABLES.isdisjoint(code.co_names) or "__class__" in code.co_freevars:
            raise CannotDivide("it sees its variables or its class")
        self._definition = definition_of(function)
        body = self._definition.body
        if ast.get_docstring(self._definition, clean=False) is not None:
            body = body[1:]
        self._declarations = [s for s in body if isinstance(s, ast.Global | ast.Nonlocal)]
        self._statements = [s for s in body if s not in self._declarations]
        self.count = len(self._statements)
        nodes = [n for s in self._statements for n in ast.walk(s)]
        if any(isinstance(n, ast.Match | ast.Global | ast.Nonlocal) for n in nodes):
            raise CannotDivide("it has a match statement, or declares a variable in a statement")
        names = {*code.co_names, *(n.id for n in nodes if isinstance(n, ast.Name))}
        if any(n.startswith("__") and not n.endswith("__") for n in names):
            raise CannotDivide("it has names that a class changes")
        declared = {name for s in self._declarations for name in s.names}
        self._parameters = {a.arg for a in parameters_of(self._definition.args)}
        self._stored = [stored(s) - declared for s in self._statements]
        variables = self._parameters.union(*self._stored)
        self._loaded = [loaded(s) & variables for s in self._statements]
        self._need_closures_of_one_value(variables)

    def _need_closures_of_one_value(self, variables: set[str]) -> None:
        # A nested function sees its variables change: cut, it would see those of its own piece.
        for k, s in enumerate(self._statements):
            for nested in (n for n in ast.walk(s) if isinstance(n, NESTED)):
                for name in loaded(nested) & variables:
                    where = [i for i, names in enumerate(self._stored) if name in names]
                    if len(where) + (name in self._parameters) > 1 or any(i > k for i in where):
                        raise CannotDivide(f"a nested function sees {name} change")

    # Statements by what they do

    def at(self, lines: Iterable[int]) -> set[int]:
        """Return the statements that lines of the file belong to."""
        spans = [self.lines(k, k + 1) for k in range(self.count)]
        return {
            k for k, (first, last) in enumerate(spans) if any(first <= n <= last for n in lines)
        }

    def that_read(self, names: set[str]) -> set[int]:
        """Return the statements that read one of some variables."""
        return {k for k in range(self.count) if self._loaded[k] & names}

    def that_name(self, name: str) -> set[int]:
        """Return the statements that name a variable or an attribute, also in nested functions."""
        return {
            k
            for k, s in enumerate(self._statements)
            for n in ast.walk(s)
            if (isinstance(n, ast.Name) and n.id == name)
            or (isinstance(n, ast.Attribute) and n.attr == name)
        }

    def that_return(self) -> set[int]:
        """Return the statements in which the function returns."""
        return {k for k, s in enumerate(self._statements) if _has_return(s)}

    def that_change(self, name: str) -> set[int]:
        """Return the statements that assign to a variable, attribute or key of this name."""
        return {
            k
            for k, s in enumerate(self._statements)
            for n in ast.walk(s)
            if isinstance(n, _TARGETS) and isinstance(n.ctx, ast.Store) and _last_name(n) == name
        }

    def that_only_act(
        self, busy: set[int], arguments: dict[str, Any], also_stores: bool
    ) -> set[int]:
        """Return the statements that are there for what they do, such as ``print(text)``.

        They call something that is not lowtide's, and drop the result.

        Args:
            busy: Statements that call kernels: they are none of these.
            arguments: What the function was called with, by name.
            also_stores: Also those that assign to attributes, keys and items.
        """
        found = set()
        for k in set(range(self.count)) - busy:
            s = self._statements[k]
            if isinstance(s, ast.Expr) and isinstance(s.value, ast.Call):
                callee = callee_of(s.value, self._function, arguments)
                if not is_of_lowtide(callee):
                    found.add(k)
            elif also_stores and isinstance(s, ast.Assign | ast.AugAssign):
                targets = s.targets if isinstance(s, ast.Assign) else [s.target]
                if any(isinstance(t, ast.Attribute | ast.Subscript) for t in targets):
                    found.add(k)
        return found

    def lines(self, first: int, last: int) -> tuple[int, int]:
        """Return the first and the last line of statements ``first`` to ``last - 1``."""
        start, end = self._statements[first], self._statements[last - 1]
        above = [d.lineno for d in getattr(start, "decorator_list", ())]
        return min([start.lineno, *above]), end.end_lineno or end.lineno

    def text(self, k: int) -> str:
        """Return the first line of a statement."""
        return ast.unparse(self._statements[k]).partition("\n")[0]

    # Pieces

    def pieces(self, starts: list[int]) -> list[Piece]:
        """Return the function in pieces.

        Args:
            starts: The first statement of each piece; the first one is 0.

        Raises:
            CannotDivide: A variable that goes from one piece to another may be without a value.
        """
        ranges = list(zip(starts, [*starts[1:], self.count], strict=True))
        reads = [self._read_from_before(*where) for where in ranges]
        pieces: list[Piece] = []
        possible, known = set(self._parameters), set(self._parameters)
        for k, (first, last) in enumerate(ranges):
            assigned = surely_assigned(self._statements[first:last])
            stored = set[str]().union(*self._stored[first:last])
            results = stored & set[str]().union(*reads[k + 1 :])
            takes = (reads[k] & possible) | (results - assigned)
            if not takes <= known:
                raise CannotDivide(f"{min(takes - known)} may be without a value")
            names = sorted(takes), sorted(results)
            pieces.append(Piece(first, last, *names, self._function_of(first, last, *names)))
            known -= set[str]().union(*map(deleted, self._statements[first:last]))
            known |= assigned
            possible |= stored
        for k, piece in enumerate(pieces):
            later = set[str]().union(*(p.takes for p in pieces[k + 1 :]))
            piece.ends = sorted({*piece.takes, *piece.results} - later)
        return pieces

    def _read_from_before(self, first: int, last: int) -> set[str]:
        found: set[str] = set()
        for k in range(first, last):
            found |= self._loaded[k] - surely_assigned(self._statements[first:k])
        return found

    def _function_of(
        self, first: int, last: int, takes: list[str], results: list[str]
    ) -> FunctionType:
        given = ast.arguments([], [*map(ast.arg, takes)], None, [], [], None, [])
        loads: list[ast.expr] = [ast.Name(n, ast.Load()) for n in results]
        done = _returned(False, ast.Tuple(loads, ast.Load()))
        done.lineno = done.end_lineno = self.lines(first, last)[1]
        body = [_Returns().visit(s) for s in copy.deepcopy(self._statements[first:last])]
        return function_of(self._function, given, [*self._declarations, *body, done])

    def binder(self) -> FunctionType:
        """Return a function that takes what the function takes, and returns it in a dict."""
        names = sorted(self._parameters)
        keys: list[ast.expr | None] = [ast.Constant(n) for n in names]
        values: list[ast.expr] = [ast.Name(n, ast.Load()) for n in names]
        body: list[ast.stmt] = [ast.Return(ast.Dict(keys, values))]
        found = function_of(self._function, self._definition.args, body)
        found.__defaults__ = self._function.__defaults__
        found.__kwdefaults__ = self._function.__kwdefaults__
        return found


_TARGETS = (ast.Name, ast.Attribute, ast.Subscript)


def _last_name(target: Any) -> Any:
    if isinstance(target, ast.Subscript):
        return target.slice.value if isinstance(target.slice, ast.Constant) else None
    return target.id if isinstance(target, ast.Name) else target.attr


def _has_return(node: ast.AST) -> bool:
    if isinstance(node, NESTED):
        return False
    inside = ast.iter_child_nodes(node)
    return isinstance(node, ast.Return) or any(map(_has_return, inside))


class _Returns(ast.NodeTransformer):
    # "return x" becomes "return True, x", but in nested functions.

    def visit_Return(self, node: ast.Return) -> ast.AST:
        return ast.copy_location(_returned(True, node.value or ast.Constant(None)), node)

    def _leave(self, node: ast.AST) -> ast.AST:
        return node

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = visit_Lambda = _leave


def _returned(done: bool, value: ast.expr) -> ast.Return:
    return ast.Return(ast.Tuple([ast.Constant(done), value], ast.Load()))
