"""Scratch of a kernel whose chunks several threads take: a room for each of them.

The caller allocates as many rooms as threads may take part, and a word for each, 0 if it is free.
"""

from __future__ import annotations

from typing import Any

from .atomics import exchange, relax, store
from .jit import part


@part
def enter(taken: Any) -> Any:
    """Return the number of a room that is free, and take it.

    Args:
        taken: A word of eight bytes for each room. There are as many as threads at least.
    """
    base, k = taken.ctypes.data, 0
    while exchange(base + 8 * k, 1) != 0:
        k += 1
        if k == taken.size:  # a thread of another call is about to leave
            k = 0
            relax()
    return k


@part
def leave(taken: Any, k: Any) -> None:
    """Free a room."""
    store(taken.ctypes.data + 8 * k, 0)
