"""Printing a formula as a loop over flat arrays, which Numba compiles and CUDA C++ is printed from.

The loop takes the result, the inputs and the numbers of the call:

    def silu_backward(out, grad, x):
        kind = out.dtype.type
        c1 = kind(1)
        if grad.size == 1:
            grad_0 = grad[0]
            for i in range(out.size):
                x_i = x[i]
                s_1 = c1 / (c1 + exp32(-x_i))
                out[i] = grad_0 * s_1 * (c1 + x_i * (c1 - s_1))
        else:
            ...

A gradient that arrives from a mean or a sum is one number repeated. Then the array ``grad`` has one
element, and the first of two loops runs.

The last input may be a number for each channel (:func:`channel_loop`). The loop of an update takes
the arrays and the numbers, and writes some of the arrays.
"""

from __future__ import annotations

import linecache
from typing import Any

import numpy as np

from .functions import TABLE
from .steps import Apply, Constant, Element, Local, Number, Steps

#: The number of a call, as the loop takes it, and as it computes with it.
GIVEN, CONVERTED = "n{}", "number_{}"
_BINDING = {"choose": 0, "|": 1, "&": 2, "not": 4, "+": 6, "-": 6, "*": 7, "/": 7, "neg": 8}
_COMPARED, _ATOM = 5, 9


class Loop:
    """The text of a loop.

    Args:
        name: Of the function.
        elements: Names of the inputs.
        count: How many numbers it takes.
        steps: What it computes.
        written: Of an update, the inputs that have new values.
        single: An input that is an array of one element.
    """

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
                "    if grad.size == 1:",
                "        grad_i = grad[0]",
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
            f"    kind = {arrays[0]}.dtype.type",
            *[f"    {name} = kind({text})" for text, name in self.constants.items()],
            *[f"    {CONVERTED.format(k)} = kind({GIVEN.format(k)})" for k in sorted(self.used)],
            *([f"    {self.single}_i = {self.single}[0]"] if self.single else []),
        ]

    def _walk(
        self, tab: str, elements: list[str], lines: list[str], over: str = "out"
    ) -> list[str]:
        read = [f"{tab}    {e}_i = {e}[i]" for e in elements if e != self.single]
        return [f"{tab}for i in range({over}.size):", *read, *lines]

    def _body(self, tab: str) -> list[str]:
        result = self.expression(self.steps.result)[0]
        return [*self._assignments(tab), f"{tab}out[i] = {result}"]

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


def _support() -> tuple[Any, Any, Any, Any]:
    from ..cpu.support import jit, memory, tile_sum, vector_math

    return jit, memory, tile_sum, vector_math


def summing_loop(loop: Any, elements: list[str], count: int) -> Any:
    """Return a kernel that sums what a loop gives, without an array of it.

    It takes (sums, inputs, numbers, first tile, last tile) of flat arrays and writes a float64 sum
    for each tile of ``tile_sum.TILE`` elements.
    """
    jit, _, tile_sum, _ = _support()
    function = loop.py_func
    numbers = [GIVEN.format(k) for k in range(count)]
    here = [f"{e}_tile" for e in elements]
    text = "\n".join(
        [
            f"def sums({', '.join(['out', *elements, *numbers, 'first', 'last'])}):",
            f"    tile = np.empty(TILE, {elements[0]}.dtype)",
            "    for c in range(first, last):",
            *[f"        {e}_tile = {e}[c * TILE : (c + 1) * TILE]" for e in elements],
            f"        found = tile[: {here[0]}.size]",
            f"        each({', '.join(['found', *here, *numbers])})",
            "        out[c] = tile_sum(found)",
            "",
        ]
    )
    known = {"np": np, "each": loop, "tile_sum": tile_sum.tile_sum, "TILE": tile_sum.TILE}
    known |= {"__name__": function.__module__}
    made = _defined(text, "sums", known, function.__module__, f"sums:{function.__qualname__}")
    return jit.compiled(made)


