"""How many cores this process may use at once.

A core with two hardware threads counts once: the second does not make arithmetic faster. A
container that may use the time of two processors sees all of the machine's; more running threads
than its share would be stopped for the rest of each period.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator
from pathlib import Path

MOST = 32  # threads of a process that did not ask for more
_SYSTEM = Path("/sys")
_GROUPS = Path("/proc/self/cgroup")


def usable() -> int:
    """Return the number of cores: allowed by the affinity mask, and by the limits of containers."""
    shared = _time_limit()
    found = len({_core_of(cpu) for cpu in allowed()})
    return max(1, min(found, math.ceil(shared)) if shared is not None else found)


def allowed() -> list[int]:
    """Return the numbers of the hardware threads on which this process may run."""
    if hasattr(os, "sched_getaffinity"):
        return list(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def side_by_side() -> list[int]:
    """Return the same numbers, those of one core after each other."""
    return sorted(allowed(), key=lambda cpu: (_core_of(cpu), cpu))


def _core_of(cpu: int) -> int:
    # The first hardware thread of its core; itself where the system does not say.
    siblings = _text(_SYSTEM / f"devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
    first = re.match(r"\d+", siblings)  # "3,7", "6-7"
    return int(first[0]) if first else cpu


def _time_limit() -> float | None:
    # Processors whose time the process and those in its groups may use together.
    limits = [limit for limit in _limits() if limit > 0]
    return min(limits, default=None)


def _limits() -> Iterator[float]:
    root = _SYSTEM / "fs/cgroup"
    for line in _text(_GROUPS).splitlines():
        number, _, rest = line.partition(":")
        kinds, _, path = rest.partition(":")
        # Inside of a container the path may be that of the machine, and the files at the root.
        group = Path(path.strip("/"))
        within = [group, *group.parents]
        if number == "0" and not kinds:
            yield from (_quota(_text(root / at / "cpu.max")) for at in within)
        elif "cpu" in kinds.split(","):
            for at in within:
                for of in (root / "cpu" / at, root / kinds / at):
                    times = (_text(of / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
                    yield _quota(" ".join(times))


def _quota(text: str) -> float:
    # Processors, of the time and the period that it is given for; 0: there is no limit.
    try:
        time, period = (int(word) for word in text.split())
        return max(0.0, time / period)
    except (ValueError, ZeroDivisionError):
        return 0.0


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
