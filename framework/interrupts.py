"""Interrupts: what must happen whole happens whole, also where Ctrl-C falls into the middle of it.

CPython calls the handler of a signal between two bytecodes of the main thread: at the entry of a
function, after a call, and where a loop jumps back; nowhere else. So a row of statements without
a call is never interrupted, and most of what keeps state here (pool, ledger, storages, handles) is
written as such a row. Two tools serve where that is not enough:

- :class:`defer_interrupts` holds Ctrl-C back until its block has ended, for what takes several
  calls and may not stop half-way: a write in place and its history, an optimizer's step.
- :class:`RestoringExit` is the ``__exit__`` of a mode. A Python function is interrupted at its
  entry, before it could restore anything; this one is a call of C functions only.

Finalizers have a way of their own, since Python swallows what is raised in them: see
:func:`finalizer`.
"""

from __future__ import annotations

import _signal
import _thread
import ctypes
import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import repeat
from signal import SIGINT
from types import CodeType
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

_get_handler, _set_handler = _signal.getsignal, _signal.signal


class defer_interrupts:
    """Hold back Ctrl-C inside the block; it is delivered when the block ends.

    Costs about a microsecond. Blocks may be nested: the outermost delivers. In other threads than
    the main one nothing is done, since Python delivers no signal there; nor where SIGINT is
    ignored, or handled outside of Python.
    """

    __slots__ = ("_before", "_noted")

    def __enter__(self) -> None:
        self._noted = False
        self._before: Any = None
        before = _get_handler(SIGINT)
        if callable(before):
            try:
                # From the first instruction after the exchange, the handler only takes note.
                self._before = _set_handler(SIGINT, self._note)
            except ValueError:  # not the main thread
                pass

    def _note(self, signum: int, frame: Any) -> None:
        self._noted = True

    def __exit__(self, *exc: object) -> None:
        before = self._before
        if before is not None:
            _set_handler(SIGINT, before)
            if self._noted:
                before(SIGINT, sys._getframe())


# Calls next() on its first argument until it ends, in C. The others are compared with what comes.
_run_through: Any = ctypes.PYFUNCTYPE(None, *[ctypes.py_object] * 4)(
    ("PySequence_Count", ctypes.pythonapi)
)


class RestoringExit:
    """An ``__exit__`` that sets attributes back, without running any Python.

    The mode's ``__enter__`` writes the present values into ``self._before``, a list with one
    place for each name, in one row with setting the new ones.

    Args:
        owner: Returns the object whose attributes they are.
        names: Of the attributes.
    """

    def __init__(self, owner: Callable[[], Any], *names: str) -> None:
        self.owner = owner
        self.names = names

    def __get__(self, mode: Any, kind: Any = None) -> Any:
        """What ``with`` calls at the end: it asks for it before ``__enter__``."""
        if mode is None:
            return self
        todo = map(setattr, repeat(self.owner()), self.names, mode._before)
        return partial(_run_through, todo)

    def __call__(self, mode: Any, *exc: object) -> None:
        """Exit from a mode, as ``contextlib.ExitStack`` does."""
        self.__get__(mode)(*exc or (None, None, None))


_finalizers: dict[CodeType, Callable[[Any], None]] = {}


def finalizer(function: F) -> F:
    """Declare a ``__del__`` that is called again if an interrupt fell into it.

    Python swallows an exception in a finalizer. If the finalizer had not run to its end, bytes
    would stay booked for good; and Ctrl-C itself would be lost. A declared one is therefore called
    again, and the interrupt raised again at the next opportunity.

    The function must be such that, wherever it was interrupted, a second call does what is left.
    """
    _finalizers[function.__code__] = function
    return function


def _again(unraisable: Any) -> None:
    # Of an exception that Python swallows. The innermost frame need not be the finalizer's.
    trace = unraisable.exc_traceback
    interrupted = issubclass(unraisable.exc_type, KeyboardInterrupt)
    if interrupted and trace is not None:
        function = _finalizers.get(trace.tb_frame.f_code)
        if function is not None:
            names = trace.tb_frame.f_code.co_varnames
            function(trace.tb_frame.f_locals[names[0]])
            # Not from here: it would be raised in this function, and swallowed too.
            _thread.start_new_thread(_deliver_soon, ())
            return
    _before_us(unraisable)


def _deliver_soon() -> None:
    time.sleep(0.001)
    _thread.interrupt_main()


_before_us = sys.unraisablehook
sys.unraisablehook = _again

__all__ = ["RestoringExit", "defer_interrupts", "finalizer"]
