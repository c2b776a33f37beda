"""What a formula and an update have in common: a scalar function that is read, and its variants."""

from __future__ import annotations

import itertools
import linecache
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

from .functions import FLOAT32_ONLY
from .reader import names_around
from .walks import row_loop

DECLARED: dict[str, Declaration] = {}  # all formulas and updates, by module and name


class Declaration:
    """A scalar function, from which kernels are printed.

    Args:
        function: The scalar function.
        name: What it is called in messages and files; unique in its module.
        fused: In compiled loops, a product and a sum may round once.
        rows: For arrays that have rows of their own kind, what the loop is called with in a row:
            ``("out", "x[0]", "x[1]")`` of (rows, elements) and (rows, 2, elements).
    """

    reader: Any  # what the function holds; reading it raises NoFormula

    def __init__(self, function: Any, name: str, fused: bool, rows: tuple[str, ...] = ()) -> None:
        self.function, self.name, self.fused, self.rows = function, name, fused, rows
        self.module: str = function.__module__
        file = function.__code__.co_filename
        linecache.checkcache(file)
        self._file_lines = linecache.getlines(file)  # now: later it may be replaced
        self._variants: dict[tuple[bool, ...], Any] = {}
        DECLARED[f"{self.module} {name}"] = self

    def __repr__(self) -> str:
        return f"<formula {self.name}>"

    def new_variant(self, outcome: tuple[bool, ...]) -> Any:
        """Return what is printed for an outcome of the tests."""
        raise NotImplementedError

    @cached_property
    def _outcome(self) -> Callable[..., tuple[bool, ...]]:
        return self.of_attributes([f"bool({t})" for t in self.reader.tests])

    def of_attributes(self, texts: list[str]) -> Callable[..., tuple[Any, ...]]:
        """Return a function of the attributes that returns the values of some expressions."""
        names = ", ".join(self.reader.attributes)
        text = f"lambda {names}: ({''.join(f'{t}, ' for t in texts)})"
        found: Callable[..., tuple[Any, ...]] = eval(text, names_around(self.function))
        return found

    def variant(self, attributes: dict[str, Any]) -> Any:
        """Return what is printed for the attributes of a call."""
        return self.variant_of(self._outcome(**attributes) if self.reader.tests else ())

    def outcomes(self) -> Iterator[tuple[bool, ...]]:
        """All outcomes that the tests of its numbers may have."""
        return itertools.product([False, True], repeat=len(self.reader.tests))

    def variant_of(self, outcome: tuple[bool, ...]) -> Any:
        """Return what is printed for an outcome of the tests."""
        found = self._variants.get(outcome)
        return found or self._variants.setdefault(outcome, self.new_variant(outcome))


class DeclaredVariant:
    """A declaration for one outcome of the tests of its numbers.

    Attributes:
        declared: What it is a variant of.
        name: That one's, and the outcome: ``gelu`` or ``gelu[1]``.
        steps: What it computes.
        count: How many numbers its kernels take.
    """

    loop: Any  # the compiled loop

    def __init__(self, declared: Declaration, outcome: tuple[bool, ...]) -> None:
        reader = declared.reader
        self.declared = declared
        self.steps = reader.steps(outcome)
        texts = self.steps.numbers
        self.count = len(texts)
        self._numbers = declared.of_attributes([f"float({t})" for t in texts])
        self.name = declared.name
        if outcome:
            self.name += f"[{''.join('01'[v] for v in outcome)}]"

    def numbers(self, attributes: dict[str, Any]) -> tuple[float, ...]:
        """Return the numbers of a call."""
        return self._numbers(**attributes) if self.count else ()

    @cached_property
    def rows(self) -> Any:
        """``rows(*arrays, *numbers)``: see ``walks.row_loop``."""
        return row_loop(self.loop, self.declared.rows, self.count)

    @cached_property
    def only_float32(self) -> bool:
        """Whether the loop calls functions that exist for float32 only."""
        return not FLOAT32_ONLY.isdisjoint(self.steps.operations())

    @property
    def identifier(self) -> str:
        """The name, as that of a function."""
        return self.name.replace("[", "_").rstrip("]")


def loop_named(module: str, name: str) -> Any:
    """Return the compiled loop of a variant, by the declaration's module and the variant's name."""
    kind, name = name.split(":") if ":" in name else ("", name)
    name, _, outcome = name.rstrip("]").partition("[")
    found = DECLARED[f"{module} {name}"].variant_of(tuple(v == "1" for v in outcome))
    return getattr(found, kind or "loop")
