"""What folders of numbered checkpoints share: how many are kept, a lock, a save under way."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from ..interrupts import defer_interrupts
from . import background
from .file_locks import FolderLock

T = TypeVar("T")


class NumberedFolder:
    """A folder of checkpoints, of which the newest are kept.

    Args:
        path: The folder; made when first saved to.
        keep: How many to keep; None keeps all.

    Raises:
        ValueError: ``keep`` is less than 1.
    """

    def __init__(self, path: Any, keep: int | None) -> None:
        if keep is not None and keep < 1:
            raise ValueError(f"keep must be at least 1, or None for all; got {keep}.")
        self.path = Path(path)
        self.keep = keep
        self._lock: FolderLock | None = None
        self._saving: background.Saving | None = None  # of the last ``async_save``

    def __getstate__(self) -> dict[str, Any]:
        # A copy in another process has no lock, and no thread that writes.
        return {**self.__dict__, "_lock": None, "_saving": None}

    def release(self) -> None:
        """Unlock the folder for other processes, after an ``async_save`` has ended.

        Raises:
            Exception: What made it fail, unless its future has told.
        """
        try:
            self._settle()
        finally:
            self._lock = None

    def _settle(self) -> None:
        saving, self._saving = self._saving, None
        if saving is not None:
            saving.settle()

    def _start(self, held: list[T], write: Callable[[T], Path]) -> background.Saving:
        # Call ``write`` in a thread with what ``held`` holds.
        with defer_interrupts():  # a thread that nothing waits for would lose its error
            self._saving = background.start(held, write)
        return self._saving
