"""The end of workers and of all that they started, also where the launcher is killed.

The guard is a process that waits for the launcher to go away. It reads ``+SESSION`` and
``-SESSION`` from its stdin, and kills what is left of the sessions when that ends. A signal on the
parent's death reaches a worker alone; its children need this.

Run by its path, without site packages: ``python -I -S guard.py``.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterable, Iterator

IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # batch systems send these to everyone
MOST_ROUNDS = 100


def members(sessions: Iterable[int]) -> list[int]:
    """The live processes of sessions; only the leaders' groups can be asked where no /proc is.

    Args:
        sessions: Process ids of the leaders.

    Returns:
        Process ids. A process that has ended but was not waited for is not among them.
    """
    wanted = set(sessions)
    return [pid for pid, session in _processes() if session in wanted] if wanted else []


def _processes() -> Iterator[tuple[int, int]]:
    # (process id, session) of all that live.
    try:
        names = os.listdir("/proc")
    except OSError:
        return
    for name in names:
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                text = file.read()
        except OSError:  # it has ended
            continue
        # After the name, which may hold anything: state, parent, group, session.
        state, _, _, session, *_ = text.rpartition(b")")[2].split()
        if state not in (b"Z", b"X"):
            yield int(name), int(session)


def send(sessions: Iterable[int], number: int) -> None:
    """Send a signal to sessions: to the leaders' groups, and to groups that were made in them."""
    sessions = list(sessions)
    for session in sessions:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(session, number)
    for pid in members(sessions):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.getpgid(pid) not in sessions:
                os.kill(pid, number)


def kill(sessions: Iterable[int]) -> None:
    """Kill all processes of sessions, and those that they start meanwhile."""
    sessions = list(sessions)
    for _ in range(MOST_ROUNDS):
        send(sessions, signal.SIGKILL)
        if not members(sessions):
            return


def main() -> None:
    """Wait for the launcher to go away, then kill what it has not ended."""
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    sessions: set[int] = set()
    for line in sys.stdin:
        (sessions.add if line[0] == "+" else sessions.discard)(int(line[1:]))
    kill(sessions)


if __name__ == "__main__":
    main()
