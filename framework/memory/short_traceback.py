"""Short tracebacks of out-of-memory errors: the user's frames, and few of ours.

Between the line that asked for memory and the ledger lie dispatch, plans and kernels, which say
nothing to the reader of the message. Where such an error leaves an op, a layer, ``backward`` or
``step``, its traceback is cut: of ours at most ``MOST`` frames in a row stay, the innermost ones
with a public name. So it is short wherever it is shown (a terminal, a notebook, pytest, a log), and
the frames that were cut no longer keep their values alive. What is on its way costs nothing: a
``try`` that nothing leaves is free.
"""

from __future__ import annotations

import os
from types import TracebackType

from ..errors import OutOfMemoryError

MOST = 3
RAISED_ON = (
    " except MemoryError as _error:\n  _shorten(_error)\n  raise\n"  # of a compiled function
)
_FRAMEWORK = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_OURS = tuple(
    os.path.join(os.path.dirname(_FRAMEWORK), name) + os.sep
    for name in ("framework", "modules", "optim", "profiling")
)
_UNSAID = tuple(  # what runs for every op
    os.path.join(_FRAMEWORK, *name.split("/"))
    for name in (
        "devices",
        "kernels",
        "memory",
        "modes.py",
        "ops/dispatch.py",
        "ops/plan.py",
        "ops/inplace.py",
        "ops/overwrite.py",
        "ops/creation/factory.py",
        "ops/linalg/checks.py",
        "autograd",
    )
)


def shorten(error: BaseException) -> None:
    """Cut the traceback of an error that is about to be raised on, by a bare ``raise``.

    That adds no frame for the place where it stands: the one there is may be cut as well. A
    MemoryError that is not ours (NumPy's, the user's) keeps its traceback.
    """
    if isinstance(error, OutOfMemoryError):
        error.__traceback__ = shortened(error.__traceback__)


def shortened(trace: TracebackType | None) -> TracebackType | None:
    """Return a traceback with at most ``MOST`` frames of ours in a row."""
    entries: list[TracebackType] = []
    ours: list[TracebackType] = []
    while trace is not None:
        code = trace.tb_frame.f_code
        name = code.co_filename
        if name.startswith(("<op ", "<function ")):
            pass
        elif name.startswith(_OURS):
            public = not code.co_name.startswith(("_", "<"))
            if public and not name.startswith(_UNSAID):
                ours.append(trace)
        else:
            entries += [*ours[-MOST:], trace]
            ours = []
        trace = trace.tb_next
    made = None
    for entry in reversed([*entries, *ours[-MOST:]]):
        made = TracebackType(made, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return made
