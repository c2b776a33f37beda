"""Remedies: what would free the bytes that an allocation asks for in vain.

When an allocation fails, the books know what the graph holds, by module. That is what activation
checkpointing would not hold, less the part that comes back at a time; what ``no_grad`` would not
hold; and what a smaller batch holds less of. The figures are of that instant. What the whole step
would take with a change, :func:`~lowtide.profiling.advise` tells.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..framework.memory.ledger import INPUT, SAVED, TEMPORARY, format_bytes
from .recording import Recording

MOST = 3  # groups of modules that are named


def remedies(
    recording: Recording, cells: Mapping[tuple[int, int], int], missing: int
) -> tuple[dict[str, int], list[str]]:
    """What would free bytes at this instant.

    Args:
        recording: Whose owners ``cells`` mean.
        cells: Live bytes by owner and role.
        missing: Bytes that are too much.

    Returns:
        Bytes by change, and the same in lines of text; changes that free nothing are left out.
    """
    saved: dict[str, int] = {}
    grows = 0  # with the batch
    for (owner, role), n in cells.items():
        module, op = recording.owners[owner][:2]
        if role == SAVED and op != "before":  # that would live anyway
            saved[module] = saved.get(module, 0) + n
        if role in (SAVED, TEMPORARY, INPUT):
            grows += n
    found: dict[str, int] = {}
    for group, parts in _groups(saved).items():
        freed = sum(parts.values()) - max(parts.values())
        if len(parts) > 1 and freed:
            found[f"activation checkpointing of each of {group}"] = freed
    best = sorted(found.items(), key=lambda change: -change[1])[:MOST]
    found = dict(best)
    if saved:
        found["no_grad, where no gradient is wanted"] = sum(saved.values())
    lines = [
        f"{change} frees {format_bytes(n)}" + ("" if n >= missing else ", not enough alone")
        for change, n in found.items()
    ]
    if grows > missing > 0:
        lines.append(f"a batch of at most {(grows - missing) / grows:.0%} of this one fits so far")
    return found, lines


def _groups(saved: Mapping[str, int]) -> dict[str, dict[str, int]]:
    # Lists of modules, ``blocks.3.mlp`` being of item 3 of ``blocks``, and their items' bytes; and
    # the parts of the whole model.
    groups: dict[str, dict[str, int]] = {}
    for module, n in saved.items():
        first, _, rest = module.partition(".")
        item = rest.partition(".")[0]
        if item.isdigit() and not first.isdigit():
            parts = groups.setdefault(first, {})
            parts[item] = parts.get(item, 0) + n
        if module:
            parts = groups.setdefault("the model's parts", {})
            parts[first] = parts.get(first, 0) + n
    return groups


__all__ = ["remedies"]
