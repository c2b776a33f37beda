"""Streams and events: lowtide gives a GPU all its work on one stream, in the program's order.

So waiting for another stream waits for nothing. An event that is recorded waits until the GPU has
done what it was given, and notes the time; ``elapsed_time`` is exact, and a wait each.
"""

from __future__ import annotations

import time
from typing import Any

from lowtide.cuda._selected import as_device as _as_device
from lowtide.framework.devices import backend as _backend


class Stream:
    """The one stream of a GPU, under as many names as a program makes.

    Args:
        device: The GPU; the current one by default.
        priority: Ignored.

    Raises:
        RuntimeError: There is none.
    """

    def __init__(self, device: Any = None, priority: int = 0, **ignored: Any) -> None:
        self.device = _as_device(device)
        _backend(self.device)
        self.priority = priority

    def synchronize(self) -> None:
        """Wait until the GPU has done what it was given."""
        _backend(self.device).synchronize()

    def query(self) -> bool:
        """True, once the GPU has done what it was given: it waits for that."""
        self.synchronize()
        return True

    def wait_stream(self, stream: Any) -> None:
        """Do nothing: it is the same stream."""

    def wait_event(self, event: Any) -> None:
        """Do nothing: what comes later is done later."""

    def record_event(self, event: Event | None = None) -> Event:
        """Record an event, a new one by default, and return it."""
        event = Event() if event is None else event
        event.record(self)
        return event

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and self.device is other.device

    def __hash__(self) -> int:
        return hash(self.device)


class Event:
    """A moment in a GPU's work.

    Args:
        enable_timing: Whether it shall be used for :meth:`elapsed_time`.
        blocking: Ignored.
        interprocess: Ignored.
    """

    def __init__(
        self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False
    ) -> None:
        self.enable_timing = enable_timing
        self._time: float | None = None

    def record(self, stream: Stream | None = None) -> None:
        """Wait until the GPU has done what it was given, and note the time.

        Raises:
            RuntimeError: There is no GPU.
        """
        _backend(_as_device(None if stream is None else stream.device)).synchronize()
        self._time = time.perf_counter()

    def wait(self, stream: Stream | None = None) -> None:
        """Do nothing: what comes later is done later."""

    def query(self) -> bool:
        """True: what was recorded is done."""
        return True

    def synchronize(self) -> None:
        """Do nothing: what was recorded is done."""

    def elapsed_time(self, end_event: Event) -> float:
        """Return the milliseconds from this event to another.

        Raises:
            RuntimeError: One of them was not recorded, or is not for timing.
        """
        if not (self.enable_timing and end_event.enable_timing):
            raise RuntimeError(
                "Event.elapsed_time needs events made for it: pass enable_timing=True to both."
            )
        if self._time is None or end_event._time is None:
            raise RuntimeError("Event.elapsed_time: both events must be recorded before.")
        return (end_event._time - self._time) * 1e3


class stream:
    """A block whose work goes to a stream; None changes nothing, and neither does another."""

    def __init__(self, stream: Stream | None) -> None:
        self.stream = stream

    def __enter__(self) -> Stream | None:
        return self.stream

    def __exit__(self, *exc: object) -> None:
        """Do nothing."""


StreamContext = stream


def current_stream(device: Any = None) -> Stream:
    """Return a GPU's stream.

    Raises:
        RuntimeError: There is no GPU.
    """
    return Stream(device)


default_stream = current_stream


def set_stream(stream: Stream | None) -> None:
    """Do nothing: there is one."""
