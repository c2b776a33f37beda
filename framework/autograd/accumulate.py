"""Gradient accumulation: pending gradients and ``.grad``, without copies where possible.

Whether anything else can see a gradient's bytes follows from Python's counts of references to the
tensor, its array and its storage.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import Any

from ..interrupts import defer_interrupts
from ..memory.ledger import GRADIENT, TEMPORARY
from ..storage import AliasStorage
from ..tensor import Tensor, wrap
from . import given_ops

# Threads that share parameters may end their passes together: none may miss another's gradient, nor
# write into a sum while another does. The same thread may come back here, from a finalizer.
_adding = threading.RLock()
if hasattr(os, "register_at_fork"):  # a child must not inherit a sum that will never end
    os.register_at_fork(
        before=_adding.acquire,
        after_in_parent=_adding.release,
        after_in_child=_adding.release,
    )


def accumulate(leaf: Tensor, g: Tensor, create: bool, share: bool = False) -> None:
    """Accumulate a gradient into ``leaf.grad``; the first is stored without a copy if unshared.

    Args:
        leaf: Whose gradient.
        g: In the shape and dtype of ``leaf``.
        create: It is part of a graph, which stays attached.
        share: The caller goes on using ``g``.
    """
    with _adding:
        old = leaf._grad
        if old is None:
            if create and g._requires_grad:
                fresh = g.clone()
            elif not share and _is_ours(g, _AT_LEAF):
                fresh = wrap(g._array, g._spec, g._storage)
            elif g._spec.runs is not None and hasattr(g, "taken_over"):  # sparse
                fresh = g.taken_over(not share and _only_we_hold(g, _AT_LEAF))
            else:
                fresh = g.detach().clone()
            fresh._storage.set_role(GRADIENT)
            leaf._grad = fresh
        elif create and (g._requires_grad or old._requires_grad):
            fresh = old + g
            fresh._storage.set_role(GRADIENT)
            leaf._grad = fresh
        elif old._spec.runs is not None and g._spec.runs is None:  # a sparse sum becomes dense
            fresh = g + old
            fresh._storage.set_role(GRADIENT)
            leaf._grad = fresh
        else:
            _add(old, g)
            old._storage.set_role(GRADIENT)
    extra = leaf._extra
    if extra is not None and "post_accumulate" in extra:
        for hook in list(extra["post_accumulate"].values()):
            hook(leaf)


def claim(leaf: Tensor, g: Any, known: list[Any], pending: dict[Any, Any]) -> None:
    """Set the role of a gradient that will become the ``.grad`` of a leaf.

    The pass may be at its peak here: what is largest then may be just this gradient. It is one
    already if the leaf will take it over: the first of a leaf without hooks, and of no one else.

    Args:
        leaf: Whose gradient it is, or a part of it.
        g: What the rule returned.
        known: What the rule was given; the bytes of these are not its own.
        pending: The pending gradients of the pass. The leaf gets its place there, so that no
            second one is counted: it will be added to the first.
    """
    if not isinstance(g, Tensor) or leaf._grad is not None or g._spec is not leaf._spec:
        return
    if leaf in pending:
        return
    storage = g._storage
    if (
        storage.role != TEMPORARY
        or storage.pins
        or storage.ledger is None
        or storage.root is not storage
        or storage.nbytes != g._spec.nbytes
        or g._viewed is not None
        or not g._array.flags.c_contiguous
        or (leaf._extra is not None and ("tensor", 0) in leaf._extra)
    ):
        return
    for value in known:
        if isinstance(value, Tensor) and value._storage is storage:
            return
    pending[leaf] = [None]
    storage.set_role(GRADIENT)


def add_arriving(entry: list[Tensor | None], index: int, g: Tensor, create: bool) -> None:
    """Add a further gradient to a pending one, in place if the buffer is unshared.

    Args:
        entry: The pending gradients of a node, or of a leaf; that at ``index`` is there.
        index: Of which value.
        g: The further one; the caller holds it by one name and does not use it again.
        create: The sum is part of a graph.
    """
    old: Any = entry[index]
    if create or old._requires_grad or g._requires_grad:
        entry[index] = old + g
    elif _has_room(old, g) and _is_ours(old, _PENDING):
        _add(old, g)
    elif _has_room(g, old) and _is_ours(g, _ARRIVING):
        _add(g, old)  # the same number: a sum of two does not depend on their order
        entry[index] = g
    else:
        entry[index] = old + g


def _has_room(total: Tensor, g: Tensor) -> bool:
    # One gradient of all samples of a vmap has no room for a sum that differs between them.
    return g._spec.runs is None or total._spec.runs is not None or hasattr(g, "taken_over")


def _add(total: Tensor, g: Tensor) -> None:
    """Compute ``total += g``, tile by tile where that takes float32 workspace."""
    if total._spec.dtype.is_half and total._spec.runs is g._spec.runs is None:
        with defer_interrupts():
            for part, more in given_ops.tiles(total, g):
                part.add_(more)
    else:
        total.add_(g)


class Sample:
    """What stands for a tensor where references to one that nothing else holds are counted."""

    __slots__ = ("_array", "_storage")
    _array: Any
    _storage: Any


def sample() -> list[Any]:
    """Return a list of one sample, whose array holds its storage as a tensor's does."""
    g, storage = Sample(), object()
    g._storage, g._array = storage, [storage]  # as an array holds its base
    return [g]


def _counts_at_leaf(box: list[Any]) -> tuple[int, int, int]:
    g = box.pop()
    return _counts_in_accumulate(box, g, False)


def _counts_in_accumulate(leaf: Any, g: Any, create: bool) -> tuple[int, int, int]:
    return _counts(g)


def _counts_in_pass(box: list[Any], entry: list[Any]) -> Any:
    g = box.pop()
    return _counts_in_add(entry, 0, g, False)


def _counts_in_add(entry: list[Any], index: int, g: Any, create: bool) -> Any:
    old = entry[index]
    return _counts(old), _counts(g)


def _counts(g: Any) -> tuple[int, int, int]:
    storage = g._storage
    return sys.getrefcount(g), sys.getrefcount(g._array), sys.getrefcount(storage)


# References to a gradient, to its array and to its storage, if only the engine holds it: on its way
# to a leaf, pending, arriving at a pending one. Interpreters count the names in frames differently,
# so the same calls are made once with samples: _leaf (or backward), accumulate, _is_ours; and
# _drain, add_arriving, _is_ours.
_AT_LEAF = _counts_at_leaf(sample())
_PENDING, _ARRIVING = _counts_in_pass(sample(), sample())


def _only_we_hold(g: Any, most: tuple[int, int, int]) -> bool:
    # A sparse gradient, which looks after its parts itself.
    return g._extra is None and sys.getrefcount(g) <= most[0]


def _is_ours(g: Tensor, most: tuple[int, int, int]) -> bool:
    # A buffer may be kept or written if no user, no other edge and no view can see its bytes.
    storage = g._storage
    return (
        g._viewed is None
        and not g._requires_grad
        and storage.__class__ is not AliasStorage
        and storage.pins == 0
        and g._array.flags.c_contiguous
        and storage.nbytes == g._spec.nbytes
        and storage.ledger is not None
        and sys.getrefcount(storage) <= most[2]
        and sys.getrefcount(g._array) <= most[1]
        and sys.getrefcount(g) <= most[0]
    )
