"""Vectors of neighbors in flat arrays, in LLVM's words, for kernels that choose their registers.

:class:`Vectors` are what a register holds, or as many neighbors as are asked for. :class:`Groups`
have 64 bytes on every processor: a register, or two of 32 bytes.
"""

from __future__ import annotations

from typing import Any

from .jit import deferred
from .microkernel import GROUP as REGISTER
from .microkernel import fused_add

ir = deferred("llvmlite.ir")

GROUP = 64  # bytes of a group of neighbors


class Vectors:
    """LLVM's words for vectors of elements of one type.

    Args:
        context: Numba's, as the others.
        b: Writes the words.
        signature: Of the kernel that is written; its first argument is an array.
        args: Its arguments.
        lanes: Neighbors; as many as a register holds, if it is 0.

    Attributes:
        size: Bytes of an element.
        lanes: Neighbors.
        vector: The type of a vector.
        integer: The type of an index.
        fused: ``a * b + c`` of vectors, rounded once.
    """

    def __init__(self, context: Any, b: Any, signature: Any, args: Any, lanes: int = 0) -> None:
        self.context, self.b, self.signature, self.args = context, b, signature, args
        kind = signature.args[0].dtype
        self.size = kind.bitwidth // 8
        self.lanes = lanes or REGISTER // self.size
        self.vector = ir.VectorType(context.get_data_type(kind), self.lanes)
        self.integer = ir.IntType(64)
        self.fused = fused_add(b, self.vector, self.size)

    def array(self, k: int) -> Any:
        """Return where the elements of the kernel's argument ``k`` begin."""
        make = self.context.make_array(self.signature.args[k])
        return make(self.context, self.b, self.args[k]).data

    def index(self, n: int) -> Any:
        """Return an index."""
        return ir.Constant(self.integer, n)

    def after(self, index: Any, n: int) -> Any:
        """Return the index ``n`` further on."""
        return self.b.add(index, self.index(n))

    def filled(self, number: float) -> Any:
        """Return a vector that has a known number in each lane."""
        return ir.Constant(self.vector, [number] * self.lanes)

    def everywhere(self, scalar: Any, vector: Any = None) -> Any:
        """Return a vector that has a scalar in each lane. ``vector``: its type, if not elements."""
        undefined = ir.Constant(vector or self.vector, ir.Undefined)
        one = self.b.insert_element(undefined, scalar, ir.Constant(ir.IntType(32), 0))
        return self.shuffled([one, undefined], [0] * self.lanes)

    def shuffled(self, pair: list[Any], order: Any) -> Any:
        """Return the lanes of two vectors that are named by number."""
        order = ir.Constant(ir.VectorType(ir.IntType(32), self.lanes), [*order])
        return self.b.shuffle_vector(*pair, order)

    def _at(self, base: Any, index: Any) -> Any:
        return self.b.bitcast(self.b.gep(base, [index]), self.vector.as_pointer())

    def load(self, base: Any, index: Any) -> Any:
        """Return the neighbors at an index of an array."""
        found = self.b.load(self._at(base, index))
        found.align = self.size
        return found

    def store(self, value: Any, base: Any, index: Any) -> None:
        """Write neighbors at an index of an array."""
        self.b.store(value, self._at(base, index)).align = self.size

    def store_all(self, rows: list[list[Any]], base: Any, index: Any, step: Any) -> None:
        """Write rows of vectors, each ``step`` after the one before."""
        for value in [v for row in rows for v in row]:
            self.store(value, base, index)
            index = self.b.add(index, step)


class Groups(Vectors):
    """The same for groups of 64 bytes, of which lanes may be left out; arguments as there."""

    def __init__(self, context: Any, b: Any, signature: Any, args: Any) -> None:
        size = signature.args[0].dtype.bitwidth // 8
        super().__init__(context, b, signature, args, GROUP // size)
        self.numbers = ir.VectorType(ir.IntType(32), self.lanes)
        self.lane = ir.Constant(self.numbers, list(range(self.lanes)))

    def inside(self, first: Any, width: Any) -> Any:
        """Return which lanes, of which the lowest is column ``first``, are in ``range(width)``."""
        first, width = (
            self.everywhere(self.b.trunc(n, ir.IntType(32)), self.numbers) for n in (first, width)
        )
        return self.b.icmp_unsigned("<", self.b.add(first, self.lane), width)

    def add(self, a: Any, v: Any, total: Any, where: Any) -> Any:
        """Return ``total``, to which ``a * v`` is added in the lanes ``where``."""
        return self.b.select(where, self.b.call(self.fused, [a, v, total]), total)
