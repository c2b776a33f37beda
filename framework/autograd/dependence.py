"""What the forward of an ``autograd.Function`` computes from inputs that require grad.

Forward is not recorded, so a value made there has no history. If backward uses one that was saved,
a second derivative through it would be lost in silence. While forward runs, the dispatcher
therefore reports its ops here, and storages that depend on such inputs are noted with a bit for
each argument. Nothing is kept alive, and outside of forwards nothing is looked up.

What has no derivative by an input does not depend on it: comparisons, indices, ``sign``, draws. So
a mask that was drawn or compared stays a constant. Values that leave lowtide, through NumPy say,
are not followed.
"""

from __future__ import annotations

import weakref
from functools import cache
from typing import Any

from ..tensor import Tensor

# A rule that calls nothing else says that the op is constant where it has a derivative.
_ZEROS = {"zeros_like", "zero_gradient"}


class Dependence:
    """The storages that depend on arguments of one forward, as bits by position.

    Args:
        args: The arguments of forward.
        needed: For each whether it is a tensor that requires grad.
    """

    __slots__ = ("_bits",)

    def __init__(self, args: tuple[Any, ...], needed: tuple[bool, ...]) -> None:
        self._bits: dict[int, tuple[Any, int]] = {}  # by id of the storage: (reference, bits)
        for i, x in enumerate(args):
            if needed[i]:
                self._set(x, self.of(x) | 1 << i)

    def of(self, tensor: Tensor) -> int:
        """Return a bit for each argument that a tensor depends on."""
        storage = tensor._storage.root
        noted = self._bits.get(id(storage))
        if noted is None or noted[0]() is not storage or not tensor._spec.dtype.is_differentiable:
            return 0
        return noted[1]

    def note(self, plan: Any, inputs: tuple[Any, ...], outputs: Any) -> None:
        """Note the results of an op."""
        bits = self._through(plan, inputs)
        if bits:
            for out in outputs:
                self._set(out, bits)

    def wrote(self, plan: Any, inputs: tuple[Any, ...]) -> None:
        """Note that an op wrote its result into its first input."""
        target = inputs[0]
        bits = self._through(plan, inputs)
        if target._spec.nbytes != target._storage.nbytes:
            bits |= self.of(target)  # the rest is what it was
        self._set(target, bits)

    def passed(self, args: tuple[Any, ...], outputs: list[Tensor]) -> None:
        """Note the outputs of a Function that this forward applied, whatever that one does."""
        bits = 0
        for x in args:
            if isinstance(x, Tensor):
                bits |= self.of(x)
        for out in outputs:
            self._set(out, self.of(out) | bits)

    def _through(self, plan: Any, inputs: tuple[Any, ...]) -> int:
        bits = 0
        if not plan.differentiable:
            return 0
        for i, x in enumerate(inputs):
            if isinstance(x, Tensor):
                of_input = self.of(x)
                if of_input and i not in constant_in(plan.op, len(inputs)):
                    bits |= of_input
        return bits

    def _set(self, tensor: Tensor, bits: int) -> None:
        storage = tensor._storage.root
        try:
            reference: Any = weakref.ref(storage)
        except TypeError:  # memory that belongs to someone else

            def reference(held: Any = storage) -> Any:
                return held

        self._bits[id(storage)] = (reference, bits)


@cache
def constant_in(op: Any, count: int) -> set[int]:
    """Return the positions of inputs by which the derivative of an op is zero everywhere."""
    names = {
        name
        for rule in op.rules
        if rule.function.__code__.co_names and _ZEROS.issuperset(rule.function.__code__.co_names)
        for name in rule.inputs
    }
    return {i for i, name in enumerate(op.names_of(count)) if name in names} if names else set()
