"""Exception classes; errors without a separate class raise PyTorch's builtin type.

Each class derives from the builtin that a PyTorch user would catch for the same mistake.
"""

from __future__ import annotations


class GradientError(RuntimeError):
    """The graph cannot be differentiated: freed, overwritten, or never recorded."""


class CheckpointError(RuntimeError):
    """A recomputation cannot repeat the forward of its checkpointed region."""


class OutOfMemoryError(RuntimeError, MemoryError):
    """A device, or a limit set on it, has no memory for an allocation.

    Attributes:
        requested_bytes: What was asked for.
        live_bytes: What the device's ledger held at that moment.
        by_role: Live bytes by role, at that moment.
        reserved_bytes: What the device's pool held from the system.
        used_bytes: Of these, the blocks in use.
        largest_free_bytes: The largest block that the pool could hand out without growing. On cuda
            all its free bytes: CuPy does not tell how they are divided.
        owners: Live bytes by owner, largest first, under ``"module"`` and ``"line"``; each of the
            two sums to ``live_bytes``. Empty if no ``MemoryProfiler`` listened.
        remedies: Bytes that a change would have freed at that moment, by change. Empty likewise.
    """

    def __init__(
        self,
        message: str,
        *,
        requested_bytes: int = 0,
        live_bytes: int = 0,
        by_role: dict[str, int] | None = None,
        reserved_bytes: int = 0,
        used_bytes: int = 0,
        largest_free_bytes: int = 0,
        owners: dict[str, dict[str, int]] | None = None,
        remedies: dict[str, int] | None = None,
    ) -> None:
        super().__init__(message)
        self.requested_bytes = requested_bytes
        self.live_bytes = live_bytes
        self.by_role = dict(by_role or {})
        self.reserved_bytes = reserved_bytes
        self.used_bytes = used_bytes
        self.largest_free_bytes = largest_free_bytes
        self.owners = dict(owners or {})
        self.remedies = dict(remedies or {})


class MemoryLimitError(OutOfMemoryError):
    """An allocation would exceed the limit of ``set_memory_limit``, or of a ``memory_budget``."""


class InfeasibleBudget(OutOfMemoryError):
    """No way is known to run a step within a budget of bytes (:func:`lowtide.fit`).

    Attributes:
        floor: The least budget that was found to do.
        floor_proved: Bytes below which no budget can do: at one instant so many cannot be dropped.
        where: The op, and the user's line, at that instant.
    """

    def __init__(self, message: str, floor: int, floor_proved: int, where: str) -> None:
        super().__init__(message)
        self.floor = floor
        self.floor_proved = floor_proved
        self.where = where


class SerializationError(RuntimeError):
    """A training checkpoint cannot be read or written."""


class LinAlgError(RuntimeError):
    """A linear algebra computation has no result for a matrix, for example a singular one."""


class CaptureError(RuntimeError):
    """A call of a compiled function cannot be recorded, and ``fullgraph=True`` asks for it."""


class CaptureWarning(UserWarning):
    """A compiled function runs as it is written, and why."""
