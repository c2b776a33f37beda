"""Which values of a backward step may be overwritten by the gradient that is computed from them.

A node's saved values are freed when its rules have run, and the gradient that has arrived goes as
soon as what follows from it is passed on. If nothing else can see the bytes of one of them, a rule
may write its result there: softmax minus target over the logits, for example. So memory does not
grow by the result. Which values a rule offers, it declares itself (``vjp(..., room=...)``), and a
kernel declares over which of its inputs it can write (``Kernel.overwrites``).

Whether anything else can see a value follows from Python's counts of references to the tensor, its
array and its storage, as for gradients that are accumulated in place (``accumulate.py``).
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from ..memory.ledger import TEMPORARY
from ..modes import local
from .accumulate import Sample, sample

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
        if sys.getrefcount(x) > tensor + kind or sys.getrefcount(x._array) > array:
            continue
        viewed, more = x._viewed, 0
        if viewed is not None:  # of a tensor that nothing but this view holds
            if sys.getrefcount(viewed) > tensor or sys.getrefcount(viewed.base) > array:
                continue
            more = 1
        if sys.getrefcount(x._storage) > storage + more:
            continue
        if _base_references(x) <= _MOST_OF_BASE + more:
            x._viewed = None
            return x
    return None


def _base_references(x: Any) -> int:
    # Of the array between a view and the storage, as the value had it that was viewed: arrays that
    # the user has may be views of it, too. 0 if there is none.
    base = x._array.base
    return 0 if base is None or base is x._storage else sys.getrefcount(base)


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


def _references(values: list[Any], place: int) -> tuple[int, int, int]:
    x = values[place]
    return sys.getrefcount(x), sys.getrefcount(x._array), sys.getrefcount(x._storage)


def _sample_of_view() -> Any:
    x = Sample()
    x._storage = bytearray(16)
    x._array = np.ndarray((2,), np.float64, x._storage)[:1]
    return x


# References to a saved value, to its array and to its storage if only the engine holds it, and to
# what the array is a view of. Interpreters count the names in frames differently, so samples are
# counted once.
_MOST = _references(sample(), 0)
_MOST_OF_BASE = _base_references(_sample_of_view())
