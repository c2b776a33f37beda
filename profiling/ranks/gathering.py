"""Profiles of ranks brought together: from all processes of a group, or from the files of a run."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ...framework.distributed.objects import all_gather_object
from ...framework.distributed.process_group import get_world_size
from ..profile import Profile
from .figures import RankFigures, rank_figures
from .report import RankReport

FOLDERS = "rank-*"  # beside one another, each with a run.json


def rank_report(source: Any, group: Any = None) -> RankReport:
    """Compare the profiles of all ranks of a run.

    Args:
        source: The profile of this rank, for which all ranks of the group call this; profiles of
            several ranks; or the folder that ``lowtide launch --profile`` has written.
        group: The group whose ranks call it; by default, all.

    Returns:
        A :class:`RankReport`; print it.

    Raises:
        ValueError: A profile is of a process without a group, or two are of the same rank, or the
            folder has none.

    Example:
        In each rank::

            with lt.profiling.MemoryProfiler() as prof:
                train(steps=10)
            report = lt.profiling.rank_report(prof)
            if dist.get_rank() == 0:
                print(report)
    """
    if isinstance(source, Profile):
        return _gathered(source, group)
    if isinstance(source, str | Path):
        return _of_profiles(read_ranks(source))
    return _of_profiles(source)


def _gathered(own: Profile, group: Any) -> RankReport:
    place = own.recording.place
    every: list[Any] = [None] * get_world_size(group)
    all_gather_object(every, rank_figures(own)._asdict(), group)
    figures = [
        RankFigures(**{**one, "late": {int(k): v for k, v in one["late"].items()}}) for one in every
    ]
    assert place is not None  # rank_figures has looked
    return RankReport(figures, place.world_size)


def _of_profiles(profiles: Iterable[Profile]) -> RankReport:
    given = list(profiles)
    figures = [rank_figures(profile) for profile in given]
    ranks = [one.rank for one in figures]
    twice = sorted({rank for rank in ranks if ranks.count(rank) > 1})
    if not figures or twice:
        what = f"two profiles are of rank {twice[0]}" if twice else "there is no profile"
        raise ValueError(f"rank_report: {what}. Give one of each rank of a run.")
    places = [profile.recording.place for profile in given]
    return RankReport(figures, max(place.world_size for place in places if place is not None))


def read_ranks(folder: Any) -> list[Profile]:
    """Read the profiles of the newest run in a folder.

    Args:
        folder: It has a folder ``rank-0``, ``rank-1``, ... for each rank, with a ``run.json``.

    Raises:
        ValueError: It has none, or one is damaged.
    """
    found = [Profile.from_json(path) for path in sorted(Path(folder).glob(f"{FOLDERS}/run.json"))]
    found = [profile for profile in found if profile.recording.place is not None]
    if not found:
        raise ValueError(
            f"{folder} has no profiles of ranks: folders rank-0, rank-1, ... with a run.json. "
            "`lowtide launch --profile` writes them."
        )
    newest = max(found, key=lambda profile: profile.recording.start).recording.place
    # A run of fewer ranks than the one before leaves some of that one's.
    return [
        p for p in found if p.recording.place is not None and _same_run(p.recording.place, newest)
    ]


def _same_run(one: Any, other: Any) -> bool:
    return bool((one.job, one.world_size) == (other.job, other.world_size))
