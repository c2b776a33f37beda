"""What it costs to make a version again: its producer, and all that is gone above it.

A version that is gone has to be replayed with the versions it is made from, through those that are
gone as well. A sum over them is kept for each version that the evictor has asked about, and is made
anew when something that it went through comes back or goes.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ...kernels.runtime.kernel_seconds import KernelSeconds, name_of
from ...spec import Spec
from .evictable import EvictableVersion, parents
from .values import OpCall, WriteCall

if TYPE_CHECKING:
    from .evictor import Evictor


PLANS = 4096  # whose costs are known


@dataclass(frozen=True)
class EvictionRule:
    """How versions are compared.

    Attributes:
        bytes_weight: Operations in the time that moving a byte takes.
        distance: Power of the time until the next read.
        chain: Weight of what is gone above a version, beside its own cost.
        smallest: Bytes below which nothing is dropped.
        reads: How many values a step saves, if that is known: forward then knows how long it is
            until each is read, and not only how long ago it was saved.
        keep: Which of them are dropped last, by when they were first saved: 1 for the first value
            that a step saves.
        seconds: Times of kernels on this machine (:class:`KernelSeconds`), which then take the
            place of operations and bytes; or None.
        rate: Operations in a second, where a kernel's time is not known.
    """

    bytes_weight: float = 5.0
    distance: float = 1.0
    chain: float = 1.0
    smallest: int = 1024
    reads: int = 0
    keep: frozenset[int] = frozenset()
    seconds: KernelSeconds | None = field(default=None, compare=False, repr=False)
    rate: float = 0.0


class Standing:
    """What the evictor knows of a version.

    Attributes:
        evictor: Who chooses.
        cost: Of running its producer again, in operations.
        readers: The versions that are computed from it, weakly.
        above: Cost of running again what is gone and it is made from; None if not known.
        counted: ``above`` of a reader has gone through this version, which was gone.
        place: Where it stands among those that the evictor may choose; -1 if it does not.
    """

    __slots__ = ("above", "cost", "counted", "evictor", "place", "readers")

    def __init__(self, evictor: Evictor, cost: float) -> None:
        self.evictor = evictor
        self.cost = cost
        self.readers: list[Any] = []
        self.above: float | None = None
        self.counted = False
        self.place = -1

    def forget_dead(self) -> None:
        """Take readers that are no more off the list."""
        self.readers = [reader for reader in self.readers if reader() is not None]


class ReplayCosts:
    """The costs of the versions of a budget.

    Args:
        rule: Weighs bytes against operations.
    """

    def __init__(self, rule: EvictionRule) -> None:
        self.rule = rule
        self._costs: dict[Any, float] = {}  # by plan

    def add(self, value: EvictableVersion, evictor: Evictor) -> list[EvictableVersion]:
        """Make the standing of a version and of all that it is made from; return the new ones."""
        made, stack = [], [value]
        while stack:
            value = stack.pop()
            if value.standing is None:
                value.standing = Standing(evictor, self.cost_of(value))
                stack += parents(value)
                made.append(value)
        for value in made:
            me = weakref.ref(value)
            for parent in parents(value):
                parent.standing.readers.append(me)  # type: ignore[union-attr]
        return made

    def above(self, value: EvictableVersion) -> float:
        """Return the cost of all that is gone and that a version is made from."""
        standing = value.standing
        assert standing is not None
        if standing.above is None:
            total, seen, stack = 0.0, {value}, [value]
            while stack:
                for parent in parents(stack.pop()):
                    if parent not in seen and parent.held is None:
                        seen.add(parent)
                        its = parent.standing
                        assert its is not None
                        its.counted = True
                        total += its.cost
                        stack.append(parent)
            standing.above = total
        return standing.above

    def changed(self, value: EvictableVersion) -> list[int]:
        """Note that a version is gone, or back: what is computed from it costs more, or less.

        Returns:
            The places of the versions of which that is so.
        """
        stale: list[int] = []
        stack = [value]
        while stack:
            standing = stack.pop().standing
            for reference in () if standing is None else standing.readers:
                reader = reference()
                if reader is None or reader.standing is None:
                    continue
                known = reader.standing
                if reader.held is not None:  # sums below end here
                    if known.above is not None:
                        known.above = None
                        if known.place >= 0:
                            stale.append(known.place)
                elif known.counted:
                    known.above, known.counted = None, False
                    stack.append(reader)
        return stale

    def cost_of(self, value: EvictableVersion) -> float:
        """Return the cost of running the producer of a version again."""
        call = value.producer
        if not isinstance(call, OpCall | WriteCall):
            return self.rule.bytes_weight * value.nbytes
        plan = call.plan
        found = self._costs.get(plan)
        if found is None:
            if len(self._costs) == PLANS:  # of shapes that never come again, perhaps
                self._costs.clear()
            op = plan.op
            flops = 0
            if op.flops is not None:
                specs = [s if isinstance(s, Spec) else None for s in plan.specs]
                flops = int(op.flops(*specs, **plan.attributes))
            moved = sum(s.nbytes for s in plan.specs if isinstance(s, Spec))
            moved += sum(s.nbytes for s in plan.results)
            found = flops + self.rule.bytes_weight * moved
            if self.rule.seconds is not None:
                name = name_of(op.name, plan.specs, plan.attributes)
                seconds = self.rule.seconds.typical(name)
                if seconds is not None:
                    found = seconds * self.rule.rate
            self._costs[plan] = found
        return found


def needed(value: Any) -> bool:
    """True if a handle wants what is gone and is made from a version, through others gone."""
    seen, stack = {value}, [value]
    while stack:
        standing = stack.pop().standing
        for reference in () if standing is None else standing.readers:
            reader = reference()
            if reader is None or reader in seen or reader.held is not None:
                continue
            if reader.consumers:
                return True
            seen.add(reader)
            stack.append(reader)
    return False


__all__ = ["EvictionRule", "ReplayCosts", "Standing", "needed"]
