"""Reading a formula: the Python of a scalar function becomes steps that printers can print.

What a formula may hold is listed in :class:`Reader`. All else raises :class:`NoFormula`, where the
formula is declared, with the file and the line.
"""

from __future__ import annotations
import __future__

import ast
import copy
import inspect
import textwrap
from types import CellType, CodeType
from typing import Any, NoReturn

import numpy as np

from .functions import TABLE, name_of
from .steps import Apply, Constant, Element, Local, Number, Steps

ARITHMETIC: dict[type, str] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}
COMPARISONS: dict[type, str] = {
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Eq: "==",
    ast.NotEq: "!=",
}


def names_around(function: Any) -> dict[str, Any]:
    """Return the values of the names that a function finds outside of itself."""
    code, cells = function.__code__, function.__closure__ or ()
    inner = {
        name: cell.cell_contents
        for name, cell in zip(code.co_freevars, cells, strict=True)
        if cell != _EMPTY
    }
    return {**function.__globals__, **inner}


_EMPTY = CellType()  # of a name that has no value yet


class NoFormula(TypeError):
    """A function has something that a formula may not hold."""


class Reader:
    """Reads a function.

    Its positional parameters are elements of arrays, the keyword-only ones are numbers of the call.
    The body holds assignments to names, arithmetic (``+ - * /``), comparisons, ``and``, ``or``,
    ``not``, conditional expressions, calls of the functions in ``functions.TABLE`` and of other
    formulas (their numbers by keyword), ``if`` over numbers of the call, and ``return`` of one
    value. An update may return several names of elements, which have their new values by then. A
    formula of bits returns a value and conditions, or calls another one for them.

    Args:
        function: The function.
        file_lines: The lines of its file.
        update: It is an update.
        bits: It is a formula of bits.

    Attributes:
        elements: Names of the inputs.
        conditions: Those of them that are bits: annotated ``bool``.
        attributes: Names of the numbers of the call.
        tests: Python of each condition that numbers of the call decide.
        update: Whether it is an update.
        bits: Whether it is a formula of bits.
    """

    def __init__(
        self, function: Any, file_lines: list[str], update: bool = False, bits: bool = False
    ) -> None:
        self.function = function
        self.update, self.bits = update, bits
        self.written: list[str] = []  # what an update returns
        parameters = inspect.signature(function).parameters.values()
        self.elements = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
        marked = {p.name for p in parameters if p.annotation in (bool, "bool")}
        self.conditions = [e for e in self.elements if bits and e in marked]
        self.attributes = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
        self.defaults = {p.name: p.default for p in parameters if p.default is not p.empty}
        if len(self.elements) + len(self.attributes) != len(parameters) or not self.elements:
            raise NoFormula(
                f"formula {function.__qualname__}: parameters are elements of arrays, and behind * "
                f"numbers of the call; got {inspect.signature(function)}."
            )
        self.first_line = function.__code__.co_firstlineno
        lines = inspect.getblock(file_lines[self.first_line - 1 :])
        tree = ast.parse(textwrap.dedent("".join(lines))).body[0]
        assert isinstance(tree, ast.FunctionDef)
        self.body = tree.body
        self.tree = tree
        self.around = names_around(function)
        self.tests: list[str] = []
        self.numbers: list[str] = []
        self.known: dict[str, Any] = {}
        self.count = 0
        self.given: dict[str, ast.expr] | None = None  # numbers, by the formula that calls this one
        self._collect(tree.body)
        self._check_all_read()

    def steps(self, outcome: tuple[bool, ...]) -> Steps:
        """Return the steps for one outcome of the tests."""
        own = copy.copy(self)  # several threads may read at once
        found = own._steps(dict(zip(self.tests, outcome, strict=True)), [])
        found.numbers, found.written = own.numbers, own.written
        self._check_source()
        return found

    def _steps(self, outcome: dict[str, bool], numbers: list[str]) -> Steps:
        self.outcome, self.numbers = outcome, numbers
        self.known = {name: Element(name) for name in self.elements}
        self.count = 0
        self.made = Steps()
        self._block(self.body)
        if self.made.result is None:
            self.refuse(self.body[-1], "no value is returned")
        return self.made

    def refuse(self, node: ast.AST, why: str) -> NoReturn:
        """Raise the error that names the place."""
        line = self.first_line + getattr(node, "lineno", 1) - 1
        raise NoFormula(
            f"formula {self.function.__qualname__} ({self.function.__code__.co_filename}:{line}): "
            f"{why}: {ast.unparse(node)}"
        )

    def _check_source(self) -> None:
        # The file may have been replaced while it was imported.
        self.tree.decorator_list = []
        imported = self.function.__code__
        found = _compiled(self.tree, imported)
        if (found.co_code, found.co_names) != (imported.co_code, imported.co_names):
            raise NoFormula(
                f"formula {self.function.__qualname__}: {imported.co_filename} is not what was "
                "imported: it has changed. Start the process again."
            )

    # What numbers of the call decide

    def _collect(self, body: list[ast.stmt]) -> None:
        for node in (n for statement in body for n in ast.walk(statement)):
            if isinstance(node, ast.If | ast.IfExp) and self._of_numbers(node.test):
                text = self._text(node.test)
                if text not in self.tests and not self._of_numbers(node):
                    self.tests.append(text)
            elif isinstance(node, ast.If):
                self.refuse(node.test, "an if statement tests numbers of the call")
            elif isinstance(node, ast.Call) and self._reader_of(node) is not None:
                self.tests += [t for t in self._called(node).tests if t not in self.tests]

    def _check_all_read(self) -> None:
        read = {n.id for s in self.body for n in ast.walk(s) if isinstance(n, ast.Name)}
        read |= {*self.elements[:1]} if self.update else set()
        for name in (*self.elements, *self.attributes):
            if name not in read:
                self.refuse(self.body[0], f"{name} is not used by")

    def _of_numbers(self, node: ast.AST) -> bool:
        # Whether an expression holds nothing but numbers of the call, and constants.
        if isinstance(node, ast.stmt):
            return False
        names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
        return bool(names & {*self.attributes}) and all(
            n in self.attributes or self._constant(n) is not None for n in names
        )

    def _constant(self, name: str) -> Any:
        value = self.around.get(name)
        return value if isinstance(value, int | float) and not isinstance(value, bool) else None

    def _text(self, node: ast.expr) -> str:
        # Of an expression of numbers, in terms of the formula that is printed.
        return ast.unparse(self._in_terms_of_caller(node))

    def _in_terms_of_caller(self, node: ast.expr) -> ast.expr:
        if self.given is None:
            return node
        changed: ast.expr = _InTermsOfCaller(self.given, self._constant).visit(copy.deepcopy(node))
        return changed

    # Statements

    def _block(self, body: list[ast.stmt]) -> None:
        for node in body:
            if self.made.result is not None:
                self.refuse(node, "nothing comes after the return")
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                continue  # the docstring
            if isinstance(node, ast.Return) and node.value is not None:
                self.made.result = self._returned(node.value)
            elif (
                isinstance(node, ast.Assign)
                and len(node.targets) == 1
                and isinstance(node.targets[0], ast.Name)
            ):
                self._assign(node.targets[0].id, self._expression(node.value))
            elif isinstance(node, ast.If) and self._decided(node.test) is not None:
                self._block(node.body if self._decided(node.test) else node.orelse)
                if self.made.result is not None:
                    return
            else:
                self.refuse(node, "no such statement in a formula")

    def _decided(self, test: ast.expr) -> bool | None:
        return self.outcome.get(self._text(test)) if self._of_numbers(test) else None

    def _returned(self, node: ast.expr) -> Any:
        if self.update:
            return self._new_values(node)
        if not self.bits:
            return self._expression(node)
        if isinstance(node, ast.Call) and self._of_table(node) is None and self._called(node).bits:
            return self._inlined(node, [self._expression(a) for a in node.args])
        value, *tests = node.elts if isinstance(node, ast.Tuple) else [node]
        return self._expression(value), *map(self._condition, tests)

    def _new_values(self, node: ast.expr) -> tuple[Any, ...]:
        # Of the elements that an update returns, or of the first.
        if not isinstance(node, ast.Tuple):
            self.written = self.elements[:1]
            return (self._expression(node),)
        self.written = []
        for name in node.elts:
            if not isinstance(name, ast.Name) or name.id not in self.elements:
                self.refuse(node, "an update returns parameters that have new values")
            self.written.append(name.id)
        return tuple(self.known[name] for name in self.written)

    def _assign(self, name: str, value: Any) -> None:
        self.known[name] = self._kept(name, value) if isinstance(value, Apply) else value

    def _kept(self, name: str, value: Any) -> Local:
        self.count += 1
        local = f"{name}_{self.count}"
        self.made.assignments.append((local, value))
        return Local(local)

    # Expressions

    def _expression(self, node: ast.expr) -> Any:
        if self._of_numbers(node):
            return self._number(node)
        match node:
            case ast.Constant(value=bool()):
                return self.refuse(node, "a bool")
            case ast.Constant(value=int() | float() as value):
                return Constant(value)
            case ast.Name(id=name):
                return self._name(node, name)
            case ast.BinOp(left=left, op=op, right=right):
                sign = ARITHMETIC.get(type(op)) or self.refuse(node, "no such operator")
                return self._folded(sign, self._expression(left), self._expression(right))
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                x = self._expression(operand)
                return Constant(-x.value) if isinstance(x, Constant) else Apply("neg", (x,))
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return Apply("not", (self._condition(operand),))
            case ast.BoolOp(op=op, values=values):
                sign = "&" if isinstance(op, ast.And) else "|"
                found = self._condition(values[0])
                for v in values[1:]:
                    found = Apply(sign, (found, self._condition(v)))
                return found
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                sign = COMPARISONS.get(type(op)) or self.refuse(node, "no such comparison")
                return Apply(sign, (self._expression(left), self._expression(right)))
            case ast.IfExp():
                return self._choice(node)
            case ast.Call(func=ast.Name()):
                return self._call(node)
        return self.refuse(node, "no such expression in a formula")

    def _folded(self, sign: str, left: Any, right: Any) -> Any:
        if isinstance(left, Constant) and isinstance(right, Constant):
            operation = {"+": np.add, "-": np.subtract, "*": np.multiply, "/": np.true_divide}[sign]
            return Constant(operation(left.value, right.value).item())
        return Apply(sign, (left, right))

    def _number(self, node: ast.expr) -> Number:
        text = self._text(node)
        if text not in self.numbers:
            self.numbers.append(text)
        return Number(self.numbers.index(text))

    def _name(self, node: ast.expr, name: str) -> Any:
        if name in self.known:
            return self.known[name]
        value = self._constant(name)
        if value is None:
            return self.refuse(node, "no parameter, nothing assigned, no number of the module")
        return Constant(value)

    def _condition(self, node: ast.expr) -> Any:
        found = self._expression(node)
        value = dict(self.made.assignments).get(found.name) if isinstance(found, Local) else found
        bit = isinstance(found, Element) and found.name in self.conditions
        if not bit and not (isinstance(value, Apply) and value.condition):
            self.refuse(node, "a condition is a comparison, or made of comparisons")
        return found

    def _choice(self, node: ast.IfExp) -> Any:
        decided = self._decided(node.test)
        if decided is not None:
            return self._expression(node.body if decided else node.orelse)
        test = self._condition(node.test)
        return Apply("choose", (test, self._expression(node.body), self._expression(node.orelse)))

    def _call(self, node: ast.Call) -> Any:
        assert isinstance(node.func, ast.Name)
        given = [self._expression(a) for a in node.args]
        name = self._of_table(node)
        if name is None:
            if self._called(node).bits:
                self.refuse(node, "only a return calls a formula of bits")
            return self._inlined(node, given)
        second = TABLE[name].second
        number = second == "number"
        wanted = 1 if second is None else 2
        wrong = len(given) != wanted or node.keywords
        if wrong or (number and not isinstance(given[1], Constant | Number)):
            more = "" if wanted == 1 else ", and a number" if number else ", and another"
            self.refuse(node, f"{name} takes an element{more}")
        return Apply(name, tuple(given))

    def _of_table(self, node: ast.Call) -> str | None:
        # The name of a function that is called, in functions.TABLE.
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        return name_of(self.around.get(name, abs if name == "abs" else None))

    def _inlined(self, node: ast.Call, given: list[Any]) -> Any:
        # Another formula, written in here.
        called = self._called(node)
        if len(given) != len(called.elements):
            self.refuse(node, f"{ast.unparse(node.func)} takes {len(called.elements)} elements")
        steps = called._steps(self.outcome, self.numbers)
        called._check_source()
        known: dict[str, Any] = {}
        for name, value in zip(called.elements, given, strict=True):
            known[name] = self._kept(name, value) if isinstance(value, Apply) else value
        for name, value in steps.assignments:
            known[name] = self._kept(name, _replaced(value, known))
        return _replaced(steps.result, known)

    def _reader_of(self, node: ast.Call) -> Reader | None:
        # Of a formula that is called.
        callee = self.around.get(node.func.id) if isinstance(node.func, ast.Name) else None
        declared = getattr(callee, "op", None)  # of a function of tensors
        found = getattr(declared, "formula", callee)
        if getattr(found, "function", None) is self.function:
            self.refuse(node, "a formula does not call itself")
        reader = getattr(found, "reader", None)
        return reader if isinstance(reader, Reader) and not reader.update else None

    def _called(self, node: ast.Call) -> Reader:
        # The reader of a formula that is called, which knows the numbers that it is given.
        reader = self._reader_of(node)
        if reader is None:
            return self.refuse(node, f"{ast.unparse(node.func)} is no function of formulas")
        numbers: dict[Any, ast.expr] = {n: ast.Constant(v) for n, v in reader.defaults.items()}
        numbers |= {k.arg: k.value for k in node.keywords}
        if set(numbers) != {*reader.attributes}:
            wanted = ", ".join(reader.attributes) or "none"
            self.refuse(node, f"{ast.unparse(node.func)} takes these numbers, by keyword: {wanted}")
        called = copy.copy(reader)
        called.given, called.tests = {}, []
        for name, value in numbers.items():
            names = {n.id for n in ast.walk(value) if isinstance(n, ast.Name)}
            if not all(n in self.attributes or self._constant(n) is not None for n in names):
                self.refuse(value, "a number of a formula is one of the call")
            called.given[str(name)] = self._in_terms_of_caller(value)
        called._collect(called.body)
        return called


