"""Groups of neighbors, as the kernels of depthwise convolution hold them in registers.

A group is a register of 64 bytes, or two of 32.
"""

from __future__ import annotations

from typing import Any

from .jit import deferred
from .microkernel import fused_add

ir = deferred("llvmlite.ir")

GROUP = 64  # bytes of neighbors


class Words:
    """LLVM's words for groups of elements of one type.

    Args:
        context: Numba's, as the others.
        b: Writes the words.
        signature: Of the kernel that is written; its first argument is an array.
        args: Its arguments.

    Attributes:
        size: Bytes of an element.
        lanes: Elements of a group.
        vector: The type of a group.
        integer: The type of an index.
        fused: ``a * b + c`` of groups, rounded once.
    """

    def __init__(self, context: Any, b: Any, signature: Any, args: Any) -> None:
        self.context, self.b, self.signature, self.args = context, b, signature, args
        kind = signature.args[0].dtype
        self.size = kind.bitwidth // 8
        self.lanes = GROUP // self.size
        self.vector = ir.VectorType(context.get_data_type(kind), self.lanes)
        self.numbers = ir.VectorType(ir.IntType(32), self.lanes)
        self.integer = ir.IntType(64)
        self.fused = fused_add(b, self.vector, self.size)
        self.lane = ir.Constant(self.numbers, list(range(self.lanes)))

    def array(self, k: int) -> Any:
        """Return where the elements of the kernel's argument ``k`` begin."""
        return self.context.make_array(self.signature.args[k])(
            self.context, self.b, self.args[k]
        ).data

    def constant(self, n: int) -> Any:
        """Return an index."""
        return ir.Constant(self.integer, n)

    def everywhere(self, scalar: Any, vector: Any) -> Any:
        """Return a vector that has a number in each lane."""
        b, undefined = self.b, ir.Constant(vector, ir.Undefined)
        lowest = ir.Constant(ir.VectorType(ir.IntType(32), self.lanes), [0] * self.lanes)
        one = b.insert_element(undefined, scalar, ir.Constant(ir.IntType(32), 0))
        return b.shuffle_vector(one, undefined, lowest)

    def inside(self, first: Any, width: Any) -> Any:
        """Return which lanes, of which the lowest is column ``first``, are in ``range(width)``."""
        first, width = (
            self.everywhere(self.b.trunc(n, ir.IntType(32)), self.numbers) for n in (first, width)
        )
        return self.b.icmp_unsigned("<", self.b.add(first, self.lane), width)

    def at(self, base: Any, index: Any) -> Any:
        """Return where the group at an index begins."""
        return self.b.bitcast(self.b.gep(base, [index]), self.vector.as_pointer())

    def load(self, base: Any, index: Any) -> Any:
        """Return the group at an index of an array."""
        found = self.b.load(self.at(base, index))
        found.align = self.size
        return found

    def store(self, value: Any, base: Any, index: Any) -> None:
        """Write the group at an index of an array."""
        self.b.store(value, self.at(base, index)).align = self.size

    def add(self, a: Any, v: Any, total: Any, where: Any) -> Any:
        """Return ``total``, to which ``a * v`` is added in the lanes ``where``."""
        return self.b.select(where, self.b.call(self.fused, [a, v, total]), total)
