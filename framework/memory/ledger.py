"""The ledger: how many bytes of each role live on a device, at every instant.

It is always on and costs two additions per allocation. Updates contain no Python call, and
CPython switches threads only at calls and loops: so each line of an update is atomic under the
GIL, and no lock is needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import MemoryLimitError, OutOfMemoryError

if TYPE_CHECKING:
    from ..devices.device import device
    from .events import Observer

ROLES = (
    "temporary",  # a value that nothing below claims: the result of an op in the user's hands
    "saved",  # the same, while the graph holds it for backward
    "parameter",
    "gradient",
    "optimizer",
    "buffer",
    "input",
    "workspace",  # taken and given back inside one op
)
TEMPORARY, SAVED, PARAMETER, GRADIENT, OPTIMIZER, BUFFER, INPUT, WORKSPACE = range(len(ROLES))
NO_LIMIT = 1 << 62
ROLE_NUMBER = {name: number for number, name in enumerate(ROLES)}


class Ledger:
    """Live bytes of one device: in all, by role, at their peak, and the limit set on them.

    Attributes:
        live: Bytes of all living storages (logical: before any rounding by the pool).
        roles: The same bytes by role, in the order of ``ROLES``; their sum is ``live``.
        peak: The highest ``live`` since the last reset.
        peak_roles: ``roles`` at that moment.
        limit: Bytes that ``live`` must not pass.
        allocations: Storages ever made.
        observers: Called with what is booked while a profiler listens, see ``events.py``.
        name: Of the device.
        base: Address at which the device's own mapping begins; 0 if it has none.
    """

    __slots__ = (
        "allocations",
        "base",
        "device",
        "limit",
        "live",
        "name",
        "observers",
        "peak",
        "peak_roles",
        "roles",
    )

    def __init__(self, device: device) -> None:
        self.device = device
        self.name = str(device)
        self.base = 0
        self.live = 0
        self.roles = [0] * len(ROLES)
        self.peak = 0
        self.peak_roles = list(self.roles)
        self.limit = NO_LIMIT
        self.allocations = 0
        self.observers: tuple[Observer, ...] = ()

    def born(self, nbytes: int, role: int) -> None:
        """Book a new storage.

        Raises:
            MemoryLimitError: It would pass the limit; nothing is booked.
        """
        if self.live + nbytes > self.limit:
            self.refuse(nbytes)
        self.allocations += 1
        roles = self.roles
        roles[role] += nbytes
        live = self.live + nbytes
        self.live = live
        if live > self.peak:
            self.peak = live
            self.peak_roles = roles[:]

    def died(self, nbytes: int, role: int) -> None:
        """Book the end of a storage."""
        self.live -= nbytes
        self.roles[role] -= nbytes

    def moved(self, nbytes: int, old: int, new: int) -> None:
        """Book a change of role. At the peak itself, the peak's roles change along."""
        roles = self.roles
        roles[old] -= nbytes
        roles[new] += nbytes
        if self.live == self.peak:
            self.peak_roles = roles[:]

    def by_role(self) -> dict[str, int]:
        """Live bytes by role name, zeros included."""
        return dict(zip(ROLES, self.roles, strict=True))

    def reset_peak(self) -> None:
        """Forget the peak: it starts again from what lives now."""
        self.peak = self.live
        self.peak_roles = self.roles[:]

    def refuse(self, nbytes: int) -> None:
        """Raise for an allocation that would pass the limit, or any address space."""
        by_role = self.by_role()
        if self.limit == NO_LIMIT:
            raise OutOfMemoryError(
                f"Allocating {format_bytes(nbytes)} on {self.device}: no machine has that much. "
                "Check the shape.",
                requested_bytes=nbytes,
                live_bytes=self.live,
                by_role=by_role,
            )
        raise MemoryLimitError(
            f"Allocating {format_bytes(nbytes)} on {self.device} would pass the limit: "
            f"{format_bytes(self.live)} of {format_bytes(self.limit)} live ({describe(by_role)}). "
            "Free tensors, raise the limit with lowtide.set_memory_limit(bytes, device), "
            "or use a smaller batch.",
            requested_bytes=nbytes,
            live_bytes=self.live,
            by_role=by_role,
        )


def describe(by_role: dict[str, int]) -> str:
    """The roles that hold anything, largest first, as one phrase for a message."""
    held = sorted(((n, r) for r, n in by_role.items() if n), reverse=True)
    return ", ".join(f"{role} {format_bytes(n)}" for n, role in held) or "nothing"


def format_bytes(n: int) -> str:
    """Bytes for a message: ``1.50 GiB``, ``20 B``."""
    size = float(n)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{n} B" if unit == "B" else f"{size:.2f} {unit}"
        size /= 1024
    return f"{size:.2f} TiB"
