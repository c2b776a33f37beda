"""``once_differentiable``: for a backward of the user's that leaves lowtide.

Its results are connected to the arriving gradients by a node that raises, so that differentiating
them again is an error and not silently wrong.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from ..errors import GradientError
from ..modes import local, no_grad
from ..tensor import Tensor
from .node import Node, attach, edge_to


def once_differentiable(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a backward that cannot be differentiated; doing so raises an error.

    Example:
        Put it below ``@staticmethod``, on a backward that leaves lowtide, for NumPy say.
    """

    @functools.wraps(backward)
    def once(ctx: Any, *grads: Any) -> Any:
        with no_grad():
            results = backward(ctx, *grads)
        sources = [g for g in grads if isinstance(g, Tensor) and g.requires_grad]
        if not (local.state.grad and sources):
            return results
        several = isinstance(results, tuple | list)
        blocked = [
            _blocked(r, sources) if isinstance(r, Tensor) and r.dtype.is_differentiable else r
            for r in (results if several else [results])
        ]
        return tuple(blocked) if several else blocked[0]

    once.differentiable_once = True  # type: ignore[attr-defined]
    return once


def _blocked(result: Tensor, sources: Sequence[Tensor]) -> Tensor:
    return without_derivative(
        result,
        [edge_to(s) for s in sources],
        [s._spec for s in sources],
        "trying to differentiate twice a function that was marked with @once_differentiable. "
        "Write its backward in lowtide's ops and drop the mark.",
    )


def without_derivative(
    value: Tensor, edges: list[tuple[Any, int]], edge_specs: list[Any], message: str
) -> Tensor:
    """Return a value whose gradient raises, where it is wanted by what the edges lead to."""
    out: Tensor = value.detach()
    attach(out, _Error(edges, edge_specs, message))
    return out


class _Error(Node):
    """The node of a value that cannot be differentiated."""

    __slots__ = ("edge_specs", "message")

    def __init__(self, edges: Any, edge_specs: Any, message: str) -> None:
        self.edges = edges
        self.edge_specs = edge_specs
        self.message = message
        self._begin()

    def name(self) -> str:
        return "Error"

    def apply(
        self, grads: list[Tensor | None], wanted: Sequence[bool] | None, retain: bool, create: bool
    ) -> Sequence[Tensor | None]:
        raise GradientError(self.message)
