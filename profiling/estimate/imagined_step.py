"""A step under a byte budget, imagined: in a forked copy of the process, without kernels."""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass
from threading import get_ident
from time import perf_counter
from typing import Any

from ...framework.attribution.frames import user_line
from ...framework.attribution.scopes import listen, unlisten
from ...framework.autograd.remat.evictable import BudgetRegion
from ...framework.autograd.remat.evictor import Evictor, can_go
from ...framework.autograd.remat.replay_costs import EvictionRule
from ...framework.checkpointing.budget import memory_budget
from ...framework.devices import backend, live_backends
from ...framework.kernels.runtime import kernel_seconds
from ...framework.kernels.runtime.kernel_seconds import KernelSeconds
from ...framework.memory.ledger import NO_LIMIT, ROLES, SAVED
from ...framework.modes import local
from ..report.plan_picture import Moment
from . import fake_kernels
from .in_backward import check_stepped, fuse
from .kernel_timing import KernelCalls, Seconds, seconds_of
from .steady_state import end_workers
from .step_program import ProgramWatch, StepProgram, watched_budget

MOST_STEPS = 3  # until a step leaves what it found
ENOUGH = 0.8  # of the work of a step, whose time must be known
MOST_LOOKS = 2_000_000  # at values, for the proof of the floor


@dataclass(frozen=True)
class Imagined:
    """A step under a budget, as it was imagined.

    Attributes:
        peak: Highest live bytes of the device, over the first step and later ones.
        start: Live bytes before it.
        flops: Operations of the last step, replays included.
        evictions: Values dropped in the last step.
        replays: Of it.
        reads: Values saved for backward in it.
        need: Bytes that cannot be dropped at the worst instant; 0 if that was not looked for.
        where: The op and the user's line at that instant.
        roles: What cannot be dropped then, by role.
        dropped: What is dropped: (module, line, op, bytes) and how often.
        calls: Kernel calls of the last step, by name and layout; None if a kernel ran elsewhere.
        weights: Their work.
        python: Seconds between kernels.
        stashing: Seconds in which values are stashed and fetched, by the speeds of the stashes.
        given: Bytes of pages that the pool gives back in it.
        measured: Times of kernels that were measured for it.
        tide: Live bytes over time, if they were asked for.
        falls: When values were dropped, and their bytes.
        program: Of the last step, if it was asked for.
    """

    peak: int
    start: int
    flops: int
    evictions: int
    replays: int
    reads: int
    need: int = 0
    where: str = ""
    roles: Any = None
    dropped: Any = ()
    calls: Any = None
    weights: Any = None
    python: float = 0.0
    stashing: float = 0.0
    given: int = 0
    measured: Any = None
    tide: Any = None
    falls: Any = ()
    program: StepProgram | None = None

    def seconds(self, known: KernelSeconds, python: float | None = None) -> Seconds | None:
        """Return what the last step takes; None if too little of its work was measured.

        Args:
            known: Times of kernels.
            python: Seconds between kernels, if not those that were measured.
        """
        if self.calls is None:
            return None
        python = (self.python if python is None else python) + self.stashing
        found, share = seconds_of(self.calls, self.weights, python, self.given, known)
        return found if share >= ENOUGH else None

    def cost(self, known: KernelSeconds, pace: float) -> tuple[float, int, int]:
        """Return by what ways of running a step are compared; the same each time.

        Args:
            known: Times of kernels.
            pace: Seconds of Python that a kernel call of the plain step costs. An eviction costs
                some ten times that.
        """
        calls = sum((self.calls or {}).values()) + 10 * self.evictions
        took = self.seconds(known, pace * calls)
        return 0.0 if took is None else took.typical, self.flops, self.evictions


def imagine_step(
    step: Any,
    args: Any,
    kwargs: Any,
    device: Any,
    limit: int | None,
    rule: EvictionRule,
    watch: str,
    most: int = MOST_STEPS,
    of: str = "pages",
    stashes: tuple[Any, ...] = (),
    in_backward: tuple[Any, ...] = (),
) -> Imagined:
    """Run a step without kernels; in a forked copy of the process, which is of no other use then.

    Args:
        step: What to call.
        args: Its arguments.
        kwargs: Those by name.
        device: Whose bytes count.
        limit: The budget; None for the plain step.
        rule: How the evictor compares values.
        watch: What else is wanted: ``"need"``, what cannot be dropped; ``"times"``, times of
            kernels that are not known; ``"dropped"``, what is dropped; ``"tide"``, live bytes over
            time; ``"program"``, its values and what reads them.
        most: Steps, until one leaves what it found.
        of: What the budget's bytes are of.
        stashes: Other ways than replay that the evictor has.
        in_backward: Optimizers that step in backward.
    """
    executor = fake_kernels.begin()
    _leave_surroundings()
    fused = fuse(in_backward)
    here = backend(device)
    ledger, pool = here.ledger, here.pool
    ledger.reset_peak()
    start = before = ledger.live
    evictor = _evictor(watch, rule, stashes)
    dropped: dict[Any, list[int]] = {}
    if watch == "dropped":
        listen(True)
        evictor.on_drop = lambda value: _note(dropped, value)
    region = BudgetRegion("fit", evictor)
    context = _context(watch, limit, device, of, rule, region)
    calls = KernelCalls()
    if watch not in ("need", "program"):
        executor.calls = calls
    tide: list[Moment] = []
    falls: list[tuple[float, int]] = []
    if watch == "tide":
        _note_tide(calls, ledger, evictor, tide, falls)
    try:
        for _ in range(most):
            executor.flops = Counter()
            calls.forget()
            for noted in (dropped, tide, falls):
                noted.clear()
            if isinstance(evictor, ProgramWatch):
                evictor.forget()
            tide.append(Moment(0.0, ledger.live, False))
            past = evictor.evictions, evictor.replays, region.clock, getattr(pool, "given", 0)
            stashed = evictor.stashing.seconds
            began = perf_counter()
            with context:
                if limit is None:
                    ledger.pool.cap = NO_LIMIT  # no more than it has without a budget
                step(*args, **kwargs)
            check_stepped(fused)
            python = perf_counter() - began - calls.noting
            if ledger.live == before:
                break
            before = ledger.live
    finally:
        executor.calls = None
        ledger.observers = ()
        if watch == "dropped":
            unlisten(True)
        end_workers()
    needs = evictor if isinstance(evictor, _Needs) else None
    timed = watch not in ("need", "program") and not calls.elsewhere
    return Imagined(
        peak=ledger.peak,
        start=start,
        flops=sum(executor.flops.values()),
        evictions=evictor.evictions - past[0],
        replays=evictor.replays - past[1],
        reads=region.clock - past[2],
        need=0 if needs is None else needs.need,
        where="" if needs is None else needs.where,
        roles=None if needs is None else needs.roles,
        dropped=[(key, tuple(figures)) for key, figures in dropped.items()],
        calls=dict(calls.counts) if timed else None,
        weights=dict(calls.weights) if timed else None,
        python=python,
        stashing=evictor.stashing.seconds - stashed,
        given=getattr(pool, "given", 0) - past[3],
        tide=tide if watch == "tide" else None,
        falls=falls,
        program=evictor.program if isinstance(evictor, ProgramWatch) else None,
        measured=calls.measure(kernel_seconds.of_machine(), executor)
        if timed and watch == "times"
        else None,
    )


