"""The recording of a memory profiler, as plain numbers and strings.

This is the one data structure of the profiler: tables, pictures, pages, exports and comparisons
read it and nothing else. It holds no tensor, array, frame or module, and can be written as JSON
and read back (``docs/profiler_json.md`` is this schema with examples).

Schema (``Recording``)
    ``devices``: names; every ``device`` below is an index into them.
    ``owners``: :class:`Owner` (module, op, phase, line, callers); every ``owner`` is an index into
        them.
        Owner 0 is whatever lived before the profiler listened and was not named since.
    ``start``: when the recording began, as seconds since the epoch.
    ``seconds``: how long it lasted.
    ``peaks``: one :class:`Peak` a device: the highest live bytes, when, and who owned them.
    ``fullest``: one :class:`Peak` a device for the bytes of role *saved* alone; its owners are the
        ops that save the values (``holders``: ops that computed them).
    ``marks``: :class:`Mark`, in order of time: ``start``, one a step of an optimizer, the user's,
        the sampler's, ``stop``. What each owner held at a mark is the sum of the ``changes`` up
        to it. What lived before and got a name later has it here from the start, so that no mark
        shows a change where there was none; in the events it gets it when it got it.
    ``timeline``: whether events were kept.
    ``events``: :class:`Events`, columns of equal length; empty without a timeline. Replaying them
        (:class:`LiveBytes`) gives the owners at every instant.
    ``evicted``: what byte budgets dropped and recomputed, by device and owner: :class:`Evicted`.
    ``evictions``: each of these events, as columns (:class:`Evictions`); empty without a timeline.
    ``compilations``: :class:`Compilation`, in order: what the time axis leaves out, since every
        time above stands still while kernels are compiled.
    ``classes``: module path -> name of its class.
    ``findings``: graphs that outlived their step (``leaks/findings.py``), most growth first.
    ``watched``: how many steps were watched for those; None if leaks were not watched.
    ``place``: which rank of which job it is (:class:`JobRank`); None for a process alone.

A *cell* is (owner, role number); the cells of a device sum exactly to the ledger's live bytes,
and those of one role to the ledger's figure for it. Roles are numbered as in
``framework.memory.ledger.ROLES``. Bytes are logical: before the pool rounds them.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ...framework.distributed.waiting import JobRank
from ...framework.memory.ledger import ROLES as ROLES
from ...framework.memory.ledger import SAVED
from ..leaks.findings import Finding

ALLOC, FREE, ROLE, OWNER = range(4)
KINDS = ("alloc", "free", "role", "owner")
PHASES = ("forward", "backward", "recompute", "optimizer", "evaluation", "other")
BEFORE = "before the profiler"

Cells = dict[tuple[int, int], int]  # (owner, role number) -> bytes


class Owner(NamedTuple):
    """The place in the program that allocated bytes.

    Attributes:
        module: Path of the module call or scope, such as ``blocks.3.attention.qkv``; empty outside
            of any.
        op: The op (``matmul``), the node whose backward it was (``MatmulBackward0``), or the
            function that made the tensor (``zeros``); ``before`` if it was there at the start.
        phase: One of ``PHASES``.
        line: ``file:line`` of the user's program; empty if lines were not asked for.
        callers: The lines that called that line's function, innermost first.
    """

    module: str
    op: str
    phase: str
    line: str
    callers: tuple[str, ...] = ()


@dataclass
class Events:
    """All events of the recording, as columns.

    Attributes:
        time: Nanoseconds since the start.
        kind: ``ALLOC``, ``FREE``, ``ROLE`` (the role changed) or ``OWNER`` (it got a name).
        device: Index into ``devices``.
        block: Number of the storage, counted from 1 in the order of birth; it is never reused. 0
            for a storage that lived before and that nothing named.
        nbytes: Its bytes.
        role: Its role from now on; for ``FREE``, its last.
        owner: Its owner from now on; for ``ROLE`` towards *saved*, the op that saves it, else -1.
    """

    time: array[int] = field(default_factory=lambda: array("q"))
    kind: array[int] = field(default_factory=lambda: array("b"))
    device: array[int] = field(default_factory=lambda: array("b"))
    block: array[int] = field(default_factory=lambda: array("q"))
    nbytes: array[int] = field(default_factory=lambda: array("q"))
    role: array[int] = field(default_factory=lambda: array("b"))
    owner: array[int] = field(default_factory=lambda: array("i"))

    def __len__(self) -> int:
        return len(self.time)

    def columns(self) -> dict[str, array[int]]:
        """Return the columns by name."""
        return dict(vars(self))

    def rows(self) -> Iterator[tuple[int, ...]]:
        """Iterate over events as tuples, in the order of the columns."""
        return zip(*self.columns().values(), strict=True)


@dataclass
class Evicted:
    """What byte budgets dropped of one owner's values, and recomputed.

    Attributes:
        times: How often a value was dropped.
        nbytes: Bytes dropped, all together.
        replays: How often one was asked for by backward and recomputed.
        nanoseconds: The time that took, with all else that had to be made for it.
    """

    times: int = 0
    nbytes: int = 0
    replays: int = 0
    nanoseconds: int = 0


@dataclass
class Evictions:
    """When byte budgets dropped values and made them again, as columns.

    Attributes:
        time: Nanoseconds since the start; of a replay, when it was done.
        device: Index into ``devices``.
        owner: Who had computed the value; of a replay, who has computed it again.
        nbytes: Its bytes.
        replay: Nanoseconds that it took to recompute it; -1 if it was dropped.
    """

    time: array[int] = field(default_factory=lambda: array("q"))
    device: array[int] = field(default_factory=lambda: array("b"))
    owner: array[int] = field(default_factory=lambda: array("i"))
    nbytes: array[int] = field(default_factory=lambda: array("q"))
    replay: array[int] = field(default_factory=lambda: array("q"))

    def __len__(self) -> int:
        return len(self.time)

    def columns(self) -> dict[str, array[int]]:
        """Return the columns by name."""
        return dict(vars(self))

    def rows(self) -> Iterator[tuple[int, ...]]:
        """Iterate over them as tuples, in the order of the columns."""
        return zip(*self.columns().values(), strict=True)


@dataclass
class Peak:
    """A peak of live bytes, and the bytes by owner at it.

    Attributes:
        nbytes: Live bytes at that moment; the sum of ``cells``.
        time: Seconds since the start of the recording.
        event: How many events came before and with it.
        cells: (owner, role number) -> bytes.
        holders: For ``Recording.fullest``: the same bytes by the ops that computed the values.
    """

    nbytes: int = 0
    time: float = 0.0
    event: int = 0
    cells: Cells = field(default_factory=dict)
    holders: Cells = field(default_factory=dict)


@dataclass
class Mark:
    """A named point in time.

    Attributes:
        name: Such as ``epoch 1`` or ``step 17``.
        kind: ``start``, ``mark``, ``step``, ``sample`` or ``stop``.
        time: Seconds since the start.
        event: How many events came before.
        live: Live bytes of each device.
        roles: The ledger's figures by role, of each device.
        peak: Highest live bytes of each device since the mark before.
        changes: (device, owner, role number, bytes more or less) since the mark before.
        probes: What the process and the devices held, see ``system_memory.py``.
        late: Seconds that this process has waited until then, by the rank it waited for.
        exchanging: Seconds until then in which it waited for messages under way.
    """

    name: str
    kind: str
    time: float
    event: int = 0
    live: list[int] = field(default_factory=list)
    roles: list[list[int]] = field(default_factory=list)
    peak: list[int] = field(default_factory=list)
    changes: list[tuple[int, int, int, int]] = field(default_factory=list)
    probes: dict[str, Any] = field(default_factory=dict)
    late: dict[int, float] = field(default_factory=dict)
    exchanging: float = 0.0


class Compilation(NamedTuple):
    """A stretch in which kernels were made ready, and the clock of the recording stood still.

    Attributes:
        name: What it was: ``import of Numba``, ``compiling NAME`` or ``cached kernels``.
        time: Where it is on the time axis, in seconds since the start.
        seconds: How long it took.
    """

    name: str
    time: float
    seconds: float


@dataclass
class Recording:
    """A memory recording; the schema is in the docstring of this module."""

    devices: list[str] = field(default_factory=list)
    owners: list[Owner] = field(default_factory=lambda: [Owner("", "before", "other", BEFORE)])
    start: float = 0.0
    seconds: float = 0.0
    peaks: list[Peak] = field(default_factory=list)
    fullest: list[Peak] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    timeline: bool = True
    events: Events = field(default_factory=Events)
    lines: dict[str, str] = field(default_factory=dict)
    evicted: dict[tuple[int, int], Evicted] = field(default_factory=dict)
    evictions: Evictions = field(default_factory=Evictions)
    compilations: list[Compilation] = field(default_factory=list)
    classes: dict[str, str] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    watched: int | None = None
    place: JobRank | None = None

    def cells_at(self, mark: int, device: int) -> Cells:
        """Return bytes by (owner, role) of a device at a mark (a position in ``marks``)."""
        cells: Cells = {}
        for m in self.marks[: mark + 1]:
            for d, owner, role, change in m.changes:
                if d == device:
                    _add(cells, (owner, role), change)
        return cells


def busiest(recording: Recording) -> int:
    """Return the index of the active device with the highest peak.

    A model on meta that merely lives beside a program on the CPU is not what that program is about.
    """
    used = [
        peak.time > 0 or any(d == k for m in recording.marks[1:] for d, *_ in m.changes)
        for k, peak in enumerate(recording.peaks)
    ]
    order = [(used[k], peak.nbytes) for k, peak in enumerate(recording.peaks)]
    return order.index(max(order)) if order else 0


def _add(cells: Cells, key: tuple[int, int], nbytes: int) -> None:
    total = cells.get(key, 0) + nbytes
    if total:
        cells[key] = total
    else:
        cells.pop(key, None)


class LiveBytes:
    """Live bytes of one device by owner and role, updated event by event.

    Used twice: while recording, to know the peak and the marks; and later, to replay a timeline.

    Attributes:
        cells: (owner, role number) -> bytes; no zeros.
        live: Their sum.
        savers: (saving owner, SAVED) -> bytes of the values the graph holds.
        saved: Their sum.
    """

    def __init__(self, roles: list[int] | None = None) -> None:
        self.cells: Cells = {(0, r): n for r, n in enumerate(roles or ()) if n}
        self.live = sum(self.cells.values())
        self.savers: Cells = {}
        self.saved = 0
        if (0, SAVED) in self.cells:
            self.saved = self.savers[0, SAVED] = self.cells[0, SAVED]
        # key -> [nbytes, role, owner, saver]; the key is an address or a block number.
        self.blocks: dict[int, list[int]] = {}

    def alloc(self, key: int, nbytes: int, role: int, owner: int) -> None:
        """Add an allocated storage."""
        self.blocks[key] = [nbytes, role, owner, 0]
        self.live += nbytes
        cell = (owner, role)
        self.cells[cell] = self.cells.get(cell, 0) + nbytes
        if role == SAVED:
            self._saves(0, nbytes)

    def free(self, key: int, nbytes: int, role: int) -> None:
        """Remove a freed storage; an unknown one was allocated before the recording."""
        block = self.blocks.pop(key, None)
        owner = saver = 0
        if block is not None:
            nbytes, role, owner, saver = block
        self.live -= nbytes
        _add(self.cells, (owner, role), -nbytes)
        if role == SAVED:
            self._saves(saver, -nbytes)

    def change(self, key: int, nbytes: int, old: int, role: int, saver: int) -> None:
        """Change the role of a storage."""
        block = self.blocks.get(key)
        if block is None:
            block = self.blocks[key] = [nbytes, old, 0, 0]
        nbytes, old = block[0], block[1]
        _add(self.cells, (block[2], old), -nbytes)
        cell = (block[2], role)
        self.cells[cell] = self.cells.get(cell, 0) + nbytes
        if old == SAVED:
            self._saves(block[3], -nbytes)
        if role == SAVED:
            block[3] = max(saver, 0)
            self._saves(block[3], nbytes)
        block[1] = role

    def name(self, key: int, nbytes: int, role: int, owner: int) -> None:
        """Change the owner of a storage; an unknown one was allocated before the recording."""
        block = self.blocks.get(key)
        if block is None:
            block = self.blocks[key] = [nbytes, role, 0, 0]
        _add(self.cells, (block[2], block[1]), -block[0])
        _add(self.cells, (owner, block[1]), block[0])
        block[2] = owner

    def holders(self) -> Cells:
        """Return bytes of saved tensors by the owners that computed them."""
        return {cell: n for cell, n in self.cells.items() if cell[1] == SAVED}

    def _saves(self, saver: int, nbytes: int) -> None:
        self.saved += nbytes
        _add(self.savers, (saver, SAVED), nbytes)


def replay(recording: Recording, device: int) -> Iterator[tuple[int, LiveBytes]]:
    """Iterate over the events of a device: (event index, live bytes after it, one mutable object).

    Events of other devices are passed over.
    """
    first = recording.marks[0]
    books = LiveBytes(first.roles[device] if device < len(first.roles) else [])
    for index, (_, kind, d, block, nbytes, role, owner) in enumerate(recording.events.rows()):
        if d == device:
            apply(books, kind, block, nbytes, role, owner)
            yield index, books


def apply(books: LiveBytes, kind: int, block: int, nbytes: int, role: int, owner: int) -> None:
    """Update live bytes by one event of a finished recording."""
    if kind == ALLOC:
        books.alloc(block, nbytes, role, owner)
    elif kind == FREE:
        books.free(block, nbytes, role)
    elif kind == ROLE:
        books.change(block, nbytes, role, role, owner)
    else:
        books.name(block, nbytes, role, owner)
