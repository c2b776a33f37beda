"""What byte budgets dropped while a recording ran, and recomputed: by owner, and in a sentence."""

from __future__ import annotations

from typing import NamedTuple

from ...framework.memory.ledger import format_bytes
from ..record.recording import Evicted, Owner, Recording
from .summary import percent, seconds
from .tables import place


class EvictedOwner(NamedTuple):
    """What was dropped of one owner's values.

    Attributes:
        owner: Whose; its phase says nothing, since recomputed values are dropped again.
        found: The figures.
    """

    owner: Owner
    found: Evicted


def evicted_owners(recording: Recording, device: int) -> list[EvictedOwner]:
    """Return what was dropped and recomputed, by module, op, line and callers; most bytes first."""
    sums: dict[Owner, Evicted] = {}
    for (d, number), found in recording.evicted.items():
        if d != device:
            continue
        owner = recording.owners[number]._replace(phase="")
        total = sums.setdefault(owner, Evicted())
        total.times += found.times
        total.nbytes += found.nbytes
        total.replays += found.replays
        total.nanoseconds += found.nanoseconds
    rows = [EvictedOwner(owner, found) for owner, found in sums.items()]
    return sorted(rows, key=lambda row: (-row.found.nbytes, row.owner))


def drop_times(recording: Recording, device: int) -> list[int]:
    """Return when byte budgets dropped values of a device, in nanoseconds since the start."""
    rows = recording.evictions.rows()
    return [at for at, d, _, _, replay in rows if d == device and replay < 0]


def evicted_sentence(recording: Recording, device: int) -> str:
    """Say what byte budgets dropped, and what that took; empty if nothing."""
    rows = evicted_owners(recording, device)
    times = sum(row.found.times for row in rows)
    if not times:
        return ""
    replays = sum(row.found.replays for row in rows)
    took = sum(row.found.nanoseconds for row in rows) / 1e9
    one = times == 1
    text = (
        f"A byte budget dropped {'one value' if one else f'{times:,} values'} "
        f"({format_bytes(sum(row.found.nbytes for row in rows))})"
    )
    if not replays:
        return f"{text}; backward asked for none of them."
    share = percent(round(took * 1e9), max(round(recording.seconds * 1e9), 1))
    owner, _ = max(rows, key=lambda row: row.found.nanoseconds)
    return (
        f"{text}; {'one replay' if replays == 1 else f'{replays:,} replays'} brought back what "
        f"backward asked for, in {seconds(took)} ({share} of the recording), most of it for "
        f"{owner.op} of {place(owner)}."
    )


def evicted_text(recording: Recording, device: int, limit: int) -> str:
    """Format a table for the terminal; empty if nothing was dropped."""
    rows = evicted_owners(recording, device)
    if not rows:
        return ""
    table = [("dropped", "times", "replays", "in", "owner")]
    for owner, found in rows[:limit]:
        where = f", {owner.line}" if owner.line else ""
        table.append(
            (
                format_bytes(found.nbytes),
                f"{found.times:,}",
                f"{found.replays:,}",
                seconds(found.nanoseconds / 1e9),
                f"{place(owner)}, {owner.op}{where}",
            )
        )
    widths = [max(len(row[k]) for row in table) for k in range(4)]
    lines = [f"Evicted for a byte budget on {recording.devices[device]}, and recomputed"]
    for row in table:
        cells = [f"{cell:>{width}}" for cell, width in zip(row[:4], widths, strict=True)]
        lines.append(f"  {'  '.join(cells)}  {row[4]}")
    if len(rows) > limit:
        lines.append(f"  and {len(rows) - limit} more owners")
    return "\n".join(lines)


__all__ = ["EvictedOwner", "drop_times", "evicted_owners", "evicted_sentence", "evicted_text"]
