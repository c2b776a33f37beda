"""The derivative of a formula, as a formula: reverse accumulation over its steps.

Where a condition decides, the derivative is that of the value that was chosen. At a bend it is that
of the side to which equality belongs, as PyTorch has it for ``where``; ``abs`` has 0 at 0, and
``minimum`` and ``maximum`` pass the gradient on at equality.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from math import pi, sqrt
from typing import Any

from .steps import Apply, Constant, Element, Local, Steps

_ZERO, _ONE = Constant(0), Constant(1)
_HEIGHT, _DENSITY = Constant(2 / sqrt(pi)), Constant(1 / sqrt(2 * pi))


class Derivative:
    """What a :class:`.reader.Reader` tells of a formula, for the derivative of one.

    Args:
        base: The reader, or derivative, of the formula.
        by: The input by which is differentiated.

    Attributes:
        elements: ``grad``, the gradient that arrives, and those inputs of the formula that the
            derivative depends on. An earlier ``grad`` is called ``grad_1``.
        inputs: The formula's names of these inputs.
    """

    def __init__(self, base: Any, by: str) -> None:
        self.base, self.by = base, by
        self.renamed = {e: _new_name(e, base.elements) for e in base.elements}
        self.attributes: list[str] = base.attributes
        self.tests: list[str] = base.tests
        outcomes = itertools.product([False, True], repeat=len(self.tests))
        read = {name for outcome in outcomes for name in self.steps(outcome).read()[0]}
        self.inputs = [e for e in base.elements if self.renamed[e] in read]
        self.elements = ["grad", *[self.renamed[e] for e in self.inputs]]

    def steps(self, outcome: tuple[bool, ...]) -> Steps:
        """Return the steps for one outcome of the tests."""
        steps = self.base.steps(outcome)
        found = _shared(_Reverse(steps, self.renamed).by(self.by))
        found.numbers = steps.numbers
        return found


def _new_name(name: str, taken: list[str]) -> str:
    if name != "grad":
        return name
    k = 1
    while f"grad_{k}" in taken:
        k += 1
    return f"grad_{k}"


def _unused(word: str, steps: Steps) -> Iterator[str]:
    # Names that no assignment has.
    taken = {name for name, _ in steps.assignments}
    for k in itertools.count(1):
        if f"{word}_{k}" not in taken:
            yield f"{word}_{k}"


def _shared(steps: Steps) -> Steps:
    # The same steps, in which what is computed several times has a name.
    every = [*(value for _, value in steps.assignments), steps.result]
    counts: dict[Any, int] = {}

    def count(value: Any) -> None:
        if isinstance(value, Apply):
            counts[value] = counts.get(value, 0) + 1
            if counts[value] == 1:
                for operand in value.operands:
                    count(operand)

    for value in every:
        count(value)
    made = Steps()
    names: dict[Any, Local] = {}
    aliases: dict[str, Any] = {}
    new = _unused("part", steps)

    def rewrite(value: Any) -> Any:
        if isinstance(value, Local):
            return aliases.get(value.name, value)
        if not isinstance(value, Apply):
            return value
        if value in names:
            return names[value]
        found: Any = Apply(value.what, tuple(map(rewrite, value.operands)))
        if counts[value] > 1:
            name = next(new)
            made.assignments.append((name, found))
            found = names[value] = Local(name)
        return found

    for name, value in steps.assignments:
        found = rewrite(value)
        if isinstance(found, Apply):
            made.assignments.append((name, found))
        else:
            aliases[name] = found
    made.result = rewrite(steps.result)
    return made


class _Reverse:
    # Gradients of all values of some steps, last to first.

    def __init__(self, steps: Steps, renamed: dict[str, str]) -> None:
        self.renamed = renamed
        self.made = Steps()
        self.gradients: dict[str, list[Any]] = {}  # of elements and locals: what is added
        self.forward = [(name, self._rename(value)) for name, value in steps.assignments]
        self.made.assignments += self.forward
        self.new = _unused("slope", steps)
        self.result = self._rename(steps.result)

    def by(self, name: str) -> Steps:
        self._pass(self.result, Element("grad"))
        for local, value in reversed(self.forward):
            arrived = self.gradients.pop(f"local {local}", None)
            if arrived is not None:
                self._pass(value, self._kept(_sum(arrived)))
        self.made.result = _sum(self.gradients.get(f"element {self.renamed[name]}", []))
        _, needed = self.made.read()
        self.made.assignments = [(n, v) for n, v in self.made.assignments if n in needed]
        return self.made

    def _rename(self, value: Any) -> Any:
        if isinstance(value, Element):
            return Element(self.renamed[value.name])
        if isinstance(value, Apply):
            return Apply(value.what, tuple(self._rename(v) for v in value.operands))
        return value

    def _kept(self, value: Any) -> Any:
        # A name for a value that is read several times.
        if not isinstance(value, Apply):
            return value
        name = next(self.new)
        self.made.assignments.append((name, value))
        return Local(name)

    def _pass(self, value: Any, g: Any) -> None:
        # Add the gradient of a value to those of what it is computed from.
        if isinstance(value, Element | Local):
            kind = "element" if isinstance(value, Element) else "local"
            self.gradients.setdefault(f"{kind} {value.name}", []).append(g)
        elif isinstance(value, Apply) and not value.condition and _varies(value):
            gradients = _RULES[value.what](self._kept(g), *value.operands)
            for operand, more in zip(value.operands, gradients, strict=False):
                if more is not None:
                    self._pass(operand, more)


def _varies(value: Any) -> bool:
    if isinstance(value, Apply):
        return any(map(_varies, value.operands))
    return isinstance(value, Element | Local)


def _sum(values: list[Any]) -> Any:
    if not values:
        return _ZERO
    total = values[0]
    for value in values[1:]:
        total = Apply("+", (total, value))
    return total


def _apply(what: str, *operands: Any) -> Apply:
    return Apply(what, operands)


def _times(g: Any, factor: Any) -> Any:
    return g if factor == _ONE else _apply("*", g, factor)


def _neg(g: Any) -> Any:
    return _apply("neg", g)


#: The gradients of the operands, from the gradient of the value and the operands.
_RULES: dict[str, Callable[..., tuple[Any, ...]]] = {
    "+": lambda g, a, b: (g, g),
    "-": lambda g, a, b: (g, _neg(g)),
    "*": lambda g, a, b: (_times(g, b), _times(g, a)),
    "/": lambda g, a, b: (
        _apply("/", g, b),
        _neg(_apply("/", _times(g, a), _apply("*", b, b))),
    ),
    "neg": lambda g, a: (_neg(g),),
    "abs": lambda g, a: (
        _apply(
            "choose",
            _apply(">", a, _ZERO),
            g,
            _apply("choose", _apply("<", a, _ZERO), _neg(g), _ZERO),
        ),
    ),
    "choose": lambda g, test, a, b: (
        None,
        _apply("choose", test, g, _ZERO),
        _apply("choose", test, _ZERO, g),
    ),
    "minimum": lambda g, a, n: (_apply("choose", _apply(">", a, n), _ZERO, g),),
    "maximum": lambda g, a, n: (_apply("choose", _apply("<", a, n), _ZERO, g),),
    "exp": lambda g, a: (_times(g, _apply("exp", a)),),
    "expm1_of_negative": lambda g, a: (_times(g, _apply("exp", a)),),
    "log": lambda g, a: (_apply("/", g, a),),
    "log1p_of_fraction": lambda g, a: (_apply("/", g, _apply("+", _ONE, a)),),
    "sqrt": lambda g, a: (_apply("/", g, _apply("*", Constant(2), _apply("sqrt", a))),),
    "log_of_rest": lambda g, a: (_neg(_apply("/", g, _apply("-", _ONE, a))),),
    "erf": lambda g, a: (_times(g, _apply("*", _HEIGHT, _apply("exp", _neg(_apply("*", a, a))))),),
    "normal_cdf": lambda g, a, e: (_times(g, _apply("*", _DENSITY, e)),),
}
