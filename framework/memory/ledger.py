"""The ledger: live bytes of a device by role, exact at any time.

It is always on and costs two additions per allocation. Updates contain no Python call, and
CPython switches threads and raises interrupts only at calls and loops: so an update is atomic under
the GIL, Ctrl-C comes before or after it, and no lock is needed.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import MemoryLimitError, OutOfMemoryError

if TYPE_CHECKING:
    from ..device import device
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
    "communication",  # what arrives from other processes, and what is collected for them
)
(
    TEMPORARY,
    SAVED,
    PARAMETER,
    GRADIENT,
    OPTIMIZER,
    BUFFER,
    INPUT,
    WORKSPACE,
    COMMUNICATION,
) = range(len(ROLES))
NO_LIMIT = 1 << 62
TOP = 4  # owners named in a message
ROLE_NUMBER = {name: number for number, name in enumerate(ROLES)}

_budgets = threading.RLock()  # two threads may open theirs at once
if hasattr(os, "register_at_fork"):  # a child must not inherit it from another thread
    os.register_at_fork(
        before=_budgets.acquire,
        after_in_parent=_budgets.release,
        after_in_child=_budgets.release,
    )

E = TypeVar("E", bound=OutOfMemoryError)


class Ledger:
    """Live bytes of one device: total, by role, at their peak, and the limit set on them.

    Attributes:
        live: Bytes of all living storages (logical: before any rounding by the pool).
        roles: The same bytes by role, in the order of ``ROLES``; their sum is ``live``.
        peak: The highest ``live`` since the last reset.
        peak_roles: ``roles`` at that moment.
        limit: Bytes that ``live`` must not pass: the least of what was set and of the budgets.
        budgets: The budgets that are open: each has ``limit`` (bytes), ``where`` (the line that
            opened it), ``pages`` (whether the pool's pages are within it),
            ``make_room(ledger, nbytes) -> bool`` and ``evictor``, which can ``make_less`` and
            ``make_extent``.
        allocations: Storages ever made.
        observers: Called with what is booked while a profiler listens, see ``events.py``.
        name: Of the device.
        pool: Whose blocks they are; None if there is none. Asked for the message of a failure only.
        base: Address at which the device's own mapping begins; 0 if it has none.
    """

    __slots__ = (
        "_own_limit",
        "allocations",
        "base",
        "budgets",
        "device",
        "limit",
        "live",
        "name",
        "observers",
        "peak",
        "peak_roles",
        "pool",
        "roles",
    )

    def __init__(self, device: device) -> None:
        self.device = device
        self.name = str(device)
        self.base = 0
        self.pool: Any = None
        self.live = 0
        self.roles = [0] * len(ROLES)
        self.peak = 0
        self.peak_roles = list(self.roles)
        self.limit = self._own_limit = NO_LIMIT
        self.budgets: tuple[Any, ...] = ()
        self.allocations = 0
        self.observers: tuple[Observer, ...] = ()

    def born(self, storage: Any, nbytes: int, role: int) -> None:
        """Count a new storage, and set its ``ledger``.

        Raises:
            MemoryLimitError: It would pass the limit; nothing is booked.
        """
        if self.live + nbytes > self.limit:
            self.refuse(nbytes)
        storage.ledger = self
        self.allocations += 1
        roles = self.roles
        roles[role] += nbytes
        live = self.live + nbytes
        self.live = live
        if live > self.peak:
            self.peak = live
            self.peak_roles = roles[:]

    def by_role(self) -> dict[str, int]:
        """Return live bytes by role name, zeros included."""
        return dict(zip(ROLES, self.roles, strict=True))

    def reset_peak(self) -> None:
        """Reset the peak to the present live bytes."""
        self.peak = self.live
        self.peak_roles = self.roles[:]

    @property
    def own_limit(self) -> int:
        """The limit without that of the budgets."""
        return self._own_limit

    @own_limit.setter
    def own_limit(self, nbytes: int) -> None:
        with _budgets:
            self._own_limit = nbytes
            self._set_budgets(self.budgets)

    def open_budget(self, budget: Any) -> None:
        """Add a budget to those that are open."""
        with _budgets:
            self._set_budgets((*self.budgets, budget))

    def close_budgets(self, closed: Any = None) -> None:
        """Take a budget off those that are open; all of them if None."""
        with _budgets:
            kept = () if closed is None else [b for b in self.budgets if b is not closed]
            self._set_budgets(tuple(kept))

    def limits_changed(self) -> None:
        """Follow a budget that has set its limit anew."""
        with _budgets:
            self._set_budgets(self.budgets)

    def _set_budgets(self, budgets: tuple[Any, ...]) -> None:
        limit = min([self._own_limit, *[budget.limit for budget in budgets]])
        held = min([NO_LIMIT, *[budget.limit for budget in budgets if budget.pages]])
        pool = self.pool
        self.budgets = budgets  # no call before the next line
        self.limit = limit
        if pool is not None:
            pool.cap = held  # what lives fits, so the pages of what does not can go

    def refuse(self, nbytes: int) -> None:
        """Make room for an allocation that exceeds the limit, or raise its error."""
        if any(budget.make_room(self, nbytes) for budget in reversed(self.budgets)):
            return
        self.raise_refusal(nbytes)

    def make_less(self, nbytes: int, smallest: int = 0) -> bool:
        """Have the budgets drop so many bytes, where the machine or the pool has no room for more.

        Args:
            nbytes: How many.
            smallest: Only values of more than this.

        Returns:
            True if any went.
        """
        budgets = reversed(self.budgets)
        return any(budget.evictor.make_less(self, nbytes, smallest) for budget in budgets)

    def make_extent(self, nbytes: int) -> bool:
        """Have the budgets drop neighbors, so that a free block of so many bytes arises."""
        return any(budget.evictor.make_extent(self, nbytes) for budget in reversed(self.budgets))

    def raise_refusal(self, nbytes: int) -> None:
        """Raise the error of an allocation that exceeds the limit or the address space."""
        if self.budgets and self.limit < self._own_limit:
            budget = min(self.budgets, key=lambda b: b.limit)
            raise budget.refusal(self, nbytes) from None
        if self.limit == NO_LIMIT:
            raise self.exhausted(
                nbytes, ": no machine has that much", "Check the shape.", OutOfMemoryError
            ) from None
        raise self.exhausted(
            nbytes,
            " would pass the limit",
            "Free tensors, raise the limit with lowtide.set_memory_limit(bytes, device), or use a "
            "smaller batch; lowtide.profiling.advise(step) says which change fits.",
            MemoryLimitError,
        ) from None  # dispatch looks a plan up first, and a miss says nothing here

    def exhausted(self, nbytes: int, what: str, way_out: str, kind: type[E]) -> E:
        """Build the error of a failed allocation, which references no tensor.

        Args:
            nbytes: What was asked for.
            what: What is wrong, to follow "Allocating 1 KiB on cpu".
            way_out: What the user can do.
            kind: The class of the error.
        """
        by_role, pool = self.by_role(), self.pool
        of = "" if self.limit == NO_LIMIT else f" of {format_bytes(self.limit)}"
        lines = [
            f"Allocating {format_bytes(nbytes)} on {self.device}{what}; "
            f"{format_bytes(self.live)}{of} live ({describe(by_role)})."
        ]
        used, reserved, largest = (pool.used, pool.top, pool.largest_free) if pool else (0, 0, 0)
        if pool:
            # CuPy does not tell how its free bytes are divided.
            free = "free blocks have" if self.device.type == "cuda" else "largest free block has"
            lines.append(
                f"The pool holds {format_bytes(reserved)}, {format_bytes(used)} in use; its "
                f"{free} {format_bytes(largest)}."
            )
        owners = self._ask_observers("owners") or {}
        room = self.limit - self.live if self.limit != NO_LIMIT else largest
        freed, would = self._ask_observers("remedies", nbytes - room) or ({}, [])
        lines += [f"By {by}: {describe(held, TOP)}." for by, held in owners.items()]
        if not owners:
            lines.append(
                "To see which modules and lines own them, run it inside `with "
                "lowtide.profiling.MemoryProfiler():`, or as `lowtide profile SCRIPT`."
            )
        if would:
            lines.append(
                "What would have fitted here, before the rest of the step: "
                + "; ".join(would)
                + "."
            )
        saved = self.roles[SAVED]
        if saved >= max(nbytes - room, 1) and not self.budgets:
            budget = format_bytes(self.limit if self.limit != NO_LIMIT else self.live)
            lines.append(
                f"Of the live bytes, {format_bytes(saved)} are saved for backward: a step in `with "
                f'lowtide.memory_budget("{budget}"):` drops what of them it can compute again; '
                f'lowtide.fit(step, budget="{budget}") says whether it fits, and how long it takes.'
            )
        return kind(
            "\n".join([*lines, way_out]),
            requested_bytes=nbytes,
            live_bytes=self.live,
            by_role=by_role,
            reserved_bytes=reserved,
            used_bytes=used,
            largest_free_bytes=largest,
            owners=owners,
            remedies=freed,
        )

    def _ask_observers(self, what: str, *about: Any) -> Any:
        # By the first observer that knows.
        for observer in self.observers:
            tell = getattr(observer, what, None)
            if tell is not None:
                return tell(*about)
        return None


def describe(held: dict[str, int], most: int | None = None) -> str:
    """Format bytes by owner, largest first, as a phrase for a message.

    Args:
        held: Bytes by role or another owner.
        most: How many to name; all if None.
    """
    ordered = sorted(((n, name) for name, n in held.items() if n), reverse=True)
    words = [f"{name} {format_bytes(n)}" for n, name in ordered[:most]]
    rest = ordered[len(words) :]
    if rest:
        words.append(f"{len(rest)} more {format_bytes(sum(n for n, _ in rest))}")
    return ", ".join(words) or "nothing"


def format_bytes(n: int) -> str:
    """Format a number of bytes: ``1.50 GiB``, ``20 B``."""
    size = float(n)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{n} B" if unit == "B" else f"{size:.2f} {unit}"
        size /= 1024
    return f"{size:.2f} TiB"
