"""Levels of vmap: one for each call of ``vmap`` that is running, the outermost first."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count
from typing import Any

from ..interrupts import RestoringExit
from ..modes import local, state_of_thread

_depths = count(1)

RANDOMNESS = ("error", "different", "same")


class Level:
    """One running call of ``vmap``.

    Attributes:
        size: Number of samples.
        randomness: "error", "different" or "same": what random draws of the samples are.
        depth: Larger for the inner one of two calls; the order of batch dims in memory.
    """

    __slots__ = ("depth", "randomness", "size")

    def __init__(self, size: int, randomness: str) -> None:
        self.size = size
        self.randomness = randomness
        self.depth = next(_depths)

    def __repr__(self) -> str:
        return f"Level(size={self.size})"


Levels = tuple[Level, ...]


class RestoringMode:
    """A mode of the thread: the calls of ``vmap`` we are inside. Ctrl-C finds it complete."""

    def __init__(self, levels: Levels) -> None:
        self._levels = levels
        self._before: list[Any] = [()]

    def __enter__(self) -> None:
        state = local.state
        self._before[0] = state.levels  # no call before the next line
        state.levels = self._levels

    __exit__ = RestoringExit(state_of_thread, "levels")


def ordered(levels: Iterable[Level]) -> Levels:
    """Return levels without repetition, the outermost first."""
    return tuple(sorted(set(levels), key=lambda level: level.depth))


def sizes(levels: Levels) -> tuple[int, ...]:
    """Return the size of each level: the leading dims of a tensor that has them all."""
    return tuple([level.size for level in levels])


class only(RestoringMode):
    """Run with these levels and no others; a context manager."""

    def __init__(self, levels: Iterable[Level]) -> None:
        super().__init__(ordered(levels))


class inside(RestoringMode):
    """Run with further levels; a context manager."""

    def __init__(self, levels: Iterable[Level]) -> None:
        super().__init__(ordered((*local.state.levels, *levels)))
