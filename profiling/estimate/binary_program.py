"""Linear programs over choices of 0 and 1, solved by HiGHS (through SciPy)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

GAP = 1e-3  # between the choices found and the best ones, relative


class Solution(NamedTuple):
    """What was found.

    Attributes:
        chosen: By variable: True if it is 1; None if no choice satisfies the rules, or none was
            found in time.
        bound: The cost that no choice is below; minus infinity if that is not known.
    """

    chosen: Any
    bound: float


class BinaryProgram:
    """Minimize the cost of variables that are 0 or 1 under linear rules.

    Variables are numbered in the order in which they are added.
    """

    def __init__(self) -> None:
        self._costs: list[float] = []
        self._entries: tuple[list[int], list[int], list[float]] = ([], [], [])  # row, column, value
        self._low: list[float] = []

    def variable(self, cost: float = 0.0) -> int:
        """Add a variable and return its number."""
        self._costs.append(cost)
        return len(self._costs) - 1

    def at_least(self, low: float, terms: list[tuple[int, float]]) -> None:
        """Add a rule: the sum of factors times variables is at least ``low``.

        Args:
            low: That.
            terms: (variable, factor).
        """
        row = len(self._low)
        rows, columns, values = self._entries
        for column, value in terms:
            rows.append(row)
            columns.append(column)
            values.append(value)
        self._low.append(low)

    def at_most(self, high: float, terms: list[tuple[int, float]]) -> None:
        """Add a rule: the sum of factors times variables is at most ``high``."""
        self.at_least(-high, [(column, -value) for column, value in terms])

    def __len__(self) -> int:
        return len(self._costs)

    def solve(self, seconds: float, whole: bool = True) -> Solution:
        """Solve it.

        Args:
            seconds: After which the best that was found is taken.
            whole: False lets variables lie between 0 and 1: a bound, found sooner.
        """
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import csr_array

        costs = np.array(self._costs)
        scale = float(costs.max(initial=0.0)) or 1.0
        rows, columns, values = self._entries
        matrix = csr_array((values, (rows, columns)), shape=(len(self._low), len(costs)))
        found = milp(
            costs / scale,
            constraints=LinearConstraint(matrix, np.array(self._low), np.inf),
            integrality=np.full(len(costs), int(whole)),
            bounds=Bounds(0, 1),
            options={"time_limit": seconds, "mip_rel_gap": GAP},
        )
        chosen = None if found.x is None else found.x > 0.5
        if found.status == 0 and not whole:
            return Solution(chosen, float(found.fun) * scale)
        known = found.status in (0, 1) and found.mip_dual_bound is not None
        return Solution(chosen, float(found.mip_dual_bound) * scale if known else -np.inf)


__all__ = ["BinaryProgram", "Solution"]
