"""``fit``: how a step runs within a number of bytes, found before anything is allocated.

The step runs in imagination (``estimate.py``) under the budget, with several rules by which the
evictor compares values; of those with which it fits, the one that takes least time is the plan.
How long its kernels take is measured once on a machine (``kernel_timing.py``); where that cannot
be, as for a GPU, the one that computes least is taken. The evictor is underneath when the plan
runs, too: a step that turns out to be another than the one that was imagined costs time, never
bytes.
"""

from __future__ import annotations

import math
import weakref
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import product
from threading import get_ident
from time import perf_counter
from typing import Any

from ...framework.attribution.frames import user_line
from ...framework.attribution.scopes import listen, unlisten
from ...framework.autograd.remat.evictable import BudgetRegion
from ...framework.autograd.remat.evictor import Evictor, can_go
from ...framework.autograd.remat.replay_costs import EvictionRule
from ...framework.checkpointing.budget import memory_budget
from ...framework.device import device as as_device
from ...framework.device import get_default_device
from ...framework.devices import backend, live_backends
from ...framework.errors import InfeasibleBudget
from ...framework.kernels.runtime import kernel_seconds
from ...framework.kernels.runtime.kernel_seconds import KernelSeconds
from ...framework.memory.ledger import NO_LIMIT, ROLES, SAVED, describe, format_bytes
from ...framework.memory.sizes import as_bytes
from ...framework.modes import local
from ..analysis.summary import seconds as format_seconds
from . import fake_kernels
from .estimate import check_callable
from .fork_sandbox import run_apart
from .kernel_timing import KernelCalls, Seconds, seconds_of
from .steady import end_workers

MOST_STEPS = 3  # until a step leaves what it found
ALIKE = 1.01  # times with a smaller ratio count as equal
ENOUGH = 0.8  # of the work of a step, whose time must be known
MOST_LOOKS = 2_000_000  # at values, for the proof of the floor
HALVINGS = 10  # of the interval in which the least budget lies


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
        given: Bytes of pages that the pool gives back in it.
        measured: Times of kernels that were measured for it.
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
    given: int = 0
    measured: Any = None

    def seconds(self, known: KernelSeconds, python: float | None = None) -> Seconds | None:
        """Return what the last step takes; None if too little of its work was measured.

        Args:
            known: Times of kernels.
            python: Seconds between kernels, if not those that were measured.
        """
        if self.calls is None:
            return None
        python = self.python if python is None else python
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
        if took is None:
            return 0.0, self.flops, self.evictions
        # To a percent: more exact no prediction is, and fewer operations are the better bet.
        seconds = ALIKE ** round(math.log(max(took.typical, 1e-9), ALIKE))
        return seconds, self.flops, self.evictions


@dataclass(frozen=True)
class Decision:
    """What a plan drops and makes again, of one line and one op.

    Attributes:
        module: Path of the module that computes it; empty outside of modules.
        line: The user's line, ``file:line``.
        op: The op that makes it.
        nbytes: Bytes dropped, all together.
        times: How often.
    """

    module: str
    line: str
    op: str
    nbytes: int
    times: int

    def __str__(self) -> str:
        times = "once" if self.times == 1 else f"{self.times} times"
        owner = f"{self.module}, " if self.module else ""
        return f"{self.op} ({owner}{self.line}): {times}, {format_bytes(self.nbytes)}"


