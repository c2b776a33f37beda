"""Hooks on tensors, on graph nodes, and on saved tensors."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any

from ..interrupts import RestoringExit
from ..modes import local, state_of_thread
from ..tensor import Tensor
from .node import edge_to
from .removable_handle import RemovableHandle, add_hook
from .saved import HookSaver


def _extras(owner: Any) -> dict[Any, Any]:
    if isinstance(owner, Tensor):
        if owner._extra is None:
            owner._extra = {}
        return owner._extra
    return owner._extras()  # type: ignore[no-any-return]


def register_tensor_hook(tensor: Tensor, hook: Any) -> RemovableHandle:
    """Register ``hook(grad)`` on a tensor's gradient; a result replaces the gradient.

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


def register_post_accumulate_hook(
    tensor: Tensor, hook: Any, first: bool = False
) -> RemovableHandle:
    """Register ``hook(tensor)``, called after backward accumulated into a leaf's ``.grad``.

    Args:
        tensor: The leaf.
        hook: What is called.
        first: Call it before the hooks that are there already.

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
    handle = add_hook(_extras(tensor), "post_accumulate", hook)
    if first:
        _extras(tensor)["post_accumulate"].move_to_end(handle.id, last=False)
    return handle


def retain_grad(tensor: Tensor) -> None:
    """Keep the gradient of a non-leaf tensor in its ``.grad``."""
    if not tensor.requires_grad:
        raise RuntimeError(
            "can't retain_grad on Tensor that has requires_grad=False. "
            "Call .requires_grad_() on what it is made from."
        )
    if tensor._node is None or tensor.retains_grad:
        return
    _extras(tensor)["retains_grad"] = True
    _watch(tensor)


def _watch(tensor: Tensor) -> None:
    watched = _extras(tensor._node).setdefault("retain", [])
    # Weakly: the node must not keep its own output alive.
    watched.append((tensor._index, weakref.ref(tensor)))


def move_retained(tensor: Tensor, old: Any) -> None:
    """Move ``retain_grad`` to the new value of a tensor after a write in place."""
    if old is not None and old.extra is not None:
        watched = old.extra.get("retain", [])
        watched[:] = [pair for pair in watched if pair[1]() is not tensor]
    _watch(tensor)


def run_hooks(hooks: OrderedDict[int, Any], grad: Tensor | None) -> Tensor | None:
    """Run tensor hooks on a gradient, in the order of registration.

    Raises:
        RuntimeError: A hook returned a gradient of another shape.
    """
    for hook in list(hooks.values()):
        result = hook(grad)
        if result is not None:
            name = getattr(hook, "__name__", type(hook).__name__)
            if not isinstance(result, Tensor):
                raise TypeError(
                    f"a tensor hook must return a Tensor or None; '{name}' returned "
                    f"{type(result).__name__}."
                )
            if grad is not None and result._spec is not grad._spec:
                if result._spec.shape != grad._spec.shape:
                    raise RuntimeError(
                        f"hook '{name}' has changed the size of value: the gradient has shape "
                        f"{tuple(grad.shape)}, what it returned {tuple(result.shape)}."
                    )
                result = result.to(grad.device, grad.dtype)
            grad = result
    return grad


class saved_tensors_hooks:
    """Pack every tensor saved for backward by ``pack_hook``; unpack it in backward.

    Args:
        pack_hook: Called with the tensor when it is saved; what it returns is kept.
        unpack_hook: Called with that when backward needs the tensor; returns it.

    Memory:
        Keeps what ``pack_hook`` returns instead of the value.

    Example:
        >>> import lowtide as lt
        >>> x = lt.tensor([1.0, 2.0], requires_grad=True)
        >>> with lt.autograd.graph.saved_tensors_hooks(lambda t: t.tolist(), lt.tensor):
        ...     y = (x * x).sum()
        >>> y.backward()
        >>> x.grad.tolist()
        [2.0, 4.0]
    """

    def __init__(self, pack_hook: Any, unpack_hook: Any) -> None:
        self.pack_hook = pack_hook
        self.unpack_hook = unpack_hook
        self._before: list[Any] = [None]

    def __enter__(self) -> None:
        state = local.state
        if state.hooks_disabled is not None:
            raise RuntimeError(state.hooks_disabled)
        saver = HookSaver(self.pack_hook, self.unpack_hook)
        self._before[0] = state.saver  # no call before the next line: see RestoringExit
        state.saver = saver

    __exit__ = RestoringExit(state_of_thread, "saver")


class disable_saved_tensors_hooks:
    """Make the use of ``saved_tensors_hooks`` an error inside.

    Args:
        error_message: What the RuntimeError says.
    """

    def __init__(self, error_message: str) -> None:
        self.error_message = error_message
        self._before: list[Any] = [None]

    def __enter__(self) -> None:
        state = local.state
        if state.saver is not None:
            raise RuntimeError(self.error_message)
        self._before[0] = state.hooks_disabled
        state.hooks_disabled = self.error_message

    __exit__ = RestoringExit(state_of_thread, "hooks_disabled")


def increment_version(tensor: Tensor | Iterable[Tensor]) -> None:
    """Increment the version of tensors that were written outside of autograd's sight.

    Args:
        tensor: One tensor, or several.
    """
    for t in (tensor,) if isinstance(tensor, Tensor) else tensor:
        t._storage.version += 1


def register_multi_grad_hook(
    tensors: Sequence[Tensor], fn: Any, *, mode: str = "all"
) -> MultiHandle:
    """Register a hook that is called with the gradients of several tensors.

    Args:
        tensors: Those that require grad.
        fn: With mode "all", called with the list of gradients, once a backward has computed each
            that it will compute (None for the others); with mode "any", called with the first.
        mode: "all" or "any".

    Returns:
        A handle that removes the hook.
    """
    if mode not in ("all", "any"):
        raise ValueError(f"register_multi_grad_hook: mode is 'all' or 'any'; got {mode!r}.")
    # Weakly: the nodes keep these hooks. What has arrived is noted with the pass, and goes with it.
    ends = [weakref.ref(edge_to(t)[0]) if t.requires_grad else None for t in tensors]
    key = object()

    def seen(position: int, grad: Tensor) -> None:
        running = local.state.running
        notes = running.notes.setdefault(key, {})
        notes[position] = grad
        if mode == "any":
            if len(notes) == 1:
                fn(grad)
            return
        targets = [None if end is None else end() for end in ends]
        if len(notes) == sum(t is not None and running.reaches(t) for t in targets):
            del running.notes[key]
            fn([notes.get(k) for k in range(len(ends))])

    def hook_of(position: int) -> Any:
        return lambda grad: seen(position, grad)

    return MultiHandle([t.register_hook(hook_of(k)) for k, t in enumerate(tensors)])


class MultiHandle:
    """A handle that removes a hook on several tensors."""

    def __init__(self, handles: list[RemovableHandle]) -> None:
        self._handles = handles

    def remove(self) -> None:
        """Remove the hook from each tensor; a second call does nothing."""
        for handle in self._handles:
            handle.remove()
