"""What an event log keeps of one device: its books, and what is not booked yet."""

from __future__ import annotations

from typing import Any

from .recording import LiveBytes, Peak


class DeviceState:
    """The recording state of one device."""

    def __init__(self, index: int, be: Any, peak: Peak, fullest: Peak) -> None:
        self.index = index
        self.peak, self.fullest = peak, fullest
        self.ledger = be.ledger
        self.backend = be
        self.books = LiveBytes()
        self.high = 0  # live bytes at their highest since the last mark
        self.named: dict[int, str] = {}  # address -> path of storages that have a name
        self.numbers: dict[int, int] = {}  # address -> number of the block
        self.at_mark: dict[tuple[int, int], int] = {}
        self.peak_is_new = self.fullest_is_new = False
        self.at_peak = True  # nothing was freed since
        self.allocations = be.ledger.allocations  # of those noted; the ledger may be ahead by one
        self.late: list[int] = []  # what was freed while it was

    def flush(self, log: list[int]) -> None:
        """Record frees that happened while an allocation was in progress."""
        late, self.late = self.late, []  # no call between the two: threads may meet here
        log.extend(late)

    def note_peak(self) -> None:
        """Copy the bytes by owner if they are a new peak, before they fall."""
        if self.peak_is_new and self.books.live == self.peak.nbytes:
            self.peak.cells = dict(self.books.cells)
        self.peak_is_new = False

    def note_fullest(self) -> None:
        """Copy the bytes of saved tensors if they are a new peak, before they fall."""
        if self.fullest_is_new and self.books.saved == self.fullest.nbytes:
            self.fullest.cells = dict(self.books.savers)
            self.fullest.holders = self.books.holders()
        self.fullest_is_new = False


__all__ = ["DeviceState"]
