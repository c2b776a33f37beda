"""Bytes of a step if ranks share it out: by the way, the number of ranks, and with a byte budget.

Each cell is an estimate of the fullest rank: in a forked copy of the process, in a world whose
other ranks are imagined, the step's own models and optimizers are shared out, and the step runs
without kernels. So a program need know nothing of ranks to find out how many it wants.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...framework.distributed.initialization import imagine, init_process_group
from ...framework.distributed.process_group import GroupMember, is_initialized
from ...framework.distributed.strategies import Strategy, strategies, strategy
from ...framework.memory.ledger import format_bytes
from ...framework.memory.sizes import as_bytes
from .advice_request import ProgramRaised
from .changes import Budgeted, Change
from .estimate import Estimate, check_callable, imagined
from .fork_sandbox import run_apart
from .targets import models_of, optimizers_of

SIZES = (1, 2, 4, 8)


@dataclass(frozen=True)
class RankCell:
    """A step, shared out in one way.

    Attributes:
        strategy: The way: a name such as ``fully_shard``.
        world_size: The number of ranks.
        budget: Whether the step runs within a byte budget of the limit.
        rank: The rank with most bytes.
        peak_bytes: Highest live bytes of that rank, of the first step or of later ones; None if
            the step does not run so.
        peak_roles: The same bytes by role.
        flops: Operations of a later step, in a rank.
        fits: Whether the limit allows it; False without a limit.
        why: Why the step does not run so; "" if it does.
    """

    strategy: str
    world_size: int
    budget: bool
    rank: int
    peak_bytes: int | None
    peak_roles: dict[str, int]
    flops: int
    fits: bool
    why: str = ""


@dataclass(frozen=True)
class RankTable:
    """What :func:`rank_table` found.

    Attributes:
        limit_bytes: What may live in a rank; None if no limit was asked about.
        cells: All that was tried.
    """

    limit_bytes: int | None
    cells: list[RankCell]

    @property
    def best(self) -> RankCell | None:
        """The fewest ranks that fit; of these, no budget, and the way that shares out least."""
        order = {s.name: s.order for s in strategies()}
        fitting = [(c.world_size, c.budget, order[c.strategy], c) for c in self.cells if c.fits]
        return min(fitting, key=lambda found: found[:3])[3] if fitting else None

    @property
    def code(self) -> str:
        """The lines that make the best one; "" if the step fits as it is."""
        best = self.best
        if best is None:
            return ""
        lines = []
        if best.world_size > 1:
            lines = ["lowtide.distributed.init_process_group()", strategy(best.strategy).code]
        if best.budget:
            lines.append(f"with lowtide.memory_budget({self.limit_bytes}):\n    ...  # the step")
        return "\n".join(lines)

    def cell(self, strategy: str, world_size: int, budget: bool = False) -> RankCell:
        """Return what was found for one way."""
        return next(
            c
            for c in self.cells
            if (c.strategy, c.world_size, c.budget) == (strategy, world_size, budget)
        )

    def to_dict(self) -> dict[str, Any]:
        """Return all figures as plain containers, bytes as int."""
        best = self.best
        return {
            "limit_bytes": self.limit_bytes,
            "cells": [vars(cell) for cell in self.cells],
            "best": None if best is None else vars(best),
        }

    def __str__(self) -> str:
        sizes = sorted({c.world_size for c in self.cells})
        ways = list(dict.fromkeys((c.strategy, c.budget) for c in self.cells))
        rows = [["peak of the fullest rank", *[_ranks(n) for n in sizes]]]
        for name, budget in ways:
            row = [f"{name}, in a budget" if budget else name]
            row += [self._text(name, size, budget) for size in sizes]
            rows.append(row)
        widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
        lines = []
        for first, *cells in rows:
            aligned = [cell.rjust(w) for cell, w in zip(cells, widths[1:], strict=True)]
            lines.append("  ".join([first.ljust(widths[0]), *aligned]).rstrip())
        if self.limit_bytes is not None:
            lines.append(self._verdict())
        reasons = {c.why: c.strategy for c in self.cells if c.why and not c.budget}
        width = shutil.get_terminal_size((100, 24)).columns
        lines += [f"  not tried: {name}: {why}"[:width] for why, name in reasons.items()]
        return "\n".join(lines)

    def _text(self, name: str, size: int, budget: bool) -> str:
        found = self.cell(name, size, budget)
        if found.peak_bytes is None:
            return "-"
        return format_bytes(found.peak_bytes) + (" *" if found.fits else "")

    def _verdict(self) -> str:
        assert self.limit_bytes is not None
        limit, best = format_bytes(self.limit_bytes), self.best
        if best is None:
            return f"Nothing fits {limit} a rank."
        within = " within a byte budget" if best.budget else ""
        if best.world_size == 1:
            return f"* fits {limit} a rank. One process is enough{within}."
        ranks = _ranks(best.world_size)
        return f"* fits {limit} a rank. The fewest: {ranks}, by {best.strategy}{within}."


def rank_table(
    step: Callable[..., Any],
    /,
    *args: Any,
    world_sizes: Sequence[int] = SIZES,
    limit: int | str | None = None,
    model: Any = None,
    **kwargs: Any,
) -> RankTable:
    """Predict the peak of a step on the CPU if ranks share it out, and which way fits a limit.

    The step is a plain one of one process; it is not computed, and nothing of the program changes.
    Each rank runs it with a batch of that size. Tried are ``DistributedDataParallel``, that with
    ``ZeroRedundancyOptimizer``, and ``fully_shard`` of each layer, for each number of ranks; with
    a limit, what does not fit is tried within a byte budget of it too.

    Args:
        step: As for :func:`estimate`; it reaches its model and its optimizer.
        *args: What to call it with.
        world_sizes: Numbers of ranks.
        limit: Bytes that may live in a rank, or text such as "2GiB".
        model: The model, or a dict of names and models; what the step reaches, if None.
        **kwargs: What to call the step with, by name.

    Returns:
        A :class:`RankTable`; print it.

    Raises:
        ValueError: The step reaches no model with parameters to train, or this process is one of
            several ranks.
        Exception: What the step raises as it is.

    Example:
        >>> import lowtide as lt
        >>> net = lt.nn.Sequential(lt.nn.Linear(64, 64), lt.nn.Tanh(), lt.nn.Linear(64, 64))
        >>> adam = lt.optim.AdamW(net.parameters())
        >>> def step():
        ...     net(lt.randn(8, 64)).sum().backward()
        ...     adam.step()
        >>> found = lt.profiling.rank_table(step, world_sizes=(1, 4))
        >>> found.cell("fully_shard", 4).peak_bytes < found.cell("fully_shard", 1).peak_bytes
        True
    """
    check_callable("rank_table", step)
    allowed = None if limit is None else as_bytes(limit, "rank_table: limit")
    check_alone()

    def estimate(changes: list[Change]) -> Estimate:
        def make() -> None:
            for change in changes:
                change.make()

        return run_apart(lambda: imagined(step, args, kwargs, make if changes else None))

    roots = models_of(step, args, kwargs, model)
    optimizers = list(optimizers_of(step, args, kwargs).values())
    if any(p.requires_grad for m in roots.values() for p in m.parameters()):
        estimate([])  # what it raises as it is
    return table_of(estimate, roots, optimizers, world_sizes, allowed)


def check_alone() -> None:
    """Raise an error if this process is one of several ranks.

    Raises:
        ValueError: It is.
    """
    if is_initialized() and GroupMember.WORLD is not None and GroupMember.WORLD.size() > 1:
        raise ValueError(
            "rank_table: this process is one of several ranks already. Call it in one process, or "
            "estimate(step) in each rank."
        )


def table_of(
    estimate: Callable[[list[Change]], Estimate],
    roots: Mapping[str, Any],
    optimizers: Sequence[Any],
    world_sizes: Sequence[int],
    limit: int | None,
) -> RankTable:
    """Try all ways and numbers of ranks.

    Args:
        estimate: Of changes, estimates the step with them.
        roots: The step's models, by name.
        optimizers: Its optimizers.
        world_sizes: Numbers of ranks.
        limit: Bytes that may live in a rank; None for no limit.

    Raises:
        ValueError: No model has a parameter to train.
    """
    models = [m for m in roots.values() if any(p.requires_grad for p in m.parameters())]
    if not models:
        raise ValueError(
            "rank_table: the step reaches no module with a parameter to train. Name it: model=..."
        )
    cells = []
    for way in strategies():
        for size in world_sizes:
            asked = _Asked(estimate, models, optimizers, way, size, limit)
            cells.append(asked.cell(False))
            if limit is not None and not cells[-1].fits and not cells[-1].why:
                cells.append(asked.cell(True))
    return RankTable(limit, _filled(cells, limit))


class SharedOut(Change):
    """A step's models and optimizers, shared out among imagined ranks."""

    met = True
    calls_anew = True

    def __init__(
        self, way: Strategy, models: Sequence[Any], optimizers: Sequence[Any], rank: int, size: int
    ) -> None:
        self.way, self.models, self.optimizers = way, models, optimizers
        self.rank, self.size = rank, size
        self.words = f"{way.name} of {_ranks(size)}"
        self._kept: Any = None  # as long as the copy lives

    def make(self) -> None:
        """Imagine the ranks, and share the models and optimizers out."""
        if is_initialized():
            imagine(self.rank, self.size)
        else:
            init_process_group("fake", rank=self.rank, world_size=self.size)
        self._kept = self.way.apply(self.models, self.optimizers)


