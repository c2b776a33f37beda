"""Printing a formula as a loop over flat arrays, which Numba compiles and CUDA C++ is printed from.

The loop takes the result, the inputs and the numbers of the call:

    def silu(out, x):
        kind = out.dtype.type
        c1 = kind(1)
        for i in range(out.size):
            x_i = x[i]
            out[i] = x_i / (c1 + exp32(-x_i))

A gradient that arrives from a mean or a sum is one number repeated. So the loop of a formula whose
first input is ``grad`` is printed twice in one function: for an array, and for one of one element.

The loop of an update takes the arrays and the numbers, and writes some of the arrays. ``walks.py``
prints kernels that call a loop: for each tensor of a list, each channel, or to sum what it gives.
"""

from __future__ import annotations

import linecache
from typing import Any

import numpy as np

from .functions import TABLE
from .steps import Apply, Constant, Element, Local, Number, Steps

#: The number of a call, as the loop takes it, and as it computes with it.
GIVEN, CONVERTED = "n{}", "number_{}"
#: Whether an array is one number, which stands for all elements.
ONE_NUMBER = "{}.size == 1"
_BINDING = {"choose": 0, "|": 1, "&": 2, "not": 4, "+": 6, "-": 6, "*": 7, "/": 7, "neg": 8}
_COMPARED, _ATOM = 5, 9


class Loop:
    """The text of a loop.

    Attributes:
        kind: The type that it computes in, for the name of its first array.
        read: An element of an array.
        write: A result, as it is assigned to one.

    Args:
        name: Of the function.
        elements: Names of the inputs.
        count: How many numbers it takes.
        steps: What it computes.
        written: Of an update, the inputs that have new values.
        single: An input that is an array of one element.
    """

    kind, read, write = "{}.dtype.type", "{}[{}]", "{}"

    def __init__(
        self,
        name: str,
        elements: list[str],
        count: int,
        steps: Steps,
        written: list[str] | None = None,
        single: str | None = None,
    ) -> None:
        self.name, self.elements, self.count, self.steps = name, elements, count, steps
        self.written, self.single = written, single
        self.constants: dict[str, str] = {}
        self.functions: set[str] = set()
        self.used: set[int] = set()  # numbers that these steps use

    def text(self) -> str:
        """Return the function's source."""
        if self.written is not None:
            return self._text_of_update(self.written)
        repeated = self.elements[0] == "grad"
        lines = self._body("        " if not repeated else "            ")
        head = self._head(["out", *self.elements])
        if not repeated:
            return "\n".join([*head, *self._walk("    ", self.elements, lines), ""])
        rest = [e for e in self.elements if e != "grad"]
        return "\n".join(
            [
                *head,
                f"    if {ONE_NUMBER.format('grad')}:",
                f"        grad_i = {self.read.format('grad', 0)}",
                *self._walk("        ", rest, lines),
                "    else:",
                *self._walk("        ", self.elements, lines),
                "",
            ]
        )

    def _text_of_update(self, written: list[str]) -> str:
        tab, first = " " * 8, self.elements[0]
        results = zip(written, self.steps.result, strict=True)
        lines = [
            *self._assignments(tab),
            *[f"{tab}{e}[i] = {self.expression(v)[0]}" for e, v in results],
        ]
        read = self.steps.read()[0]
        walk = self._walk("    ", [e for e in self.elements if e in read], lines, first)
        return "\n".join([*self._head(self.elements), *walk, ""])

    def _head(self, arrays: list[str]) -> list[str]:
        numbers = [GIVEN.format(k) for k in range(self.count)]
        return [
            f"def {self.name}({', '.join([*arrays, *numbers])}):",
            f"    kind = {self.kind.format(arrays[0])}",
            *[f"    {name} = kind({text})" for text, name in self.constants.items()],
            *[f"    {CONVERTED.format(k)} = kind({GIVEN.format(k)})" for k in sorted(self.used)],
            *([f"    {self.single}_i = {self.single}[0]"] if self.single else []),
        ]

    def _walk(
        self, tab: str, elements: list[str], lines: list[str], over: str = "out"
    ) -> list[str]:
        read = [
            f"{tab}    {e}_i = {self.read.format(e, 'i')}" for e in elements if e != self.single
        ]
        return [f"{tab}for i in range({over}.size):", *read, *lines]

    def _body(self, tab: str) -> list[str]:
        result = self.expression(self.steps.result)[0]
        return [*self._assignments(tab), f"{tab}out[i] = {self.write.format(result)}"]

    def _assignments(self, tab: str) -> list[str]:
        needed = self.steps.read()[1]
        every = self.steps.assignments
        return [f"{tab}{n} = {self.expression(v)[0]}" for n, v in every if n in needed]

    def expression(self, value: Any) -> tuple[str, int]:
        """Return the text of an expression, and how tightly it binds."""
        if isinstance(value, Element):
            return f"{value.name}_i", _ATOM
        if isinstance(value, Local):
            return value.name, _ATOM
        if isinstance(value, Constant):
            text = repr(value.value)
            return self.constants.setdefault(text, f"c{len(self.constants)}"), _ATOM
        if isinstance(value, Number):
            self.used.add(value.index)
            return CONVERTED.format(value.index), _ATOM
        return self._applied(value)

    def _applied(self, value: Apply) -> tuple[str, int]:
        what = value.what
        if what in TABLE:
            name = TABLE[what].loop or what
            self.functions.add(name)
            return f"{name}({', '.join(self.expression(v)[0] for v in value.operands)})", _ATOM
        binding = _BINDING.get(what, _COMPARED)
        if what == "choose":
            test, yes, no = (self._inside(v, binding + 1) for v in value.operands)
            return f"{yes} if {test} else {no}", binding
        if what in ("neg", "not"):
            sign = "-" if what == "neg" else "not "
            return f"{sign}{self._inside(value.operands[0], binding)}", binding
        if what in "&|":  # of comparisons, which bind less: each in parentheses
            left, right = (self._inside(v, _ATOM) for v in value.operands)
            return f"{left} {what} {right}", binding
        left, right = value.operands
        return f"{self._inside(left, binding)} {what} {self._inside(right, binding + 1)}", binding

    def _inside(self, value: Any, least: int) -> str:
        text, binding = self.expression(value)
        return text if binding >= least else f"({text})"


