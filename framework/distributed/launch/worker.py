"""What a worker is before it is the user's program: a process that dies with its launcher.

Run by its path, without site packages, so that it costs milliseconds::

    python -I -S worker.py PARENT CORES COMMAND ARGS

It replaces itself with the command. Linux keeps what was asked for here across that: the signal on
the parent's death, and the cores. To ask in the new process is safe where to ask between a fork
and an exec is not.
"""

from __future__ import annotations

import os
import signal
import sys

PR_SET_PDEATHSIG = 1
NOT_FOUND = 127  # the exit code of shells for a command that is not there


def die_with(parent: int) -> None:
    """Let the system kill this process when its parent ends; kill it if the parent has ended.

    Linux only: elsewhere the guard alone ends workers whose launcher is killed.

    Args:
        parent: The process id of the launcher. It starts workers from its main thread: Linux sends
            the signal when the thread ends that started the process.
    """
    if not sys.platform.startswith("linux"):
        return
    import ctypes

    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it ended before we asked, and there will be no signal
        os.kill(os.getpid(), signal.SIGKILL)


def become(command: list[str]) -> None:
    """Replace this process with a command.

    Raises:
        SystemExit: It cannot be run; with code 127.
    """
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"cannot run {command[0]}: {error.strerror}", file=sys.stderr)
        raise SystemExit(NOT_FOUND) from None


def main(words: list[str]) -> None:
    """Become the user's program.

    Args:
        words: Process id of the launcher, cores such as ``0,1`` or ``all``, and the command.
    """
    parent, cores, *command = words
    die_with(int(parent))
    if cores != "all":
        os.sched_setaffinity(0, [int(core) for core in cores.split(",")])
    become(command)


if __name__ == "__main__":
    main(sys.argv[1:])
