"""Messages about compilations on standard error.

That there is a first one, every few seconds which one it is, and at the end how long all took.
A notice never stops a program: without a standard error, or with one that is full or closed,
nothing is told.
"""

from __future__ import annotations

import atexit
import os
import sys
import time

from . import library

EVERY = 4.0  # seconds between two notices, so that a user who waits sees what for

_seconds: list[float] = []  # of each kernel that this process compiled


def begin(name: str) -> None:
    """Say, before a compilation, that kernels are compiled, and where they are kept.

    Before the first one, and then with the kernel's name if the last notice was ``EVERY`` seconds
    ago.
    """
    now = time.monotonic()
    if _begun:
        if now - _begun[-1] >= EVERY:
            _begun[:] = [now]
            _tell(f"lowtide: compiling {name}, kernel {len(_seconds) + 1} of this process\n")
        return
    _begun.append(now)
    why = library.problem() if library.supported() else "this system has no libraries of kernels"
    kept = f"not kept: {why}" if why else f"kept in {library.folder()}"
    _tell(f"lowtide: compiling kernels for this processor ({kept})\n")
    atexit.register(_report)


_begun: list[float] = []  # when the last notice was given


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
