"""Time that this process has spent in waits for other ranks, for reports that compare ranks."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple


class JobRank(NamedTuple):
    """Which rank of which job a process is.

    Attributes:
        rank: Its rank in the world.
        world_size: The number of ranks.
        job: What the ranks of one run have in common; "" if no launcher has named the job.
    """

    rank: int
    world_size: int
    job: str


class WaitingTimes:
    """Seconds in waits of this process since it began.

    A wait belongs to the ranks that had not called the collective yet, in equal shares. If all had
    called it, messages were under way, or numbers were summed.

    Attributes:
        place: Which rank this is; None before the first process group.
        late: Seconds by the rank in the world that was waited for.
        exchanging: Seconds in which messages were under way.
    """

    def __init__(self) -> None:
        self.place: JobRank | None = None
        self.late: dict[int, float] = defaultdict(float)
        self.exchanging = 0.0

    def joined(self, rank: int, size: int) -> None:
        """Note that this process is a rank of a world."""
        self.place = JobRank(rank, size, os.environ.get("TORCHELASTIC_RUN_ID", ""))

    def note(self, seconds: float, late: Sequence[int]) -> None:
        """Add a wait.

        Args:
            seconds: How long it was.
            late: The ranks that had not called the collective when it began.
        """
        for rank in late:
            self.late[rank] += seconds / len(late)
        if not late:
            self.exchanging += seconds


waits = WaitingTimes()
