"""Printing kernels that walk with the loop of a formula: over lists, channels, or to a sum."""

from __future__ import annotations

from typing import Any

import numpy as np

from .loop import GIVEN, ONE_NUMBER, Loop, defined

TILE = 4096  # elements that are summed in their own dtype; more of them in float64


def _support() -> tuple[Any, Any]:
    from ..cpu.support import jit, memory

    return jit, memory


def _formula_of(function: Any) -> str:
    return str(function.__qualname__).rpartition(":")[2]


def _all_or(array: str, one: str, part: str) -> str:
    # Part of an array; of an arriving gradient that is one number, that number.
    return f"{one} if {ONE_NUMBER.format(array)} else {part}" if array == "grad" else part


class SumLoop(Loop):
    """The text of functions that sum what a formula gives, without an array of it."""

    def text(self) -> str:
        """Return a function of flat arrays that returns the sum, in their dtype."""
        last = self.elements[-1]
        lines = self._added("total", last)
        head = self._head(self.elements)
        head[1] = head[1].replace(self.elements[0], last)  # the first may be one number
        return "\n".join([*head, "    total = kind(0)", *lines, "    return total", ""])

    def columns(self) -> str:
        """Return a function of (rows, columns) that writes the sum of each column to ``out``."""
        rows = [f"{e}_row" for e in self.elements]
        lines = self._added("out_row[i]", rows[-1], "_row")
        head = self._head(["out", *self.elements])
        head[0] = head[0].replace("):", ", first, last):")
        head[1] = head[1].replace("out", self.elements[-1])
        return "\n".join(
            [
                *head,
                "    out_row = out[first:last]",
                "    out_row[:] = 0",
                f"    for r in range({self.elements[-1]}.shape[0]):",
                *[
                    f"        {e}_row = {_all_or(e, f'{e}[0]', f'{e}[r, first:last]')}"
                    for e in self.elements
                ],
                *[f"    {line}" for line in lines],
                "",
            ]
        )

    def _added(self, target: str, walked: str, suffix: str = "") -> list[str]:
        # The loop; for a gradient that is one number, another.
        result = self.expression(self.steps.result)[0]

        def walk(tab: str, elements: list[str]) -> list[str]:
            return [
                f"{tab}for i in range({walked}.size):",
                *[f"{tab}    {e}_i = {e}{suffix}[i]" for e in elements],
                *self._assignments(f"{tab}    "),
                f"{tab}    {target} += {result}",
            ]

        if self.elements[0] != "grad":
            return walk("    ", self.elements)
        return [
            f"    if {ONE_NUMBER.format('grad')}:",
            f"        grad_i = grad{suffix}[0]",
            *walk("        ", self.elements[1:]),
            "    else:",
            *walk("        ", self.elements),
        ]


def summing_loop(total: Any, elements: list[str], count: int) -> Any:
    """Return a kernel that sums what a formula gives, without an array of it.

    It takes (sums, inputs, numbers, first tile, last tile) of flat arrays and writes a float64 sum
    for each tile of ``TILE`` elements.

    Args:
        total: Of a :class:`SumLoop`, compiled.
        elements: Names of the inputs.
        count: How many numbers it takes.
    """
    jit, _ = _support()
    function = total.py_func
    numbers = [GIVEN.format(k) for k in range(count)]
    here = [_all_or(e, e, f"{e}[c * TILE : (c + 1) * TILE]") for e in elements]
    text = "\n".join(
        [
            f"def sums({', '.join(['out', *elements, *numbers, 'first', 'last'])}):",
            "    for c in range(first, last):",
            f"        out[c] = total({', '.join([*here, *numbers])})",
            "",
        ]
    )
    known = {"total": total, "TILE": TILE, "__name__": function.__module__}
    name = f"sums:{_formula_of(function)}"
    return jit.compiled(defined(text, "sums", known, function.__module__, name))


def channel_loop(each: Any, one: Any, elements: list[str], count: int) -> Any:
    """Return a kernel that walks (examples, channels, elements); the last input is (1, channels).

    It takes (out, inputs, numbers) of C order. An input ``grad`` may have one element, for all.

    Args:
        each: The flat loop, for examples whose channels have one element.
        one: The same for a last input of one element, for each channel.
        elements: Names of the inputs.
        count: How many numbers it takes.
    """
    jit, _ = _support()
    function = each.py_func
    numbers = [GIVEN.format(k) for k in range(count)]
    *cubes, weight = elements

    arrays = ["out", *cubes]

    def call(name: str, rows: str, place: str, first: str, own: str) -> str:
        given = [_all_or(a, f"{a}{rows}[{first}]", f"{a}{rows}[{place}]") for a in arrays]
        return f"{name}({', '.join([*given, own, *numbers])})"

    flat = call("each", "_rows", "i", "0", f"{weight}[0]")
    cube = call("one", "", "i, c", "0, 0", f"{weight}[0, c : c + 1]")
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
    made = defined(text, "channels", known, module, name)
    made.__name__ = f"{function.__name__}_channels"
    return jit.compiled(made)


