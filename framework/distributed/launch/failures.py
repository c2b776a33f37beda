"""Which worker failed first, and what the launcher says of it in the end."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass

# What a worker raises because another one went away: the effect of a failure, not its cause.
OF_PEERS = re.compile(r"(?:[\w.]+\.)?(?:DistNetworkError|DistBackendError)\b")
TRACEBACK = "Traceback (most recent call last):"
SHOWN = 15  # lines of stderr where there is no traceback
HINTS: dict[signal.Signals | None, str] = {
    signal.SIGKILL: " If you did not kill it, the system may have: it does when memory runs out.",
    signal.SIGSEGV: " PYTHONFAULTHANDLER=1 in the environment shows the lines that it was in.",
    signal.SIGABRT: " PYTHONFAULTHANDLER=1 in the environment shows the lines that it was in.",
    signal.SIGBUS: " A full disk or full /dev/shm can be the cause: `df -h` shows them.",
}


@dataclass(frozen=True)
class Failure:
    """The end of a worker that failed.

    Attributes:
        rank: Its rank in the world.
        pid: Its process id.
        code: Its exit code; minus the signal, if one ended it.
        stderr: The last lines that it wrote there.
    """

    rank: int
    pid: int
    code: int
    stderr: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """The exit code as shells know it: 128 + the signal, if one ended it."""
        return self.code if self.code >= 0 else 128 - self.code

    @property
    def how(self) -> str:
        """How it ended, in words."""
        if self.code >= 0:
            return f"exit code {self.code}"
        return f"signal {-self.code} ({_name(-self.code)})"

    def last_lines(self) -> list[str]:
        """Its last traceback, and what came after it; the last lines of stderr if there is none."""
        starts = [k for k, line in enumerate(self.stderr) if TRACEBACK in line]
        return list(self.stderr[starts[-1] :] if starts else self.stderr[-SHOWN:])

    def of_peers(self) -> bool:
        """True if it raised because its connection to another worker broke."""
        return any(OF_PEERS.match(line) for line in self.last_lines())


def culprit(failures: Sequence[Failure]) -> Failure:
    """The failure that caused the others: the first one that is not about a lost connection.

    Args:
        failures: In the order in which they were seen; one or more.

    Example:
        >>> lost = Failure(0, 10, 1, ("Traceback (most recent call last):", "DistNetworkError: x"))
        >>> culprit([lost, Failure(1, 11, 3)]).rank
        1
        >>> culprit([lost]).rank
        0
    """
    return next((failure for failure in failures if not failure.of_peers()), failures[0])


def last_words(failure: Failure, workers: int) -> str:
    """What the launcher writes last.

    Args:
        failure: The cause.
        workers: How many workers there were on this machine.
    """
    others = ("", " The other worker was ended.", f" The other {workers - 1} workers were ended.")
    text = (
        f"lowtide launch: rank {failure.rank} failed first: {failure.how}, process {failure.pid}."
        f"{others[min(workers, 3) - 1]}{HINTS.get(_signal(failure.code), '')}\n"
    )
    lines = failure.last_lines()
    if not lines:
        return f"{text}It wrote nothing to stderr.\n"
    return f"{text}Its last lines on stderr:\n" + "".join(f"  {line}\n" for line in lines)


def _signal(code: int) -> signal.Signals | None:
    try:
        return signal.Signals(-code)
    except ValueError:
        return None


def _name(number: int) -> str:
    known = _signal(-number)
    return "unknown" if known is None else known.name
