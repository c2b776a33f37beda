"""Short tracebacks of out-of-memory errors: the user's frames, and few of ours.

Between the line that asked for memory and the ledger lie dispatch, plans and kernels, which say
nothing to whoever reads the message. An error that nobody catches is printed with at most
``MOST`` frames of ours after each of the user's: the innermost ones with a public name, a layer's
``forward`` and the function it calls. What catches the error sees all frames, as a debugger does.

``sys.excepthook`` is exchanged when the first such error is made, and calls the one before.
"""

from __future__ import annotations

import os
import sys
from types import TracebackType
from typing import Any

from ..errors import OutOfMemoryError

MOST = 3
_FRAMEWORK = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_OURS = tuple(
    os.path.join(os.path.dirname(_FRAMEWORK), name) + os.sep
    for name in ("framework", "modules", "optim", "profiling")
)
_UNSAID = tuple(  # what runs for every op
    os.path.join(_FRAMEWORK, *name.split("/"))
    for name in ("devices", "kernels", "memory", "modes.py", "ops/dispatch.py", "ops/plan.py",
                 "ops/inplace.py", "ops/creation/factory.py")
)  # fmt: skip


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
            public = not code.co_name.startswith(("_", "<")) or code.co_name == "__call__"
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


def install() -> None:
    """Exchange ``sys.excepthook``, unless that was done."""
    before = sys.excepthook
    if getattr(before, "shortens", False):
        return

    def hook(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        if isinstance(error, OutOfMemoryError):
            trace = shortened(trace)
            error = error.with_traceback(trace)
        before(kind, error, trace)

    hook.shortens = True  # type: ignore[attr-defined]
    sys.excepthook = hook
