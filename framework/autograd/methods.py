"""Autograd methods of Tensor: ``backward``, hooks, ``retain_grad``.

``tensor.py`` lies below autograd and knows no graph; so autograd installs them, as ops install
theirs. Importing ``framework/ops`` imports this.
"""

from __future__ import annotations

from typing import Any

from ..tensor import Tensor, install_method
from .engine import backward as run_backward
from .hooks import register_post_accumulate_hook, register_tensor_hook
from .hooks import retain_grad as keep_grad
from .view_history import refresh


def backward(
    self: Tensor,
    gradient: Tensor | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: Any = None,
) -> None:
    """Accumulate the gradients of this tensor into ``.grad`` of the leaves.

    Args:
        self: A tensor that requires grad.
        gradient: The gradient of what follows with respect to this tensor, in its shape.
            May be left out for a single element.
        retain_graph: Keep saved values for another backward; defaults to ``create_graph``.
        create_graph: Record the backward itself, for higher derivatives.
        inputs: Accumulate into these tensors only.
    """
    run_backward(self, gradient, retain_graph, create_graph, inputs=inputs)


def register_hook(self: Tensor, hook: Any) -> Any:
    """Register ``hook(grad)`` on this tensor's gradient; it may return a replacement."""
    return register_tensor_hook(self, hook)


def register_post_accumulate_grad_hook(self: Tensor, hook: Any) -> Any:
    """Register ``hook(tensor)``, called after backward accumulated into this leaf's ``.grad``."""
    return register_post_accumulate_hook(self, hook)


def retain_grad(self: Tensor) -> None:
    """Keep the gradient of this non-leaf tensor in ``.grad``."""
    keep_grad(self)


def _refresh(self: Tensor) -> None:
    viewed = self._viewed
    if viewed is not None and viewed.version != self._storage.version:
        refresh(self)


for _method in (backward, register_hook, register_post_accumulate_grad_hook, retain_grad, _refresh):
    install_method(_method.__name__, _method)
