"""Ways to share a training step out among ranks, each made in place on models and optimizers.

For estimates: they try the ways on a program that knows nothing of ranks, in a copy of the process.
A way is declared beside the class that it is made of, and found here by its name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple


class Strategy(NamedTuple):
    """A way to share a step out.

    Attributes:
        order: Its place among the others: what shares out less comes first.
        name: As users know it.
        apply: Of models and optimizers, makes the change in the present world, and returns what
            must be kept as long as it holds.
        fullest: Of models, optimizers and a number of ranks, returns the rank with most bytes.
        code: The lines that make it in a program.
    """

    order: int
    name: str
    apply: Callable[[Sequence[Any], Sequence[Any]], Any]
    fullest: Callable[[Sequence[Any], Sequence[Any], int], int]
    code: str


_declared: dict[str, Strategy] = {}


def declare(strategy: Strategy) -> None:
    """Make a way known."""
    _declared[strategy.name] = strategy


def strategies() -> list[Strategy]:
    """Return all ways, in their order."""
    return sorted(_declared.values())


def strategy(name: str) -> Strategy:
    """Return a way by its name."""
    return _declared[name]


def rank_zero(models: Sequence[Any], optimizers: Sequence[Any], size: int) -> int:
    """Return 0: no rank has more."""
    return 0
