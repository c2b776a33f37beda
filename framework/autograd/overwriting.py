"""Which values of a backward step may be overwritten by the gradient that is computed from them.

A node's saved values are freed when its rules have run, and the gradient that has arrived goes as
soon as what follows from it is passed on. If nothing else can see the bytes of one of them, a rule
may write its result there: softmax minus target over the logits, for example. So memory does not
grow by the result. Which values a rule offers, it declares itself (``vjp(..., room=...)``), and an
kernel declares over which of its inputs it can write (``Kernel.overwrites``).

Whether anything else can see a value follows from Python's counts of references to the tensor, its
array and its storage, as for gradients that are accumulated in place (``accumulate.py``).
"""

from __future__ import annotations

import sys
from typing import Any

from ..memory.ledger import TEMPORARY
from ..modes import local

LEAST_ROOM = 32768  # bytes: finding out about less costs more than an allocation does


SAVED, ARRIVED = range(2)  # how the engine holds a candidate


def find_room(values: list[Any], candidates: tuple[tuple[int, int], ...]) -> Any:
    """Return the first value that may be overwritten, or None.

    Args:
        values: What the rules of a node pick their arguments from. What was saved is in no other
            list, what has arrived in one more.
        candidates: The place of each among ``values``, and ``SAVED`` or ``ARRIVED``.
    """
    state = local.state
    if state.notes_results or state.anomaly:
        return None
    for place, kind in candidates:
        x = values[place]
        if x is None or not _is_all_of_a_block(x):
            continue
        tensor, array, storage = _MOST
        if sys.getrefcount(x) > tensor + kind:
            continue
        x._viewed = None  # nothing else sees this view: let its base go
        if sys.getrefcount(x._array) <= array and sys.getrefcount(x._storage) <= storage:
            return x
    return None


def _is_all_of_a_block(x: Any) -> bool:
    # Memory of the pool that no graph keeps, and in the order of the elements.
    storage = x._storage
    return bool(
        x._extra is None
        and x._spec.runs is None
        and storage.role == TEMPORARY
        and not storage.pins
        and storage.ledger is not None
        and storage.root is storage
        and storage.nbytes == x._spec.nbytes
        and x._array.flags.c_contiguous
    )


class _Sample:
    __slots__ = ("_array", "_storage")
    _array: Any
    _storage: Any


def _sample() -> list[Any]:
    x, storage = _Sample(), object()
    x._storage, x._array = storage, [storage]  # as an array holds its base
    return [x]


def _references(values: list[Any], place: int) -> tuple[int, int, int]:
    x = values[place]
    return sys.getrefcount(x), sys.getrefcount(x._array), sys.getrefcount(x._storage)


# References to a saved value, to its array and to its storage if only the engine holds it.
# Interpreters count the names in frames differently, so a sample is counted once.
_MOST = _references(_sample(), 0)
