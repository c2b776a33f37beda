"""The machine's memory: how much there is for this process, and how much of it is left.

A process is killed when RAM and swap are full, its own or those of a control group that it is in (a
container, a batch job). What there is, is read once. What is left changes with all that others
take; it is read when a pool grows, once for each quarter of what was left (``Guard.grant``): a
gigabyte of growth costs two reads of some files, near the end one of 16 MiB does.

Pages that a pool handed out and were not written yet are not in memory, and the system still
counts them as available. They are the difference between what the process should hold and what it
does (``Guard._promised``).

Not optimal: pages that a byte budget gave back are not asked about when they are taken again,
within what was granted. The page cache counts as available, though to shrink it may be slow.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any, NamedTuple

from .ledger import format_bytes

UNLIMITED = 1 << 60  # version 1 says "no limit" by the largest number of whole pages
LEAST_STEP = 1 << 24  # bytes of growth that are not asked about, at least
LARGEST_STEP = 1 << 30
MARGIN, LARGEST_MARGIN = 64, 1 << 28  # a share of what there is, for all that is not a tensor


class Level(NamedTuple):
    """One control group whose limits hold for this process.

    Attributes:
        folder: Where its files are.
        version: 1 or 2: how they are called.
        limit: Bytes of RAM that it may hold; None for any number.
        swap: Of swap: in version 1, of both together.
    """

    folder: str
    version: int
    limit: int | None
    swap: int | None


class Machine:
    """Memory that this process may have.

    Args:
        root: Prefix of the paths ``/proc`` and ``/sys``.

    Attributes:
        ram: Bytes of RAM of the machine.
        total: Bytes that this process can have at most, swap included.
        levels: The control groups with a limit, innermost first.
        name: What sets ``total``, in words.
    """

    def __init__(self, root: str = "") -> None:
        self._root = root
        meminfo = self._meminfo()
        self.ram = meminfo.get("MemTotal") or _physical()
        swap = meminfo.get("SwapTotal", 0)
        self.levels = [v for v in self._groups() if v.limit is not None or v.swap is not None]
        self.total = self.ram + swap
        self.name = f"this machine has {format_bytes(self.ram)} of RAM"
        if swap:
            self.name += f" and {format_bytes(swap)} of swap"
        for level in self.levels:
            if level.version == 1:
                both = level.swap
                most = (level.limit or 0) + swap if level.limit is not None else both or 0
                most = most if both is None else min(most, both)
            else:
                more = swap if level.swap is None else min(swap, level.swap)
                most = self.ram + more if level.limit is None else level.limit + more
            if most < self.total:
                self.total = most
                self.name = (
                    f"the control group of this process (a container's or a job's) may have "
                    f"{format_bytes(most)}, of the machine's {format_bytes(self.ram)} of RAM"
                )

    def available(self) -> int | None:
        """Return the bytes left for this process now, swap included; None if unknown."""
        meminfo = self._meminfo()
        if "MemAvailable" not in meminfo:
            return None
        swap = meminfo.get("SwapFree", 0)
        left = meminfo["MemAvailable"] + swap
        for level in self.levels:
            left = min(left, _left(level, swap))
        return max(left, 0)

    def resident(self) -> int:
        """Return the bytes of this process in memory now; 0 if unknown."""
        try:
            return int(_text(f"{self._root}/proc/self/statm").split()[1]) * _PAGE
        except (OSError, ValueError, IndexError):
            return 0

    def _meminfo(self) -> dict[str, int]:
        found = {}
        try:
            for line in _text(f"{self._root}/proc/meminfo").splitlines():
                name, _, value = line.partition(":")
                found[name] = int(value.split()[0]) * 1024
        except (OSError, ValueError, IndexError):  # not Linux
            pass
        return found

    def _groups(self) -> list[Level]:
        try:
            own = _text(f"{self._root}/proc/self/cgroup").splitlines()
            mounts = _text(f"{self._root}/proc/self/mountinfo").splitlines()
        except OSError:
            return []
        found = []
        for line in own:  # number:controllers:path, the controllers of version 2 being empty
            _, controllers, path = line.split(":", 2)
            version = 2 if not controllers else 1 if "memory" in controllers.split(",") else 0
            for mount in mounts if version else ():
                top, point = _mount_of(mount, version)
                if point:
                    found += self._chain(path, top, point, version)
                    break
        return found

    def _chain(self, path: str, top: str, point: str, version: int) -> list[Level]:
        # From the group itself up to what is mounted. Where that is a container's own group, the
        # path, which may be the host's, need not lead below it.
        below = path[len(top.rstrip("/")) :] if f"{path}/".startswith(f"{top.rstrip('/')}/") else ""
        base = self._root + point
        folder = os.path.normpath(base + below)
        if not f"{folder}/".startswith(f"{base}/"):  # "/../x": a group outside of the namespace
            folder = base
        levels = []
        while folder.startswith(base):
            if version == 2:
                limit, swap = _number(folder, "memory.max"), _number(folder, "memory.swap.max")
            else:
                limit = _number(folder, "memory.limit_in_bytes")
                swap = _number(folder, "memory.memsw.limit_in_bytes")
            levels.append(Level(folder, version, limit, swap))
            if folder == base:
                break
            folder = os.path.dirname(folder)
        return levels


def _left(level: Level, swap_free: int) -> int:
    # What a group may still take. Pages of files that it holds go before anything is killed.
    folder = level.folder
    try:
        stat = {k: int(v) for k, v in map(str.split, _text(f"{folder}/memory.stat").splitlines())}
    except (OSError, ValueError):
        stat = {}
    prefix = "" if level.version == 2 else "total_"
    files = sum(stat.get(f"{prefix}{kind}_file", 0) for kind in ("active", "inactive"))
    if level.version == 2:
        current = _number(folder, "memory.current")
        ram = _rest(level.limit, current)
        if ram is None:
            return UNLIMITED
        swap = _rest(level.swap, _number(folder, "memory.swap.current"))
        idle = _unmapped(current, stat, "anon", "file", "kernel", "sock")
        return ram + files + idle + min(swap_free, UNLIMITED if swap is None else swap)
    current = _number(folder, "memory.usage_in_bytes")
    stat["kmem"] = _number(folder, "memory.kmem.usage_in_bytes") or 0
    idle = _unmapped(current, stat, "total_rss", "total_cache", "kmem")
    ram = _rest(level.limit, current)
    both = _rest(level.swap, _number(folder, "memory.memsw.usage_in_bytes"))
    left = UNLIMITED if ram is None else ram + files + idle + swap_free
    return left if both is None else min(left, both + files + idle)


def _unmapped(current: int | None, stat: dict[str, int], *kinds: str) -> int:
    # What a group is charged for and no process maps: the parts of huge pages that were given back.
    # The kernel frees them when the group needs room. Pages in transit are a few hundred KiB.
    if current is None or any(kind not in stat for kind in kinds):
        return 0
    return max(current - sum(stat[kind] for kind in kinds), 0)


def _rest(limit: int | None, used: int | None) -> int | None:
    return None if limit is None else max(limit - (used or 0), 0)


def _mount_of(line: str, version: int) -> tuple[str, str]:
    # (what of the hierarchy is mounted, where), of a line of mountinfo; empty if it is another.
    fields, _, rest = line.partition(" - ")
    kind, _, options = rest.partition(" ")
    parts = fields.split()
    if len(parts) < 5 or kind != ("cgroup2" if version == 2 else "cgroup"):
        return "", ""
    if version == 1 and "memory" not in options.split()[-1].split(","):
        return "", ""
    return parts[3], parts[4]


def _number(folder: str, name: str) -> int | None:
    try:
        found = int(_text(f"{folder}/{name}"))
    except (OSError, ValueError):  # not there; "max"
        return None
    return found if found < UNLIMITED else None


def _text(path: str) -> str:
    with open(path, encoding="ascii", errors="replace") as file:
        return file.read()


def _physical() -> int:
    return os.sysconf("SC_PHYS_PAGES") * _PAGE


_PAGE = os.sysconf("SC_PAGE_SIZE")


@functools.cache
def machine() -> Machine:
    """Return this machine, read once."""
    return Machine()


class NoRoomError(MemoryError):
    """The machine has no room for a pool to grow; says how much it has."""


class Guard:
    """What lets a pool of host memory grow: only into memory that the machine has.

    Args:
        machine: How much there is.
        used: Returns the bytes of the pool's blocks in use.
        release: Returns the pool's free pages to the system; it is called before a refusal.
    """

    def __init__(
        self, machine: Machine, used: Callable[[], int], release: Callable[[], Any]
    ) -> None:
        self.machine = machine
        self._used, self._release = used, release
        self._base = machine.resident() - used()  # what the process holds besides
        self.margin = min(machine.total // MARGIN, LARGEST_MARGIN)

    def grant(self, more: int) -> int:
        """Return how many bytes the pool may grow by until it asks again, at least ``more``.

        Raises:
            NoRoomError: The machine has not got them.
        """
        left = self._left()
        if left < more:
            self._release()
            left = self._left()
        if left < more:
            raise NoRoomError(f"{self.machine.name}, {format_bytes(max(left, 0))} of it available")
        rest = left - more
        return more + max(min(rest // 4, LARGEST_STEP), min(rest, LEAST_STEP))

    def _left(self) -> int:
        most = self.machine.total - self._used()
        available = self.machine.available()
        if available is not None:
            most = min(most, available - self._promised())
        return most - self.margin

    def _promised(self) -> int:
        # Blocks in use that were not written yet.
        return max(self._used() + self._base - self.machine.resident(), 0)
