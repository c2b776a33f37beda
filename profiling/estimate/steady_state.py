"""Steady state: what the steps after the first take, when gradients and optimizer state exist.

In the first step of a fresh model, the optimizer's state is born after the activations have died.
In the second it is there from the start, and the activations come on top. So a step runs again,
in the same forked copy, until it leaves what it found. A step that only adds to gradients, because
the optimizer steps at every eighth call, leaves what it found and is not steady: it runs on until
the optimizer that it reaches has made its step.

A program that runs to its end, a script, has both in it: its first step ends at the first mark of
an optimizer, and what follows is later.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...framework.devices import live_backends
from ...framework.memory.ledger import ROLES
from ..profile import Profile
from ..profiler import MemoryProfiler
from ..record.recording import Recording
from .fake_kernels import workers_in_use
from .targets import optimizers_of

MOST_REPEATS = 3  # of a step, until it leaves what it found
MOST_WAITS = 32  # of a step that accumulates gradients, until the optimizer steps


class LaterSteps:
    """What the steps after the first take.

    Args:
        executor: Counts operations and work.

    Attributes:
        peaks: Highest live bytes and the same by role, by device.
        profile: Of the step with the highest peak; None if the step was not run again.
        costs: (operations, work) of the last one, as the executor counts them.
        why: Why the step could not be run again; "" if it was, or need not be.
    """

    def __init__(self, executor: Any) -> None:
        self.executor = executor
        self.peaks: dict[str, tuple[int, dict[str, int]]] = {}
        self.profile: Profile | None = None
        self.costs: tuple[int, float] | None = None
        self.why = ""

    def repeat(
        self, step: Callable[..., Any], args: Any, kwargs: Any, before: Any, first: Recording
    ) -> None:
        """Run a step again, without kernels, until it leaves what it found.

        Args:
            step: The step, which has run once.
            args: Its arguments.
            kwargs: Its named arguments.
            before: :func:`held` before it ran.
            first: What was recorded when it ran.
        """
        waits = _accumulates(first) and bool(optimizers_of(step, args, kwargs))
        turns = 0
        while held() != before or waits:
            turns += 1
            if turns > (MOST_WAITS if waits else MOST_REPEATS):
                return
            before = held()
            for be in live_backends():
                be.ledger.reset_peak()
            spent = self._spent()
            try:
                with MemoryProfiler() as prof:
                    step(*args, **kwargs)
            except Exception as error:  # whatever the user's program raises when it runs twice
                self.why = f"the step cannot run again ({type(error).__name__}: {error})"
                return
            finally:
                end_workers()
            self.costs = self._spent()[0] - spent[0], self._spent()[1] - spent[1]
            self._note(prof.recording)
            if waits and _stepped(prof.recording):
                waits, turns = False, 0

    def _spent(self) -> tuple[int, float]:
        return sum(self.executor.flops.values()), self.executor.work

    def _note(self, recording: Recording) -> None:
        grown = 0
        for be in live_backends():
            peak, name = be.ledger.peak, str(be.device)
            more = peak - self.peaks.get(name, (-1, {}))[0]
            if more > 0:
                roles = dict(zip(ROLES, be.ledger.peak_roles, strict=True))
                self.peaks[name] = peak, roles
                grown = max(grown, more)
        if grown:
            self.profile = Profile(recording)


def held() -> dict[str, list[int]]:
    """Return the live bytes by role of each device."""
    return {str(be.device): list(be.ledger.roles) for be in live_backends()}


def end_workers() -> None:
    """End the workers of loaders that the step started."""
    workers = workers_in_use()
    if workers is not None:
        workers.close_all()


def split(recording: Recording, device: str) -> tuple[int, int] | None:
    """Return the peaks of a program in bytes, until its first optimizer step has ended and after.

    None if it made fewer than two.
    """
    if device not in recording.devices:
        return None
    at = recording.devices.index(device)
    ends = [k for k, mark in enumerate(recording.marks) if mark.kind == "step"]
    if len(ends) < 2:
        return None
    peaks = [mark.peak[at] if at < len(mark.peak) else 0 for mark in recording.marks]
    return max(peaks[: ends[0] + 1]), max(peaks[ends[0] + 1 :])


def _accumulates(recording: Recording) -> bool:
    # Gradients were made, and no optimizer took them.
    backward = any(owner.phase == "backward" for owner in recording.owners)
    return backward and not _stepped(recording)


def _stepped(recording: Recording) -> bool:
    return any(mark.kind == "step" for mark in recording.marks)
