"""NumPy's floating-point warnings, off while a kernel runs.

Overflow, division by zero and invalid operands are results in a tensor (inf, nan), never warnings,
whatever the user told NumPy to do with its own. The public ``np.errstate`` costs 1.2 us a use; the
context variable behind it costs a tenth, so the dispatcher uses that where NumPy has it:

    token = hush(SILENT)
    try:
        ...
    finally:
        unhush(token)
"""

from __future__ import annotations

from typing import Any

import numpy as np

SILENT: Any
try:
    from numpy._core.umath import _extobj_contextvar, _make_extobj

    hush, unhush = _extobj_contextvar.set, _extobj_contextvar.reset
    SILENT = _make_extobj(all="ignore")
except ImportError:  # another NumPy: the public way, slower
    SILENT = None

    def hush(state: Any) -> Any:
        """Silence NumPy; returns what ``unhush`` takes."""
        guard = np.errstate(all="ignore")
        guard.__enter__()
        return guard

    def unhush(token: Any) -> None:
        """Put back what was before."""
        token.__exit__(None, None, None)