def channel_sums(total: Any, columns: Any, elements: list[str], count: int) -> Any:
    """Return a kernel that sums what a formula gives, for each channel.

    It takes (sums, inputs, numbers, first channel, last channel) of C order: float64 sums of
    (channels), inputs of (examples, channels, elements). An input ``grad`` may have one element,
    for all.

    Args:
        total: Of a :class:`SumLoop`, compiled.
        columns: The other function of it, compiled.
        elements: Names of the inputs.
        count: How many numbers it takes.
    """
    jit, _ = _support()
    function = total.py_func
    numbers = [GIVEN.format(k) for k in range(count)]
    parts = [_all_or(e, f"{e}[0, 0]", f"{e}[i, c, start : start + TILE]") for e in elements]
    rows, last = [f"{e}_rows" for e in elements], elements[-1]
    text = "\n".join(
        [
            f"def channel_sums({', '.join(['out', *elements, *numbers, 'first', 'last'])}):",
            f"    examples, channels, size = {last}.shape",
            "    if size == 1:",
            *[f"        {e}_rows = {e}.reshape({e}.shape[0], {e}.shape[1])" for e in elements],
            f"        columns({', '.join(['out', *rows, *numbers, 'first', 'last'])})",
            "    else:",
            "        out[first:last] = 0",
            "        for i in range(examples):",
            "            for c in range(first, last):",
            "                for start in range(0, size, TILE):",
            f"                    out[c] += total({', '.join([*parts, *numbers])})",
            "",
        ]
    )
    known = {"total": total, "columns": columns, "TILE": TILE, "__name__": function.__module__}
    module, name = function.__module__, f"channel_sums:{_formula_of(function)}"
    return jit.compiled(defined(text, "channel_sums", known, module, name))


def row_loop(each: Any, places: tuple[str, ...], count: int) -> Any:
    """Return a kernel that calls a loop for each row of some arrays.

    It takes (arrays, numbers) and goes over their first dim, which is that of the first array.

    Args:
        each: The loop.
        places: What the loop is called with in a row: ``"out"``, ``"x[1]"``.
        count: How many numbers it takes.
    """
    jit, _ = _support()
    function = each.py_func
    numbers = [GIVEN.format(k) for k in range(count)]
    arrays = list(dict.fromkeys(p.partition("[")[0] for p in places))
    given = [p.replace("[", "[r, ") if "[" in p else f"{p}[r]" for p in places]
    text = "\n".join(
        [
            f"def rows({', '.join([*arrays, *numbers])}):",
            f"    for r in range({arrays[0]}.shape[0]):",
            f"        each({', '.join([*given, *numbers])})",
            "",
        ]
    )
    known = {"each": each, "__name__": function.__module__}
    name = f"rows:{_formula_of(function)}"
    made = defined(text, "rows", known, function.__module__, name)
    made.__name__ = f"{function.__name__}_rows"
    return jit.compiled(made)


def coded_loop(loop: Any, count: int) -> Any:
    """Return a kernel that calls the loop of an update whose two last arrays are kept in codes.

    It takes (p, g, codes, codes, scales, scales, numbers): arrays of (blocks, elements of a block),
    and a scale for each block (``cpu/optim/eight_bits.py``). The numbers of the first array in
    codes have a sign.
    """
    jit, _ = _support()
    from ..cpu.optim import eight_bits

    function = loop.py_func
    numbers = [GIVEN.format(k) for k in range(count)]
    arrays = ["p", "g", "m_codes", "v_codes", "m_scales", "v_scales"]
    text = "\n".join(
        [
            f"def coded({', '.join([*arrays, *numbers])}):",
            "    blocks, n = p.shape",
            "    m, v, row = empty(n, p.dtype), empty(n, p.dtype), empty(n, float32)",
            "    for b in range(blocks):",
            "        decode(m, m_codes[b], m_scales[b], True)",
            "        decode(v, v_codes[b], v_scales[b], False)",
            f"        each({', '.join(['p[b]', 'g[b]', 'm', 'v', *numbers])})",
            "        m_scales[b] = encode(m, row, m_codes[b], True)",
            "        v_scales[b] = encode(v, row, v_codes[b], False)",
            "",
        ]
    )
    known = {"each": loop, "decode": eight_bits.decode, "encode": eight_bits.encode}
    known |= {"empty": np.empty, "float32": np.float32, "__name__": function.__module__}
    made = defined(text, "coded", known, function.__module__, f"coded:{function.__qualname__}")
    made.__name__ = f"{function.__name__}_coded"
    return jit.compiled(made)


def listed_loop(loop: Any, count: int, arrays: int) -> Any:
    """Return a kernel that calls the loop of an update for rows of a table of tensors.

    It takes (an array of the dtype, table, numbers, first row, last row). A row of the table is the
    address of each array and, last, how many elements they have (``cpu/optim/tensor_table.py``).
    """
    jit, memory = _support()
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
    made = defined(text, "listed", known, function.__module__, f"listed:{function.__qualname__}")
    made.__name__ = f"{function.__name__}_listed"
    return jit.compiled(made)
