"""Memory statistics and limits of every device, under PyTorch's names.

Two figures must not be confused. *Allocated* is the ledger's: the bytes of living storages, by
role. *Reserved* is the pool's: the pages of its mapping that were handed out and not given
back. Between them lie the rounding of each block to a cache line, and free blocks kept for reuse;
:func:`memory_stats` names both.
"""

from __future__ import annotations

import math
from typing import Any

from ..device import device as as_device
from ..device import get_default_device
from ..memory.ledger import NO_LIMIT, ROLE_NUMBER, ROLES, format_bytes
from ..memory.sizes import as_bytes
from . import backend, live_backends


def _backend(device: Any) -> Any:
    return backend(get_default_device() if device is None else as_device(device))


def memory_allocated(device: Any = None) -> int:
    """Return the bytes of all live storages on a device (logical, before rounding).

    Args:
        device: The default device if None.
    """
    return int(_backend(device).ledger.live)


def max_memory_allocated(device: Any = None) -> int:
    """Return the highest ``memory_allocated`` since the start or the last reset, in bytes."""
    return int(_backend(device).ledger.peak)


def reset_peak_memory_stats(device: Any = None) -> None:
    """Reset the peaks of ``max_memory_allocated`` and ``max_memory_reserved``."""
    be = _backend(device)
    be.ledger.reset_peak()
    be.pool.reset_peak()


def memory_reserved(device: Any = None) -> int:
    """Return the bytes reserved from the system by the pool, in use or cached."""
    return int(_backend(device).reserved_bytes())


def max_memory_reserved(device: Any = None) -> int:
    """Return the highest ``memory_reserved`` since the start or the last reset, in bytes."""
    return int(_backend(device).pool.peak)


def memory_stats(device: Any = None) -> dict[str, Any]:
    """Return the memory statistics of a device as a dict of plain values.

    Args:
        device: The default device if None.

    Returns:
        A dict of ``device``; ``live_bytes`` and ``peak_bytes``; ``by_role`` and
        ``peak_by_role`` (they sum to those two); ``allocations``, the storages ever made;
        ``pool_used_bytes``, ``pool_free_bytes`` and ``reserved_bytes`` (the sum of the two),
        ``peak_reserved_bytes``; ``rounding_bytes``, what the blocks in use have beyond their
        tensors; ``largest_free_bytes``; ``limit_bytes``, or None; and ``machine_bytes``, what this
        process may have of the machine's RAM and swap: None where that is not asked.
    """
    be = _backend(device)
    ledger, pool = be.ledger, be.pool
    used, reserved = pool.used, be.reserved_bytes()
    return {
        "device": str(be.device),
        "live_bytes": ledger.live,
        "peak_bytes": ledger.peak,
        "by_role": ledger.by_role(),
        "peak_by_role": dict(zip(ROLES, ledger.peak_roles, strict=True)),
        "allocations": ledger.allocations,
        "pool_used_bytes": used,
        "pool_free_bytes": reserved - used,
        "reserved_bytes": reserved,
        "peak_reserved_bytes": pool.peak,
        "rounding_bytes": used - ledger.live,
        "largest_free_bytes": pool.largest_free,
        "limit_bytes": None if ledger.limit == NO_LIMIT else ledger.limit,
        "machine_bytes": getattr(be, "machine_bytes", None),
    }