class Plan(memory_budget):
    """How a step runs within a budget: a context to run it in, and what was predicted.

    ``with plan:`` and ``@plan`` are those of :class:`lowtide.memory_budget`.

    Attributes:
        limit: The budget, in bytes.
        peak: The predicted highest live bytes, to the byte.
        plain_peak: Without a budget.
        flops: Predicted operations of a step.
        plain_flops: Without a budget.
        added: Operations added, as a share: 0.08 for 8 %.
        seconds: Predicted time of a step, its later ones; None if that is not known, as on a GPU.
        seconds_range: (least, most): with kernels as fast, or as slow, as they were measured.
        plain_seconds: Predicted time without a budget.
        dropped: How many values are dropped in a step.
        replayed: How many replays bring them back.
        floor_proved: Bytes below which no budget can do: at one instant so many cannot be dropped.
        set_by: The op, and the user's line, at that instant.
        decisions: What is dropped, the most bytes first (:class:`Decision`).
        cost: By what plans are compared: seconds to one percent (0 if not known), operations, values
            dropped.
    """

    def __init__(
        self,
        limit: int,
        device: Any,
        rule: EvictionRule,
        plain: Imagined,
        found: Imagined,
        imagine: Callable[..., Imagined],
        cost: tuple[float, int, int],
    ) -> None:
        super().__init__(limit, device, rule=rule)
        self.cost = cost
        self.peak, self.plain_peak = found.peak, plain.peak
        self.flops, self.plain_flops = found.flops, plain.flops
        self.dropped, self.replayed = found.evictions, found.replays
        self.floor_proved, self.set_by = plain.need, plain.where
        self.decisions = [
            Decision(module, line, op, nbytes, times)
            for (module, line, op), (nbytes, times) in sorted(found.dropped, key=lambda d: -d[1][0])
        ]
        known = kernel_seconds.of_machine()
        took, plain_took = found.seconds(known), plain.seconds(known)
        self.seconds = None if took is None else took.typical
        self.seconds_range = None if took is None else (took.least, took.most)
        self.plain_seconds = None if plain_took is None else plain_took.typical
        self._plain, self._imagine = plain, imagine
        self._floor: int | None = None

    @property
    def added(self) -> float:
        """Operations added, as a share."""
        return self.flops / self.plain_flops - 1 if self.plain_flops else 0.0

    @property
    def floor(self) -> int:
        """The least budget that does, as far as is known; found when first asked for."""
        if self._floor is None:
            self._floor = least(self._imagine, self._plain, self.limit)
        return self._floor

    def _again(self) -> Any:
        found = memory_budget(self.limit, self.device, rule=self.rule)
        found._regions = self._regions
        return found

    def __str__(self) -> str:
        lines = [
            f"budget {format_bytes(self.limit)}: peak {format_bytes(self.peak)} "
            f"(plain {format_bytes(self.plain_peak)}), {self.added:+.1%} operations{self._time()}",
            f"{self.dropped} values dropped, {self.replayed} replays; below "
            f"{format_bytes(self.floor_proved)} nothing can do ({self.set_by})",
        ]
        lines += [f"  {decision}" for decision in self.decisions[:10]]
        if len(self.decisions) > 10:
            lines.append(f"  and {len(self.decisions) - 10} more")
        return "\n".join(lines)

    def _time(self) -> str:
        if self.seconds is None or self.seconds_range is None or self.plain_seconds is None:
            return ""
        least, most = self.seconds_range
        return (
            f"; {format_seconds(self.seconds)} a step ({format_seconds(least)} to "
            f"{format_seconds(most)}; plain {format_seconds(self.plain_seconds)})"
        )

    def __repr__(self) -> str:
        return f"<Plan: {str(self).splitlines()[0]}>"


# By step: what state it was in, and the rule, limit and pace of the plan found for that state.
_known: weakref.WeakKeyDictionary[Any, list[Any]] = weakref.WeakKeyDictionary()


def fit(
    step: Callable[..., Any], /, *args: Any, budget: int | str, device: Any = None, **kwargs: Any
) -> Plan:
    """Find out how ``step(*args, **kwargs)`` runs within a number of bytes, without running it.

    The step runs in forked copies of the process, without kernels, as for
    :func:`lowtide.profiling.estimate`: nothing is allocated or changed here. A step that leaves
    other bytes than it found, as the first one does, is run on, so that the plan holds for later
    steps.

    Args:
        step: A training step, or a whole loop.
        *args: What to call it with.
        budget: Bytes of all living tensors of the device; or text such as ``"2GiB"``.
        device: The default device if None.
        **kwargs: Arguments of the step by name.

    Returns:
        A :class:`Plan`: ``with plan: step()``.

    Raises:
        InfeasibleBudget: No way was found. It has the least budget that was found to do, one that
            no way can do with, and what cannot be dropped.
        NotImplementedError: An op's result has a shape that depends on values that are unknown;
            or the system cannot fork.

    Example:
        >>> import lowtide as lt
        >>> net = lt.nn.Sequential(*[lt.nn.Linear(256, 256) for _ in range(8)])
        >>> x = lt.ones(2048, 256)
        >>> step = lambda: net(x).square().mean().backward()
        >>> plan = lt.fit(step, budget="16MiB")
        >>> plan.peak <= 16 * 2**20 < plan.plain_peak
        True
        >>> with plan:
        ...     step()
    """
    check_callable("fit", step)
    limit = as_bytes(budget, "fit: budget")
    where = as_device(device) if device is not None else get_default_device()

    def imagine(limit: int | None, rule: EvictionRule, watch: str = "") -> Imagined:
        return run_apart(lambda: _imagined(step, args, kwargs, where, limit, rule, watch))

    plain, rule = _plain(imagine)
    known = kernel_seconds.of_machine()
    key = str(where), plain.start, plain.peak, plain.flops
    pace = plain.python / max(sum((plain.calls or {}).values()), 1)
    best: tuple[Any, EvictionRule, int] | None = None  # what it costs, rule, limit
    for seen, known_rule, known_limit, known_pace in list(_plans_of(step)):
        if seen == key:
            pace = known_pace  # by which the earlier ones were compared
            if known_limit <= limit:
                found = imagine(known_limit, known_rule)  # the step may be another by now
                cost = found.cost(known, pace)
                if found.peak <= known_limit and (best is None or cost < best[0]):
                    best = cost, known_rule, known_limit
    if plain.need <= limit:
        for candidate in _rules(plain, rule):
            found = imagine(limit, candidate)
            cost = found.cost(known, pace)
            fits = found.peak <= limit
            if fits and (best is None or cost < best[0]):
                best = cost, candidate, limit
            if fits and not found.evictions:
                break  # nothing to choose
    if best is None:
        raise _infeasible(imagine, plain, limit, where)
    cost, rule, used = best
    found = imagine(used, rule, "dropped")
    _remember(step, (key, rule, used, pace))
    return Plan(used, where, rule, plain, found, imagine, cost)


