"""``fit``: how a step runs within a number of bytes, found before anything is allocated.

The step runs in imagination (``estimate.py``) under the budget, with several rules by which the
evictor compares values; of those with which it fits, the one that computes least is the plan. The
evictor is underneath when the plan runs, too: a step that turns out to be another than the one that
was imagined costs time, never bytes.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product
from threading import get_ident
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
from ...framework.memory.ledger import NO_LIMIT, ROLES, SAVED, describe, format_bytes
from ...framework.memory.sizes import as_bytes
from ...framework.modes import local
from . import fake_kernels
from .estimate import check_callable
from .fork_sandbox import run_apart
from .steady import end_workers

MOST_STEPS = 3  # until a step leaves what it found
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
        dropped: How many values are dropped in a step.
        replayed: How many replays bring them back.
        floor_proved: Bytes below which no budget can do: at one instant so many cannot be dropped.
        set_by: The op, and the user's line, at that instant.
        decisions: What is dropped, the most bytes first (:class:`Decision`).
    """

    def __init__(
        self,
        limit: int,
        device: Any,
        rule: EvictionRule,
        plain: Imagined,
        found: Imagined,
        imagine: Callable[..., Imagined],
    ) -> None:
        super().__init__(limit, device, rule=rule)
        self.peak, self.plain_peak = found.peak, plain.peak
        self.flops, self.plain_flops = found.flops, plain.flops
        self.dropped, self.replayed = found.evictions, found.replays
        self.floor_proved, self.set_by = plain.need, plain.where
        self.decisions = [
            Decision(module, line, op, nbytes, times)
            for (module, line, op), (nbytes, times) in sorted(found.dropped, key=lambda d: -d[1][0])
        ]
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
            f"(plain {format_bytes(self.plain_peak)}), {self.added:+.1%} operations",
            f"{self.dropped} values dropped, {self.replayed} replays; below "
            f"{format_bytes(self.floor_proved)} nothing can do ({self.set_by})",
        ]
        lines += [f"  {decision}" for decision in self.decisions[:10]]
        if len(self.decisions) > 10:
            lines.append(f"  and {len(self.decisions) - 10} more")
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<Plan: {str(self).splitlines()[0]}>"


# By step: (device, start, plain peak, plain operations), and the plans found for that state.
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

    rule = EvictionRule()
    plain = imagine(None, rule, "need")
    key = str(where), plain.start, plain.peak, plain.flops
    best: tuple[int, int, EvictionRule, int] | None = None  # operations, evictions, rule, limit
    for seen, flops, known_rule, known_limit in list(_plans_of(step)):
        if seen == key and known_limit <= limit and (best is None or flops < best[0]):
            found = imagine(known_limit, known_rule)  # the step may be another by now
            if found.peak <= known_limit:
                best = found.flops, found.evictions, known_rule, known_limit
    if plain.need <= limit:
        for candidate in _rules(plain):
            found = imagine(limit, candidate)
            fits = found.peak <= limit
            if fits and (best is None or (found.flops, found.evictions) < best[:2]):
                best = found.flops, found.evictions, candidate, limit
            if fits and not found.evictions:
                break  # nothing to choose
    if best is None:
        raise _infeasible(imagine, plain, limit, where)
    _, _, rule, used = best
    found = imagine(used, rule, "dropped")
    _remember(step, (key, found.flops, rule, used))
    return Plan(used, where, rule, plain, found, imagine)


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
    rule = EvictionRule()

    def imagine(limit: int | None, rule: EvictionRule, watch: str = "") -> Imagined:
        return run_apart(lambda: _imagined(program, (), {}, where, limit, rule, watch, 1))

    plain = imagine(None, rule, "need")
    found = imagine(budget, rule, "dropped") if plain.need <= budget else None
    if found is None or found.peak > budget:
        raise _infeasible(imagine, plain, budget, where, [rule])
    return Plan(budget, where, rule, plain, found, imagine)


def _rules(plain: Imagined) -> list[EvictionRule]:
    # What was worth trying on transformers, convolutions and trees.
    first = EvictionRule()
    found = [first]
    for distance, reads, chain in product((1.0, 0.5, 2.0, 0.25), (0, plain.reads), (1.0, 0.3)):
        found.append(replace(first, distance=distance, reads=reads, chain=chain))
    return list(dict.fromkeys([*found, replace(first, bytes_weight=0.0)]))


def least(
    imagine: Callable[..., Imagined],
    plain: Imagined,
    high: int,
    rules: list[EvictionRule] | None = None,
) -> int:
    """Return the least budget with which the step fits, by halving; ``high`` is one that does."""
    low = max(plain.need, plain.start) - 1
    rules = rules or _rules(plain)[:3]
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
    ledger = backend(device).ledger
    ledger.reset_peak()
    start = before = ledger.live
    evictor = _Needs(rule) if watch == "need" else Evictor(rule)
    dropped: dict[Any, list[int]] = {}
    if watch == "dropped":
        listen(True)
        evictor.on_drop = lambda content: _note(dropped, content)
    region = BudgetRegion("fit", evictor)
    context = memory_budget(0 if limit is None else limit, device, rule=rule)
    context._regions[get_ident()] = region
    try:
        for _ in range(most):
            executor.flops = Counter()
            dropped.clear()
            past = evictor.evictions, evictor.replays, region.clock
            with context:
                if limit is None:
                    ledger.pool.cap = NO_LIMIT  # no more than it has without a budget
                step(*args, **kwargs)
            if ledger.live == before:
                break
            before = ledger.live
    finally:
        if watch == "dropped":
            unlisten(True)
        end_workers()
    needs = evictor if isinstance(evictor, _Needs) else None
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
