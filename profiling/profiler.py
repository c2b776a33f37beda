"""MemoryProfiler: listens to the ledgers and writes a recording.

On the hot path an event costs a look at where the program is and six integers at the end of a
list. Everything else is done later: at a question, at the end, or when the list has grown long,
:meth:`MemoryProfiler.settle` books the events (``recording.Books``), notes peaks and marks, and
keeps the events themselves only if the timeline was asked for.

An observer sees the bookings of all threads, or the sums would not be the ledger's; so a profiler
in one thread sees what the others allocate meanwhile, each under its own path and line.

What it keeps of the program are names, numbers, and weak references to modules.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Iterable
from typing import Any

from ..framework import scopes
from ..framework.devices import backend, device, live_backends, on_new_backend
from ..framework.memory.events import attach, detach
from ..framework.memory.ledger import SAVED, TEMPORARY
from ..framework.tensor import Tensor
from . import probes
from .questions import Questions
from .recording import ALLOC, FREE, OWNER, ROLE, Books, Mark, Owner, Peak, Recording

MARK = 4  # in the list of events, beside the kinds of the recording
IF_BEFORE = 1 << 8  # a name only for what has none yet
LONG = 6 * 100_000  # integers in the list; then they are booked


class _Device:
    """What the profiler knows of one device while it records."""

    def __init__(self, index: int, be: Any) -> None:
        self.index = index
        self.ledger = be.ledger
        self.backend = be
        self.books = Books()
        self.high = 0  # live bytes at their highest since the last mark
        self.named: dict[int, str] = {}  # address -> path of storages that have a name
        self.numbers: dict[int, int] = {}  # address -> number of the block
        self.at_mark: dict[tuple[int, int], int] = {}
        self.peak_is_new = self.fullest_is_new = False


class MemoryProfiler(Questions):
    """Records who owns every byte, at every instant, of the code in its ``with`` block.

    Args:
        devices: Names of the devices to watch; all, if None, those first used inside included.
        modules: How to name modules: a model, whose paths then have no prefix; or a dict of prefix
            and module. Without it the outermost module called gives the paths.
        lines: Note the user's source lines.
        timeline: Keep every event, for ``timeline()``, pictures and exports. Without it, memory
            does not grow with the length of the run (the marks' differences apart).
        sample_ms: Also look at process and devices every so many milliseconds, in a thread.

    Attributes:
        recording: What was noted so far; see ``recording.py``.

    Raises:
        RuntimeError: Entered a second time.

    Example:
        >>> import lowtide as lt
        >>> x = lt.ones(1000, requires_grad=True)
        >>> with lt.profiling.MemoryProfiler() as prof:
        ...     loss = (x * x).sum()
        ...     del loss
        >>> prof.at_peak("role", phase="forward").as_dict()
        {'temporary': 4004}
    """

    def __init__(
        self,
        devices: Any = None,
        *,
        modules: Any = None,
        lines: bool = True,
        timeline: bool = True,
        sample_ms: float | None = None,
    ) -> None:
        super().__init__(Recording())
        names = [devices] if isinstance(devices, str | device) else devices
        self._wanted = None if names is None else [device(d) for d in names]
        if modules is not None and not isinstance(modules, dict):
            modules = {"": modules}
        self._given = [(weakref.ref(m), prefix) for prefix, m in (modules or {}).items()]
        self._lines, self._timeline = bool(lines), bool(timeline)
        self._sample_ms = sample_ms
        self._lock = threading.RLock()
        self._log: list[int] = []
        self._devices: list[_Device] = []
        self._by_ledger: dict[int, _Device] = {}
        self._observers: list[tuple[Any, Any]] = []
        self._owners: dict[scopes.Site, int] = {Owner(*o): k for k, o in self._enumerated()}
        self._paths: list[str] = []
        self._modules: list[tuple[Any, str]] = []  # weak references of outermost modules
        self._pending: list[Mark] = []
        self._steps = self._blocks = 0
        self._began = 0
        self._state = "new"
        self._end_sampling: threading.Event | None = None

    def _enumerated(self) -> Iterable[tuple[int, Owner]]:
        return enumerate(self.recording.owners)

    # Beginning and end

    def __enter__(self) -> MemoryProfiler:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def start(self) -> None:
        """Begin to record; ``with`` does it."""
        if self._state != "new":
            raise RuntimeError(
                "MemoryProfiler: a profiler records once. Make another one for another stretch, "
                "and compare them with .diff()."
            )
        self._state = "recording"
        self.recording.start = time.time()
        self._began = time.perf_counter_ns()
        for d in self._wanted or ():
            backend(d)
        with self._lock:
            for be in live_backends():
                self._watch(be)
            on_new_backend.append(self._watch)
            self._mark("start", "start")
        scopes.listen(self._lines, self._seen, self._stepped)
        for reference, prefix in self._given:
            module = reference()
            if module is not None:
                scopes.name_module(module, prefix)
                self._seen(module, prefix)
        if self._sample_ms is not None:
            self._sample(self._sample_ms / 1e3)

    def stop(self) -> None:
        """End the recording; a second call does nothing."""
        if self._state != "recording":
            return
        self._state = "stopped"
        if self._end_sampling is not None:
            self._end_sampling.set()
        scopes.unlisten(self._lines, self._seen, self._stepped)
        on_new_backend.remove(self._watch)
        self._name_modules()
        for ledger, observer in self._observers:
            detach(ledger, observer)
        self._mark("stop", "stop")
        self.settle()
        self._devices_are_done()

    def _devices_are_done(self) -> None:
        self._by_ledger.clear()
        self._modules.clear()
        self._observers.clear()
        for d in self._devices:
            d.backend = None
            d.named.clear()

    def _watch(self, be: Any) -> None:
        # Listen to one more device.
        if self._wanted is not None and be.device not in self._wanted:
            return
        with self._lock:
            d = _Device(len(self._devices), be)
            observer = self._observer(d)
            self._devices.append(d)
            self._by_ledger[id(be.ledger)] = d
            self._observers.append((be.ledger, observer))
            self.recording.devices.append(be.ledger.name)
            self.recording.peaks.append(Peak())
            self.recording.fullest.append(Peak())
            d.books = Books(attach(be.ledger, observer))
            d.high = d.books.live
            for peak, value in zip(self._peaks(d), (d.books.live, d.books.saved), strict=True):
                peak.nbytes = value
            d.peak_is_new = d.fullest_is_new = True

    def _peaks(self, d: _Device) -> tuple[Peak, Peak]:
        return self.recording.peaks[d.index], self.recording.fullest[d.index]

    # What is noted

    def _observer(self, d: _Device) -> Any:
        extend, now, began, log = self._log.extend, time.perf_counter_ns, self._began, self._log
        owners, named, shift = self._owners, d.named, d.index << 3

        def observer(
            event: str, device: str, nbytes: int, role: int, address: int, old: int
        ) -> None:
            if not nbytes:
                return
            if event == "free":
                if address in named:
                    named.pop(address, None)
                at = now() - began
                extend((at, FREE | shift, address, nbytes, role, -1))
            elif event == "alloc" or role == SAVED:
                where = scopes.site()
                owner = owners.get(where)
                if owner is None:
                    owner = self._add_owner(where)
                at = now() - began
                if event == "alloc":
                    extend((at, ALLOC | shift, address, nbytes, role, owner))
                else:
                    extend((at, ROLE | shift, address, nbytes, role | old << 4, owner))
                if len(log) > LONG:
                    self.settle()
            else:
                at = now() - began
                extend((at, ROLE | shift, address, nbytes, role | old << 4, -1))

        return observer

    def _add_owner(self, where: tuple[str, str, str, str]) -> int:
        with self._lock:
            owner = self._owners.get(where)
            if owner is None:
                owner = self._owners[where] = len(self.recording.owners)
                self.recording.owners.append(Owner(*where))
            return owner

    def mark(self, name: str) -> None:
        """Note an instant under a name: ``prof.mark("epoch 1")``; ``growth`` compares them."""
        if self._state == "recording":
            self._name_modules()
            self._mark(name, "mark")

    def _mark(self, name: str, kind: str) -> None:
        at = time.perf_counter_ns() - self._began
        mark = Mark(name, kind, at / 1e9)
        mark.probes = probes.look(d.backend for d in self._devices)
        with self._lock:
            number = len(self._pending)
            self._pending.append(mark)
            mark.roles = [d.ledger.roles[:] for d in self._devices]
            mark.live = [sum(r) for r in mark.roles]
            self._log.extend((at, MARK, number, 0, 0, 0))

    def _stepped(self, optimizer: Any) -> None:
        # An optimizer made a step: its state belongs to where its parameters belong.
        self._steps += 1
        self._name_modules()
        for group in optimizer.param_groups:
            for p in group["params"]:
                path = self._path_of(p)
                if path is not None and p in optimizer.state:
                    self._name_all(optimizer.state[p], path)
        self._mark(f"step {self._steps}", "step")

    def _seen(self, module: Any, prefix: str) -> None:
        # An outermost module: what it holds gets its path.
        self._modules.append((weakref.ref(module), prefix))
        self._name_modules(self._modules[-1:])

    def _name_modules(self, which: Any = None) -> None:
        for reference, prefix in self._modules if which is None else which:
            root = reference()
            for name, module in () if root is None else root.named_modules():
                path = f"{prefix}.{name}" if prefix and name else prefix or name
                path = path or type(root).__name__
                for _, p in module.named_parameters(recurse=False):
                    self._name(p, path)
                    if p._grad is not None:
                        self._name(p._grad, path, IF_BEFORE)
                for _, b in module.named_buffers(recurse=False):
                    self._name(b, path)

    def _name_all(self, value: Any, path: str) -> None:
        if isinstance(value, Tensor):
            self._name(value, path)
        elif isinstance(value, dict):
            for v in value.values():
                self._name_all(v, path)
        elif isinstance(value, list | tuple):
            for v in value:
                self._name_all(v, path)

    def _name(self, tensor: Any, path: str, flag: int = 0) -> None:
        storage = tensor._storage
        d = self._by_ledger.get(id(storage.ledger))
        if d is None or not storage.nbytes:
            return
        address = storage.address
        if address in d.named:
            return
        d.named[address] = path
        with self._lock:
            self._paths.append(path)
            number = len(self._paths) - 1
        role = storage.role | storage.role << 4 | flag
        at = time.perf_counter_ns() - self._began
        self._log.extend((at, OWNER | d.index << 3, address, storage.nbytes, role, number))

    def _path_of(self, tensor: Any) -> str | None:
        d = self._by_ledger.get(id(tensor._storage.ledger))
        return None if d is None else d.named.get(tensor._storage.address)

    def _sample(self, seconds: float) -> None:
        end = self._end_sampling = threading.Event()
        profiler = weakref.ref(self)

        def run() -> None:
            while not end.wait(seconds):
                prof = profiler()
                if prof is None or prof._state != "recording":
                    return
                prof._mark(f"sample {prof.seconds:.3f}", "sample")
                del prof

        threading.Thread(target=run, name="lowtide-sampler", daemon=True).start()

    @property
    def seconds(self) -> float:
        """How long it has recorded, in seconds."""
        if self._state == "recording":
            return (time.perf_counter_ns() - self._began) / 1e9
        return self.recording.seconds

    # Booking

    def settle(self) -> None:
        """Book what was noted since the last time; every question does it."""
        with self._lock:
            log = self._log
            count = len(log)
            if not count:
                return
            values = iter(log[:count])
            del log[:count]
            for event in zip(values, values, values, values, values, values, strict=True):
                self._book(*event)
            if self._state == "recording":
                self.recording.seconds = self.seconds
            for d in self._devices:
                self._note_peak(d)
                self._note_fullest(d)

    def _book(self, at: int, code: int, address: int, nbytes: int, role: int, owner: int) -> None:
        kind = code & 7
        if kind == MARK:
            self._book_mark(at, address)
            return
        d = self._devices[code >> 3]
        books = d.books
        peak, fullest = self._peaks(d)
        saved = books.saved
        if kind == ALLOC:
            self._blocks += 1
            number = d.numbers[address] = self._blocks
            books.alloc(number, nbytes, role, owner)
            live = books.live
            if live > d.high:
                d.high = live
                if live > peak.nbytes:
                    peak.nbytes, d.peak_is_new = live, True
                    peak.time, peak.event = at / 1e9, len(self.recording.events) + 1
        elif kind == FREE:
            if d.peak_is_new:
                self._note_peak(d)
            number = d.numbers.pop(address, 0)
            if d.fullest_is_new and role == SAVED:
                self._note_fullest(d)
            books.free(number, nbytes, role)
        else:
            old = role >> 4 & 15
            number = d.numbers.get(address, 0)
            if not number:  # it lived before: from now on it has a number
                number = d.numbers[address] = self._blocks = self._blocks + 1
                books.name(number, nbytes, old, 0)
                self._keep(at, OWNER, d, number, nbytes, old, 0)
            if kind == OWNER:
                held = books.blocks[number]
                if role & IF_BEFORE and held[2]:
                    return
                role = held[1]
                was = self.recording.owners[held[2]]
                owner = self._add_owner((self._paths[owner], *was[1:]))
                books.name(number, nbytes, role, owner)
            else:
                role &= 15
                if d.fullest_is_new and old == SAVED:
                    self._note_fullest(d)
                books.change(number, nbytes, old, role, owner)
            if books.live == peak.nbytes and not (old == SAVED and role == TEMPORARY):
                d.peak_is_new = True  # as the ledger: the roles at the peak change along
        if books.saved > saved and books.saved > fullest.nbytes:
            fullest.nbytes, d.fullest_is_new = books.saved, True
            fullest.time, fullest.event = at / 1e9, len(self.recording.events) + 1
        self._keep(at, kind, d, number, nbytes, role, owner)

    def _keep(
        self, at: int, kind: int, d: _Device, number: int, nbytes: int, role: int, owner: int
    ) -> None:
        if self._timeline:
            self.recording.events.append(at, kind, d.index, number, nbytes, role, owner)

    def _note_peak(self, d: _Device) -> None:
        if d.peak_is_new and d.books.live == self.recording.peaks[d.index].nbytes:
            self.recording.peaks[d.index].cells = dict(d.books.cells)
        d.peak_is_new = False

    def _note_fullest(self, d: _Device) -> None:
        if d.fullest_is_new and d.books.saved == self.recording.fullest[d.index].nbytes:
            fullest = self.recording.fullest[d.index]
            fullest.cells, fullest.holders = dict(d.books.savers), d.books.holders()
        d.fullest_is_new = False

    def _book_mark(self, at: int, number: int) -> None:
        mark = self._pending[number]
        mark.event = len(self.recording.events)
        for d in self._devices[: len(mark.roles)]:
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