def _leave_surroundings() -> None:
    # As if no budget, no region and no observer were around.
    for be in live_backends():
        be.ledger.observers = ()
        be.ledger.close_budgets()
    state = local.state
    state.recorder, state.saver, state.notes_results = None, None, state.inference


def _context(
    watch: str, limit: int | None, device: Any, of: str, rule: EvictionRule, region: BudgetRegion
) -> Any:
    # What the step runs in.
    if watch == "times" or (watch == "tide" and limit is None):
        return nullcontext()
    budget = watched_budget if watch == "program" else memory_budget
    context: Any = budget(0 if limit is None else limit, device, of=of, rule=rule)
    context._regions[get_ident()] = region
    return context


def _note_tide(
    calls: KernelCalls,
    ledger: Any,
    evictor: Evictor,
    tide: list[Moment],
    falls: list[tuple[float, int]],
) -> None:
    # From now on, append the live bytes at each event, and each eviction.
    known = kernel_seconds.of_machine()
    calls.known = known if known.times else None
    evictor.on_drop = lambda value: falls.append((calls.clock, value.nbytes))
    ledger.observers = (
        lambda *event: tide.append(
            Moment(calls.clock, ledger.live, local.state.phase == "recompute")
        ),
    )


def _evictor(watch: str, rule: EvictionRule, stashes: tuple[Any, ...]) -> Evictor:
    if watch == "program":
        return ProgramWatch(rule)
    return _Needs(rule) if watch == "need" else Evictor(rule, stashes)


def _note(dropped: dict[Any, list[int]], value: Any) -> None:
    call = value.producer
    module, line = ("", "") if call is None or call.site is None else call.site
    key = module, getattr(line, "line", "") or "an unknown line", getattr(call, "name", "a value")
    figures = dropped.setdefault(key, [0, 0])
    figures[0] += value.nbytes
    figures[1] += 1


class _Needs(Evictor):
    """Drops nothing; finds the instant at which most bytes live that could not be dropped."""

    def __init__(self, rule: EvictionRule) -> None:
        super().__init__(rule)
        self.need = self.looks = 0
        self.where = ""
        self.roles = [0] * len(ROLES)

    def open(self, recorder: Any) -> None:
        """Begin a step, in which nothing is ever gone."""
        super().open(recorder)
        self.released = None

    def make_room(self, ledger: Any, nbytes: int) -> bool:
        """Look, and let the allocation pass."""
        asked = ledger.live + nbytes
        if self.busy or get_ident() != self.thread or asked <= self.need:
            return True
        self.busy = True
        try:
            if not self.active:
                self._begin()
            self.released = None  # nothing is ever gone: what is not wanted need not wait
            if self.looks < MOST_LOOKS:
                self._look(ledger, nbytes)
        finally:
            self.busy = False
        return True

    def make_less(self, ledger: Any, nbytes: int, smallest: int = 0) -> bool:
        """Drop nothing."""
        return False

    def make_extent(self, ledger: Any, nbytes: int) -> bool:
        """Drop nothing."""
        return False

    def _look(self, ledger: Any, nbytes: int) -> None:
        free = 0
        for reference in self._by_place:
            value = None if reference is None else reference()
            self.looks += 1
            if value is None or value.held is None or value.ledger is not ledger:
                continue
            if value.nbytes >= self.rule.smallest and can_go(value):
                free += value.nbytes
        need = ledger.live + nbytes - free
        if need > self.need:
            self.need = need
            self.roles = ledger.roles[:]
            self.roles[SAVED] -= free
            running = local.state.running
            node = None if running is None else running.node
            line = user_line() or "an unknown line"
            self.where = (
                f"In forward, at {line}"
                if running is None
                else f"In backward of {node.name() if node is not None else 'the loss'}, called at "
                f"{line}"
            )


__all__ = ["Imagined", "imagine_step"]
