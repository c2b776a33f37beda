"""Printing a loop of ``kernels/cpu`` as a kernel in CUDA C++, so that a formula stands once.

A loop that Numba compiles for the CPU is Python over flat arrays that look alike:

    def sgd(p, g, sign, decay, rate):
        for i in range(p.size):
            p[i] -= rate * _gradient(g[i], p[i], sign, decay)

The printer reads its source. Each ``for`` becomes a loop that the threads of the GPU share: with n
threads, thread k takes the elements k, k + n, k + 2 n and so on. A printable loop may hold names,
elements ``a[i]`` and ``a[0]``, sizes, numbers, arithmetic, comparisons, ``if``, assignments, the
functions of ``_FUNCTIONS``, and functions of numbers that hold the same. Anything else raises
:class:`Unprintable`, which names the line.

Elements and numbers are of one type, ``T``; comparisons give ``bool``; counters are ``int``.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from functools import cache
from typing import Any, NoReturn

import numpy as np

from .kernel import THREADS, CudaKernel, blocks_for

# Functions of numbers, by the name that a loop calls.
_FUNCTIONS = {
    "abs": "lt_abs", "max": "lt_max", "min": "lt_min", "np.maximum": "lt_maximum",
    "np.minimum": "lt_minimum", "np.sqrt": "lt_sqrt", "np.exp": "lt_exp", "np.log": "lt_log",
    "np.tanh": "lt_tanh", "np.sign": "lt_sign", "np.isfinite": "lt_isfinite",
    "exp32": "lt_exp", "expm1_32": "lt_expm1", "log32": "lt_log", "log1p32": "lt_log1p",
    "erf32": "lt_erf",
}  # fmt: skip
_TESTS = frozenset(["np.isfinite"])  # those that give a bool
_CASTS = frozenset(["np.float32", "float"])
_ARITHMETIC = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.BitOr: "|",
    ast.BitAnd: "&",
}
_COMPARISONS = {
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Eq: "==",
    ast.NotEq: "!=",
}
_TAKEN = frozenset(  # words of C++, and names of the kernels' own
    ["double", "float", "int", "bool", "char", "short", "long", "auto", "this", "new", "T", "NAN"]
)


class Unprintable(TypeError):
    """A loop has something for which there is no CUDA C++ here."""


class Printed:
    """A loop as a kernel: call it as the loop is called, with the array module in front."""

    def __init__(self, loop: Any) -> None:
        text = Function(loop.py_func, {})
        if not text.arrays:
            raise Unprintable(f"{loop.py_func.__qualname__} walks over no array")
        self.arrays = text.arrays
        self.kernel = CudaKernel(text.name, text.kernel())

    def prepare(self, xp: Any, array: Any) -> None:
        """Compile it for arrays of the dtype of one."""
        self.kernel.prepare(xp, array.dtype)

    def __call__(self, xp: Any, *arguments: Any) -> None:
        """Run over flat, contiguous arrays of one dtype; the longest is walked."""
        arrays = arguments[: self.arrays]
        numbers = arguments[self.arrays :]
        if any(a.dtype != arrays[0].dtype for a in arrays):
            raise TypeError(
                f"{self.kernel.name}: arrays of one dtype; got {[str(a.dtype) for a in arrays]}."
            )
        sizes = [a.size for a in arrays]
        self.kernel.launch(
            xp,
            arrays[0].dtype,
            blocks_for(max(sizes)),
            THREADS,
            *arrays,
            *sizes,
            *map(float, numbers),
        )


@cache
def printed(loop: Any) -> Printed:
    """Return the kernel of a compiled loop.

    Raises:
        Unprintable: The loop is not of the kind described above.
    """
    return Printed(loop)


class Function:
    """One Python function: what it assigns and of which type, and its lines in C++.

    Args:
        function: The function.
        parts: The functions that it calls, which it adds, by name.
        source: Its text, if it is not in a file.
    """

    def __init__(self, function: Any, parts: dict[str, str], source: str | None = None) -> None:
        self.function, self.parts = function, parts
        self.name = f"lt_{function.__name__.strip('_')}"
        text = source or getattr(function, "source", None)  # of a formula: it is in no file
        tree = ast.parse(text or textwrap.dedent(inspect.getsource(function))).body[0]
        assert isinstance(tree, ast.FunctionDef)
        self.body = tree.body
        self.parameters = [a.arg for a in tree.args.args]
        indexed = {
            n.value.id
            for n in ast.walk(tree)
            if isinstance(n, ast.Subscript | ast.Attribute) and isinstance(n.value, ast.Name)
        }
        self.arrays = sum(p in indexed for p in self.parameters)
        if any(p in indexed for p in self.parameters[self.arrays :]):
            self.refuse(tree, "arrays come before numbers")
        self.kinds = dict.fromkeys(self.parameters[self.arrays :], "T")  # of each local name
        self.casts: set[str] = set()  # names of a dtype's type
        self.counters: set[str] = set()
        self.result = "T"
        for _ in range(2):  # a name may be read above the line that says of which type it is
            self.lines = self.block(self.body, 1)

    def refuse(self, node: Any, why: str) -> NoReturn:
        """Raise the error that names the line."""
        raise Unprintable(
            f"{self.function.__qualname__}, line {node.lineno}: {why}: {ast.unparse(node)}"
        )

    # What is printed

    def kernel(self) -> str:
        """The functions it calls, and the kernel."""
        names = self.parameters[: self.arrays]
        parameters = [f"T *{self.word(p)}" for p in names]
        parameters += [f"long long {self.word(p)}_size" for p in names]
        parameters += [f"T {self.word(p)}" for p in self.parameters[self.arrays :]]
        head = f'extern "C" __global__ void {self.name}({", ".join(parameters)}) {{'
        return "\n".join([*self.parts.values(), head, *self.locals(), *self.lines, "}", ""])

    def device(self) -> str:
        """A function of numbers that others call."""
        if self.arrays:
            self.refuse(self.body[0], "a function that a loop calls takes numbers")
        parameters = ", ".join(f"T {self.word(p)}" for p in self.parameters)
        head = f"__device__ inline {self.result} {self.name}({parameters}) {{"
        return "\n".join([head, *self.locals(), *self.lines, "}"])

    def locals(self) -> list[str]:
        """Declarations of the local names."""
        given = self.parameters
        return [f"    {k} {self.word(n)};" for n, k in self.kinds.items() if n not in given]

    def word(self, name: str) -> str:
        """Return what a name is in C++."""
        return f"{name}_" if name in _TAKEN else name

    # Statements

    def block(self, body: list[ast.stmt], depth: int) -> list[str]:
        """Return the lines of some statements."""
        return [line for statement in body for line in self.statement(statement, depth)]

    def statement(self, node: ast.stmt, depth: int) -> list[str]:
        """Return the lines of a statement."""
        tab = "    " * depth
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            return []  # the docstring
        if isinstance(node, ast.Return) and node.value is not None and not self.arrays:
            text, self.result = self.expression(node.value)
            return [f"{tab}return {text};"]
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            return self.assignment(node, tab)
        if isinstance(node, ast.AugAssign):
            if isinstance(node.target, ast.Name) and not isinstance(node.op, ast.BitOr):
                return self.refuse(node, "each thread would have a separate sum")
            value, of = self.expression(node.value)
            known = isinstance(node.target, ast.Name) and self.kinds.get(node.target.id)
            target, kind = self.target(node.target, known or of)
            sign = self.sign(node.op, node)
            return [f"{tab}{target} = {self.cast(f'{target} {sign} {value}', of, kind)};"]
        if isinstance(node, ast.If):
            test, _ = self.expression(node.test)
            lines = [f"{tab}if ({test}) {{", *self.block(node.body, depth + 1)]
            if node.orelse:
                lines += [f"{tab}}} else {{", *self.block(node.orelse, depth + 1)]
            return [*lines, f"{tab}}}"]
        if isinstance(node, ast.For):
            return self.loop(node, depth)
        return self.refuse(node, "no such statement on a GPU")

    def assignment(self, node: ast.Assign, tab: str) -> list[str]:
        """Return the lines of an assignment."""
        (target,) = node.targets
        if isinstance(target, ast.Tuple):
            if not isinstance(node.value, ast.Tuple):
                return self.refuse(node, "a tuple is assigned a tuple")
            pairs = zip(target.elts, node.value.elts, strict=True)
            names = {n.id for n in target.elts if isinstance(n, ast.Name)}
            read = {n.id for n in ast.walk(node.value) if isinstance(n, ast.Name)}
            if names & read:
                return self.refuse(node, "a swap")
            each = [ast.copy_location(ast.Assign([t], v), node) for t, v in pairs]
            return [line for a in each for line in self.assignment(a, tab)]
        if isinstance(target, ast.Name) and ast.unparse(node.value).endswith(".dtype.type"):
            self.casts.add(target.id)
            return []
        value, of = self.expression(node.value)
        name, kind = self.target(target, of)
        return [f"{tab}{name} = {self.cast(value, of, kind)};"]

    def cast(self, text: str, of: str, kind: str) -> str:
        """Return a value of a type as one of another."""
        return text if of == kind else f"({kind})({text})"

    def target(self, node: ast.expr, of: str) -> tuple[str, str]:
        """Return the text and the type of what is assigned."""
        if isinstance(node, ast.Subscript):
            return self.expression(node)
        if not isinstance(node, ast.Name):
            return self.refuse(node, "no such target")
        if node.id not in self.kinds:
            self.kinds[node.id] = of
        elif of == "T":
            self.kinds[node.id] = "T"
        return self.word(node.id), self.kinds[node.id]

    def loop(self, node: ast.For, depth: int) -> list[str]:
        """Return the lines of a loop over the elements of an array."""
        tab = "    " * depth
        wanted = isinstance(node.target, ast.Name) and ast.unparse(node.iter)
        if not wanted or not wanted.startswith("range(") or not wanted.endswith(".size)"):
            return self.refuse(node, "a loop goes over range(array.size)")
        assert isinstance(node.target, ast.Name)
        self.counters.add(node.target.id)
        i, size = self.word(node.target.id), f"{self.word(wanted[6:-6])}_size"
        head = f"{tab}LT_EACH({i}, {size}) {{"
        return [head, *self.block(node.body, depth + 1), f"{tab}}}"]

    # Expressions: (text, type)

    def expression(self, node: ast.expr) -> tuple[str, str]:
        """Return the text and the type of an expression."""
        match node:
            case ast.Constant(value=bool() | int() | float()):
                return self.number(node.value)
            case ast.Name():
                return self.name_of(node)
            case ast.Attribute(value=ast.Name(id=owner), attr="size"):
                return f"{self.word(owner)}_size", "long long"
            case ast.Attribute(value=ast.Name(id="np"), attr="inf" | "nan" as which):
                return ("T(INFINITY)" if which == "inf" else "T(NAN)"), "T"
            case ast.Subscript(value=ast.Name(id=owner)) if owner in self.parameters:
                where = ast.unparse(node.slice)
                if where != "0" and where not in self.counters:
                    return self.refuse(node, "an index is the loop's, or 0")
                return f"{self.word(owner)}[{self.word(where)}]", "T"
            case ast.BinOp():
                left, a = self.expression(node.left)
                right, b = self.expression(node.right)
                kind = "bool" if a == b == "bool" else "int" if "T" not in (a, b) else "T"
                return f"({left} {self.sign(node.op, node)} {right})", kind
            case ast.UnaryOp(op=ast.USub() | ast.UAdd()):
                text, kind = self.expression(node.operand)
                return f"({'-' if isinstance(node.op, ast.USub) else '+'}{text})", kind
            case ast.UnaryOp(op=ast.Not()):
                return f"(!{self.expression(node.operand)[0]})", "bool"
            case ast.BoolOp():
                sign = " && " if isinstance(node.op, ast.And) else " || "
                return f"({sign.join(self.expression(v)[0] for v in node.values)})", "bool"
            case ast.Compare():
                return self.comparison(node), "bool"
            case ast.IfExp():
                test, _ = self.expression(node.test)
                (yes, a), (no, b) = self.expression(node.body), self.expression(node.orelse)
                kind = a if a == b else "T"
                return f"({test} ? {self.cast(yes, a, kind)} : {self.cast(no, b, kind)})", kind
            case ast.Call(keywords=[]):
                return self.call(node)
        return self.refuse(node, "no such expression on a GPU")

    def comparison(self, node: ast.Compare) -> str:
        """Return the text of a comparison."""
        parts = [self.expression(e)[0] for e in (node.left, *node.comparators)]
        signs = [_COMPARISONS.get(type(o)) for o in node.ops]
        if None in signs:
            return self.refuse(node, "no such comparison")
        each = [f"{a} {s} {b}" for a, s, b in zip(parts, signs, parts[1:], strict=False)]
        return f"({' && '.join(each)})"

    def sign(self, op: ast.operator, node: ast.AST) -> str:
        """Return the sign of an operation."""
        return _ARITHMETIC.get(type(op)) or self.refuse(node, "no such operator")

    def number(self, value: Any) -> tuple[str, str]:
        """Return the text and the type of a number."""
        if isinstance(value, bool):
            return ("true" if value else "false"), "bool"
        if isinstance(value, int):
            return str(value), "int"
        value = float(value)
        if value != value or value in (float("inf"), float("-inf")):
            text = "NAN" if value != value else "INFINITY" if value > 0 else "-INFINITY"
            return f"T({text})", "T"
        return f"T({value!r})", "T"

    def name_of(self, node: ast.Name) -> tuple[str, str]:
        """Return the text and the type of what a name stands for."""
        if node.id in self.counters:
            return self.word(node.id), "long long"
        if node.id in self.kinds:
            return self.word(node.id), self.kinds[node.id]
        value = self.function.__globals__.get(node.id)
        if not isinstance(value, bool | int | float | np.floating | np.integer):
            return self.refuse(node, "neither a local name nor a number of the module")
        return self.number(value.item() if isinstance(value, np.generic) else value)

    def call(self, node: ast.Call) -> tuple[str, str]:
        """Return the text and the type of a call."""
        name = ast.unparse(node.func)
        if name == "tail32":  # its second argument is a number that the CPU has at hand
            return f"lt_tail(T({self.expression(node.args[0])[0]}))", "T"
        given = [f"T({self.expression(a)[0]})" for a in node.args]
        if name in _CASTS or name in self.casts or name.endswith(".dtype.type"):
            return given[0], "T"
        if name in _FUNCTIONS:
            return f"{_FUNCTIONS[name]}({', '.join(given)})", "bool" if name in _TESTS else "T"
        part = getattr(self.function.__globals__.get(name), "py_func", None)
        part = part or getattr(self.function.__globals__.get(name), "function", None)
        if part is None:
            return self.refuse(node, "no such function on a GPU")
        text = Function(part, self.parts)
        self.parts.setdefault(text.name, text.device())
        return f"{text.name}({', '.join(given)})", text.result
