"""Updates: scalar functions that give arrays new values in place, on every device.

    @update
    def momentum(p, g, buffer, *, keep, rate):
        '''``buffer = keep buffer + g; p -= rate buffer``.'''
        buffer = keep * buffer + g
        p = p - rate * buffer
        return p, buffer

The function is a formula, except for what it returns: names of its parameters, whose arrays get
their new values, or one value, which is the first parameter's. An array that no step reads or
writes, for some numbers of the call, may be left out.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from typing import Any, overload

from .declaration import Declaration, DeclaredVariant
from .loop import Loop, compiled_loop
from .numpy_calls import UpdateCalls, numpy_function
from .reader import NoFormula, Reader
from .steps import Element
from .walks import coded_loop, listed_loop


class Update(Declaration):
    """An update, and what is printed of it."""

    def __init__(
        self, function: Any, name: str, fused: bool = True, rows: tuple[str, ...] = ()
    ) -> None:
        super().__init__(function, name, fused, rows)
        self._last: tuple[Any, Any] = (None, None)

    def __call__(self, *elements: float, **numbers: Any) -> Any:
        """Compute new values of one element each."""
        return self.function(*elements, **numbers)

    @cached_property
    def reader(self) -> Reader:
        """What the function holds. Raises NoFormula."""
        return Reader(self.function, self._file_lines, update=True)

    def new_variant(self, outcome: tuple[bool, ...]) -> UpdateVariant:
        """Return what is printed for an outcome of the tests."""
        return UpdateVariant(self, outcome)

    def of_call(self, attributes: dict[str, Any]) -> tuple[UpdateVariant, tuple[float, ...]]:
        """Return the variant for the attributes of a call, and the numbers that it takes."""
        known, last = self._last  # the parameters of a group have the same, one after the other
        if known != attributes:
            variant = self.variant(attributes)
            last = variant, variant.numbers(attributes)
            self._last = dict(attributes), last
        found: tuple[UpdateVariant, tuple[float, ...]] = last
        return found


class UpdateVariant(DeclaredVariant):
    """An update for one outcome of the tests of its numbers.

    Attributes:
        elements: Names of the inputs that it reads or writes.
        places: Where these are among the update's inputs.
        written_places: Where those that it writes are among them.
        written_among: Where those are among ``elements``.
        written: Their names, in the order of the steps' results.
    """

    def __init__(self, declared: Update, outcome: tuple[bool, ...]) -> None:
        super().__init__(declared, outcome)
        reader = declared.reader
        results = zip(self.steps.written, self.steps.result, strict=True)
        changed = {name: value for name, value in results if value != Element(name)}
        if not changed:
            raise NoFormula(f"update {self.name}: it gives no parameter a new value.")
        self.written, self.steps.result = list(changed), tuple(changed.values())
        used = self.steps.read()[0].union(self.written)
        self.places = [k for k, e in enumerate(reader.elements) if e in used]
        self.elements = [reader.elements[k] for k in self.places]
        self.written_places = [k for k in self.places if reader.elements[k] in changed]
        self.written_among = [self.places.index(k) for k in self.written_places]

    @cached_property
    def calls(self) -> UpdateCalls:
        """The calls of NumPy."""
        declared = self.declared
        return UpdateCalls(declared.name, self.elements, self.count, self.steps, self.written)

    @cached_property
    def numpy(self) -> Any:
        """``numpy(xp, *buffers, *inputs, *numbers)``."""
        return numpy_function(self.calls, self.declared.module, self.name)

    @cached_property
    def loop(self) -> Any:
        """``loop(*inputs, *numbers)`` of flat arrays of one dtype."""
        declared = self.declared
        loop = Loop(self.identifier, self.elements, self.count, self.steps, self.written)
        return compiled_loop(loop, declared.module, self.name, declared.fused)

    @cached_property
    def coded(self) -> Any:
        """``coded(p, g, codes, codes, scales, scales, *numbers)`` of two means in eight bits."""
        return coded_loop(self.loop, self.count)

    @cached_property
    def listed(self) -> Any:
        """``listed(like, table, *numbers, first, last)`` of tensors in a table."""
        return listed_loop(self.loop, self.count, len(self.elements))


@overload
def update(function: Callable[..., Any]) -> Update: ...
@overload
def update(*, rows: tuple[str, ...]) -> Callable[[Callable[..., Any]], Update]: ...
def update(function: Any = None, *, rows: tuple[str, ...] = ()) -> Any:
    """Make a scalar function an update; the arguments are those of its declaration."""
    if function is None:
        return partial(update, rows=rows)
    return Update(function, function.__name__, rows=rows)
