"""The evictor: which values are dropped when an allocation needs room, and which a replay keeps.

The ledger asks it before it refuses (``Ledger.refuse``). It drops versions of saved values, the
least valuable first, until there is room. The value of keeping a version is what it costs to make
it again, with all that is gone and it is made from, for each byte and for the time until backward
reads it:

    (cost + chain * cost of what is gone above) / bytes / distance ** power

In forward the distance is the version's age: what was saved first is read last. In backward it is
known: nodes run in the order in which their values were saved, reversed.

Two rules save most of the work. A version that no handle wants any more stays held while something
that is gone, and is wanted, is made from it; it may be dropped like any other. And a replay brings
back what it passes, and what is made from that in one step, if a handle wants it and there is room.

Source:
    Kirisame et al., "Dynamic Tensor Rematerialization", 2021, for a score of cost, bytes and
    staleness; here the next use takes the place of staleness, and the bytes are a hard limit.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from threading import RLock, get_ident
from typing import Any

import numpy as np

from ...interrupts import defer_interrupts
from ...memory.events import publish_eviction, publish_replay
from ...memory.pool import ALIGNMENT
from ...modes import local
from .evictable import EvictableVersion, parents
from .replay_costs import EvictionRule, ReplayCosts, needed
from .stashing import Stashing
from .values import StashCall

LAST = 1e9  # times the worth of a value that is to be dropped last
READERS = 64  # of a version, dead ones included, before they are looked through


class Evictor:
    """Drops values of a budget's region when an allocation needs room.

    Args:
        rule: How they are compared.
        stashes: Other ways than replay to bring a value back (``stashing.py``).

    Attributes:
        recorder: Of the region, while it is open.
        regions: The budget's region, and those opened in it.
        released: Versions that no handle wants any more, and that are still held; None while
            nothing is gone that could be made from them, and after the budget has ended.
        evictions: Versions dropped so far.
        evicted_bytes: Their bytes.
        replays: Replays so far.
        replay_seconds: Time they took; of a GPU, to launch them.
    """

    def __init__(self, rule: EvictionRule, stashes: tuple[Any, ...] = ()) -> None:
        self.rule = rule
        self.stashing = Stashing(stashes, rule)
        self.thread = get_ident()
        self.recorder: Any = None
        self.regions: Any = weakref.WeakSet()
        self.region: Any = None  # the budget's, weakly: it refers to the evictor
        self.active = False
        self.busy = False
        self.on_drop: Callable[[Any], None] | None = None  # told of each version that is dropped
        self.released: list[Any] | None = None
        self.evictions = self.evicted_bytes = self.replays = 0
        self.replay_seconds = 0.0
        self._by_place: list[Any] = []  # versions that are held, weakly; None: free
        self._free: list[int] = []
        self._stale: list[int] = []  # places whose worth may have changed
        self._worth = np.full(64, np.inf)  # by place: cost of making it again for each byte
        self._first = np.zeros(64)  # by place: when it was saved
        self._latest = np.zeros(64)
        self._factor = np.ones(64)  # by place: `LAST` for what is to be dropped last
        self._ledgers: list[Any] = []
        self._ledger = np.full(64, -1)  # by place: index into the list
        self._lock = RLock()  # backward may run in another thread than the budget's
        self.costs = ReplayCosts(rule)

    # What the ledger asks

    def make_room(self, ledger: Any, nbytes: int) -> bool:
        """Drop versions until so many more bytes fit; False if they never will."""
        return self._alone(self._make_room, ledger, nbytes)

    def make_less(self, ledger: Any, nbytes: int, smallest: int = 0) -> bool:
        """Drop versions of so many bytes, or what there is; False if nothing can go.

        Args:
            ledger: Of the device.
            nbytes: How many.
            smallest: Only versions of more than this.
        """
        before = ledger.live
        self._alone(self._drop_until, ledger, lambda: ledger.live <= before - nbytes, smallest + 1)
        return bool(ledger.live < before)

    def make_extent(self, ledger: Any, nbytes: int) -> bool:
        """Drop versions that lie side by side, where the pool has no addresses left.

        Of all runs of free blocks and of versions that can go, with so many bytes, the one whose
        versions are worth least.

        Returns:
            False if there is none.
        """
        return self._alone(self._drop_neighbors, ledger, nbytes)

    def _alone(self, work: Callable[..., bool], *args: Any) -> bool:
        if self.busy or get_ident() != self.thread:
            return False
        self.busy = True
        try:
            # An interrupt in a finalizer would keep alive, for a moment, what was to be freed.
            with defer_interrupts():
                if not self.active:
                    self._begin()
                self.let_go()
                return work(*args)
        finally:
            self.busy = False

    def _make_room(self, ledger: Any, nbytes: int) -> bool:
        stashing = self.stashing
        while ledger.live + nbytes > ledger.limit:
            value = self._choose(ledger)
            if value is None:
                return False
            self._evict(value)
        if stashing.short:  # now there is room, and the next one leaves some
            value = self._choose(ledger)
            if value is not None:
                self._evict(value)
            stashing.short = False
        return True

    def _evict(self, value: Any) -> None:
        # By the way that costs least.
        if self.stashing.stashes:
            above = self.costs.above(value) * self.rule.chain
            self._stash(value, value.standing.cost + above)
        self._drop(value)

    def _drop_until(self, ledger: Any, enough: Callable[[], bool], smallest: int = 0) -> bool:
        while not enough():
            value = self._choose(ledger, smallest)
            if value is None:
                return False
            self._drop(value)
        return True

    def _stash(self, value: Any, otherwise: float) -> None:
        # Keep it in another form, if that costs less than recomputing it.
        if value.producer.__class__ is StashCall:
            return
        made_from = parents(value)
        fetch = self.stashing.keep(value, otherwise)
        if fetch is not None:
            value.standing.cost = fetch
            value.standing.above = 0.0
            if self.released is not None:
                self.released += [p for p in made_from if p.held is not None and not p.consumers]

    def _drop(self, value: Any) -> None:
        if value.ledger is not None and value.ledger.observers:
            publish_eviction(value.ledger, value.held.storage)
        value.drop()
        self.evictions += 1
        self.evicted_bytes += value.nbytes
        if self.on_drop is not None:
            self.on_drop(value)

    def _drop_neighbors(self, ledger: Any, nbytes: int) -> bool:
        scores = self.scores(ledger)
        # (offset, bytes, what keeping it is worth, value or None)
        spans: list[tuple[int, int, float, Any]] = [
            (offset, size, 0.0, None) for offset, size in ledger.pool.free_extents()
        ]
        for place, reference in enumerate(self._by_place):
            value = None if reference is None else reference()
            if value is None or value.held is None or scores[place] == np.inf:
                continue
            block = -(-value.nbytes // ALIGNMENT) * ALIGNMENT
            if block and can_go(value):
                worth = float(scores[place]) * value.nbytes
                spans.append((value.held.storage.offset, block, worth, value))
        run = _cheapest_run(sorted(spans, key=lambda span: span[0]), nbytes)
        for _, _, _, value in run:
            if value is not None and value.held is not None:
                self._drop(value)
        return bool(run)

    def close(self) -> None:
        """End the budget: what is held stays so while a handle wants it."""
        released, self.released = self.released, None
        recorder, self.recorder = self.recorder, None
        recorded = [] if recorder is None else list(recorder.recorded.values())
        for value in [*(released or ()), *recorded]:
            if value.__class__ is EvictableVersion and not value.consumers:
                value.held = None

    def open(self, recorder: Any) -> None:
        """Begin the budget, or go on with it."""
        self.recorder = recorder
        region = self.region()
        region.began = region.clock
        if self.active:
            self.released = []

    # What happens to versions

    def made(self, value: EvictableVersion) -> None:
        """Note a new version, once something was dropped."""
        with self._lock:
            self._stand(value)

    def saved(self, value: EvictableVersion) -> None:
        """Note that a version was saved, and is held, once something was dropped."""
        with self._lock:
            self._stand(value)
            place = value.standing.place  # type: ignore[union-attr]
            if place >= 0:
                self._latest[place] = value.latest
            else:
                self.came_back(value)

    def came_back(self, value: EvictableVersion) -> None:
        """Note that a version is held: it may be chosen."""
        standing, ledger = value.standing, value.ledger
        if standing is None or value.held is None or ledger is None:
            return
        with self._lock:
            if standing.place < 0:
                standing.place = self._new_place()
                self._by_place[standing.place] = weakref.ref(value)
            place = standing.place
            self._first[place], self._latest[place] = value.first, value.latest
            if self.rule.keep:
                number = value.first - self.region().began
                self._factor[place] = LAST if number in self.rule.keep else 1.0
            if ledger not in self._ledgers:
                self._ledgers.append(ledger)
            self._ledger[place] = self._ledgers.index(ledger)
            self._stale.append(place)
            self._stale += self.costs.changed(value)
            if self.released is not None:  # what was held for its sake may go
                self.released += [
                    p for p in parents(value) if p.held is not None and not p.consumers
                ]

    def went(self, value: EvictableVersion) -> None:
        """Note that a version is not held any more."""
        standing = value.standing
        if standing is not None:
            with self._lock:
                if standing.place >= 0:
                    self._leave(standing.place)
                self._stale += self.costs.changed(value)

    def let_go(self) -> None:
        """Release what no handle wants, and nothing that is gone and wanted is made from."""
        released = self.released
        while released:
            value = released.pop()
            if value.held is None or value.consumers or needed(value):
                continue
            value.drop()
            released += [p for p in parents(value) if p.held is not None and not p.consumers]

    def pass_ended(self) -> None:
        """Note that a backward pass has ended, and the step with it, if it has saved all."""
        region = self.region()
        if 0 < self.rule.reads <= region.clock - region.began:
            region.began = region.clock

    def settle(self) -> None:
        """Cut off what no handle wants and nothing wanted is made from.

        It is then as if it came from outside. Otherwise one value that the program keeps, such as a
        loss, would keep the recipe of a step, and with it the batch.
        """
        with defer_interrupts():
            self._settle()

    def _settle(self) -> None:
        self.let_go()
        wanted: set[Any] = set()
        stack: list[Any] = []
        for region in list(self.regions):
            stack += list(region.demanded)
        while stack:
            value = stack.pop()
            if value not in wanted:
                wanted.add(value)
                stack += parents(value)
                if value.standing is not None and len(value.standing.readers) > READERS:
                    value.standing.forget_dead()
        for value in [] if self.recorder is None else list(self.recorder.recorded.values()):
            if value not in wanted and not value.consumers:
                value.producer = value.owner_region = None
                value.held = None  # an interrupt may have kept it from being released
                standing = value.standing
                if standing is not None:
                    if standing.place >= 0:
                        self._leave(standing.place)
                    standing.readers.clear()

    # Choosing

    def _begin(self) -> None:
        # Make the standing of every version that is wanted, or may come to be.
        self.active = True
        self.released = []
        found: list[Any] = [c for region in list(self.regions) for c in list(region.demanded)]
        if self.recorder is not None:
            found += list(self.recorder.recorded.values())
        for value in found:
            if value.__class__ is EvictableVersion:
                self._stand(value)

    def _stand(self, value: EvictableVersion) -> None:
        for made in self.costs.add(value, self):
            self.came_back(made)

    def _choose(self, ledger: Any, smallest: int = 0) -> Any:
        scores = self.scores(ledger)
        smallest = max(self.rule.smallest, smallest)
        while len(scores):
            place = int(scores.argmin())
            if scores[place] == np.inf:
                break
            scores[place] = np.inf
            reference = self._by_place[place]
            value = None if reference is None else reference()
            if value is None or value.held is None:
                self._leave(place)
            elif value.held.storage.nbytes >= smallest and can_go(value):
                return value
        return None

    def scores(self, ledger: Any) -> Any:
        """Return the value of keeping each version of a device, by place."""
        while self._stale:
            place = self._stale.pop()
            reference = self._by_place[place]
            value = None if reference is None else reference()
            if value is None or value.held is None:
                self._leave(place)
                continue
            standing = value.standing
            above = self.costs.above(value) * self.rule.chain if self.rule.chain else 0.0
            cost = standing.cost + above
            if self.stashing.stashes and value.producer.__class__ is not StashCall:
                cost = min(cost, self.stashing.cost(value))
            self._worth[place] = cost / max(value.nbytes, 1)
        n = len(self._by_place)
        latest, region = self._latest[:n], self.region()
        if region is None:
            distance = np.ones(n)
        elif local.state.running is not None:
            distance = region.now - np.where(latest <= region.now, latest, self._first[:n])
        else:
            still = self.rule.reads - (region.clock - region.began)  # to be saved
            distance = region.clock - latest + 2 * max(still, 0)
        scores = self._worth[:n] / np.maximum(distance, 1) ** self.rule.distance
        if self.rule.keep:
            scores *= self._factor[:n]
        index = self._ledgers.index(ledger) if ledger in self._ledgers else -2
        scores[self._ledger[:n] != index] = np.inf
        return scores

    def _new_place(self) -> int:
        if self._free:
            return self._free.pop()
        place = len(self._by_place)
        self._by_place.append(None)
        if place == len(self._worth):
            self._worth = np.concatenate([self._worth, np.full(place, np.inf)])
            self._first = np.concatenate([self._first, np.zeros(place)])
            self._latest = np.concatenate([self._latest, np.zeros(place)])
            self._factor = np.concatenate([self._factor, np.ones(place)])
            self._ledger = np.concatenate([self._ledger, np.full(place, -1)])
        return place

    def _leave(self, place: int) -> None:
        # Take a version off those that may be chosen.
        reference = self._by_place[place]
        if reference is not None:
            value = reference()
            if value is not None and value.standing is not None:
                value.standing.place = -1
            self._by_place[place] = None
            self._worth[place] = np.inf
            self._free.append(place)

    # Replaying

    def replayed(self, value: Any, storage: Any, nanoseconds: int) -> None:
        """Note that a value was recomputed, with all that was gone and it is made from."""
        self.replay_seconds += nanoseconds / 1e9
        if value.producer.__class__ is StashCall:
            self.stashing.fetched(value)
        if value.ledger is not None and value.ledger.observers:
            publish_replay(value.ledger, storage, nanoseconds)

    def wanted(self, region: Any, asked: Any) -> set[Any]:
        """Return what a replay for ``asked`` keeps: it, and what it passes that is wanted soon."""
        self.replays += 1
        found = {asked}
        if local.state.running is None:
            return found
        demanded = region.demanded
        path: list[Any] = []
        seen, stack = {asked}, [asked]
        while stack:
            for parent in parents(stack.pop()):
                if parent not in seen and parent.available() is None:
                    seen.add(parent)
                    stack.append(parent)
                    path.append(parent)
        producer = asked.producer
        also = [c for c in path if c in demanded]
        also += [c for c in list(demanded) if c.producer is producer and c is not asked]
        for value in path:  # and what is made from it in one step
            standing = value.standing
            for reference in () if standing is None else standing.readers:
                reader = reference()
                if (
                    reader is not None
                    and reader not in seen
                    and reader in demanded
                    and reader.available() is None
                    and all(q in seen or q.available() is not None for q in parents(reader))
                ):
                    seen.add(reader)
                    also.append(reader)
        room: dict[Any, int] = {}
        for value in sorted(also, key=lambda c: -getattr(c, "latest", 0)):
            if value.available() is not None or value.__class__ is not EvictableVersion:
                continue
            ledger = value.ledger
            left = room.get(ledger)
            if left is None:
                left = sys.maxsize if ledger is None else ledger.limit - ledger.live
            if value.nbytes <= left:
                left -= value.nbytes
                found.add(value)
            room[ledger] = left
        return found


def _cheapest_run(spans: list[Any], nbytes: int) -> list[Any]:
    # Of spans in the order of their offsets: neighbors of at least so many bytes and least value.
    best: tuple[float, int, int] | None = None
    first, total, value = 0, 0, 0.0
    for last, (offset, size, worth, _) in enumerate(spans):
        if last > first and spans[last - 1][0] + spans[last - 1][1] != offset:
            first, total, value = last, 0, 0.0
        total += size
        value += worth
        while total - spans[first][1] >= nbytes:
            total -= spans[first][1]
            value -= spans[first][2]
            first += 1
        if total >= nbytes and (best is None or value < best[0]):
            best = value, first, last
    return [] if best is None else spans[best[1] : best[2] + 1]


def can_go(value: Any) -> bool:
    """True if nothing but a version holds its storage, so that dropping it frees the bytes."""
    return _count(value) <= _ALONE


class _Sample:
    # What a version, its pin and its storage look like to `_count`.
    held: Any
    storage: Any


def _count(value: Any) -> int:
    pin = value.held
    storage = pin.storage
    del pin
    return sys.getrefcount(storage)


def _references_of_a_pin() -> int:
    # How many references `can_go` counts where only the pin holds a storage. The interpreter's own
    # differ by version.
    sample = _Sample()
    sample.held = _Sample()
    sample.held.storage = _Sample()
    return _count(sample)


_ALONE = _references_of_a_pin()

__all__ = ["EvictionRule", "Evictor", "can_go"]
