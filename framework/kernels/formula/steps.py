"""What a formula is once it is read: named expressions, and results."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")


@dataclass(frozen=True, slots=True)
class Element:
    """An element of an input."""

    name: str


@dataclass(frozen=True, slots=True)
class Local:
    """What an earlier step computed."""

    name: str


@dataclass(frozen=True, slots=True)
class Constant:
    """A number that the formula contains."""

    value: float | int


@dataclass(frozen=True, slots=True)
class Number:
    """A number of the call: an expression of attributes, computed once a call."""

    index: int


@dataclass(frozen=True, slots=True)
class Apply:
    """An operation on operands.

    Attributes:
        what: ``+ - * /``, ``neg``, a comparison, ``& | not``, ``choose`` (condition, value where
            it holds, value elsewhere), or a function of ``TABLE``.
        operands: Of any of these classes.
    """

    what: str
    operands: tuple[Any, ...]

    @property
    def condition(self) -> bool:
        """True for what gives a bool."""
        return self.what in COMPARISONS or self.what in ("&", "|", "not")


@dataclass(slots=True)
class Steps:
    """A formula for one outcome of the tests of its numbers.

    Attributes:
        assignments: Names, and what they stand for.
        result: What the function returns; of an update a tuple.
        numbers: Python of each number of the call that they use.
        written: Of an update, the elements that the results are new values of.
    """

    assignments: list[tuple[str, Any]] = field(default_factory=list)
    result: Any = None
    numbers: list[str] = field(default_factory=list)
    written: list[str] = field(default_factory=list)

    def read(self) -> tuple[set[str], set[str]]:
        """Return the names of the elements and of the assignments that the result depends on."""
        every = list(self._reached())
        elements = {value.name for value in every if isinstance(value, Element)}
        return elements, {value.name for value in every if isinstance(value, Local)}

    def operations(self) -> set[str]:
        """Return which operations and functions the result depends on."""
        return {value.what for value in self._reached() if isinstance(value, Apply)}

    def _reached(self) -> Iterator[Any]:
        assigned = dict(self.assignments)
        waiting = [*self.result] if isinstance(self.result, tuple) else [self.result]
        seen: set[str] = set()
        while waiting:
            value = waiting.pop()
            if isinstance(value, Local):
                if value.name in seen:
                    continue
                seen.add(value.name)
                waiting.append(assigned[value.name])
            elif isinstance(value, Apply):
                waiting += value.operands
            yield value
