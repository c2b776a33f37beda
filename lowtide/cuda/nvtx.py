"""Marks for NVIDIA's profilers, which lowtide does not set: its own profiler has ranges."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator as _Iterator
from typing import Any

_depth = [0]


def range_push(msg: str) -> int:
    """Begin a range; return how many it is in."""
    _depth[0] += 1
    return _depth[0] - 1


def range_pop() -> int:
    """End a range; return how many it was in."""
    _depth[0] -= 1
    return _depth[0]


def mark(msg: str) -> None:
    """Do nothing."""


@contextlib.contextmanager
def range(msg: str, *args: Any, **kwargs: Any) -> _Iterator[None]:
    """A block as a range."""
    range_push(msg)
    try:
        yield
    finally:
        range_pop()