def channel_loop(each: Any, one: Any, elements: list[str], count: int) -> Any:
    """Return a kernel that walks (examples, channels, elements); the last input is (1, channels).

    It takes (out, inputs, numbers) of C order. An input ``grad`` may have one element, for all.

    Args:
        each: The flat loop, for examples whose channels have one element.
        one: The same for a last input of one element, for each channel.
        elements: Names of the inputs.
        count: How many numbers it takes.
    """
    jit, _, _, _ = _support()
    function = each.py_func
    numbers = [GIVEN.format(k) for k in range(count)]
    *cubes, weight = elements

    arrays = ["out", *cubes]

    def call(name: str, arrays: list[str], place: str, first: str, own: str) -> str:
        given = [f"{a}[{place}]" for a in arrays]
        if cubes[0] == "grad":
            given[1] = f"{arrays[1]}[{first}] if grad.size == 1 else {given[1]}"
        return f"{name}({', '.join([*given, own, *numbers])})"

    rows = [f"{a}_rows" for a in arrays]
    flat = call("each", rows, "i", "0", f"{weight}[0]")
    cube = call("one", arrays, "i, c", "0, 0", f"{weight}[0, c : c + 1]")
    text = "\n".join(
        [
            f"def channels({', '.join(['out', *elements, *numbers])}):",
            "    if out.shape[2] == 1:",
            *[f"        {a}_rows = {a}.reshape({a}.shape[0], {a}.shape[1])" for a in arrays],
            "        for i in range(out.shape[0]):",
            f"            {flat}",
            "    else:",
            "        for i in range(out.shape[0]):",
            "            for c in range(out.shape[1]):",
            f"                {cube}",
            "",
        ]
    )
    known = {"each": each, "one": one, "__name__": function.__module__}
    module, name = function.__module__, f"channels:{function.__qualname__}"
    made = _defined(text, "channels", known, module, name)
    made.__name__ = f"{function.__name__}_channels"
    return jit.compiled(made)


def listed_loop(loop: Any, count: int, arrays: int) -> Any:
    """Return a kernel that calls the loop of an update for rows of a table of tensors.

    It takes (an array of the dtype, table, numbers, first row, last row). A row of the table is the
    address of each array and, last, how many elements they have (``cpu/optim/tensor_table.py``).
    """
    jit, memory, _, _ = _support()
    function = loop.py_func
    numbers = [GIVEN.format(k) for k in range(count)]
    vectors = [f"vector_at(table[row, {k}], size, like)" for k in range(arrays)]
    text = "\n".join(
        [
            f"def listed({', '.join(['like', 'table', *numbers, 'first', 'last'])}):",
            "    for row in range(first, last):",
            f"        size = table[row, {arrays}]",
            f"        each({', '.join([*vectors, *numbers])})",
            "",
        ]
    )
    known = {"each": loop, "vector_at": memory.vector_at, "__name__": function.__module__}
    made = _defined(text, "listed", known, function.__module__, f"listed:{function.__qualname__}")
    made.__name__ = f"{function.__name__}_listed"
    return jit.compiled(made)


def _defined(text: str, name: str, known: dict[str, Any], module: str, qualname: str) -> Any:
    # The function of a text. Messages find it by its file's name, the printer of CUDA C++ by
    # ``source``: anyone may clear the cache of lines.
    file = f"<formula {module}.{qualname}>"
    exec(compile(text, file, "exec"), known)
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    function = known[name]
    function.source = text
    function.__module__, function.__qualname__ = module, qualname
    return function


def compiled_loop(loop: Loop, module: str, qualname: str, fused: bool) -> Any:
    """Return the kernel of a loop, which is compiled when it is first called.

    Args:
        loop: Its text.
        module: Where the formula is declared, for messages and for ``compiler/ahead.py``.
        qualname: Of the formula, with the outcome of its tests.
        fused: A product and a sum may round once.
    """
    jit, _, _, vector_math = _support()
    text = loop.text()
    known: dict[str, Any] = {"__name__": module, "inf": float("inf"), "nan": float("nan")}
    known |= {"np": np} if any(name.startswith("np.") for name in loop.functions) else {}
    known |= {n: getattr(vector_math, n) for n in loop.functions if hasattr(vector_math, n)}
    function = _defined(text, loop.name, known, module, qualname)
    return jit.compiled(fastmath=jit.FUSED if fused else False)(function)
