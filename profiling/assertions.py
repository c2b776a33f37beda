"""Assertions on memory, for tests: a peak, a leak, and the prediction of a peak.

Each compares exact bytes of the ledger, so a test of memory neither flickers nor depends on the
machine. What fails says who owned the bytes, by role and source line. The pytest plugin
(``pytest_lowtide.py``) hands these out as a fixture and as a mark.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ..framework.device import device as as_device
from ..framework.device import get_default_device
from ..framework.devices import backend
from ..framework.memory.ledger import describe, format_bytes
from ..framework.memory.sizes import as_bytes
from .estimate.estimate import estimate
from .leaks.detect import detect_retained
from .profiler import MemoryProfiler

LINES = 5  # owners named in a message


class MemoryCheck:
    """Assertions on the memory of one device.

    A peak is counted above what was alive when the measurement began: data and models made before
    do not count. Each raises ``AssertionError``.

    Args:
        device: The default device if None.

    Example:
        >>> import lowtide as lt
        >>> check, x = MemoryCheck(), lt.ones(1000)
        >>> check.peak(lambda: (x + 1) * 2)
        8000
        >>> with check.limit("8000 B"):
        ...     y = (x + 1) * 2
    """

    def __init__(self, device: Any = None) -> None:
        self.device = get_default_device() if device is None else as_device(device)

    def peak(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> int:
        """Run ``function(*args, **kwargs)``; return its peak in bytes above what was alive."""
        with _Measured(self.device) as measured:
            function(*args, **kwargs)
        return measured.rise

    def predicted_peak(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> int:
        """Return the peak that ``function(*args, **kwargs)`` would have, without computing it.

        See :func:`lowtide.profiling.estimate` for what is guessed.
        """
        return _predicted(self.device, functools.partial(function, *args, **kwargs))[0]

    @contextmanager
    def limit(self, size: int | str) -> Iterator[None]:
        """Assert that the block's peak is at most ``size`` bytes above what was alive.

        Cycles are collected before.

        Args:
            size: Bytes, or text: "24 MiB".

        Raises:
            AssertionError: It was higher; the message names the owners.
        """
        most = as_bytes(size, "limit: size")
        with _Measured(self.device) as measured:
            yield
        text = measured.verdict("the block", most)
        if text is not None:
            raise AssertionError(text)

    @contextmanager
    def no_leak(self, allow: int | str = 0) -> Iterator[None]:
        """Assert that the block leaves no more bytes alive than there were.

        Cycles are collected before and after. Variables that the block assigns live on: run what
        is to be judged in a function.

        Args:
            allow: Bytes, or text, that may be left.

        Raises:
            AssertionError: More are left; the message names their lines.
        """
        most = as_bytes(allow, "no_leak: allow")
        with _Measured(self.device) as measured:
            yield
            gc.collect()
        left = measured.left
        if left > most:
            raise AssertionError(
                f"the block left {format_bytes(left)} ({left} B) alive on {self.device}"
                f"{f', of {most} B allowed' if most else ''}:\n{measured.leftovers()}"
            )

    def steady(self, step: Callable[[], Any], *, warmup: int = 2, steps: int = 3) -> None:
        """Assert that a step, called again and again, leaves as many bytes and no graph alive.

        Args:
            step: A training step or an evaluation, without arguments.
            warmup: Calls before: gradients and optimizer state appear in the first.
            steps: Calls to compare.

        Raises:
            AssertionError: Live bytes grew, or a graph outlived its step.
        """
        with detect_retained() as watch:
            for _ in range(warmup):
                step()
            gc.collect()
            ledger = backend(self.device).ledger
            live = [ledger.live]
            with _Measured(self.device) as measured:
                for _ in range(steps):
                    step()
                    gc.collect()
                    live.append(ledger.live)
        if live[-1] > live[0]:
            grown = " -> ".join(str(n) for n in live)
            raise AssertionError(
                f"live bytes on {self.device} grew over {steps} steps: {grown}\n"
                f"{measured.leftovers()}"
            )
        if watch.findings:
            raise AssertionError(watch.report())


def judge_call(
    function: Callable[[], Any], size: int | str, device: Any, predict: bool, name: str
) -> str | None:
    """Run a function within a limit, or predict its peak; the plugin's mark does it.

    Args:
        function: Without arguments.
        size: Bytes, or text.
        device: The default device if None.
        predict: Nothing is computed.
        name: Of the function, for the message.

    Returns:
        What is wrong; None if the peak is within the limit.
    """
    __tracebackhide__ = True  # pytest shows the test's frames only
    most = as_bytes(size, "limit_memory: size")
    where = get_default_device() if device is None else as_device(device)
    if predict:
        rise, roles = _predicted(where, function)
        if rise <= most:
            return None
        return (
            f"{name} would take {_over(rise, most, where)} (predicted: nothing was computed)\n"
            f"at the peak, with what was there before: {roles}"
        )
    with _Measured(where) as measured:
        function()
    return measured.verdict(name, most)


class _Measured:
    """The peak of a block above what was alive at its start, and who owned it."""

    def __init__(self, device: Any) -> None:
        self.device = device
        self.rise = self.left = 0

    def __enter__(self) -> _Measured:
        gc.collect()  # garbage that dies inside would make room for what is judged
        self._ledger = backend(self.device).ledger
        self._profiler = MemoryProfiler(self.device, timeline=False, warn=False)
        self._profiler.start()
        self._start = self._ledger.live
        return self

    def __exit__(self, *_: object) -> None:
        self.left = self._ledger.live - self._start
        self._profiler.stop()
        self.rise = max(self._profiler.peak(str(self.device)).nbytes - self._start, 0)

    def verdict(self, name: str, most: int) -> str | None:
        if self.rise <= most:
            return None
        where = str(self.device)
        roles = self._profiler.at_peak("role", device=where).as_dict()
        lines = self._profiler.at_peak("line", device=where).text(LINES)
        return (
            f"{name} took {_over(self.rise, most, where)}\n"
            f"at the peak, with the {format_bytes(self._start)} that were there before: "
            f"{describe(roles)}\n{lines}"
        )

    def leftovers(self) -> str:
        grown = self._profiler.growth("start", "stop", by="line", device=str(self.device))
        return grown.text(LINES, signed=True)


def _over(rise: int, most: int, device: Any) -> str:
    return (
        f"{format_bytes(rise)} ({rise} B) of {device} at its peak, {rise - most} B above the limit "
        f"of {format_bytes(most)}"
    )


def _predicted(device: Any, function: Callable[[], Any]) -> tuple[int, str]:
    found = estimate(function)
    for d in found.devices:
        if d.device == str(device):
            roles = describe({r: n for r, n in d.peak_roles.items() if n})
            return max(d.peak_bytes - d.start_bytes, 0), roles
    return 0, "nothing"
