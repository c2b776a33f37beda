"""The end of a gradient's way: into ``.grad`` of its leaf, without a copy where nobody can tell."""

from __future__ import annotations

import sys
from typing import Any

from ..memory.ledger import GRADIENT
from ..tensor import Tensor, wrap


def accumulate(leaf: Tensor, g: Tensor, create: bool, share: bool = False) -> None:
    """Add a gradient to ``leaf.grad``; the first one is taken over where nobody else sees it.

    Args:
        leaf: Whose gradient.
        g: In the shape and dtype of ``leaf``.
        create: It is part of a graph, which stays attached.
        share: The caller goes on using ``g``.
    """
    old = leaf._grad
    if old is None:
        if create and g._requires_grad:
            leaf._grad = g.clone()
        elif not share and _is_ours(g):
            leaf._grad = wrap(g._array, g._spec, g._storage)
        else:
            leaf._grad = g.detach().clone()
    elif create and (g._requires_grad or old._requires_grad):
        leaf._grad = old + g
    else:
        old.add_(g)
    assert leaf._grad is not None
    leaf._grad._storage.set_role(GRADIENT)
    extra = leaf._extra
    if extra is not None and "post_accumulate" in extra:
        for hook in list(extra["post_accumulate"].values()):
            hook(leaf)


class _Sample:
    __slots__ = ("_array", "_storage")
    _array: Any
    _storage: Any


def _sample() -> list[Any]:
    g, storage = _Sample(), object()
    g._storage, g._array = storage, [storage]  # as an array holds its base
    return [g]


def _counts_at_leaf(box: list[Any]) -> tuple[int, int, int]:
    g = box.pop()
    return _counts_in_accumulate(box, g, False)


def _counts_in_accumulate(leaf: Any, g: Any, create: bool) -> tuple[int, int, int]:
    return _counts(g)


def _counts(g: Any) -> tuple[int, int, int]:
    storage = g._storage
    return sys.getrefcount(g), sys.getrefcount(g._array), sys.getrefcount(storage)


# References to a gradient on its way to a leaf, to its array and to its storage, if only the
# engine holds it. Interpreters count the names in frames differently, so the same three calls are
# made once with a sample: _leaf (or backward), accumulate, _is_ours.
_OWN_TENSOR_REFERENCES, _OWN_ARRAY_REFERENCES, _OWN_STORAGE_REFERENCES = _counts_at_leaf(_sample())


def _is_ours(g: Tensor) -> bool:
    # A gradient may be kept as it is if no user, no other edge and no view can see its bytes.
    storage = g._storage
    return (
        g._viewed is None
        and not g._requires_grad
        and storage.pins == 0
        and g._array.flags.c_contiguous
        and storage.nbytes == g._spec.nbytes
        and storage.ledger is not None
        and sys.getrefcount(storage) <= _OWN_STORAGE_REFERENCES
        and sys.getrefcount(g._array) <= _OWN_ARRAY_REFERENCES
        and sys.getrefcount(g) <= _OWN_TENSOR_REFERENCES
    )
