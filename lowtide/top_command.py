"""``lowtide top``: the live bytes of another process that publishes them."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from lowtide.framework.memory.ledger import format_bytes
from lowtide.profiling.publisher import FORMAT, VERSION, folder

USAGE_ERROR = 2
BAR = 30  # characters of the longest bar
ROWS = 12  # modules that are shown


def top(pid: int | None, once: bool) -> int:
    """Show what lives in a process, until it ends; without one, list those that publish.

    Returns:
        0; 2 if there is no such process, or it does not publish.
    """
    try:
        there = folder()
    except OSError as error:
        print(f"lowtide top: {error}", file=sys.stderr)
        return USAGE_ERROR
    if pid is None:
        return _listed(there)
    path = there / f"{pid}.json"
    found = _read(path)
    if found is not None and not _lives(pid):  # it was killed, and could not remove its file
        path.unlink(missing_ok=True)
        found = None
    if found is None:
        ended = "" if _lives(pid) else " There is no such process."
        print(
            f"lowtide top: process {pid} does not publish what lives in it.{ended} Start it with "
            "`LOWTIDE_PUBLISH=1 python SCRIPT` or `lowtide profile --live SCRIPT`, or call "
            "lowtide.profiling.publish() in it.",
            file=sys.stderr,
        )
        return USAGE_ERROR
    console = Console(highlight=False)
    if once or not console.is_terminal:
        console.print(picture(found))
        return 0
    with Live(picture(found), console=console, auto_refresh=False) as live:
        while _lives(pid):
            time.sleep(0.5)
            newer = _read(path)
            if newer is None:
                break
            live.update(picture(newer), refresh=True)
    console.print(f"process {pid} has ended")
    return 0


def picture(found: dict[str, Any]) -> Group:
    """What was published, as tables with bars."""
    age = max(time.time() - found["time"], 0.0)
    late = f"; {age:.0f} s ago" if age > 5 else ""
    parts: list[Any] = [
        Text(
            f"{found['program']} (process {found['pid']}): {found['steps']} steps in "
            f"{found['seconds']:.0f} s{late}"
        )
    ]
    for device in found["devices"]:
        limit = device["limit_bytes"]
        of = "" if limit is None else f" of {format_bytes(limit)}"
        parts.append(
            Text(
                f"\n{device['device']}: {format_bytes(device['live_bytes'])}{of} live, at most "
                f"{format_bytes(device['peak_bytes'])} so far",
                style="bold",
            )
        )
        for head, sums in (("role", device["by_role"]), ("module", device["by_module"])):
            parts.append(_table(head, {name: n for name, n in sums.items() if n}))
    return Group(*parts)


def _table(head: str, sums: dict[str, int]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(head)
    table.add_column("", justify="right")
    table.add_column("")
    rows = sorted(sums.items(), key=lambda item: (-item[1], item[0]))
    largest = rows[0][1] if rows else 1
    for name, nbytes in rows[:ROWS]:
        bar = "█" * max(round(BAR * nbytes / largest), 1)
        table.add_row(Text(name), format_bytes(nbytes), Text(bar))
    return table


def _listed(there: Path) -> int:
    found = [f for f in map(_read, sorted(there.glob("*.json"))) if f and _lives(f["pid"])]
    if not found:
        print("No process publishes what lives in it. LOWTIDE_PUBLISH=1 python SCRIPT makes one.")
    for one in found:
        live = sum(device["live_bytes"] for device in one["devices"])
        print(f"{one['pid']:>8}  {format_bytes(live):>12}  {one['program']}")
    return 0


def _read(path: Path) -> dict[str, Any] | None:
    try:
        found: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    right = isinstance(found, dict) and found.get("format") == FORMAT
    return found if right and found["version"] <= VERSION else None


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True
