"""Values inside a budget of bytes: held until memory is needed, then dropped and replayed.

Inside a budget one region is open around everything (:class:`BudgetRegion`). A value saved for
backward there gets a :class:`Kept` handle: it can be recomputed, like any value of a region, yet
its :class:`EvictableVersion` holds the storage. The evictor (``evictor.py``) drops versions when an
allocation needs their bytes; a dropped one comes back by replay.

Until something is dropped, a version keeps only when it was saved. What the evictor has to know to
choose (``replay_costs.Standing``) is made when it chooses for the first time.
"""

from __future__ import annotations

import weakref
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from ..saved import Pin
from .replay import Recomputed, Region
from .values import StridedView, ValueVersion, WriteCall

if TYPE_CHECKING:
    from ...tensor import Tensor
    from .evictor import Evictor
    from .replay_costs import Standing


class EvictableVersion(ValueVersion):
    """A version of a value made inside a budget.

    Attributes:
        kept: A handle of the budget's own region wants it: it is held until it is dropped, or
            until no handle wants it any more.
        first: When it was first saved for backward, by the clock of the budget; 0 if never.
        latest: When it was last saved.
        ledger: Of its storage; None if no ledger counts it.
        nbytes: Bytes of its storage.
        standing: What the evictor knows of it; None until it first has to choose.
    """

    __slots__ = ("first", "kept", "latest", "ledger", "nbytes", "standing")

    def __init__(self, producer: Any, index: int, owner_region: Region | None) -> None:
        super().__init__(producer, index, owner_region)
        self.kept = False
        self.first = self.latest = self.nbytes = 0
        self.ledger: Any = None
        self.standing: Standing | None = None

    def hold(self, storage: Any) -> None:
        """Keep recomputed values, and let the evictor choose among them."""
        super().hold(storage)
        if self.standing is not None:
            self.standing.evictor.came_back(self)

    def drop(self) -> None:
        """Release the values; they live on while others use them."""
        self.held = None
        if self.standing is not None:
            self.standing.evictor.went(self)


def parents(value: ValueVersion) -> list[EvictableVersion]:
    """Return the versions that the producer of a version reads."""
    producer = value.producer
    if producer is None:
        return []
    found = [a.value for a in producer.arguments if a.__class__ is StridedView]
    if producer.__class__ is WriteCall:
        found.append(producer.target.value)
    return [c for c in found if c.__class__ is EvictableVersion]


class BudgetRegion(Region):
    """The region around everything inside a budget.

    Attributes:
        clock: How many values were saved in it for backward.
        now: When the value that backward reads was saved.
        began: The clock when the step began, as far as is known.
    """

    __slots__ = ("began", "clock", "now")

    def __init__(self, where: str, evictor: Evictor) -> None:
        super().__init__(None, where, None)
        self.evictor = evictor
        evictor.region = weakref.ref(self)
        evictor.regions.add(self)
        self.clock = self.now = self.began = 0

    def replay(self, asked: ValueVersion) -> Any:
        """Make a value again; return its storage."""
        began = perf_counter_ns()
        storage = super().replay(asked)
        self.evictor.replayed(asked, storage, perf_counter_ns() - began)
        return storage

    def wanted(self, asked: ValueVersion) -> set[ValueVersion]:
        """Return the values that a replay for ``asked`` brings back."""
        return self.evictor.wanted(self, asked)  # type: ignore[no-any-return]


class Kept(Recomputed):
    """A saved value that is held until the evictor drops it, and then recomputed.

    Args:
        tensor: The value.
        value: What its storage holds.
        region: The budget's.
        source: ``OWN`` for an output of the node that saves it; else None.
        index: Which output, with ``OWN``.
    """

    __slots__ = ("when",)

    def __init__(
        self, tensor: Tensor, value: Any, region: BudgetRegion, source: Any, index: int
    ) -> None:
        held = value.held or Pin(tensor._storage)  # first: if it fails, nothing is counted yet
        # As in the base class, without its calls: each value that a budget saves comes by here.
        self.spec = tensor._spec
        if source is None and tensor._requires_grad:
            source, index = tensor._node, tensor._index
        self.source = source
        self.index = index
        self.view = StridedView(value, tensor)
        self.value = value
        self.owner_region = region
        demanded = region.demanded  # no calls from here on
        demanded[value] = demanded[value] + 1 if value in demanded else 1
        value.consumers += 1
        self.generation = value.generation
        when = region.clock + 1
        region.clock = self.when = value.latest = when
        if not value.first:
            value.first = when
        value.held = held
        value.kept = True
        if region.evictor.active:
            region.evictor.saved(value)

    def unpack(self, node: Any, label: str) -> Tensor:
        """Return the value, connected to the graph."""
        value = self.value
        region: Any = self.owner_region
        region.now = self.when
        storage = value.available()
        if storage is None:
            storage = region.replay(value)
        return self._connected(storage, node)


__all__ = ["BudgetRegion", "EvictableVersion", "Kept", "parents"]
