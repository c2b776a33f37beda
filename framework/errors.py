"""The exceptions that have a meaning of their own; every other mistake raises PyTorch's builtin.

Each class derives from the builtin that a PyTorch user would catch for the same mistake.
"""

from __future__ import annotations


class GradientError(RuntimeError):
    """A graph that cannot be differentiated: freed, overwritten, or never recorded."""


class CheckpointError(RuntimeError):
    """A recomputation that cannot repeat the forward it stands for."""


class OutOfMemoryError(RuntimeError, MemoryError):
    """A device, or a limit set on it, has no room for an allocation.

    Attributes:
        requested_bytes: What was asked for.
        live_bytes: What the device's ledger held at that moment.
        by_role: Live bytes by role, at that moment.
    """

    def __init__(
        self,
        message: str,
        *,
        requested_bytes: int = 0,
        live_bytes: int = 0,
        by_role: dict[str, int] | None = None,
    ) -> None:
        super().__init__(message)
        self.requested_bytes = requested_bytes
        self.live_bytes = live_bytes
        self.by_role = dict(by_role or {})


class MemoryLimitError(OutOfMemoryError):
    """An allocation refused by ``set_memory_limit``, before the device itself runs out."""


class SerializationError(RuntimeError):
    """A training checkpoint that cannot be read or written."""


class LinAlgError(RuntimeError):
    """A matrix for which a computation of linear algebra has no result: singular, say."""