def _plain(imagine: Callable[..., Imagined]) -> tuple[Imagined, EvictionRule]:
    # The step without a budget, and the first rule to try. Kernels whose time is not known are run.
    rule = EvictionRule()
    plain = imagine(None, rule, "need")
    timed = imagine(None, rule, "times")
    known = kernel_seconds.of_machine()
    if timed.measured:
        known.add(timed.measured)
        known.save()
    plain = replace(plain, calls=timed.calls, weights=timed.weights, python=timed.python)
    took = plain.seconds(known)
    if took is None or not plain.flops:
        return plain, rule
    work = plain.flops + rule.bytes_weight * sum(plain.weights.values())
    return plain, replace(rule, seconds=known, rate=work / took.typical)


def fit_program(program: Callable[[], Any], budget: int, device: Any = None) -> Plan:
    """Find out how a program runs to its end within a budget, as ``--memory-budget`` runs it.

    Args:
        program: Runs it from its start to its end.
        budget: Bytes.
        device: The default device if None.

    Raises:
        InfeasibleBudget: As :func:`fit`.
    """
    where = as_device(device) if device is not None else get_default_device()

    def imagine(limit: int | None, rule: EvictionRule, watch: str = "") -> Imagined:
        return run_apart(lambda: _imagined(program, (), {}, where, limit, rule, watch, 1))

    plain, _ = _plain(imagine)
    rule = EvictionRule()  # with which it is run
    found = imagine(budget, rule, "dropped") if plain.need <= budget else None
    if found is None or found.peak > budget:
        raise _infeasible(imagine, plain, budget, where, [rule])
    cost = found.cost(kernel_seconds.of_machine(), 0.0)
    return Plan(budget, where, rule, plain, found, imagine, cost)


def _rules(plain: Imagined, first: EvictionRule) -> list[EvictionRule]:
    # What was worth trying on transformers, convolutions and trees.
    found = [first, replace(first, seconds=None)]
    for distance, reads, chain in product((1.0, 0.5, 2.0, 0.25), (0, plain.reads), (1.0, 0.3)):
        found.append(replace(first, distance=distance, reads=reads, chain=chain))
    found.append(replace(first, bytes_weight=0.0, seconds=None))
    kept: list[EvictionRule] = []
    for rule in found:  # times are no part of a rule's equality
        if not any(rule == other and rule.seconds is other.seconds for other in kept):
            kept.append(rule)
    return kept