def _filled(cells: list[RankCell], limit: int | None) -> list[RankCell]:
    # A budget where none is needed changes nothing.
    if limit is None:
        return cells
    plain = [c for c in cells if not c.budget]
    within = {(c.strategy, c.world_size): c for c in cells if c.budget}
    found = []
    for way in dict.fromkeys(c.strategy for c in plain):
        own = [c for c in plain if c.strategy == way]
        found += own
        if any((way, c.world_size) in within for c in own):
            found += [
                within.get((way, c.world_size), RankCell(**{**vars(c), "budget": True}))
                for c in own
            ]
    return found


@dataclass
class _Asked:
    estimate: Callable[[list[Change]], Estimate]
    models: list[Any]
    optimizers: Sequence[Any]
    way: Strategy
    size: int
    limit: int | None

    def cell(self, budget: bool) -> RankCell:
        rank = self.way.fullest(self.models, self.optimizers, self.size)
        place = self.way.name, self.size, budget, rank
        changes: list[Change] = [SharedOut(self.way, self.models, self.optimizers, rank, self.size)]
        if budget:
            assert self.limit is not None
            changes.append(Budgeted(self.limit, "cpu"))
        try:
            found = self.estimate(changes)
        except Exception as error:  # the program does not run so, or not within the budget
            why = str(error).partition("\n")[0]
            kind = "" if isinstance(error, ProgramRaised) else f"{type(error).__name__}: "
            return RankCell(*place, None, {}, 0, False, kind + why)
        cpu = found.by_device("cpu")
        roles = cpu.peak_roles if cpu.peak_bytes >= cpu.steady_bytes else cpu.steady_roles
        fits = self.limit is not None and cpu.needed_bytes <= self.limit
        return RankCell(*place, cpu.needed_bytes, roles, found.later_flops, fits)


def _ranks(count: int) -> str:
    return f"{count} rank{'s' * (count > 1)}"
