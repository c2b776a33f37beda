"""Printing a formula of bits as a kernel in CUDA C++ (``kernels/formula/bits.py``).

A thread has a byte, and goes over the elements of its bits. Neighboring threads have neighboring
bytes of a tile, so they read and write neighboring elements.
"""

from __future__ import annotations

import ast
from functools import cache
from typing import Any

from .kernel import THREADS, CudaKernel, blocks_for
from .printer import Function

_PLACE = """
/* The first element of a byte, and the distance to its next. */
__device__ inline long long place(long long byte, long long bytes, long long *apart) {
    long long tile = byte / 512, left = bytes - tile * 512;
    *apart = left < 512 ? left : 512;
    return tile * 4096 + byte % 512;
}
"""


class PrintedBits:
    """A loop of bits as a kernel: call it as the loop is called, with the array module in front."""

    def __init__(self, loop: Any) -> None:
        function = loop.py_func
        text = _OfBits(function, function.variant.made, function.variant.conditions)
        self.arrays = text.arrays
        self.packed = [p in text.packed for p in text.parameters[: text.arrays]]
        self.kernel = CudaKernel(text.name, text.kernel())

    def __call__(self, xp: Any, *arguments: Any) -> None:
        """Run over flat, contiguous arrays: elements of one dtype, and their bits."""
        arrays, numbers = arguments[: self.arrays], arguments[self.arrays :]
        bytes_ = next(a for a, p in zip(arrays, self.packed, strict=True) if p).size
        self.kernel.launch(
            xp,
            arrays[0].dtype,
            blocks_for(bytes_),
            THREADS,
            *arrays,
            *[a.size for a in arrays],
            int(bytes_),
            *map(float, numbers),
        )


@cache
def printed_bits(loop: Any) -> PrintedBits:
    """Return the kernel of a compiled loop of bits."""
    return PrintedBits(loop)


class _OfBits(Function):
    # The function of an element, where some arrays are of bits.

    def __init__(self, function: Any, made: list[str], read: list[str]) -> None:
        self.made, self.packed = made, frozenset([*made, *read])
        super().__init__(function, {}, function.each_element)

    def kernel(self) -> str:
        """The kernel, and what it calls."""
        arrays, numbers = self.parameters[: self.arrays], self.parameters[self.arrays :]
        given = [f"{'unsigned char' if p in self.packed else 'T'} *{self.word(p)}" for p in arrays]
        given += [f"long long {self.word(p)}_size" for p in arrays]
        given += ["long long lt_bytes", *[f"T {self.word(p)}" for p in numbers]]
        head = f'extern "C" __global__ void {self.name}({", ".join(given)}) {{'
        return "\n".join([_PLACE, *self.parts.values(), head, *self.locals(), *self.lines, "}", ""])

    def loop(self, node: ast.For, depth: int) -> list[str]:
        """The bytes, and the elements of each."""
        assert isinstance(node.target, ast.Name)
        self.counters.add(node.target.id)
        tab, i, first = "    " * depth, self.word(node.target.id), self.parameters[0]
        read = [
            f"int {p}_byte = {0 if p in self.made else f'{p}[lt_b]'};" for p in sorted(self.packed)
        ]
        return [
            f"{tab}LT_EACH(lt_b, lt_bytes) {{",
            f"{tab}    long long lt_apart, {i} = place(lt_b, lt_bytes, &lt_apart);",
            *[f"{tab}    {line}" for line in read],
            f"{tab}    for (int lt_k = 0; lt_k < 8; lt_k++, {i} += lt_apart) {{",
            f"{tab}        if ({i} >= {first}_size) break;",
            *self.block(node.body, depth + 2),
            f"{tab}    }}",
            *[f"{tab}    {p}[lt_b] = {p}_byte;" for p in self.made],
            f"{tab}}}",
        ]

    def assignment(self, node: ast.Assign, tab: str) -> list[str]:
        """To an array of bits: the bit of the element."""
        (target,) = node.targets
        if isinstance(target, ast.Subscript) and ast.unparse(target.value) in self.made:
            test, _ = self.expression(node.value)
            return [f"{tab}{ast.unparse(target.value)}_byte |= ({test} ? 1 : 0) << lt_k;"]
        return super().assignment(node, tab)

    def expression(self, node: ast.expr) -> tuple[str, str]:
        """Of an array of bits: the bit of the element."""
        if isinstance(node, ast.Subscript) and ast.unparse(node.value) in self.packed:
            return f"({ast.unparse(node.value)}_byte >> lt_k & 1)", "bool"
        return super().expression(node)
