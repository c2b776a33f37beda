"""Event log: turns events of the ledgers into owners, peaks, marks and a timeline.

On the hot path (``EventRecorder._observer``) an event costs a look at where the program is and six
integers at the end of a list. Everything else waits for :meth:`EventRecorder.settle`: at a query,
at the end, or when the list has grown long.
"""

from __future__ import annotations

import threading
import time
from typing import Any

from ...framework.attribution import scopes
from ...framework.memory.events import attach, detach
from ...framework.memory.ledger import BUFFER, OPTIMIZER, PARAMETER, ROLES, SAVED, TEMPORARY
from ..analysis.tables import grouped
from .compile_clock import CompileClock
from .device_state import DeviceState
from .oom_hints import remedies
from .recording import (
    ALLOC,
    FREE,
    OWNER,
    ROLE,
    Cells,
    Evicted,
    LiveBytes,
    Mark,
    Owner,
    Peak,
    Recording,
)

MARK, EVICT, REPLAY = 4, 5, 6  # in the list of events, beside the kinds of the recording
IF_BEFORE = 1 << 8  # a name only for what has none yet
LONG = 6 * 20_000  # integers in the list; then they are booked


def _forget(_: Any) -> None:
    """Discard an event."""


class EventRecorder:
    """Observes the ledgers and writes a recording.

    Args:
        recording: To be filled.
        lines: Keep the user's source lines. Others may have asked for them, too.

    Attributes:
        accounts: One for each device, in the order of ``recording.devices``.
        log: Events that are not booked yet, six integers each: nanoseconds, kind and device,
            address, bytes, role and old role, owner.
    """

    def __init__(self, recording: Recording, lines: bool = True) -> None:
        self.recording = recording
        self._lines = lines
        self.accounts: list[DeviceState] = []
        self.log: list[int] = []
        self.lock = threading.RLock()
        self.paths: list[str] = []
        self._numbers: dict[str, int] = {}  # path -> its position there
        self._owners: dict[Owner, int] = {recording.owners[0]: 0}
        self._sites: dict[scopes.Site, int] = {}  # the owner of each, once it was met
        self._by_ledger: dict[int, DeviceState] = {}
        self._observers: list[tuple[Any, Any]] = []
        self._pending: list[Mark] = []  # all marks; the log names them by position
        self._blocks = self._last = 0
        self._settling = False
        self._since: list[tuple[int, int, int, int]] = []  # device, role, bytes, owner: see `_was`
        self.clock = CompileClock()

    def now(self) -> int:
        """Nanoseconds since the start, compilations included; booked without them."""
        return self.clock.now()

    @property
    def seconds(self) -> float:
        """Seconds on the time axis of the recording."""
        return self.clock.on_axis(self.clock.now()) / 1e9

    # Listening

    def watch(self, be: Any) -> None:
        """Observe one more device."""
        with self.lock:
            d = DeviceState(len(self.accounts), be, Peak(), Peak())
            observer = self._observer(d)
            self.accounts.append(d)
            self._by_ledger[id(be.ledger)] = d
            self._observers.append((be.ledger, observer))
            self.recording.devices.append(be.ledger.name)
            self.recording.peaks.append(d.peak)
            self.recording.fullest.append(d.fullest)
            d.books = LiveBytes(attach(be.ledger, observer))
            d.allocations = be.ledger.allocations
            d.high = d.books.live
            d.peak.nbytes, d.fullest.nbytes = d.books.live, d.books.saved
            d.peak_is_new = d.fullest_is_new = True
            for mark in self.recording.marks:  # a device met later held nothing then
                mark.roles.append([0] * len(ROLES))
                mark.live.append(0)
                mark.peak.append(0)

    def leave(self) -> None:
        """Stop observing; events so far can still be processed."""
        for ledger, observer in self._observers:
            detach(ledger, observer)
        self._observers.clear()
        self._by_ledger.clear()

    def _observer(self, d: DeviceState) -> Any:  # noqa: C901 - runs at each allocation
        extend, now, began, log = self.log.extend, time.perf_counter_ns, self.clock.began, self.log
        owners, named, shift = self._sites, d.named, d.index << 3
        ledger = d.ledger

        def observer(
            event: str, device: str, nbytes: int, role: int, address: int, old: int
        ) -> None:
            if event == "free":
                if not nbytes:
                    return
                if address in named:
                    named.pop(address, None)
                at = now() - began
                # A collection inside an allocation frees others before that allocation is noted;
                # so may another thread.
                to = extend if ledger.allocations == d.allocations else d.late.extend
                to((at, FREE | shift, address, nbytes, role, -1))
            elif event == "alloc" or role == SAVED:
                where = scopes.site()
                owner = owners.get(where)
                if owner is None:
                    owner = self._owner(where)
                at = now() - began
                if event == "alloc":
                    if d.late and address in d.late[2::6]:  # that block was free already
                        d.flush(log)
                    if nbytes:
                        extend((at, ALLOC | shift, address, nbytes, role, owner))
                    d.allocations += 1
                    if d.late:
                        d.flush(log)
                elif nbytes:
                    extend((at, ROLE | shift, address, nbytes, role | old << 4, owner))
                if len(log) > LONG:
                    self.settle()
            elif nbytes:
                at = now() - began
                extend((at, ROLE | shift, address, nbytes, role | old << 4, -1))

        def evicted(nbytes: int, role: int, address: int) -> None:
            extend((now() - began, EVICT | shift, address, nbytes, role, -1))

        def replayed(nbytes: int, role: int, address: int, took: int) -> None:
            extend((now() - began, REPLAY | shift, address, nbytes, role, took))

        def overwritten(nbytes: int, role: int, address: int) -> None:
            where = scopes.site()
            owner = owners[where] if where in owners else self._owner(where)
            named.pop(address, None)
            at = now() - began  # as if one block were freed, and the next one allocated there
            extend((at, FREE | shift, address, nbytes, role, -1))
            extend((at, ALLOC | shift, address, nbytes, role, owner))

        observer.sees_replays = True  # type: ignore[attr-defined]
        observer.evicted = evicted  # type: ignore[attr-defined]
        observer.replayed = replayed  # type: ignore[attr-defined]
        observer.overwritten = overwritten  # type: ignore[attr-defined]
        observer.owners = lambda: self._owners_now(d)  # type: ignore[attr-defined]
        observer.remedies = lambda missing: self._remedies(d, missing)  # type: ignore[attr-defined]
        return observer

    def live_cells(self) -> list[tuple[Any, Cells]]:
        """Return each device's ledger, and the bytes that live now by (owner, role)."""
        self.settle()
        with self.lock:
            return [(d.ledger, dict(d.books.cells)) for d in self.accounts]

    def _owners_now(self, d: DeviceState) -> dict[str, dict[str, int]]:
        # What is told when an allocation fails: bytes by module and line, largest first.
        self.settle()
        with self.lock:
            sums = {by: grouped(self.recording, d.books.cells, by) for by in ("module", "line")}
        return {
            by: dict(sorted(held.items(), key=lambda item: (-item[1], item[0])))
            for by, held in sums.items()
        }

    def _remedies(self, d: DeviceState, missing: int) -> tuple[dict[str, int], list[str]]:
        # What would free the bytes that are missing.
        self.settle()
        with self.lock:
            return remedies(self.recording, d.books, d.numbers, d.ledger, missing)

    def _owner(self, where: scopes.Site) -> int:
        module, op, phase, stack = where
        at = (stack.line, stack.callers()) if self._lines else ("",)
        number = self._number(Owner(module, op, phase, *at))
        self._sites[where] = number
        return number

    def _number(self, owner: Owner) -> int:
        with self.lock:
            number = self._owners.get(owner)
            if number is None:
                number = self._owners[owner] = len(self.recording.owners)
                self.recording.owners.append(owner)
            return number

    def name(self, tensor: Any, path: str, flag: int = 0) -> None:
        """Attribute the storage of a tensor to the module at ``path``.

        Args:
            tensor: Any; nothing happens if it has a name, or no bytes on a watched device.
            path: Of the module.
            flag: ``IF_BEFORE`` leaves what was allocated meanwhile to where it was allocated.
        """
        storage = tensor._storage
        d = self._by_ledger.get(id(storage.ledger))
        if d is None or not storage.nbytes:
            return
        address = storage.address
        if address in d.named:
            return
        d.named[address] = path
        with self.lock:
            number = self._numbers.setdefault(path, len(self.paths))
            if number == len(self.paths):
                self.paths.append(path)
        role = storage.role | storage.role << 4 | flag
        self.log.extend((self.now(), OWNER | d.index << 3, address, storage.nbytes, role, number))

    def held(self) -> list[tuple[int, ...]]:
        """Return counters that change whenever a named storage is allocated, freed or renamed."""
        return [
            (r[PARAMETER], r[BUFFER], r[OPTIMIZER], len(d.named))
            for d in self.accounts
            for r in [d.ledger.roles]
        ]

    def path_of(self, tensor: Any) -> str | None:
        """Return the module path given to the storage of a tensor by ``name``."""
        storage = tensor._storage
        d = self._by_ledger.get(id(storage.ledger))
        return d.named.get(storage.address) if d is not None and storage.nbytes else None

    def mark(self, mark: Mark, at: int) -> None:
        """Record a mark; its bytes are filled in when events are processed."""
        with self.lock:
            self._pending.append(mark)
            self.log.extend((at, MARK, len(self._pending) - 1, 0, 0, 0))

    # Booking

    def settle(self) -> None:
        """Process the events recorded since the last call, in order."""
        with self.lock:
            if self._settling:  # a finalizer, started inside
                return
            self._settling = True
            try:
                for d in self.accounts:
                    if d.late:  # during an allocation of another thread
                        d.flush(self.log)
                values = self.log[:]
                del self.log[: len(values)]
                self._book(values)
            finally:
                self._settling = False
            for d in self.accounts:
                d.note_peak()
                d.note_fullest()

    def _book(self, values: list[int]) -> None:  # noqa: PLR0915 - most of a profiler's time
        # Bring the tables forward. Allocations and frees are written out instead of calling
        # `LiveBytes`: this is the larger part of what a profiler costs.
        kept: list[int] = []  # of the timeline, seven numbers an event
        keep = kept.extend if self.recording.timeline else _forget
        each = iter(values)
        last = self._last
        on_axis, compiled = self.clock.on_axis, self.clock.compiled
        for at, code, address, nbytes, role, owner in zip(*[each] * 6, strict=True):
            kind = code & 7
            if compiled:
                at = on_axis(at)
            if at < last:  # what was freed during an allocation is noted after it
                at = last
            last = at
            if kind == MARK:
                self._keep(kept)
                self._book_mark(at, address)
                continue
            d = self.accounts[code >> 3]
            books = d.books
            if kind == ALLOC:
                self._blocks = number = self._blocks + 1
                d.numbers[address] = number
                books.blocks[number] = [nbytes, role, owner, 0]
                cell = (owner, role)
                cells = books.cells
                cells[cell] = cells.get(cell, 0) + nbytes
                books.live = live = books.live + nbytes
                keep((at, ALLOC, d.index, number, nbytes, role, owner))
                if live > d.high:
                    d.high = live
                    peak = d.peak
                    if live > peak.nbytes:
                        peak.nbytes, d.peak_is_new, d.at_peak = live, True, True
                        peak.time, peak.event = at / 1e9, self._events(kept)
            elif kind == FREE:
                if d.peak_is_new:
                    d.note_peak()
                d.at_peak = False
                if role == SAVED and d.fullest_is_new:
                    d.note_fullest()
                number = d.numbers.pop(address, 0)
                books.free(number, nbytes, role)
                keep((at, FREE, d.index, number, nbytes, role, -1))
            elif kind >= EVICT:
                self._book_eviction(d, at, address, nbytes, owner if kind == REPLAY else -1)
            else:
                self._book_change(d, keep, at, kind, address, nbytes, role, owner)
                if d.peak_is_new and not d.at_peak:  # it is as high again, and the roles are of now
                    d.at_peak = True
                    d.peak.time, d.peak.event = at / 1e9, self._events(kept)
                if books.saved > d.fullest.nbytes:
                    d.fullest.nbytes, d.fullest_is_new = books.saved, True
                    d.fullest.time, d.fullest.event = at / 1e9, self._events(kept)
        self._last = last
        self._keep(kept)
        if self._since:
            self._correct_first_mark()

    def _book_change(
        self,
        d: DeviceState,
        keep: Any,
        at: int,
        kind: int,
        address: int,
        nbytes: int,
        role: int,
        owner: int,
    ) -> None:
        # A new role or a new owner.
        books = d.books
        old = role >> 4 & 15
        number = d.numbers.get(address, 0)
        unknown = not number
        if unknown:  # it lived before: from now on it has a number
            number = d.numbers[address] = self._blocks = self._blocks + 1
            books.name(number, nbytes, old, 0)
            keep((at, OWNER, d.index, number, nbytes, old, 0))
        if kind == OWNER:
            held = books.blocks[number]
            if role & IF_BEFORE and held[2]:
                return
            role = held[1]
            owner = self._number(self.recording.owners[held[2]]._replace(module=self.paths[owner]))
            books.name(number, nbytes, role, owner)
            if unknown:
                self._was(d, nbytes, role, owner)
        else:
            role &= 15
            if old == SAVED:
                if d.fullest_is_new:
                    d.note_fullest()
                if role == TEMPORARY and d.peak_is_new:  # with the roles before, as the ledger
                    d.note_peak()
            books.change(number, nbytes, old, role, owner)
        keep((at, kind, d.index, number, nbytes, role, owner))
        if books.live == d.peak.nbytes and not (old == SAVED and role == TEMPORARY):
            d.peak_is_new = True  # as the ledger: the roles at the peak change along

    def _book_eviction(
        self, d: DeviceState, at: int, address: int, nbytes: int, replay: int
    ) -> None:
        # What a byte budget dropped (replay -1), or recomputed in so many nanoseconds.
        block = d.books.blocks.get(d.numbers.get(address, 0))
        owner = 0 if block is None else block[2]
        found = self.recording.evicted.setdefault((d.index, owner), Evicted())
        if replay < 0:
            found.times += 1
            found.nbytes += nbytes
        else:
            found.replays += 1
            found.nanoseconds += replay
        if self.recording.timeline:
            values = (at, d.index, owner, nbytes, replay)
            columns = self.recording.evictions.columns().values()
            for column, value in zip(columns, values, strict=True):
                column.append(value)

    def _was(self, d: DeviceState, nbytes: int, role: int, owner: int) -> None:
        # It had this owner before anyone could know: the marks show no change of it.
        for cell, n in (((0, role), -nbytes), ((owner, role), nbytes)):
            d.at_mark[cell] = d.at_mark.get(cell, 0) + n
        self._since.append((d.index, role, nbytes, owner))

    def _correct_first_mark(self) -> None:
        first = self.recording.marks[0]
        cells = {(device, owner, role): n for device, owner, role, n in first.changes}
        for device, role, nbytes, owner in self._since:
            for cell, n in (((device, 0, role), -nbytes), ((device, owner, role), nbytes)):
                cells[cell] = cells.get(cell, 0) + n
        first.changes = [(*cell, n) for cell, n in sorted(cells.items()) if n]
        self._since.clear()

    def _events(self, kept: list[int]) -> int:
        return len(self.recording.events) + len(kept) // 7

    def _keep(self, kept: list[int]) -> None:
        for k, column in enumerate(self.recording.events.columns().values()):
            column.extend(kept[k::7])
        kept.clear()

    def _book_mark(self, at: int, number: int) -> None:
        mark = self._pending[number]
        mark.time = at / 1e9
        mark.event = len(self.recording.events)
        for d in self.accounts:
            roles = [0] * len(ROLES)
            for (_, role), n in d.books.cells.items():
                roles[role] += n
            mark.roles.append(roles)
            mark.live.append(d.books.live)
            now, before = d.books.cells, d.at_mark
            mark.changes += [
                (d.index, *cell, now.get(cell, 0) - before.get(cell, 0))
                for cell in sorted(now.keys() | before.keys())
                if now.get(cell, 0) != before.get(cell, 0)
            ]
            mark.peak.append(d.high)
            d.high, d.at_mark = d.books.live, dict(now)
        self.recording.marks.append(mark)
        if mark.kind == "stop":
            self.recording.seconds = at / 1e9
