"""Advice of a byte budget: the limit itself, planned where that pays, or the least that does."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from ...framework.errors import InfeasibleBudget
from ...framework.memory.ledger import format_bytes
from . import suggested_code
from .advice_request import AdviceRequest, Planner
from .budget_fit import fit
from .changes import Budgeted, Change, FusedOptimizer
from .plan import Plan
from .proposals import Proposal

HALVINGS = 5  # of the interval in which the least byte budget of a program lies
PAYS = 0.005  # operations that a plan saves, as a share of the step's, from which it is proposed


def planner_of(step: Any, args: Any, kwargs: Any) -> Planner:
    """Return what plans a step within a limit, on a device, with optimizers in backward."""

    def plan(limit: int, device: str, optimizers: tuple[Any, ...]) -> Plan:
        call = partial(step, *args, **kwargs)
        return fit(call, budget=limit, device=device, in_backward=optimizers, tries=0)

    return plan


def within_budget(request: AdviceRequest, found: list[Proposal]) -> Iterator[Proposal]:
    """Propose a byte budget of the limit; if that is too little, more changes or more bytes.

    Args:
        request: The step.
        found: Proposals of other changes.
    """
    if not request.reached or request.peak <= request.limit:
        return
    floors: list[int] = []
    alone = _budget(request, None, floors)
    if alone is None or alone.fits:
        if alone is not None:
            yield alone
        return
    for kind in ("optimizer", "dtype"):
        best = [p for p in found if p.kind == kind and not p.lost]
        if best:
            both = _budget(request, min(best, key=lambda p: p.peak_bytes), [])
            if both is not None and both.fits:
                yield both
                return
    floor = min(floors, default=None)
    if floor is not None and floor >= request.peak:
        return  # nothing can be dropped where most bytes live
    least = _least(request) if floor is None else _planned(request, floor)
    if least is not None:
        yield least


def _budget(request: AdviceRequest, other: Proposal | None, floors: list[int]) -> Proposal | None:
    # A budget of the limit, by the evictor's usual rule or by a plan. If there is no plan, the
    # least budget that planning found is added to `floors`.
    usual = _usual(request, request.limit, other)
    if usual is None or request.plan is None:
        return usual
    planned = None
    try:
        planned = _planned(request, request.limit, other)
    except InfeasibleBudget as error:
        floors.append(error.floor)
    if planned is None or not planned.fits:
        return usual
    return usual if usual.fits and usual.flops - planned.flops < PAYS else planned


def _usual(request: AdviceRequest, limit: int, other: Proposal | None = None) -> Proposal | None:
    # Estimates refuse nothing: the peak says whether the step runs within the budget.
    change = Budgeted(limit, request.device)
    words, code = change.words, suggested_code.budget(limit, request.device)
    changes: list[Change] = [change]
    if other is not None:
        words, code = f"{words} + {other.change}", f"{other.code}\n{code}"
        changes = [*request.made[other.change], change]
    return request.attempt("budget", words, changes, code=code)


def _planned(request: AdviceRequest, limit: int, other: Proposal | None = None) -> Proposal | None:
    # The same by a plan, where the other change is an optimizer's, which a plan can make.
    others = [] if other is None else request.made[other.change]
    fused = [change for change in others if isinstance(change, FusedOptimizer)]
    if request.plan is None or len(fused) < len(others):
        return None
    found = request.plan(limit, request.device, tuple(change.optimizer for change in fused))
    change = Budgeted(limit, request.device, found.rule)
    words = f"a planned byte budget of {format_bytes(limit)}"
    if other is not None:
        words = f"{words} + {other.change}"
    names = [change.name for change in fused]
    code = suggested_code.planned_budget(request.call, limit, request.device, names)
    return request.attempt("budget", words, [*others, change], code=code)


def _least(request: AdviceRequest) -> Proposal | None:
    # The least budget that does, by the usual rule.
    low, high, least = request.limit, request.peak, None
    for _ in range(HALVINGS):
        middle = (low + high) // 2
        tried = _usual(request, middle)
        if tried is not None and tried.peak_bytes <= middle:
            high, least = tried.peak_bytes, tried
        else:
            low = middle
    return least
