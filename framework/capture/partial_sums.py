"""Gradients that have arrived at a value before the backward of a recorded call adds to them.

A sum of floats depends on its order. Let a value be used behind a call, and twice inside of it. The
engine computes (behind + last) + first. A backward of the call that returned last + first would
give other bits. So it takes what has arrived, and returns the sum of all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ..autograd.node import edge_to
from ..modes import local
from ..storage import Storage
from ..tensor import Tensor
from .call import End


def used_several_times(outputs: Sequence[Tensor], sources: Sequence[Tensor]) -> dict[int, Any]:
    """Return the leaf or ``End`` at which several gradients of a source arrive, by its position.

    Args:
        outputs: What the graph leads to.
        sources: Where it ends.
    """
    arriving: dict[Any, int] = {}
    waiting: list[Any] = list({t._node for t in outputs})
    seen = set(waiting)
    while waiting:
        node = waiting.pop()
        if isinstance(node, End):
            continue
        for target, _ in node.edges:
            arriving[target] = arriving.get(target, 0) + 1
            if target._is_node and target not in seen:
                seen.add(target)
                waiting.append(target)
    targets = [edge_to(t)[0] for t in sources]
    return {k: target for k, target in enumerate(targets) if arriving.get(target, 0) > 1}


@contextmanager
def ending_at(sources: Sequence[Tensor]) -> Iterator[None]:
    """Let the graph of a call end at its sources for a block: no backward goes on there."""
    ends = [(t._node, t._node.edges) for t in sources if isinstance(t._node, End)]
    try:
        for end, _ in ends:
            end.edges = []
        yield
    finally:
        for end, edges in ends:
            end.edges = edges


def take_arrived(
    edges: Sequence[tuple[Any, int]], which: Iterable[int], wanted: Any
) -> list[Tensor | None]:
    """Take what has arrived at the other end of some edges of the node that runs.

    Args:
        edges: Its edges.
        which: The numbers of those.
        wanted: Which edges the pass asks for; None for all.

    Returns:
        The gradients; None where none has arrived. The pass has none there from now on.
    """
    pending = local.state.running.pending
    found: list[Tensor | None] = []
    for k in which:
        target, index = edges[k]
        entry = pending.get(target)
        g = None if entry is None or not (wanted is None or wanted[k]) else entry[index]
        if g is not None and isinstance(g, Tensor) and is_plain_gradient(g):
            entry[index] = None
        else:
            g = None
        found.append(g)
    return found


def apart_from(
    grads: Sequence[Tensor | None], arrived: Sequence[Tensor | None]
) -> list[Tensor | None]:
    """Return what has arrived at values, with copies of gradients that are others' memory.

    A recording tells values by their memory.
    """
    taken = {id(g._storage.root) for g in grads if g is not None}
    found: list[Tensor | None] = []
    for g in arrived:
        if g is not None and id(g._storage.root) in taken and g.is_contiguous():
            g = g.clone()
        if g is not None:
            taken.add(id(g._storage.root))
        found.append(g)
    return found


def is_plain_gradient(g: Any) -> bool:
    """Whether a gradient is a dense tensor of the pool, in no graph, without hooks."""
    return (
        isinstance(g._storage.root, Storage)
        and g._spec.runs is None
        and not g._requires_grad
        and g._extra is None
        and g._viewed is None
    )
