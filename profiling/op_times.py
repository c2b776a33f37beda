"""Recording of ops in time: each kernel's call, the bytes it took, the named ranges around it.

An executor (``framework/execution.py``) times the calls of kernels; ledger observers note bytes.
Both are there only between :meth:`OpRecorder.start` and :meth:`OpRecorder.stop`, so a program that
does not record pays nothing. What is timed is a kernel: the Python around it belongs to the range.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

from ..framework import execution
from ..framework.attribution import scopes
from ..framework.devices import live_backends, on_new_backend
from ..framework.memory.events import attach, detach

RANGE, KERNEL, MEMORY = "range", "op", "memory"


class OpEvent(NamedTuple):
    """Something that happened in one thread.

    Attributes:
        kind: "op" for a kernel's call, "range" for a named range, "memory" for bytes that were
            taken or given back between kernels.
        name: Of the op as PyTorch prints it (``aten::mul``), of the node whose backward ran
            (``MulBackward0``), ``optimizer::step``, or of the range.
        begin: Nanoseconds since the recording began.
        end: Likewise.
        thread: Number of the thread.
        nbytes: Bytes taken less bytes given back.
        shapes: Shapes of the arrays that the kernel read.
        module: Path of the module call that it belongs to.
        line: Source line of the user's program.
    """

    kind: str
    name: str
    begin: int
    end: int
    thread: int
    nbytes: int = 0
    shapes: tuple[tuple[int, ...], ...] = ()
    module: str = ""
    line: str = ""


class _Thread(threading.local):
    def __init__(self) -> None:
        self.taken = 0  # bytes since the latest kernel
        self.inside = False


class _TimingExecutor(execution.Executor):
    def __init__(self, recorder: OpRecorder) -> None:
        self._recorder = recorder

    def runner(self) -> Callable[..., Any]:
        quiet, recorder = super().runner(), self._recorder
        events, own, began = recorder.events, recorder.threads, recorder.began
        now, me = time.perf_counter_ns, threading.get_ident()
        with_shapes = recorder.with_shapes

        def run(f: Any, *args: Any) -> Any:
            outermost = not own.inside  # an op's own kernels count as one
            own.inside = True
            begin = now()
            try:
                return quiet(f, *args)
            finally:
                if outermost:
                    end = now()
                    own.inside = False
                    taken, own.taken = own.taken, 0
                    module, op, phase, stack = scopes.site()
                    name = op if phase == "backward" else f"{_SPACES.get(phase, 'aten')}::{op}"
                    shapes = _shapes(args) if with_shapes else ()
                    events.append(
                        OpEvent(
                            KERNEL,
                            name,
                            begin - began,
                            end - began,
                            me,
                            taken,
                            shapes,
                            module,
                            stack.line,
                        )
                    )

        return run


_SPACES = {"optimizer": "optimizer"}


def _shapes(args: tuple[Any, ...]) -> tuple[tuple[int, ...], ...]:
    # A kernel is called with its result and its inputs, a plan of several with lists of them.
    read = [a for arg in args[1:] for a in (arg if isinstance(arg, list) else [arg])]
    return tuple(tuple(a.shape) for a in read if hasattr(a, "shape"))


class OpRecorder:
    """Records the ops of the calling thread, and of threads that begin meanwhile.

    Args:
        with_shapes: Whether to note the shapes of what kernels read.

    Attributes:
        events: What was recorded, in the order of their ends.
    """

    current: ClassVar[OpRecorder | None] = None

    def __init__(self, with_shapes: bool = False) -> None:
        self.with_shapes = with_shapes
        self.events: list[OpEvent] = []
        self.threads = _Thread()
        self.began = 0
        self.ended = 0
        self._before: execution.Executor | None = None
        self._observers: list[tuple[Any, Any]] = []

    def start(self) -> None:
        """Begin to record.

        Inside an estimate, where no kernel runs, nothing is recorded.

        Raises:
            RuntimeError: Another recording runs; one at a time.
        """
        if OpRecorder.current is not None:
            raise RuntimeError("profile: another profile records in this process; end it first.")
        self.began = self.ended = time.perf_counter_ns()
        OpRecorder.current = self
        if not execution.current.computes:
            return
        for be in live_backends():
            self._watch(be)
        on_new_backend.append(self._watch)
        scopes.listen(True)
        self._before = execution.install(_TimingExecutor(self))

    def stop(self) -> None:
        """End the recording; a second call does nothing."""
        if OpRecorder.current is not self:
            return
        OpRecorder.current = None
        self.ended = time.perf_counter_ns()
        left, self.threads.taken = self.threads.taken, 0
        if left:  # taken since this thread's latest kernel
            at = self.ended - self.began
            self.events.append(OpEvent(MEMORY, "[memory]", at, at, threading.get_ident(), left))
        if self._before is None:
            return
        execution.install(self._before)
        self._before = None
        scopes.unlisten(True)
        on_new_backend.remove(self._watch)
        for ledger, observer in self._observers:
            detach(ledger, observer)
        self._observers.clear()

    def add_range(self, name: str, begin: int, end: int) -> None:
        """Add a named range, in the clock of ``time.perf_counter_ns``."""
        self.events.append(
            OpEvent(RANGE, name, begin - self.began, end - self.began, threading.get_ident())
        )

    def _watch(self, be: Any) -> None:
        own, events, began = self.threads, self.events, self.began

        def observer(
            event: str, device: str, nbytes: int, role: int, address: int, old: int
        ) -> None:
            if event == "alloc":
                own.taken += nbytes
            elif event == "free" and own.inside:
                own.taken -= nbytes
            elif event == "free" and nbytes:
                at = time.perf_counter_ns() - began
                events.append(OpEvent(MEMORY, "[memory]", at, at, threading.get_ident(), -nbytes))

        attach(be.ledger, observer)
        self._observers.append((be.ledger, observer))