def least(
    imagine: Callable[..., Imagined],
    plain: Imagined,
    high: int,
    rules: list[EvictionRule] | None = None,
) -> int:
    """Return the least budget with which the step fits, by halving; ``high`` is one that does."""
    low = max(plain.need, plain.start) - 1
    rules = rules or _rules(plain, EvictionRule())[:3]
    for _ in range(HALVINGS):
        if high - low <= max(1, high // 1000):
            break
        middle = (low + high) // 2
        if any(imagine(middle, rule).peak <= middle for rule in rules):
            high = middle
        else:
            low = middle
    return high


def _infeasible(
    imagine: Callable[..., Imagined],
    plain: Imagined,
    limit: int,
    device: Any,
    rules: list[EvictionRule] | None = None,
) -> InfeasibleBudget:
    floor = least(imagine, plain, plain.peak, rules)
    roles = {name: n for name, n in zip(ROLES, plain.roles, strict=True) if n}
    ways = ["a smaller batch lowers what grows with it"]
    if roles.get("gradient"):
        ways.append(
            f"gradients take {format_bytes(roles['gradient'])}: an optimizer in backward "
            "(docs/optimizer_memory.md) keeps none"
        )
    if roles.get("optimizer"):
        ways.append(
            f"the optimizer's state takes {format_bytes(roles['optimizer'])}: 8-bit states take a "
            "quarter"
        )
    return InfeasibleBudget(
        f"fit: no way was found to run the step within {format_bytes(limit)} on {device}. The "
        f"least budget found to do is {format_bytes(floor)}; without one it takes "
        f"{format_bytes(plain.peak)}. {plain.where}, {format_bytes(plain.need)} live at once that "
        f"cannot be dropped ({describe(roles)}). What would lower it: {'; '.join(ways)}.",
        floor,
        plain.need,
        plain.where,
    )


def _plans_of(step: Any) -> list[Any]:
    try:
        return _known.get(step, [])
    except TypeError:  # it can have no weak reference, or no hash
        return []


def _remember(step: Any, entry: Any) -> None:
    try:
        _known.setdefault(step, []).append(entry)
    except TypeError:
        return


def _imagined(
    step: Any,
    args: Any,
    kwargs: Any,
    device: Any,
    limit: int | None,
    rule: EvictionRule,
    watch: str,
    most: int = MOST_STEPS,
) -> Imagined:
    # In a forked copy of the process.
    executor = fake_kernels.begin()
    for be in live_backends():
        be.ledger.observers = ()
        be.ledger.close_budgets()
    state = local.state  # as if no budget and no region were around
    state.recorder, state.saver, state.notes_results = None, None, state.inference
    here = backend(device)
    ledger, pool = here.ledger, here.pool
    ledger.reset_peak()
    start = before = ledger.live
    evictor = _Needs(rule) if watch == "need" else Evictor(rule)
    dropped: dict[Any, list[int]] = {}
    if watch == "dropped":
        listen(True)
        evictor.on_drop = lambda content: _note(dropped, content)
    region = BudgetRegion("fit", evictor)
    context: Any = memory_budget(0 if limit is None else limit, device, rule=rule)
    context._regions[get_ident()] = region
    if watch == "times":
        context = nullcontext()
    calls = KernelCalls()
    if watch != "need":
        executor.calls = calls
    try:
        for _ in range(most):
            executor.flops = Counter()
            calls.forget()
            dropped.clear()
            past = evictor.evictions, evictor.replays, region.clock, getattr(pool, "given", 0)
            began = perf_counter()
            with context:
                if limit is None:
                    ledger.pool.cap = NO_LIMIT  # no more than it has without a budget
                step(*args, **kwargs)
            python = perf_counter() - began - calls.noting
            if ledger.live == before:
                break
            before = ledger.live
    finally:
        executor.calls = None
        if watch == "dropped":
            unlisten(True)
        end_workers()
    needs = evictor if isinstance(evictor, _Needs) else None
    timed = watch != "need" and not calls.elsewhere
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
        given=getattr(pool, "given", 0) - past[3],
        measured=calls.measure(kernel_seconds.of_machine(), executor)
        if timed and watch == "times"
        else None,
    )


def _note(dropped: dict[Any, list[int]], content: Any) -> None:
    call = content.producer
    module, line = ("", "") if call is None or call.site is None else call.site
    key = module, getattr(line, "line", "") or "an unknown line", getattr(call, "name", "a value")
    figures = dropped.setdefault(key, [0, 0])
    figures[0] += content.nbytes
    figures[1] += 1


class _Needs(Evictor):
    """Drops nothing; finds the instant at which most bytes live that could not be dropped."""

    def __init__(self, rule: EvictionRule) -> None:
        super().__init__(rule)
        self.need = self.looks = 0
        self.where = ""
        self.roles = [0] * len(ROLES)

    def make_room(self, ledger: Any, nbytes: int) -> bool:
        """Look, and let the allocation pass."""
        asked = ledger.live + nbytes
        if self.busy or get_ident() != self.thread or asked <= self.need:
            return True
        self.busy = True
        try:
            if not self.active:
                self._begin()
                self.released = None  # nothing is ever gone
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
        for reference in self._places:
            content = None if reference is None else reference()
            self.looks += 1
            if content is None or content.held is None or content.ledger is not ledger:
                continue
            if content.nbytes >= self.rule.smallest and can_go(content):
                free += content.nbytes
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


__all__ = ["Decision", "Plan", "fit", "fit_program"]
