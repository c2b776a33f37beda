"""Computing the steps of a formula with floats: what a derivative is on one element."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

from .functions import PLAIN
from .steps import Apply, Constant, Element, Local, Steps

_OPERATORS: dict[str, Callable[..., Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
    "&": lambda a, b: a and b,
    "|": lambda a, b: a or b,
    "not": operator.not_,
    "neg": operator.neg,
}


def _divide(a: float, b: float) -> float:
    # As arrays divide.
    if b:
        return a / b
    return math.nan if a == 0 or a != a else math.copysign(math.inf, a) * math.copysign(1, b)


def evaluate(steps: Steps, elements: dict[str, float], numbers: tuple[float, ...]) -> Any:
    """Return the result of some steps: a float, or of a formula of bits that and bools.

    Args:
        steps: Of a formula.
        elements: Value of each input, by name.
        numbers: Those of the call.
    """
    found: dict[str, Any] = {}

    def value(x: Any) -> Any:
        if isinstance(x, Element):
            return elements[x.name]
        if isinstance(x, Local):
            return found[x.name]
        if isinstance(x, Constant):
            return x.value
        if not isinstance(x, Apply):
            return numbers[x.index]
        if x.what == "choose":
            test, yes, no = x.operands
            return value(yes) if value(test) else value(no)
        operands = map(value, x.operands)
        if x.what == "/":
            return _divide(*operands)
        return (_OPERATORS.get(x.what) or PLAIN[x.what])(*operands)

    for name, expression in steps.assignments:
        found[name] = value(expression)
    if isinstance(steps.result, tuple):
        return tuple(value(r) for r in steps.result)
    return float(value(steps.result))
