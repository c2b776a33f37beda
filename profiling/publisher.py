"""Publication of what lives now, for ``lowtide top`` in another terminal.

A process that publishes writes a small JSON file about once a second, complete each time, into a
folder that only its user may read. A viewer reads that file, and disturbs nothing. The program pays
for attribution (``MemoryProfiler`` without lines and timeline), and for one grouping a second.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import stat
import sys
import tempfile
import threading
import time
import warnings
from pathlib import Path
from typing import Any

from ..framework.memory.ledger import NO_LIMIT
from .analysis.tables import grouped
from .profiler import MemoryProfiler

FORMAT, VERSION = "lowtide live memory", 1
MOST = 40  # modules that are told, the largest


def folder() -> Path:
    """The folder of this user's publications.

    Raises:
        PermissionError: It belongs to another user, who could read or forge them.
    """
    base = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    path = Path(base) / f"lowtide-{os.getuid()}"
    path.mkdir(mode=0o700, exist_ok=True)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise PermissionError(
            f"{path} is not a folder of this user alone, and what lives is published there. Remove "
            "it, or set XDG_RUNTIME_DIR."
        )
    return path


class Publisher:
    """Writes what a running profiler knows of live bytes, until it is stopped.

    Args:
        profiler: A ``MemoryProfiler`` that records.
        every: Seconds between two writings.

    Attributes:
        path: The file; it is gone when the process ends as Python ends one.
    """

    def __init__(self, profiler: MemoryProfiler, every: float = 1.0) -> None:
        if not every > 0:
            raise ValueError(f"publish: every is a positive number of seconds; got {every!r}.")
        self.path = folder() / f"{os.getpid()}.json"
        self._profiler, self._every, self._pid = profiler, every, os.getpid()
        self._end = threading.Event()
        self.write()
        threading.Thread(target=self._run, name="lowtide-publisher", daemon=True).start()
        atexit.register(self.stop)

    def write(self) -> None:
        """Write what lives now."""
        temporary = self.path.with_suffix(".tmp")
        temporary.write_text(json.dumps(self.snapshot()), encoding="utf-8")
        os.replace(temporary, self.path)

    def snapshot(self) -> dict[str, Any]:
        """What lives now, in plain containers; bytes by role and by module for each device."""
        recorder = self._profiler.recorder
        devices = []
        for ledger, cells in recorder.live_cells():
            modules = grouped(self._profiler.recording, cells, "module")
            largest = sorted(modules.items(), key=lambda item: (-item[1], item[0]))
            devices.append(
                {
                    "device": ledger.name,
                    "live_bytes": ledger.live,
                    "peak_bytes": ledger.peak,
                    "limit_bytes": None if ledger.limit == NO_LIMIT else ledger.limit,
                    "by_role": ledger.by_role(),
                    "by_module": dict(largest[:MOST]),
                }
            )
        return {
            "format": FORMAT,
            "version": VERSION,
            "pid": self._pid,
            "program": " ".join(sys.argv),
            "time": time.time(),
            "seconds": self._profiler.seconds,
            "steps": sum(mark.kind == "step" for mark in self._profiler.recording.marks),
            "devices": devices,
        }

    def _run(self) -> None:
        while not self._end.wait(self._every):
            try:
                self.write()
            except OSError:  # a full disk is no reason to disturb a training
                continue

    def stop(self) -> None:
        """Stop, and remove the file; a second call does nothing."""
        self._end.set()
        if os.getpid() == self._pid:  # not in a forked copy
            with contextlib.suppress(FileNotFoundError):
                self.path.unlink()


def publish(every: float = 1.0) -> Publisher:
    """Publish the live bytes of this process by role and module, for ``lowtide top PID``.

    The environment variable ``LOWTIDE_PUBLISH`` does it for any program, unchanged.

    Args:
        every: Seconds between two writings.

    Returns:
        What publishes; ``stop()`` ends it.

    Raises:
        ValueError: ``every`` is not positive.
        PermissionError: There is no folder that belongs to this user alone.
    """
    profiler = MemoryProfiler(lines=False, timeline=False)
    profiler.start()
    try:
        return Publisher(profiler, every)
    except BaseException:
        profiler.stop()
        raise


def publish_if_asked() -> None:
    """Publish if the environment variable ``LOWTIDE_PUBLISH`` is set to anything but 0."""
    if os.environ.get("LOWTIDE_PUBLISH", "0") in ("", "0"):
        return
    try:
        publish()
    except OSError as error:  # looking at a program must not end it
        warnings.warn(f"LOWTIDE_PUBLISH: nothing is published: {error}", stacklevel=2)
