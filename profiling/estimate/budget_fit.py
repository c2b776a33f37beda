"""``fit``: how a step runs within a number of bytes, found before anything is allocated.

The step runs without kernels (``estimate.py``) under the budget: with several rules by which the
evictor compares values, and with several sets of values that it drops last (``plan_search.py``).
Of those with which it fits, the one that takes least time is the plan. The search ends early where
a proof says that there is little to gain (``replay_bound.py``).

How long the step's kernels take is measured once on a machine (``kernel_timing.py``); where that
cannot be, as for a GPU, the one that computes least is taken. The evictor is underneath when the
plan runs, too: a step that turns out to be another than the one that was imagined costs time, never
bytes.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ...framework.autograd.remat.replay_costs import EvictionRule
from ...framework.checkpointing.budget import other_ways
from ...framework.checkpointing.packing import pack
from ...framework.checkpointing.stash import Stash
from ...framework.device import device as as_device
from ...framework.device import get_default_device
from ...framework.errors import InfeasibleBudget
from ...framework.kernels.runtime import kernel_seconds
from ...framework.memory.ledger import ROLES, describe, format_bytes
from ...framework.memory.sizes import as_bytes
from .estimate import check_callable
from .fork_sandbox import run_apart, run_each_apart
from .imagined_step import Imagined, imagine_step
from .in_backward import as_optimizers, noting
from .plan import Plan, least, rules_for
from .plan_search import Ways, search
from .replay_bound import least_replayed

WORTH = 0.01  # of what cannot be dropped: what takes less is not worth a proposal

# By step: what state it was in, and the rule, limit and pace of the plan found for that state.
_known: weakref.WeakKeyDictionary[Any, list[Any]] = weakref.WeakKeyDictionary()


def fit(
    step: Callable[..., Any],
    /,
    *args: Any,
    budget: int | str,
    device: Any = None,
    of: str = "pages",
    stash: Stash | Sequence[Stash] = (),
    lossy: pack | None = None,
    in_backward: Any = (),
    tries: int = 12,
    **kwargs: Any,
) -> Plan:
    """Find out how ``step(*args, **kwargs)`` runs within a number of bytes, without running it.

    The step runs in forked copies of the process, without kernels, as for
    :func:`lowtide.profiling.estimate`: nothing is allocated or changed here. A step that leaves
    other bytes than it found, as the first one does, is run on, so that the plan holds for later
    steps.

    Args:
        step: A training step, or a loop.
        *args: What to call it with.
        budget: Bytes of all living tensors of the device; or text such as ``"2GiB"``.
        device: The default device if None.
        of: What the bytes are of, ``"pages"`` or ``"tensors"``: as of ``memory_budget``.
        stash: Other ways than recomputing, as of ``memory_budget``. With any, the plan has no
            ``bound``, and values to keep are not searched for.
        lossy: A packing that changes values, likewise.
        in_backward: An optimizer, or several, that may update each parameter as soon as backward
            has its gradient (``optim.fuse_into_backward``), so that gradients take no room. The
            plan uses it only if the step's plain peak is above the budget. Parameters and states
            are the same bits, but ``p.grad`` is None after backward, so the step must not read it,
            as clipping by the norm of all gradients does. It must call ``step()`` after each
            backward pass. If backward raises half way, it has updated some parameters already.
        tries: After how many runs in a row without a gain the search for values to keep ends, for
            each 2 % of operations by which the best way is above the proved bound (from 1 to 8
            times as many). With 0 there is no search: the plan is found sooner, and may take more
            time.
        **kwargs: Arguments of the step by name.

    Returns:
        A :class:`Plan`: ``with plan: step()``.

    Raises:
        InfeasibleBudget: No way was found. It has the least budget that was found to do, one that
            no way can do with, and what cannot be dropped.
        RuntimeError: With ``in_backward``, gradients are accumulated or clipped together, or the
            step does not call ``step()``.
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

    stashes = other_ways(stash, lossy, "fit")
    for each in stashes:
        float(each.speed)  # is measured here, and not in each copy

    optimizers = as_optimizers(in_backward, "fit")
    fused: tuple[Any, ...] = ()  # those that step in backward

    run = partial(imagine_step, step, args, kwargs, where, of=of, stashes=stashes)

    def imagined(limit: int | None, rule: EvictionRule, watch: str = "") -> Callable[[], Imagined]:
        return partial(run, limit, rule, watch, in_backward=fused)

    def imagine(limit: int | None, rule: EvictionRule, watch: str = "") -> Imagined:
        with noting(fused):
            return run_apart(imagined(limit, rule, watch))

    def imagine_plain(limit: int | None, rule: EvictionRule, watch: str = "") -> Imagined:
        return run_apart(partial(run, limit, rule, watch))

    def imagine_each(ways: list[tuple[int, EvictionRule]]) -> list[Imagined]:
        with noting(fused):
            return run_each_apart(imagined(limit, rule) for limit, rule in ways)

    plain, rule = _plain(imagine)
    if optimizers and plain.peak > limit:
        fused = optimizers
        less, rule = _plain(imagine)
        plain = replace(less, peak=plain.peak)  # of the step as it is
    key = str(where), of, repr(stashes), len(fused), plain.start, plain.peak, plain.flops
    earlier = [entry for entry in _plans_of(step) if entry[0] == key]
    pace = plain.python / max(sum((plain.calls or {}).values()), 1)
    if earlier:
        pace = earlier[-1][-1]  # by which they were compared
    ways = Ways(imagine_each, pace)
    # The step may be another by now.
    ways.run([(known_limit, known) for _, known, known_limit, _ in earlier if known_limit <= limit])
    most = ways.least_time  # a larger budget costs no more
    if plain.need <= limit:
        first, *others = rules_for(plain, rule)
        (found,) = ways.run([(limit, first)])
        if found is None or found.evictions:  # there is something to choose
            ways.run([(limit, other) for other in others])
    if not ways.found:
        raise _infeasible(imagine, plain, limit, where, fused=fused)
    bound: int | None = None if stashes else 0
    if bound is not None and ways.best(most).cost[2]:  # something is dropped
        program = imagine(None, rule, "program").program
        assert program is not None
        bound = least_replayed(program, limit)
        if tries > 0:
            search(ways, program, limit, plain, bound, tries, most)
    way = ways.best(most)
    found = imagine(way.limit, way.rule, "dropped")
    # To note lines takes time, too, and so do others beside it.
    found = replace(found, python=imagine(way.limit, way.rule).python)
    _remember(step, (key, way.rule, way.limit, pace))
    plan = Plan(
        way.limit,
        where,
        way.rule,
        plain,
        found,
        imagine,
        way.cost,
        of,
        bound=bound,
        in_backward=fused,
        imagine_plain=imagine_plain,
    )
    plan.stashes = stashes
    return plan


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
    fused: tuple[Any, ...] = (),
) -> InfeasibleBudget:
    floor = least(imagine, plain, plain.peak, rules)
    roles = {name: n for name, n in zip(ROLES, plain.roles, strict=True) if n}
    ways = ["a smaller batch lowers what grows with it"]
    if roles.get("gradient", 0) > WORTH * plain.need and not fused:
        ways.append(
            f"gradients take {format_bytes(roles['gradient'])}: an optimizer in backward "
            "(fit(..., in_backward=optimizer), docs/optimizer_memory.md) keeps none"
        )
    if roles.get("optimizer", 0) > WORTH * plain.need:
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
