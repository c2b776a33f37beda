"""Formulas: scalar functions that are ops of arrays on every device.

    @op(infer=floating("silu"), flops=per_element(13), samples=singles)
    @formula
    def _silu(input):
        '''Apply ``input * sigmoid(input)``. Keeps ``input`` for backward.'''
        return input / (1 + exp(-input))

The function says how one element is computed, and is the only place that does. It is read when it
first runs (``reader.py`` says what it may hold), and printed as calls of NumPy (``numpy_calls.py``)
and as a loop (``loop.py``), which Numba compiles for the CPU and which is printed as CUDA C++.
Called with floats, it is itself: tests compare the others with that.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cached_property, partial
from typing import Any, overload

from ...dtypes import bool_
from ...spec import Spec
from ..common.elementwise import vectorized
from .declaration import Declaration, DeclaredVariant
from .derivative import Derivative
from .loop import HalfLoop, Loop, compiled_loop
from .numpy_calls import Calls, numpy_function
from .reader import Reader
from .scalar import evaluate
from .walks import SumLoop, channel_loop, channel_sums, summing_loop


class Formula(Declaration):
    """A formula, and what is printed of it.

    Args:
        function: The scalar function.
        name: What it is called in messages and files; unique in its module.
        fused: In compiled loops, a product and a sum may round once.
        when: Called with the specs and attributes: whether a call is worth a compiled loop.
        derived: What it computes, if that is a derivative of the function.
        channels: The last input may be a number for each channel: there is a compiled loop for
            that, too.
        rows: See :class:`~.declaration.Declaration`.

    Attributes:
        plain: The kernel of the op that runs NumPy: ``plain(xp, out, *buffers, *inputs,
            **attributes)``.
        over_input: Set by an op that has an in-place twin: ``out`` may be the first input.
    """

    def __init__(
        self,
        function: Any,
        name: str,
        fused: bool,
        when: Callable[..., bool],
        derived: Derivative | None = None,
        channels: bool = False,
        rows: tuple[str, ...] = (),
    ) -> None:
        super().__init__(function, name, fused, rows)
        self.when, self.derived, self.channels = when, derived, channels
        self.over_input = False
        self.plain = self._plain_kernel()

    def __call__(self, *elements: float, **numbers: Any) -> float:
        """Compute one element."""
        if self.derived is None:
            found: float = self.function(*elements, **numbers)
            return found
        variant = self.variant(numbers)
        named = dict(zip(self.reader.elements, elements, strict=True))
        derived: float = evaluate(variant.steps, named, variant.numbers(numbers))
        return derived

    def _plain_kernel(self) -> Any:
        def plain(xp: Any, out: Any, *arrays: Any, **attributes: Any) -> None:
            variant = self._variants.get(()) or self.variant(attributes)
            if attributes:
                variant.numpy(xp, out, *arrays, *variant.numbers(attributes))
            else:
                variant.numpy(xp, out, *arrays)

        kernel: Any = plain
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        leading = [inspect.Parameter(name, kind) for name in ("xp", "out")]
        own = list(inspect.signature(self.function).parameters.values())
        for name in ("__name__", "__qualname__", "__module__", "__doc__"):
            setattr(kernel, name, getattr(self.function, name))
        if self.derived is not None:
            elements = [inspect.Parameter(name, kind) for name in self.derived.elements]
            own = [*elements, *[p for p in own if p.kind is p.KEYWORD_ONLY]]
            kernel.__doc__ = f"The derivative of ``{self.function.__name__}``, times ``grad``."
        kernel.__signature__ = inspect.Signature([*leading, *own])
        return kernel

    @cached_property
    def reader(self) -> Reader | Derivative:
        """What the function holds, or its derivative. Raises NoFormula."""
        if self.derived is not None:
            return self.derived
        return Reader(self.function, self._file_lines)

    def new_variant(self, outcome: tuple[bool, ...]) -> Variant:
        """Return what is printed for an outcome of the tests."""
        return Variant(self, outcome)

    def derivative(self, by: str) -> Formula:
        """Return the formula ``(grad, inputs, numbers)`` of the gradient of an input."""
        derived = Derivative(self.reader, by)
        return Formula(self.function, f"{self.name}_by_{by}", self.fused, self.when, derived)

    def loop_of(self, **attributes: Any) -> tuple[Any, tuple[float, ...]]:
        """Return the compiled loop for the attributes of a call, and the numbers that it takes."""
        variant = self._variants.get(()) or self.variant(attributes)  # the only one, without tests
        return variant.loop, variant.numbers(attributes) if attributes else ()

    def half_loop_of(self, **attributes: Any) -> tuple[Any, tuple[float, ...]]:
        """Return the same as :meth:`loop_of`, for words of float16 or bfloat16."""
        variant = self._variants.get(()) or self.variant(attributes)
        return variant.half_loop, variant.numbers(attributes) if attributes else ()

    def channel_loop_of(self, one: bool, **attributes: Any) -> tuple[Any, tuple[float, ...]]:
        """Return the same as :meth:`loop_of`, for a last input with a number for each channel.

        Args:
            one: The last input is one number.
            **attributes: Of the call.
        """
        variant = self.variant(attributes)
        return variant.single if one else variant.channels, variant.numbers(attributes)

    def scratch(self, out: Spec, attributes: dict[str, Any]) -> tuple[Spec, ...]:
        """Return the specs of the buffers that the plain kernel wants, for a spec of its result."""
        kinds = self.variant(attributes).calls.buffers
        return tuple(out.like(dtype=bool_) if kind == "bool" else out for kind in kinds)


class Variant(DeclaredVariant):
    """A formula for one outcome of the tests of its numbers."""

    declared: Formula

    @cached_property
    def calls(self) -> Calls:
        """The calls of NumPy."""
        formula = self.declared
        return Calls(
            formula.name, formula.reader.elements, self.count, self.steps, formula.over_input
        )

    @cached_property
    def numpy(self) -> Any:
        """``numpy(xp, out, *buffers, *inputs, *numbers)``."""
        return numpy_function(self.calls, self.declared.module, self.name)

    @cached_property
    def loop(self) -> Any:
        """``loop(out, *inputs, *numbers)`` of flat arrays of one dtype."""
        formula = self.declared
        loop = Loop(self.identifier, formula.reader.elements, self.count, self.steps)
        return compiled_loop(loop, formula.module, self.name, formula.fused)

    @cached_property
    def half_loop(self) -> Any:
        """The same of words of float16 or bfloat16; it computes in float32."""
        formula = self.declared
        name = f"{self.identifier}_of_halves"
        loop = HalfLoop(name, formula.reader.elements, self.count, self.steps)
        return compiled_loop(loop, formula.module, f"half:{self.name}", formula.fused)

    @cached_property
    def single(self) -> Any:
        """The same loop, for a last input of one element."""
        formula = self.declared
        elements = formula.reader.elements
        name = f"{self.identifier}_of_channel"
        loop = Loop(name, elements, self.count, self.steps, single=elements[-1])
        return compiled_loop(loop, formula.module, f"single:{self.name}", formula.fused)

    @cached_property
    def channels(self) -> Any:
        """``channels(out, *inputs, *numbers)``: see ``walks.channel_loop``."""
        elements = self.declared.reader.elements
        return channel_loop(self.loop, self.single, elements, self.count)

    @cached_property
    def sums(self) -> Any:
        """``sums(out, *inputs, *numbers, first tile, last tile)``: see ``walks.summing_loop``."""
        return summing_loop(self._sum_of(False), self.declared.reader.elements, self.count)

    @cached_property
    def channel_sums(self) -> Any:
        """``channel_sums(out, *inputs, *numbers, first, last)``: see ``walks.channel_sums``."""
        total, columns = self._sum_of(False), self._sum_of(True)
        return channel_sums(total, columns, self.declared.reader.elements, self.count)

    def _sum_of(self, columns: bool) -> Any:
        formula, kind = self.declared, "columns" if columns else "total"
        name = f"{self.identifier}_{kind}"
        loop = SumLoop(name, formula.reader.elements, self.count, self.steps)
        text = loop.columns() if columns else loop.text()
        return compiled_loop(
            loop, formula.module, f"{kind}:{self.name}", formula.fused, text, sums=True
        )


@overload
def formula(function: Callable[..., Any]) -> Formula: ...
@overload
def formula(
    *,
    fused: bool = True,
    when: Callable[..., bool] = vectorized,
    channels: bool = False,
    rows: tuple[str, ...] = (),
) -> Callable[[Callable[..., Any]], Formula]: ...
def formula(
    function: Any = None,
    *,
    fused: bool = True,
    when: Any = vectorized,
    channels: bool = False,
    rows: tuple[str, ...] = (),
) -> Any:
    """Make a scalar function a formula; the arguments are those of :class:`Formula`."""
    if function is None:
        return partial(formula, fused=fused, when=when, channels=channels, rows=rows)
    return Formula(function, function.__name__, fused, when, channels=channels, rows=rows)
