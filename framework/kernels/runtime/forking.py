"""A fork beside other threads: no lock of an import or a compilation is copied while it is held.

The first call of a kernel may import Numba and compile it. If another thread forks the process at
that moment (a loader starts its workers), the copy has the locks of both, and no thread that would
ever release them: its own first call would wait for good. So a fork waits until those imports have
ended, lets no other begin, and holds the locks of compilations itself. Ctrl-C waits meanwhile, so
that no lock stays behind.

Python calls such hooks in the reverse order of their registration. One that is registered later
than ours holds its own lock while ours waits, so none may guard what a compilation needs: `logging`
has such a hook, and `concurrent.futures`, which are therefore imported here first.
"""

from __future__ import annotations

import _imp
import concurrent.futures.thread  # noqa: F401 - for its hook
import importlib
import logging  # noqa: F401 - for its hook
import os
import sys
import threading
from contextlib import suppress
from importlib import _bootstrap
from typing import Any

from ...interrupts import HookGuard

OURS = ("lowtide.framework.", "numba", "llvmlite", "scipy")

LOCKS = (  # of compilations, in the order in which they are taken
    (f"{__name__.rpartition('.runtime.')[0]}.cpu.compiler.kernel", "lock"),
    ("numba.core.compiler_lock", "global_compiler_lock"),
)

_held: list[Any] = []  # what to call after the fork


def _being_imported() -> list[str]:
    # By other threads: a thread that imports a module has its lock from before it is looked for.
    me = threading.get_ident()
    locks: Any = getattr(_bootstrap, "_module_locks", {})
    found = []
    for name, reference in list(locks.items()):
        lock = reference() if name.startswith(OURS) else None
        if getattr(lock, "owner", None) not in (None, me):
            found.append(name)
    return found


def _take() -> None:
    while True:
        for name in _being_imported():
            with suppress(Exception):  # the thread that imports it hears of a failure
                importlib.import_module(name)  # waits
        locks = [
            getattr(sys.modules[module], name) for module, name in LOCKS if module in sys.modules
        ]
        for lock in locks:
            lock.acquire()
        _imp.acquire_lock()  # without it no import begins
        if not _being_imported():
            _held.extend([_imp.release_lock, *[lock.release for lock in reversed(locks)]])
            return
        _imp.release_lock()
        for lock in reversed(locks):
            lock.release()


def _release() -> None:
    while _held:
        _held.pop(0)()


def _release_in_child() -> None:
    _release()
    _guard.in_child()


_guard = HookGuard()


def prepare_forks() -> None:
    """Have every fork of this process wait for imports and compilations; called once."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(
            before=_take, after_in_parent=_release, after_in_child=_release_in_child
        )
        end = _guard.end
        os.register_at_fork(before=_guard.begin, after_in_parent=end, after_in_child=end)
