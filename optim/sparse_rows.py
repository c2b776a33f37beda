"""Steps by sparse gradients: only the rows that have one are read and written.

What takes memory, some rows for each look-up, happens in ``prepare``; what is returned then only
writes. A gradient is coalesced first, so no row is written twice.
"""

from __future__ import annotations

from typing import Any

from ..framework.ops.sparse.arithmetic import joined
from ..framework.ops.sparse.coo import as_coo, coalesce, gathered
from ..framework.ops.sparse.sparse_tensor import SparseTensor
from .optimizer import number, own


def is_sparse(g: Any) -> bool:
    """True for a sparse gradient."""
    return isinstance(g, SparseTensor)


def rows_of(g: Any, maximize: bool) -> tuple[Any, Any]:
    """Return the places of a sparse gradient, (sparse dims, n), and the values to descend by."""
    s = coalesce(as_coo(g.detach()))
    values = s._values()
    return s._indices(), -values if maximize else values


def read(t: Any, at: Any) -> Any:
    """Return the rows of ``t`` at these places."""
    return gathered(t, at)


def write(*told: tuple[Any, Any, Any, bool]) -> None:
    """Write rows: of each (tensor, places, values, whether to add them)."""
    for t, at, values, adds in told:
        dims = tuple(range(at.shape[0]))
        if at.shape[1]:
            if adds:
                t._index_put_add_(at, values, dims=dims, at=0)
            else:
                t._index_put_(at, values, dims=dims, at=0)


def sgd(p: Any, g: Any, state: dict[str, Any], group: dict[str, Any]) -> Any:
    """Prepare a step of SGD; the momentum buffer is sparse, too.

    Raises:
        RuntimeError: With weight decay, which would move every row.
    """
    if number(group["weight_decay"]):
        raise RuntimeError(
            "SGD: weight_decay is not compatible with sparse gradients: add(sparse, dense) is not "
            "supported. Set it to 0 for these parameters, in a separate group."
        )
    momentum, rate = group["momentum"], number(group["lr"])
    d = coalesce(as_coo(g.detach()))
    if group["maximize"]:
        d = -d
    if momentum:
        buffer = state.get("momentum_buffer")
        if buffer is None:
            buffer = d.clone()
        else:
            buffer = coalesce(joined(buffer * momentum, d * (1 - group["dampening"])))
        state["momentum_buffer"] = own(buffer, p)
        d = joined(d, buffer * momentum) if group["nesterov"] else buffer
    return write, (p, d._indices(), d._values() * -rate, True)


def adagrad(p: Any, g: Any, state: dict[str, Any], group: dict[str, Any]) -> Any:
    """Prepare a step of Adagrad.

    Raises:
        RuntimeError: With weight decay, which would move every row.
    """
    if number(group["weight_decay"]):
        raise RuntimeError(
            "Adagrad: weight_decay option is not compatible with sparse gradients. Set it to 0 for "
            "these parameters, in a separate group."
        )
    step = state["step"] = state["step"] + 1
    rate = number(group["lr"]) / (1 + (step - 1) * group["lr_decay"])
    at, d = rows_of(g, group["maximize"])
    total = read(state["sum"], at).addcmul(d, d)
    moved = (d / (total.sqrt() + group["eps"])) * -rate
    return write, (state["sum"], at, total, False), (p, at, moved, True)
