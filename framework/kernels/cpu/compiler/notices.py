"""What the standard error is told of compilations: that one begins, and how long all took.

A notice never stops a program: without a standard error, or with one that is full or closed,
nothing is told.
"""

from __future__ import annotations

import atexit
import os
import sys

from . import library

_seconds: list[float] = []  # of each kernel that this process compiled


def begin() -> None:
    """Say, before the first compilation, that kernels are compiled and where they are kept."""
    if _seconds or _begun:
        return
    _begun.append(None)
    why = library.problem() if library.supported() else "this system has no libraries of kernels"
    kept = f"not kept: {why}" if why else f"kept in {library.folder()}"
    _tell(f"lowtide: compiling kernels for this processor ({kept})\n")
    atexit.register(_report)


_begun: list[None] = []  # an item once a compilation has begun


def add(seconds: float) -> None:
    """Count a kernel that was compiled."""
    _seconds.append(seconds)


def count() -> int:
    """How many kernels this process has compiled."""
    return len(_seconds)


def _report() -> None:
    n, seconds = len(_seconds), sum(_seconds)
    if n:
        _tell(f"lowtide: compiled {n} kernel{'s' * (n > 1)} in {seconds:.1f} s\n")


def _tell(text: str) -> None:
    stream = sys.stderr
    if stream is None:  # pythonw, or a daemon: print() would take the standard output instead
        return
    try:
        if sys.__stderr__ is not None and stream is sys.__stderr__:
            # Not into its buffer, whose contents would fail again when the process ends.
            sys.__stderr__.flush()
            os.write(sys.__stderr__.fileno(), text.encode("utf-8", "backslashreplace"))
        else:
            stream.write(text)
    except Exception:  # whatever a stream raises: a notice is not worth a step of training
        return
