"""Other ways than replay to bring an evicted value back: packed, in host memory, on disk.

A *stash* (``checkpointing/stash.py``) keeps the bytes of a storage in another form. Where it takes
less time to put a value there and to fetch it than to compute it again, the evictor stashes it
before it drops it: the stash takes the place of the value's producer, and nothing that the value
was made from is needed for it any more.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ...devices import backend
from ...dtypes import uint8
from ...errors import OutOfMemoryError
from ...spec import Spec
from ...tensor import wrap
from .evictable import EvictableVersion, parents
from .values import OpCall, StashCall

if TYPE_CHECKING:
    from .replay_costs import EvictionRule

OPERATIONS = 5e10  # in a second, where a rule does not know it
OVERHEAD = 5e-5  # seconds for a value, whatever its size


class Stashing:
    """The stashes that an evictor may use, and what they cost.

    Args:
        stashes: Each has ``speed`` (bytes a second, out and back each), ``min_bytes``, and is
            called with a tensor.
        rule: Says what a second is worth.

    Attributes:
        short: A packed form was refused: there was no room for it while the value was still there.
        seconds: Time to stash values and to fetch what backward asked for, by the speeds of the
            stashes.
        values: How many values were stashed.
        nbytes: Their bytes.
    """

    def __init__(self, stashes: tuple[Any, ...], rule: EvictionRule) -> None:
        self.stashes = stashes
        timed = rule.seconds is not None and rule.rate > 0
        self.per_second = rule.rate if timed else OPERATIONS
        self.values = self.nbytes = 0
        self.seconds = 0.0
        self.short = False

    def cost(self, value: EvictableVersion) -> float:
        """Return the cost of stashing a version and fetching it; infinity if no stash takes it."""
        costs = [self._cost(stash, value.nbytes) for stash in self.stashes]
        return min(costs, default=math.inf)

    def fetched(self, value: EvictableVersion) -> None:
        """Note that backward asked for a version that is stashed."""
        standing = value.standing
        self.seconds += 0.0 if standing is None else standing.cost / self.per_second

    def _cost(self, stash: Any, nbytes: int) -> float:
        if nbytes < stash.min_bytes:
            return math.inf
        return self.per_second * 2 * (OVERHEAD + nbytes / float(stash.speed))

    def keep(self, value: EvictableVersion, otherwise: float) -> float | None:
        """Stash a version that is held, by the first way that costs less than ``otherwise``.

        Returns:
            The cost of fetching it; None if no stash is cheaper, or none has room.
        """
        ways = sorted(self.stashes, key=lambda stash: self._cost(stash, value.nbytes))
        for stash in ways:
            if self._cost(stash, value.nbytes) >= otherwise:
                break
            if self._keep(stash, value):
                fetch = self._cost(stash, value.nbytes) / 2
                self.seconds += fetch / self.per_second
                return fetch
        return None

    def _keep(self, stash: Any, value: EvictableVersion) -> bool:
        storage: Any = value.held.storage
        spec = _spec_of(value)
        tensor = wrap(backend(spec.device).strided_view(storage, spec, None), spec, storage)
        try:
            stashed = stash(tensor)
        except OutOfMemoryError:  # there is no room for a packed form beside it
            self.short = True
            return False
        if getattr(stashed, "storage", None) is storage:  # no room, or nothing gained
            return False
        call = StashCall(stashed, value.producer)
        call.site = value.producer.site
        _forget_reader(value)
        value.producer, value.index = call, 0
        self.values += 1
        self.nbytes += value.nbytes
        return True


def _forget_reader(value: EvictableVersion) -> None:
    # What it was made from is not needed for it any more.
    for parent in parents(value):
        standing = parent.standing
        if standing is not None:
            standing.readers = [r for r in standing.readers if r() is not value]


def _spec_of(value: EvictableVersion) -> Spec:
    # Of all of its storage, in one dimension; as bytes if the dtype is not known.
    storage: Any = value.held.storage
    call, device = value.producer, storage.ledger.device
    dtype = call.plan.results[value.index].dtype if isinstance(call, OpCall) else uint8
    if storage.nbytes % dtype.itemsize:
        dtype = uint8
    return Spec((storage.nbytes // dtype.itemsize,), dtype, device)


__all__ = ["Stashing"]