class _InTermsOfCaller(ast.NodeTransformer):
    # Puts what a caller gives in the place of a formula's numbers, and values in that of constants.

    def __init__(self, given: dict[str, ast.expr], constant: Any) -> None:
        self.given, self.constant = given, constant

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self.given.get(node.id) or ast.Constant(self.constant(node.id))


def _compiled(tree: ast.FunctionDef, imported: CodeType) -> CodeType:
    # The function's code, as its source is compiled now.
    flags = imported.co_flags & __future__.annotations.compiler_flag
    if not imported.co_freevars:
        alone = ast.Module([tree], [])
        code: CodeType = compile(alone, "formula", "exec", flags, dont_inherit=True)
        return _inside(code, tree.name)
    around = ast.parse(f"def around():\n    {' = '.join(imported.co_freevars)} = None")
    outer = around.body[0]
    assert isinstance(outer, ast.FunctionDef)
    outer.body.append(tree)
    code = compile(around, "formula", "exec", flags, dont_inherit=True)
    return _inside(_inside(code, "around"), tree.name)


def _inside(code: CodeType, name: str) -> CodeType:
    # By name: a function with annotations has more than one code object.
    return next(c for c in code.co_consts if inspect.iscode(c) and c.co_name == name)


def _replaced(value: Any, known: dict[str, Any]) -> Any:
    if isinstance(value, Element | Local):
        return known[value.name]
    if isinstance(value, Apply):
        return Apply(value.what, tuple(_replaced(v, known) for v in value.operands))
    if isinstance(value, tuple):
        return tuple(_replaced(v, known) for v in value)
    return value