class HalfLoop(Loop):
    """The text of a loop over words of float16 or bfloat16, which computes in float32."""

    kind, read, write = "np.float32", "widened({}[{}])", "converted(out, {})"


def defined(text: str, name: str, known: dict[str, Any], module: str, qualname: str) -> Any:
    """Return the function of a text.

    Messages find it by its file's name, the printer of CUDA C++ by ``source``: anyone may clear the
    cache of lines.
    """
    file = f"<formula {module}.{qualname}>"
    exec(compile(text, file, "exec"), known)
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    function = known[name]
    function.source = text
    function.__module__, function.__qualname__ = module, qualname
    return function


def compiled_loop(
    loop: Loop,
    module: str,
    qualname: str,
    fused: bool,
    text: str | None = None,
    sums: bool = False,
    **names: Any,
) -> Any:
    """Return the kernel of a loop, which is compiled when it is first called.

    Args:
        loop: The loop.
        module: Where the formula is declared, for messages and for ``compiler/ahead.py``.
        qualname: Of the formula, with the outcome of its tests.
        fused: A product and a sum may round once.
        text: What is compiled, if that is another text of the loop.
        sums: Sums may be split into lanes.
        **names: What else its text names.
    """
    from ..cpu.support import jit, vector_math

    text = text or loop.text()
    known: dict[str, Any] = {"__name__": module, "inf": float("inf"), "nan": float("nan")} | names
    if "np." in text:
        known["np"] = np
    if "widened(" in text:
        from ..cpu.elementwise.copy import converted, widened

        known |= {"widened": widened, "converted": converted}
    known |= {n: getattr(vector_math, n) for n in loop.functions if hasattr(vector_math, n)}
    function = defined(text, loop.name, known, module, qualname)
    fastmath = jit.SUMS if sums else jit.FUSED if fused else False
    return jit.compiled(fastmath=fastmath, overlaps=loop.written is not None)(function)
