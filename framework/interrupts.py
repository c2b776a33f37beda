"""Interrupt safety: critical sections that Ctrl-C cannot divide.

CPython calls the handler of a signal between two bytecodes of the main thread: at the entry of a
function, after a call, and where a loop jumps back; nowhere else. So a group of statements without
a call is never interrupted, and most of what keeps state here (pool, ledger, storages, handles) is
written as such a row. Four tools serve where that is not enough:

- :class:`defer_interrupts` holds Ctrl-C back until its block has ended, for what takes several
  calls and may not stop half-way: a write in place and its history, an optimizer's step.
- :class:`RestoringExit` is the ``__exit__`` of a mode. A Python function is interrupted at its
  entry, before it could restore anything; this one is a call of C functions only.
- :class:`WholeContext` is for contexts that have more to do: they are entered or not, left or not.
- :class:`HookGuard` defers Ctrl-C between two hooks whose errors Python swallows.

Finalizers have a separate way, since Python swallows what is raised in them: see
:func:`finalizer`.
"""

from __future__ import annotations

import _signal
import _thread
import ctypes
import sys
import time
from collections.abc import Callable, Iterable
from dis import get_instructions
from functools import partial
from itertools import chain, repeat
from operator import and_, attrgetter, call
from signal import SIGINT
from threading import main_thread
from types import CodeType
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

_get_handler, _set_handler = _signal.getsignal, _signal.signal


class defer_interrupts:
    """Defer Ctrl-C (KeyboardInterrupt) inside the block until it ends.

    Costs about a microsecond. Blocks may be nested: the outermost delivers. In other threads than
    the main one nothing is done, since Python delivers no signal there; nor where SIGINT is
    ignored, or handled outside of Python.
    """

    __slots__ = ("_before", "_noted")

    def __enter__(self) -> None:
        self._noted = False
        self._before: Any = None
        if callable(_get_handler(SIGINT)) and _thread.get_ident() == main_thread().ident:
            # From the first instruction after the exchange, the handler only takes note.
            self._before = _set_handler(SIGINT, self._note)

    def _note(self, signum: int, frame: Any) -> None:
        self._noted = True

    def __exit__(self, *exc: object) -> None:
        before = self._before
        if before is not None:
            _set_handler(SIGINT, before)
            if self._noted and callable(before):
                before(SIGINT, sys._getframe())
            elif self._noted:  # ignored, or the end of the process
                _signal.raise_signal(SIGINT)


# Calls next() on its first argument until it ends, in C. The others are compared with what comes.
_run_through: Any = ctypes.PYFUNCTYPE(None, *[ctypes.py_object] * 4)(
    ("PySequence_Count", ctypes.pythonapi)
)


class RestoringExit:
    """An ``__exit__`` that restores attributes without running Python code.

    The mode's ``__enter__`` writes the present values into ``self._before``, a list with one
    place for each name, in one statement with setting the new ones.

    Args:
        owner: Returns the object whose attributes they are.
        names: Of the attributes.
        values: Returns what they are set to, for the mode: an iterable that runs no Python.
        owners: In the place of ``owner``: returns, for the mode, an object for each name.
    """

    def __init__(
        self,
        owner: Callable[[], Any] | None,
        *names: str,
        values: Callable[[Any], Iterable[Any]] = attrgetter("_before"),
        owners: Callable[[Any], Iterable[Any]] | None = None,
    ) -> None:
        self.owners = owners or (lambda _: repeat(owner()))  # type: ignore[misc]
        self.names = names
        self.values = values

    def __get__(self, mode: Any, kind: Any = None) -> Any:
        """Return the exit function; ``with`` looks it up before it calls ``__enter__``."""
        if mode is None:
            return self
        todo = map(setattr, self.owners(mode), self.names, self.values(mode))
        return partial(_run_through, todo)

    def __call__(self, mode: Any, *exc: object) -> None:
        """Exit a mode, as ``contextlib.ExitStack`` calls it."""
        self.__get__(mode)(*exc or (None, None, None))


class _GuardedExit:
    """An ``__exit__`` that defers Ctrl-C before any of its Python code runs."""

    def __get__(self, context: Any, kind: Any = None) -> Any:
        if context is None:
            return self
        if _get_handler(SIGINT) is None or _thread.get_ident() != main_thread().ident:
            return partial(_leave_plainly, context)
        guard, before = defer_interrupts(), []  # type: ignore[var-annotated]
        guard._noted = False
        exchange = map(before.append, map(_set_handler, (SIGINT,), (guard._note,)))
        leave = map(_leave_guarded, (context,), (guard,), (before,))
        return partial(_run_through, chain(exchange, leave))

    def __call__(self, context: Any, *exc: object) -> None:
        """Exit a context, as ``contextlib.ExitStack`` calls it."""
        self.__get__(context)(*exc or (None, None, None))


def _leave_plainly(context: Any, *exc: object) -> None:
    context._leave()


