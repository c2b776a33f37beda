"""All ranks of a run side by side: who holds most, whom the others wait for."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any, NamedTuple

from ...framework.memory.ledger import format_bytes
from ..analysis.role_style import ROLE_WORDS
from .figures import RankFigures
from .picture import plot

COLUMNS = 8  # ranks that are shown beside one another
UNEVEN = 0.05  # of the others' peak: a rank that has more than that above it is named
LATE = 0.05  # of a step: a rank that costs the others more than that is named


class Straggler(NamedTuple):
    """A rank that the others wait for.

    Attributes:
        rank: The rank.
        waited_seconds: How long another rank waits for it in a step, on average.
        computing_seconds: How long it computes in a step.
        others_seconds: How long the others do, their median.
    """

    rank: int
    waited_seconds: float
    computing_seconds: float
    others_seconds: float


class Imbalance(NamedTuple):
    """A rank that holds more bytes than the others.

    Attributes:
        rank: The rank.
        peak_bytes: What it holds at its peak.
        others_bytes: The median of the others' peaks.
        role: Of what it has most above the others.
        role_bytes: How much more of that.
    """

    rank: int
    peak_bytes: int
    others_bytes: int
    role: str
    role_bytes: int


class RankReport:
    """Figures of the ranks of a run; print it, or see :attr:`straggler` and :attr:`imbalance`.

    Args:
        figures: Of each rank that is known.
        world_size: The number of ranks of the run.

    Attributes:
        figures: By rank.
        world_size: The number of ranks of the run.
    """

    def __init__(self, figures: Sequence[RankFigures], world_size: int) -> None:
        self.figures = {one.rank: one for one in sorted(figures, key=lambda one: one.rank)}
        self.world_size = world_size

    @property
    def missing(self) -> list[int]:
        """The ranks of which there is no profile."""
        return [rank for rank in range(self.world_size) if rank not in self.figures]

    def waited_for(self, rank: int) -> float:
        """Return how long another rank waits for this one in a step, on average, in seconds."""
        others = [one for one in self.figures.values() if one.rank != rank]
        return sum(one.late.get(rank, 0.0) for one in others) / max(len(others), 1)

    @property
    def straggler(self) -> Straggler | None:
        """The rank that costs the others most, if that is more than 5 % of a step.

        What it waits for the others itself is taken off: ranks that wait for one another in turn
        are no stragglers. And it computes longer than they do, by as much.
        """
        if len(self.figures) < 2:
            return None
        costs = {
            rank: self.waited_for(rank) - one.waiting_seconds for rank, one in self.figures.items()
        }
        rank = max(costs, key=lambda r: costs[r])
        others = median(one.computing_seconds for one in self.figures.values() if one.rank != rank)
        computing = self.figures[rank].computing_seconds
        if min(costs[rank], computing - others) <= LATE * self._step_seconds():
            return None
        return Straggler(rank, self.waited_for(rank), computing, others)

    @property
    def imbalance(self) -> Imbalance | None:
        """The rank with the highest peak, if it is more than 5 % above the others' median."""
        if len(self.figures) < 2:
            return None
        every = list(self.figures.values())
        fullest = max(every, key=lambda one: one.peak_bytes)
        others = [one for one in every if one is not fullest]
        middle = int(median(one.peak_bytes for one in others))
        if fullest.peak_bytes <= middle * (1 + UNEVEN):
            return None
        more = {
            role: nbytes - int(median(one.peak_roles.get(role, 0) for one in others))
            for role, nbytes in fullest.peak_roles.items()
        }
        role = max(more, key=lambda r: more[r])
        return Imbalance(fullest.rank, fullest.peak_bytes, middle, role, more[role])

    def _step_seconds(self) -> float:
        return median(one.step_seconds for one in self.figures.values())

    def verdict(self) -> str:
        """Return what stands out, in a few sentences."""
        return "\n".join(self._missing_text() + self._bytes_text() + self._times_text())

    def _missing_text(self) -> list[str]:
        if not self.missing:
            return []
        names = ", ".join(map(str, self.missing[:COLUMNS]))
        more = ", ..." if len(self.missing) > COLUMNS else ""
        return [f"There is no profile of rank{'s' * (len(self.missing) > 1)} {names}{more}."]

    def _bytes_text(self) -> list[str]:
        found = self.imbalance
        if found is None:
            highest = max((one.peak_bytes for one in self.figures.values()), default=0)
            return [f"All ranks have about the same peak, at most {format_bytes(highest)}."]
        more = found.peak_bytes - found.others_bytes
        share = f"{more / found.others_bytes:.0%}" if found.others_bytes else "all"
        return [
            f"Rank {found.rank} holds most: {format_bytes(found.peak_bytes)}, "
            f"{format_bytes(more)} ({share}) more than the others. "
            f"Of {ROLE_WORDS[found.role]} it has {format_bytes(found.role_bytes)} more."
        ]

    def _times_text(self) -> list[str]:
        step = self._step_seconds() if self.figures else 0.0
        if not step:
            return []
        late = self.straggler
        if late is not None:
            return [
                f"Rank {late.rank} is late: the others wait {_time(late.waited_seconds)} for it "
                f"in a step of {_time(step)} ({late.waited_seconds / step:.0%}). It computes "
                f"{_time(late.computing_seconds)} a step, the others {_time(late.others_seconds)}."
            ]
        waiting = median(one.waiting_seconds for one in self.figures.values())
        exchanging = median(one.exchanging_seconds for one in self.figures.values())
        return [
            f"No rank is late: of a step of {_time(step)}, ranks wait {_time(waiting)} for one "
            f"another and {_time(exchanging)} for messages."
        ]

    def shown(self) -> list[RankFigures]:
        """Return the ranks that a table has room for: those that stand out, in their order."""
        every = list(self.figures.values())
        if len(every) <= COLUMNS:
            return every
        orders: list[Any] = [
            sorted(every, key=lambda one: -one.peak_bytes),
            sorted(every, key=lambda one: -self.waited_for(one.rank)),
            sorted(every, key=lambda one: one.peak_bytes),
            sorted(every, key=lambda one: -one.waiting_seconds),
        ]
        chosen: dict[int, RankFigures] = {}
        for found in zip(*orders, strict=True):
            for one in found:
                if len(chosen) < COLUMNS:
                    chosen.setdefault(one.rank, one)
        return [chosen[rank] for rank in sorted(chosen)]

    def __str__(self) -> str:
        shown = self.shown()
        counts = {one.steps for one in shown}
        steps = (
            f"{min(counts)} to {max(counts)}" if len(counts) > 1 else str(max(counts, default=0))
        )
        head = f"{self.world_size} ranks; times are medians of {steps} steps"
        if counts <= {0}:
            head = f"{self.world_size} ranks; too few steps for medians, times are of all of it"
        if len(shown) < len(self.figures):
            head += f"; shown are {len(shown)} ranks, with most and least bytes and waits"
        return "\n".join([head, "", *_aligned(self._rows(shown)), "", self.verdict()])

    def _rows(self, shown: Sequence[RankFigures]) -> list[list[str]]:
        roles = [r for r in ROLE_WORDS if any(one.peak_roles.get(r) for one in shown)]
        devices = ", ".join(sorted({one.device for one in shown}))
        rows = [["", *[f"rank {one.rank}" for one in shown]]]
        rows.append([f"peak on {devices}", *[format_bytes(one.peak_bytes) for one in shown]])
        for role in roles:
            held = [format_bytes(one.peak_roles.get(role, 0)) for one in shown]
            rows.append([f"  {ROLE_WORDS[role]}", *held])
        rows.append(["peak of the process", *[format_bytes(one.process_bytes) for one in shown]])
        rows.append(["a step", *[_time(one.step_seconds) for one in shown]])
        rows.append(["  computing", *[_time(one.computing_seconds) for one in shown]])
        rows.append(["  waiting for late ranks", *[_time(one.waiting_seconds) for one in shown]])
        rows.append(["  exchanging", *[_time(one.exchanging_seconds) for one in shown]])
        rows.append(["others wait for it", *[_time(self.waited_for(one.rank)) for one in shown]])
        return rows

    def to_dict(self) -> dict[str, Any]:
        """Return all figures as plain containers: bytes as int, times in seconds."""
        late, uneven = self.straggler, self.imbalance
        return {
            "world_size": self.world_size,
            "ranks": [one._asdict() for one in self.figures.values()],
            "missing": self.missing,
            "straggler": None if late is None else late._asdict(),
            "imbalance": None if uneven is None else uneven._asdict(),
        }

    def plot(self, path: Any) -> None:
        """Draw bytes by role and the parts of a step, a bar a rank.

        Args:
            path: A ``.png``, ``.svg`` or ``.pdf``.
        """
        plot(self, path)


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    lines = []
    for first, *cells in rows:
        aligned = [cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True)]
        lines.append("  ".join([first.ljust(widths[0]), *aligned]).rstrip())
    return lines


def _time(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.2f} ms"
