"""A clock that stands still while kernels are compiled.

The first call of a compiled kernel imports Numba, and compiles the kernel or reads it from its
cache: seconds, in a step that takes milliseconds afterwards. On the time axis of a recording they
would look like a long forward. So they are left out of it and noted by name
(``Recording.compilations``).

Kernels tell when they are compiled or read from their folder. So does Numba, of functions that are
not ours; its import is met by a finder that stands first in ``sys.meta_path`` and lets all others
do the work. All of them report only during a recording.
"""

from __future__ import annotations

import contextlib
import importlib.machinery
import sys
import threading
import time
from bisect import bisect_right
from collections.abc import Iterator
from typing import Any

from ...framework.kernels.cpu.compiler.kernel import LOADING as LOADING
from ...framework.kernels.cpu.compiler.kernel import watchers
from .recording import Compilation

LIBRARY = "numba"
LOCK, COMPILE = "numba:compiler_lock", "numba:compile"


class CompileClock:
    """Nanoseconds since its making, and which of them kernels took.

    Attributes:
        began: ``time.perf_counter_ns()`` at its making.
    """

    def __init__(self) -> None:
        self.began = time.perf_counter_ns()
        self._lock = threading.RLock()
        self._depth = 0
        self._starts: list[int] = []  # of the stretches, ascending; the last may be open
        self._ends: list[int] = []
        self._gone: list[int] = [0]  # nanoseconds in the stretches before each
        self._names: list[str] = []
        self._finder: _Finder | None = None
        self._listeners: list[tuple[str, Any]] = []

    # Listening

    def start(self) -> None:
        """Begin to watch for compilations."""
        watchers.append(self)
        if LIBRARY in sys.modules:
            self._listen()
        else:
            self._finder = _Finder(self)
            sys.meta_path.insert(0, self._finder)

    def stop(self) -> None:
        """Stop watching."""
        if self in watchers:
            watchers.remove(self)
        if self._finder is not None and self._finder in sys.meta_path:
            sys.meta_path.remove(self._finder)
        self._finder = None
        if self._listeners:
            event = _numba_events()
            for kind, listener in self._listeners:
                event.unregister(kind, listener)
            self._listeners.clear()

    def _listen(self) -> None:
        event = _numba_events()
        event.Listener.register(_Listener)
        self._listeners = [(kind, _Listener(self)) for kind in (LOCK, COMPILE)]
        for kind, listener in self._listeners:
            event.register(kind, listener)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Stop the clock for work that is the profiler's own; it is not listed."""
        self.enter("")
        try:
            yield
        finally:
            self.leave()

    def enter(self, name: str) -> None:
        """A stretch begins, unless one is open; a later name inside replaces that of a cache."""
        with self._lock:
            self._depth += 1
            if self._depth == 1:
                self._starts.append(self.now())
                self._names.append(name)
            elif self._names[-1] == LOADING:
                self._names[-1] = name

    def leave(self) -> None:
        """The stretch ends, if it was the outermost."""
        with self._lock:
            if not self._depth:  # it began before anyone listened
                return
            self._depth -= 1
            if not self._depth:
                self._ends.append(self.now())
                self._gone.append(self._gone[-1] + self._ends[-1] - self._starts[-1])

    # Asking

    def now(self) -> int:
        """Nanoseconds since the start, compilations included."""
        return time.perf_counter_ns() - self.began

    @property
    def compiled(self) -> bool:
        """Whether anything was compiled so far: else all times are on the axis already."""
        return bool(self._starts)

    def on_axis(self, at: int) -> int:
        """Convert what ``now`` returned to a time on the axis, without compilations before it."""
        k = bisect_right(self._starts, at) - 1
        if k < 0:
            return at
        if k < len(self._ends) and at >= self._ends[k]:
            return at - self._gone[k + 1]
        return self._starts[k] - self._gone[k]  # inside one

    def compilations(self) -> list[Compilation]:
        """Return the stretches that ended; neighbors that read the same cache are one."""
        found: list[Compilation] = []
        columns = zip(self._starts, self._ends, self._gone, self._names, strict=False)
        for start, end, gone, name in columns:
            if not name:
                continue
            one = Compilation(name, (start - gone) / 1e9, (end - start) / 1e9)
            if found and found[-1].name == name == LOADING:
                before = found.pop()
                one = before._replace(seconds=before.seconds + one.seconds)
            found.append(one)
        return found


def _numba_events() -> Any:
    from numba.core import event

    return event


class _Listener:
    """Tells a clock what Numba says of its compiler."""

    def __init__(self, clock: CompileClock) -> None:
        self.clock = clock

    def notify(self, event: Any) -> None:
        if event.is_end:
            self.clock.leave()
        elif event.kind == COMPILE:
            function = getattr(event.data["dispatcher"], "py_func", None)
            self.clock.enter(f"compiling {getattr(function, '__name__', 'a kernel')}")
        else:  # mostly it reads what an earlier process compiled
            self.clock.enter(LOADING)


class _Finder:
    """Times the import of one library, by any finder."""

    def __init__(self, clock: CompileClock) -> None:
        self.clock = clock

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != LIBRARY:
            return None
        clock = self.clock
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        loader: Any = None if spec is None else spec.loader
        execute = getattr(loader, "exec_module", None)
        if execute is None:
            return None

        def timed(module: Any) -> None:
            clock.enter("import of Numba")
            try:
                execute(module)
            finally:
                clock.leave()
            if clock._finder is self:
                clock._listen()

        loader.exec_module = timed  # of this loader alone: each import has its own
        return spec
