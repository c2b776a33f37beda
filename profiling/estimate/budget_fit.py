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
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ...framework.autograd.remat.replay_costs import EvictionRule
from ...framework.device import device as as_device
from ...framework.device import get_default_device
from ...framework.errors import InfeasibleBudget
from ...framework.kernels.runtime import kernel_seconds
from ...framework.memory.ledger import ROLES, describe, format_bytes
from ...framework.memory.sizes import as_bytes
from .estimate import check_callable
from .fork_sandbox import run_apart
from .imagined_step import Imagined, imagine_step
from .plan import Plan, least, rules_for

ALIKE = 1.02  # times with a smaller ratio count as equal

# By step: what state it was in, and the rule, limit and pace of the plan found for that state.
_known: weakref.WeakKeyDictionary[Any, list[Any]] = weakref.WeakKeyDictionary()


def fit(
    step: Callable[..., Any],
    /,
    *args: Any,
    budget: int | str,
    device: Any = None,
    of: str = "pages",
    **kwargs: Any,
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
        of: What the bytes are of, ``"pages"`` or ``"tensors"``: as of ``memory_budget``.
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
    if of not in ("pages", "tensors"):
        raise ValueError(
            f'fit: of is "pages" or "tensors", got {of!r}. No estimate knows what the rest of a '
            "process will take."
        )

    def imagine(limit: int | None, rule: EvictionRule, watch: str = "") -> Imagined:
        return run_apart(lambda: imagine_step(step, args, kwargs, where, limit, rule, watch, of=of))

    plain, rule = _plain(imagine)
    known = kernel_seconds.of_machine()
    key = str(where), of, plain.start, plain.peak, plain.flops
    pace = plain.python / max(sum((plain.calls or {}).values()), 1)
    # What was found to do: what it costs, rule, limit, Python's seconds.
    ways: list[tuple[tuple[float, int, int], EvictionRule, int, float]] = []
    earlier = [entry for entry in _plans_of(step) if entry[0] == key]
    for _, known_rule, known_limit, known_pace in earlier:
        pace = known_pace  # by which the earlier ones were compared
        if known_limit <= limit:
            found = imagine(known_limit, known_rule)  # the step may be another by now
            if found.peak <= known_limit:
                ways.append((found.cost(known, pace), known_rule, known_limit, found.python))
    most = min([cost[0] for cost, *_ in ways], default=math.inf)  # a larger budget costs no more
    if plain.need <= limit:
        for candidate in rules_for(plain, rule):
            found = imagine(limit, candidate)
            if found.peak <= limit:
                ways.append((found.cost(known, pace), candidate, limit, found.python))
                if not found.evictions:
                    break  # nothing to choose
    if not ways:
        raise _infeasible(imagine, plain, limit, where)
    # Of those that take alike time, which is as exact as it is known, the one that computes least.
    most = min(most, ALIKE * min(cost[0] for cost, *_ in ways))
    cost, rule, used, python = min(
        (way for way in ways if way[0][0] <= most), key=lambda way: (way[0][1:], way[0][0])
    )
    found = replace(imagine(used, rule, "dropped"), python=python)  # to note lines takes time, too
    _remember(step, (key, rule, used, pace))
    return Plan(used, where, rule, plain, found, imagine, cost, of)


def _plain(imagine: Callable[..., Imagined]) -> tuple[Imagined, EvictionRule]:
    # The step without a budget, and the first rule to try. Kernels whose time is not known are run.
    rule = EvictionRule()
    plain = imagine(None, rule, "need")
    timed = imagine(None, rule, "times")
    known = kernel_seconds.of_machine()
    if timed.measured:
        known.add(timed.measured)
        known.save()
    # What the first run needs holds on to more than the step does: its peak is not the step's.
    plain = replace(timed, reads=plain.reads, need=plain.need, where=plain.where, roles=plain.roles)
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
        return run_apart(lambda: imagine_step(program, (), {}, where, limit, rule, watch, 1))

    plain, _ = _plain(imagine)
    rule = EvictionRule()  # with which it is run
    found = imagine(budget, rule, "dropped") if plain.need <= budget else None
    if found is None or found.peak > budget:
        raise _infeasible(imagine, plain, budget, where, [rule])
    cost = found.cost(kernel_seconds.of_machine(), 0.0)
    return Plan(budget, where, rule, plain, found, imagine, cost, unit="a run")


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


__all__ = ["fit", "fit_program"]
