"""What a compiled function says of itself: names, warnings, descriptions of recordings."""

from __future__ import annotations

import functools
import sys
import warnings
from typing import Any

from ..attribution.frames import is_ours
from ..errors import CaptureWarning
from .recordings import Kind


def name_of(function: Any) -> str:
    """Return the name of a function; of a module's call, that of its class."""
    if isinstance(function, functools.partial):
        return type(function.args[0]).__name__ if function.args else name_of(function.func)
    return getattr(function, "__qualname__", type(function).__name__)


def warn(text: str) -> None:
    """Warn at the line of the program that called lowtide."""
    level = 2
    while is_ours(sys._getframe(level - 1).f_code.co_filename):
        level += 1
    warnings.warn(text, CaptureWarning, level)


def described(kind: Kind) -> list[str]:
    """Describe the recordings of calls of one kind, a line or two each."""
    lines = [recording.replay.describe() for recording in kind.recordings]
    if kind.waiting and not kind.recordings:
        lines.append("  a call is recorded, and its backward will be when it runs")
    return lines