def memory_summary(device: Any = None, abbreviated: bool = False) -> str:
    """Return ``memory_stats`` formatted as a table.

    Args:
        device: The default device if None.
        abbreviated: Leave out the roles that hold nothing now and held nothing at the peak.
    """
    stats = memory_stats(device)
    now, peak = stats["by_role"], stats["peak_by_role"]
    rows = [("", "now", "at the peak")]
    for role in ROLES:
        if not abbreviated or now[role] or peak[role]:
            rows.append((role, format_bytes(now[role]), format_bytes(peak[role])))
    rows += [
        ("allocated", format_bytes(stats["live_bytes"]), format_bytes(stats["peak_bytes"])),
        ("+ rounding", format_bytes(stats["rounding_bytes"]), ""),
        ("+ free for reuse", format_bytes(stats["pool_free_bytes"]), ""),
        (
            "= reserved",
            format_bytes(stats["reserved_bytes"]),
            format_bytes(stats["peak_reserved_bytes"]),
        ),
    ]
    widths = [max(len(row[k]) for row in rows) for k in range(3)]
    lines = [
        f"{name:<{widths[0]}}  {a:>{widths[1]}}  {b:>{widths[2]}}".rstrip() for name, a, b in rows
    ]
    rule = "-" * (sum(widths) + 4)
    lines.insert(len(rows) - 4, rule)
    lines.insert(1, rule)
    limit, machine = stats["limit_bytes"], stats["machine_bytes"]
    lines.append(
        f"{stats['allocations']} allocations so far; largest free block "
        f"{format_bytes(stats['largest_free_bytes'])}; "
        + ("no limit" if limit is None else f"limit {format_bytes(limit)}")
        + ("" if machine is None else f"; the machine allows {format_bytes(machine)}")
    )
    return "\n".join([f"Memory of {stats['device']}", *lines])


def empty_cache(device: Any = None) -> None:
    """Release cached blocks of the pool to the system; live tensors stay where they are.

    Args:
        device: Only this one. All devices in use if None.
    """
    for be in live_backends() if device is None else [_backend(device)]:
        be.release_cached()


def set_memory_limit(limit: int | float | str | None, device: Any = None) -> int | float | None:
    """Set a limit in bytes on the live storages of a device; allocations beyond it are refused.

    The refused op raises ``MemoryLimitError`` before anything is allocated or written. A limit
    below what lives now is allowed: it refuses whatever comes next.

    Besides, the CPU's pool grows only into memory that the machine has, or that the control group
    (a container's, a batch job's) allows: what is left of RAM and swap is looked at when it grows,
    and what does not fit raises ``OutOfMemoryError``, where the kernel would kill the process.

    Args:
        limit: Bytes, or text such as ``"200MiB"``; None for no limit but the machine's;
            ``math.inf`` for none at all.
        device: The default device if None.

    Returns:
        The limit until now, or None, or ``math.inf``.

    Raises:
        TypeError: ``limit`` is not a whole number of bytes.
        ValueError: ``limit`` is negative, or text that is no size.
    """
    unbounded = isinstance(limit, float) and limit == math.inf
    if limit is None or unbounded:
        most = NO_LIMIT
    else:
        most = min(as_bytes(limit, "set_memory_limit: limit", "no limit"), NO_LIMIT)
    be, old = _backend(device), get_memory_limit(device)
    if hasattr(be, "limit_to_machine") and be.xp is not None:
        be.limit_to_machine(not unbounded)
    be.ledger.own_limit = most
    return old


def get_memory_limit(device: Any = None) -> int | float | None:
    """Return the limit set on a device, in bytes; None if there is none but the machine's.

    ``math.inf`` if that was lifted too.
    """
    be = _backend(device)
    if be.ledger.own_limit != NO_LIMIT:
        return int(be.ledger.own_limit)
    lifted = hasattr(be, "limit_to_machine") and be.xp is not None and be.machine_bytes is None
    return math.inf if lifted else None


def synchronize(device: Any = None) -> None:
    """Wait until all work on a device is done; cpu, meta and sim are always done."""
    _backend(device).synchronize()


def set_role(tensor: Any, role: str) -> None:
    """Set the memory role of a tensor; parameters, buffers and optimizers call this.

    Args:
        tensor: Its storage, with all that share it, takes the role.
        role: A name of ``memory.ledger.ROLES``.

    Raises:
        ValueError: There is no such role.
    """
    if role not in ROLE_NUMBER:
        raise ValueError(f"a role is one of {', '.join(ROLES)}; got {role!r}.")
    tensor._storage.set_role(ROLE_NUMBER[role])
