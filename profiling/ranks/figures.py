"""What the profile of one rank says: its bytes at the peak, and where the time of a step goes."""

from __future__ import annotations

from itertools import pairwise
from statistics import median
from typing import Any, NamedTuple

from ...framework.memory.ledger import ROLES
from ..analysis.summary import total_by
from ..profile import Profile
from ..record.recording import Mark, Recording, busiest


class RankFigures(NamedTuple):
    """What one rank held and how long a step of it took.

    Times are medians over its steps but the first, in which kernels are compiled and optimizers
    make their state. So the parts of a step need not sum to it exactly.

    Attributes:
        rank: The rank.
        device: The device with the highest peak.
        peak_bytes: Its highest live bytes.
        peak_roles: The same bytes by role.
        process_bytes: The highest resident bytes of the process, by the operating system.
        steps: How many steps the times are of.
        step_seconds: How long a step took, from one optimizer step to the next. In a profile with
            fewer than two steps, how long all of it took.
        computing_seconds: Of it, outside of waits.
        waiting_seconds: In waits for ranks that had not called a collective yet.
        exchanging_seconds: In waits for messages under way, and sums of what arrived.
        late: ``waiting_seconds`` by the rank that was waited for.
    """

    rank: int
    device: str
    peak_bytes: int
    peak_roles: dict[str, int]
    process_bytes: int
    steps: int
    step_seconds: float
    computing_seconds: float
    waiting_seconds: float
    exchanging_seconds: float
    late: dict[int, float]


def rank_figures(profile: Profile) -> RankFigures:
    """Sum up the profile of a rank.

    Raises:
        ValueError: The process was alone.
    """
    profile.settle()
    recording = profile.recording
    if recording.place is None:
        raise ValueError(
            "a report of ranks takes profiles of processes in a process group; this process was "
            "alone. Call init_process_group() while the profiler records, or before."
        )
    device = busiest(recording) if recording.devices else -1
    peak = recording.peaks[device] if recording.devices else None
    return RankFigures(
        recording.place.rank,
        recording.devices[device] if recording.devices else "none",
        peak.nbytes if peak else 0,
        total_by(peak, lambda owner, role: ROLES[role]) if peak else {},
        max((m.probes["process"]["peak_rss"] for m in recording.marks), default=0),
        **_times(recording),
    )


def _times(recording: Recording) -> dict[str, Any]:
    marks = recording.marks
    steps = [mark for mark in marks if mark.kind == "step"]
    spans = list(pairwise(steps if len(steps) > 1 else [marks[0], marks[-1]]))
    took = [b.time - a.time for a, b in spans]
    exchanging = [b.exchanging - a.exchanging for a, b in spans]
    late = [_difference(a, b) for a, b in spans]
    waiting = [sum(one.values()) for one in late]
    computing = [
        max(t - w - e, 0.0) for t, w, e in zip(took, waiting, exchanging, strict=True)
    ]  # a wait in which kernels are compiled is longer than the step, whose clock then stands
    ranks = sorted({rank for one in late for rank in one})
    return {
        "steps": len(spans) if len(steps) > 1 else 0,
        "step_seconds": median(took),
        "computing_seconds": median(computing),
        "waiting_seconds": median(waiting),
        "exchanging_seconds": median(exchanging),
        "late": {rank: median(one.get(rank, 0.0) for one in late) for rank in ranks},
    }


def _difference(before: Mark, after: Mark) -> dict[int, float]:
    return {rank: s - before.late.get(rank, 0.0) for rank, s in after.late.items()}
