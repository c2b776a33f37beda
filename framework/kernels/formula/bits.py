"""Formulas of one bit an element: a value, and conditions that are kept as bits.

    @bits
    def _relu_bits(input):
        out = 0 if input <= 0 else input
        return out, not out <= 0

The function returns the value of an element and, behind it, what each bit says. A parameter that is
annotated ``bool`` is a bit that an array of bits has:

    @bits
    def _select(grad, on: bool, *, inside, outside):
        return grad * inside if on else grad * outside

The bits of a tile of 4096 elements are 512 bytes, of which byte j has at its bit k element
``j + k * 512``; in the last tile, of b bytes, element ``j + k * b``. So every inner loop runs over
neighbours, of elements and bytes alike, and the compiler makes vectors of it. ``cuda/bits.py``
prints the same for GPUs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np

from .declaration import Declaration, DeclaredVariant
from .loop import ONE_NUMBER, HalfLoop, Loop, compiled_loop
from .numpy_calls import BitsCalls, numpy_function
from .reader import Reader
from .scalar import evaluate

TILE = 1 << 12  # elements whose bits lie together


class Bits(Declaration):
    """A formula of bits, and what is printed of it."""

    def __init__(self, function: Any, name: str) -> None:
        super().__init__(function, name, fused=False)
        self._last: tuple[Any, Any] = (None, None)

    def __call__(self, *elements: Any, **numbers: Any) -> Any:
        """Compute the value and the conditions of one element."""
        variant = self.variant(numbers)
        named = dict(zip(self.reader.elements, elements, strict=True))
        return evaluate(variant.steps, named, variant.numbers(numbers))

    @cached_property
    def reader(self) -> Reader:
        """What the function holds. Raises NoFormula."""
        return Reader(self.function, self._file_lines, bits=True)

    def loop_of(
        self, attributes: dict[str, Any], halves: bool = False
    ) -> tuple[Any, tuple[float, ...]]:
        """Return the compiled loop for the attributes of a call, and the numbers that it takes."""
        known, last = self._last  # a model's calls have the same, one after the other
        if known != (attributes, halves):
            variant = self.variant(attributes)
            loop = variant.half_loop if halves else variant.loop
            last = loop, variant.numbers(attributes)
            self._last = (dict(attributes), halves), last
        found: tuple[Any, tuple[float, ...]] = last
        return found

    def new_variant(self, outcome: tuple[bool, ...]) -> BitsVariant:
        """Return what is printed for an outcome of the tests."""
        return BitsVariant(self, outcome)


class BitsVariant(DeclaredVariant):
    """A formula of bits for one outcome of the tests of its numbers.

    Attributes:
        elements: Names of the inputs.
        conditions: Those of them that are bits.
        made: Names of the arrays of bits that it fills.
    """

    def __init__(self, declared: Bits, outcome: tuple[bool, ...]) -> None:
        super().__init__(declared, outcome)
        self.elements, self.conditions = declared.reader.elements, declared.reader.conditions
        self.made = [f"bits_{k}" for k in range(len(self.steps.result) - 1)]

    @cached_property
    def calls(self) -> BitsCalls:
        """The calls of NumPy, which take and make arrays of bool in the place of bits."""
        name = self.declared.name
        return BitsCalls(name, self.elements, self.count, self.steps, self.made)

    @cached_property
    def numpy(self) -> Any:
        """``numpy(xp, out, *bools, *buffers, *inputs, *numbers)``."""
        return numpy_function(self.calls, self.declared.module, self.name)

    @cached_property
    def loop(self) -> Any:
        """``loop(out, *bits, *inputs, *numbers, first tile, last tile)`` of flat arrays."""
        declared, loop = self.declared, BitsLoop(self)
        kernel = compiled_loop(loop, declared.module, self.name, False, none=np.uint8(0))
        kernel.py_func.variant, kernel.py_func.each_element = self, loop.each_element()
        return kernel

    @cached_property
    def half_loop(self) -> Any:
        """The same of words of float16 or bfloat16; it computes in float32."""
        loop, name = HalfBitsLoop(self), f"half:{self.name}"
        return compiled_loop(loop, self.declared.module, name, False, none=np.uint8(0))


class BitsLoop(Loop):
    """The text of a loop over tiles, and that of a loop over elements, which GPUs get."""

    def __init__(self, variant: BitsVariant) -> None:
        super().__init__(variant.identifier, variant.elements, variant.count, variant.steps)
        self.made, self.conditions = variant.made, variant.conditions

    def text(self) -> str:
        """Return the function's source."""
        packed = [*self.made, *self.conditions]
        flat = ["out", *[e for e in self.elements if e not in self.conditions]]
        repeated = self.elements[0] if self.elements[0] == "grad" else None
        value, *tests = (self.expression(v)[0] for v in self.steps.result)
        each = [
            *self._assignments(""),
            f"out_row[i] = {self.write.format(value).replace('(out', '(out_row')}",
            *[
                f"{b}_tile[i] |= one if {t} else none"
                for b, t in zip(self.made, tests, strict=True)
            ],
        ]
        lines = [
            f"size = {packed[0]}_tile.size",
            "for k in range(8):",
            "    start = tile * 4096 + k * size",
            "    one = np.uint8(1 << k)",
            "    out_row = out[start : start + size]",
        ]
        if repeated is not None:
            lines += [
                f"    if {ONE_NUMBER.format(repeated)}:",
                f"        {repeated}_i = {self.read.format(repeated, 0)}",
                *self._rows(" " * 8, [e for e in flat[1:] if e != repeated], each),
                "        continue",
            ]
        lines += self._rows("    ", flat[1:], each)
        head = self._head([*flat[:1], *self.made, *self.elements])
        head[0] = head[0].replace("):", ", first, last):")
        return "\n".join(
            [
                *head,
                "    for tile in range(first, last):",
                *[f"        {b}_tile = {b}[tile * 512 : (tile + 1) * 512]" for b in packed],
                *[f"        {b}_tile[:] = none" for b in self.made],
                *[f"        {line}" for line in lines],
                "",
            ]
        )

    def _rows(self, tab: str, elements: list[str], each: list[str]) -> list[str]:
        read = [f"{e}_i = {self.read.format(f'{e}_row', 'i')}" for e in elements]
        read += [f"{c}_i = ({c}_tile[i] & one) != 0" for c in self.conditions]
        return [
            *[f"{tab}{e}_row = {e}[start : start + size]" for e in elements],
            f"{tab}for i in range(out_row.size):",
            *[f"{tab}    {line}" for line in (*read, *each)],
        ]

    def each_element(self) -> str:
        """Return the source of a function that has an element of arrays where this has a bit."""
        value, *tests = (self.expression(v)[0] for v in self.steps.result)
        read = {e: f"{e}[i]" for e in self.elements}
        if "grad" in read:
            read["grad"] = f"grad[0] if {ONE_NUMBER.format('grad')} else grad[i]"
        lines = [
            "for i in range(out.size):",
            *[f"    {e}_i = {text}" for e, text in read.items()],
            *self._assignments("    "),
            f"    out[i] = {value}",
            *[f"    {b}[i] = {t}" for b, t in zip(self.made, tests, strict=True)],
        ]
        head = self._head(["out", *self.made, *self.elements])
        return "\n".join([*head, *[f"    {line}" for line in lines], ""])


class HalfBitsLoop(BitsLoop):
    """The text of such a loop over words of float16 or bfloat16, which computes in float32."""

    kind, read, write = HalfLoop.kind, HalfLoop.read, HalfLoop.write


def bits(function: Callable[..., Any]) -> Bits:
    """Make a scalar function a formula of bits."""
    return Bits(function, function.__name__)