def _leave_guarded(context: Any, guard: defer_interrupts, before: list[Any]) -> None:
    guard._before = before[0]
    try:
        context._leave()
    finally:
        guard.__exit__()


class WholeContext:
    """Base class of context managers that Ctrl-C finds entered or not, never half.

    ``_enter()`` returns what ``with`` binds; ``_leave()`` takes back what it did. An interrupt is
    delivered when they are done. Costs some three microseconds.
    """

    def __enter__(self) -> Any:
        entered = False
        try:
            with defer_interrupts():
                value = self._enter()
                entered = True
        except BaseException:
            if entered:  # an interrupt, delivered just now
                with defer_interrupts():
                    self._leave()
            raise
        return value

    __exit__: Any = _GuardedExit()

    def _enter(self) -> Any:
        raise NotImplementedError

    def _leave(self) -> None:
        raise NotImplementedError


class HookGuard:
    """Defer Ctrl-C from one hook of Python's to a later one, such as those around ``os.fork``.

    Python swallows what a hook raises, and an interrupt at its entry prevents it from running at
    all. So ``begin`` and ``end`` are hooks that run no Python code: each is one call of C
    functions.
    Between them Ctrl-C is noted, and raised again after ``end``, in the main thread's own code.
    The child of a fork does not hear of one that came before it existed.

    Attributes:
        begin: The first hook.
        end: The last one.
    """

    def __init__(self) -> None:
        self._undo: list[Callable[[], Any]] = []  # what ends it; empty outside of the hooks
        self._main = [main_thread().ident]
        here = map(self._main.__contains__, map(call, repeat(_thread.get_ident)))
        handled = map(callable, map(_get_handler, repeat(SIGINT)))
        exchange = map(_set_handler, repeat(SIGINT), repeat(self._note))
        restore = map(partial, repeat(_set_handler), repeat(SIGINT), exchange)
        steps = int, partial(next, map(self._undo.append, restore))  # int() does nothing
        # zip() makes each call of the first, then of the second. One that waits for the exchange
        # may be interrupted there: then nothing has to be undone.
        self.begin: Callable[[], Any] = partial(
            next,
            zip(
                map(self._undo.append, repeat(int)),
                map(call, map(steps.__getitem__, map(and_, here, handled))),
                strict=False,
            ),
        )
        self.end: Callable[[], Any] = partial(
            next,
            zip(
                map(call, map(call, repeat(self._undo.pop))),
                map(call, repeat(self._undo.clear)),
                strict=False,
            ),
        )

    def _note(self, signum: int, frame: Any) -> None:
        _thread.start_new_thread(self._deliver, ())

    def _deliver(self) -> None:
        while self._undo:
            time.sleep(0.001)
        _thread.interrupt_main()

    def in_child(self) -> None:
        """Take note, between the hooks, that this is the child of a fork."""
        self._main[:] = [main_thread().ident]  # the thread that forked


_finalizers: dict[CodeType, tuple[Callable[[Any], None], int]] = {}


def finalizer(function: F) -> F:
    """Declare a ``__del__`` that is called again if an interrupt prevented it from starting.

    Python swallows what is raised in a finalizer, an interrupt too. One at its entry would leave
    bytes booked for good, and Ctrl-C itself would be lost. A declared finalizer is called again
    then, and the interrupt raised at the next opportunity. Later than at the entry it has to be
    safe by itself: a group of statements without a call, but for the last.
    """
    code = function.__code__
    entry = next(i.offset for i in get_instructions(code) if i.opname == "RESUME")
    _finalizers[code] = function, entry
    return function


def _again(unraisable: Any) -> None:
    # Of an exception that Python swallows.
    trace = unraisable.exc_traceback
    function = None
    if trace is None and unraisable.exc_type is KeyboardInterrupt:
        # In a hook without Python code, a HookGuard's: nothing else would report it.
        _thread.start_new_thread(_deliver_soon, ())
        return
    if trace is not None and issubclass(unraisable.exc_type, KeyboardInterrupt):
        frame = trace.tb_frame
        function, entry = _finalizers.get(frame.f_code, (None, 0))
        if function is not None and trace.tb_lasti <= entry:
            function(frame.f_locals[frame.f_code.co_varnames[0]])
        # Not from here: it would be raised in this function, and swallowed too.
        _thread.start_new_thread(_deliver_soon, ())
    if function is None:  # not ours: reported as usual
        tell = _others.pop() if _others else sys.__unraisablehook__
        try:
            tell(unraisable)
        finally:
            _others.append(tell)


def _deliver_soon() -> None:
    time.sleep(0.001)
    _thread.interrupt_main()


_others: list[Callable[[Any], Any]] = []  # the hook before ours; empty while it runs


def listen() -> None:
    """Install the hook that repeats interrupted finalizers, also if it was replaced.

    It is asked again at each backward pass.
    """
    if sys.unraisablehook is not _again:
        _others[:] = [sys.unraisablehook]
        sys.unraisablehook = _again


listen()

__all__ = ["HookGuard", "RestoringExit", "WholeContext", "defer_interrupts", "finalizer", "listen"]
