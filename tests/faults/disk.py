"""Every call that serialization makes to the disk, counted, and failing or ending at the n-th.

``watched(at)`` replaces the functions of ``os`` and ``fcntl`` that reach the disk, and the file
objects that :mod:`lowtide.framework.serialization.atomic_files` writes through;
``at(number, name)`` is called before each. It may raise, or end the process: what a kill leaves is
what the calls before did. A write can be cut in half.
"""

from __future__ import annotations

import errno
import fcntl
import io
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from lowtide.framework.serialization import atomic_files

CALLS = {
    os: ("open", "fsync", "fchmod", "replace", "unlink", "mkdir", "ftruncate", "pwrite", "listdir",
         "scandir", "fstat"),
    fcntl: ("flock",),
}  # fmt: skip
TAKES_ROOM = ("open", "write", "mkdir", "ftruncate", "pwrite", "fsync")  # fails on a full disk

At = Callable[[int, str], bool | None]


@contextmanager
def watched(at: At) -> Iterator[list[str]]:
    """Call ``at`` before each call to the disk; yields the names of the calls so far.

    Where it returns True for a write, half of it is written, and it is called again.
    """
    names: list[str] = []

    def before(name: str) -> bool:
        names.append(name)
        return bool(at(len(names), name))

    def counted(name: str, function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            before(name)
            return function(*args, **kwargs)

        return call

    class Raw(io.FileIO):
        def write(self, data: Any) -> int:
            if before("write"):
                super().write(memoryview(data)[: len(data) // 2])
                before("half written")
            return super().write(data)

        def readinto(self, memory: Any) -> Any:
            before("read")
            return super().readinto(memory)

    def opened(file: Any, mode: str) -> Any:
        if isinstance(file, int):
            return io.BufferedWriter(Raw(file, mode))
        before("open")
        return io.BufferedReader(Raw(file, mode))

    with ExitStack() as stack:
        for module, functions in CALLS.items():
            for name in functions:
                replaced = counted(name, getattr(module, name))
                stack.enter_context(mock.patch.object(module, name, replaced))
        stack.enter_context(mock.patch.object(atomic_files, "open", opened, create=True))
        yield names


def count(action: Callable[[], Any]) -> list[str]:
    """The calls of an action that nothing disturbs."""
    with watched(lambda number, name: None) as names:
        action()
    return names


def killed(action: Callable[[], Any], at: int) -> bool:
    """Run ``action`` in a child that is killed before its ``at``-th call; False if it ended."""
    child = os.fork()
    if child == 0:
        try:

            def kill(number: int, name: str) -> bool:
                if number == at:
                    if name == "write":
                        return True
                    os.kill(os.getpid(), signal.SIGKILL)
                elif name == "half written":
                    os.kill(os.getpid(), signal.SIGKILL)
                return False

            with watched(kill):
                action()
            os._exit(0)
        finally:
            os._exit(1)
    status = os.waitpid(child, 0)[1]
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, f"the child ended with {status}"
    return os.WIFSIGNALED(status)


def failing(at: int, code: int, lasting: bool) -> At:
    """An error from the ``at``-th call; with ``lasting``, from all later ones it can befall."""
    first: list[int] = []

    def fail(number: int, name: str) -> None:
        fits = code == errno.EIO or name in TAKES_ROOM
        if fits and (number == at or (lasting and number > at)):
            first.append(number)
            raise OSError(code, os.strerror(code))

    return fail


def copied(template: Path, to: Path) -> Path:
    """A fresh copy of a folder, links and modes as they are."""
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(template, to, symlinks=True)
    return to
