"""Hooks: on tensors, on nodes, on saved values."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from itertools import count
from typing import Any

from ..tensor import Tensor
from .modes import local
from .saved import HookSaver

_ids = count()


class RemovableHandle:
    """Removes its hook: ``handle.remove()``, or at the end of ``with handle:``."""

    def __init__(self, hooks: OrderedDict[int, Any], key: int) -> None:
        self._hooks = hooks
        self.id = key

    def remove(self) -> None:
        """Remove the hook; a second call does nothing."""
        self._hooks.pop(self.id, None)

    def __enter__(self) -> RemovableHandle:
        return self

    def __exit__(self, *exc: object) -> None:
        self.remove()


def add_hook(extras: dict[Any, Any], kind: Any, hook: Any) -> RemovableHandle:
    """Append a hook to a dict of hooks by kind."""
    hooks = extras.setdefault(kind, OrderedDict())
    key = next(_ids)
    hooks[key] = hook
    return RemovableHandle(hooks, key)


def _extras(owner: Any) -> dict[Any, Any]:
    if isinstance(owner, Tensor):
        if owner._extra is None:
            owner._extra = {}
        return owner._extra
    return owner._extras()  # type: ignore[no-any-return]


def register_tensor_hook(tensor: Tensor, hook: Any) -> RemovableHandle:
    """Call ``hook(grad)`` with the whole gradient of a tensor; a result replaces it.

    Raises:
        RuntimeError: The tensor does not require grad.
    """
    if not tensor.requires_grad:
        raise RuntimeError(
            "cannot register a hook on a tensor that doesn't require gradient. "
            "Call .requires_grad_() first."
        )
    owner = tensor if tensor._node is None else tensor._node
    return add_hook(_extras(owner), ("tensor", tensor._index if owner is not tensor else 0), hook)


def register_post_accumulate_hook(tensor: Tensor, hook: Any) -> RemovableHandle:
    """Call ``hook(tensor)`` each time backward accumulated into a leaf's ``.grad``.

    Raises:
        RuntimeError: The tensor is no leaf, or does not require grad.
    """
    if not tensor.requires_grad:
        raise RuntimeError(
            "cannot register a hook on a tensor that doesn't require gradient. "
            "Call .requires_grad_() first."
        )
    if tensor._node is not None:
        raise RuntimeError(
            "post accumulate grad hooks cannot be registered on non-leaf tensors. "
            "Use register_hook."
        )
    return add_hook(_extras(tensor), "post_accumulate", hook)


def retain_grad(tensor: Tensor) -> None:
    """Keep the gradient of a non-leaf in its ``.grad``."""
    if not tensor.requires_grad:
        raise RuntimeError(
            "can't retain_grad on Tensor that has requires_grad=False. "
            "Call .requires_grad_() on what it is made from."
        )
    if tensor._node is None or tensor.retains_grad:
        return
    extra = _extras(tensor)
    extra["retains_grad"] = True
    watched = _extras(tensor._node).setdefault("retain", [])
    # Weakly: the node must not keep its own output alive.
    watched.append((tensor._index, weakref.ref(tensor)))


def run_hooks(hooks: OrderedDict[int, Any], grad: Tensor | None) -> Tensor | None:
    """Pass a gradient through tensor hooks, in the order of registration."""
    for hook in list(hooks.values()):
        result = hook(grad)
        if result is not None:
            if not isinstance(result, Tensor):
                raise TypeError(
                    f"a tensor hook must return a Tensor or None; got {type(result).__name__}."
                )
            grad = result
    return grad


class saved_tensors_hooks:  # noqa: N801 - PyTorch's name
    """Pass every value saved for backward inside through ``pack_hook``, and back.

    Args:
        pack_hook: Called with the tensor when it is saved; what it returns is kept.
        unpack_hook: Called with that when backward needs the tensor; returns it.
    """

    def __init__(self, pack_hook: Any, unpack_hook: Any) -> None:
        self._saver = HookSaver(pack_hook, unpack_hook)

    def __enter__(self) -> None:
        self._before = local.state.saver
        local.state.saver = self._saver

    def __exit__(self, *exc: object) -> None:
        local.state.saver = self._before
