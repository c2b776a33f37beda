"""Optimizer steps fused into backward: each gradient is used and freed once accumulated.

An ordinary step needs all gradients at once: as many bytes as there are parameters. Most optimizers
look at one parameter at a time, and nothing in backward reads a parameter again after its gradient
is complete: all nodes that kept it have run. So a hook on each parameter can make that parameter's
step there and then.

Nothing here is part of a cycle: the hook that parameters hold knows its optimizer weakly, the
handle that the user holds knows it strongly.

Source:
    Lv et al. 2023, "Full Parameter Fine-tuning for Large Language Models with Limited Resources"
    (LOMO), did it for SGD.
"""

from __future__ import annotations

import weakref
from typing import Any

from ..framework.autograd.removable_handle import add_hook
from ..framework.modes import local
from .optimizer import Optimizer


def fuse_into_backward(optimizer: Optimizer, *, once: bool = False) -> FusedStep:
    """Update each parameter during ``backward()``, as soon as its gradient is complete.

    The gradient is freed right after, so at most one parameter's gradient is there at any moment,
    and ``p.grad`` is None after ``backward()``. Parameters and state are bit for bit those of
    ``backward(); optimizer.step()``. The loop stays as it was: ``optimizer.step()`` still runs the
    step hooks and updates whatever has a gradient from elsewhere, which usually is nothing;
    schedulers, ``zero_grad()`` and ``state_dict()`` work as ever. Groups added later are fused too.

    What needs all gradients at once cannot work with it. ``clip_grad_norm_`` and
    ``GradScaler.step`` raise; several backward passes to one step are several steps. What needs one
    gradient at a time works in a hook: ``p.register_hook(lambda g: g.clamp(-1, 1))``.

    If backward raises half way, or is interrupted, parameters whose gradient was complete are
    updated, the others are not. Each parameter's update is complete: one that raised, where an
    allocation was refused, leaves its parameter and state as they were, and the gradient is gone. A
    backward that is tried again moves some parameters twice; to go back, restore a checkpoint.

    With ``backward(inputs=...)`` the results are the same, but the gradients of these inputs are
    all computed before the first is used.

    Args:
        optimizer: With an ``update`` for one parameter and the step of :class:`Optimizer`: all but
            LBFGS.
        once: Raise a RuntimeError in a backward pass that would update a parameter a second time
            before ``optimizer.step()`` is called, as with accumulated gradients.

    Returns:
        The handle: ``handle.remove()``, or the end of ``with handle:``, undoes it. Keep it or the
        optimizer: without both, the next backward raises.

    Raises:
        TypeError: It is no optimizer.
        ValueError: Its step needs all gradients at once, or is a custom one; a parameter is no
            leaf.
        RuntimeError: It is fused already, or a parameter is updated in backward by another one.

    Example:
        >>> import lowtide as lt
        >>> p = lt.ones(2, requires_grad=True)
        >>> handle = lt.optim.fuse_into_backward(lt.optim.SGD([p], lr=0.25))
        >>> (p * p).sum().backward()
        >>> p.tolist(), p.grad
        ([0.5, 0.5], None)
    """
    if not isinstance(optimizer, Optimizer):
        raise TypeError(
            f"fuse_into_backward takes an Optimizer; got {type(optimizer).__name__}. Pass one, "
            "such as lowtide.optim.SGD(...)."
        )
    kind = type(optimizer)
    defined = kind.prepare is not Optimizer.prepare or kind.update is not Optimizer.update
    if kind.step is not Optimizer.step or not defined:
        raise ValueError(
            f"fuse_into_backward: {kind.__name__} defines step() itself, so it may need all "
            "gradients at once, and in backward there is one at a time. Use an optimizer that "
            "defines update(p, g, state, group) and leaves step() to Optimizer; of lowtide's own, "
            "all but LBFGS do."
        )
    if optimizer._in_backward is not None:
        raise RuntimeError(
            f"fuse_into_backward: this {kind.__name__} is fused already. Call remove() on the "
            "handle that the first call returned."
        )
    hook = _Hook(optimizer, once)
    for group in optimizer.param_groups:
        hook.check(group)
    for group in optimizer.param_groups:
        hook.take(group)
    optimizer._in_backward = hook
    return FusedStep(optimizer)


class FusedStep:
    """The handle that :func:`fuse_into_backward` returns.

    Attributes:
        optimizer: Which one.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        self._hook = optimizer._in_backward

    @property
    def pending(self) -> bool:
        """With ``once``: whether backward updated parameters and ``step()`` has not been called."""
        return bool(self._hook.once and self.optimizer._updated)

    def remove(self) -> None:
        """Restore updates by ``step()``; a second call does nothing."""
        optimizer, hook = self.optimizer, self._hook
        if optimizer._in_backward is not hook:
            return
        optimizer._in_backward = None
        for group, _ in hook.places.values():
            for p in group["params"]:
                hook.leave(p)
        hook.places.clear()

    def __enter__(self) -> FusedStep:
        return self

    def __exit__(self, *exc: object) -> None:
        self.remove()


class _Hook:
    """The hook on parameters that applies updates; one per optimizer.

    Attributes:
        updates: True: tells others that a parameter with this hook keeps no gradient.
        places: By a parameter's id its group, and how often it is listed there. The optimizer
            owns this dict: groups lead to parameters.
        once: Whether a parameter may be updated once only before the next ``step()``.
    """

    updates = True

    def __init__(self, optimizer: Optimizer, once: bool) -> None:
        self._optimizer = weakref.ref(optimizer)
        self._kind = type(optimizer).__name__
        self._reported = False
        self.once = once
        if once and optimizer._updated is None:
            # It outlives the hook: a pass of before, without a step since, is not forgotten.
            optimizer._updated = set()
        optimizer._places = {}

    @property
    def places(self) -> dict[int, tuple[dict[str, Any], int]]:
        optimizer = self._optimizer()
        return {} if optimizer is None else optimizer._places

    def check(self, group: dict[str, Any]) -> None:
        """Raise an error for parameters that cannot be updated in backward."""
        for p in group["params"]:
            if not p.is_leaf:
                raise ValueError(
                    f"fuse_into_backward: a parameter of shape {tuple(p.shape)} is no leaf, so "
                    "backward accumulates no gradient into it. Pass the leaf it is made from."
                )
            for other in _hooks_of(p).values():
                if isinstance(other, _Hook) and other._optimizer() is not None:
                    raise RuntimeError(
                        f"fuse_into_backward: a parameter of shape {tuple(p.shape)} is updated in "
                        f"backward by another {other._kind} already, which frees its gradient. "
                        "Call remove() on that one's handle."
                    )

    def take(self, group: dict[str, Any]) -> None:
        """Start updating a group's parameters in backward."""
        for p in group["params"]:
            known = self.places.get(id(p))
            self.places[id(p)] = (group, 1 if known is None else known[1] + 1)
            if known is None:
                for other in list(_hooks_of(p).values()):
                    if isinstance(other, _Hook):  # of an optimizer that is gone
                        other.leave(p)
                if p._extra is None:
                    p._extra = {}
                add_hook(p._extra, "post_accumulate", self)

    def leave(self, p: Any) -> None:
        """Stop updating a parameter in backward."""
        hooks = _hooks_of(p)
        for key in [k for k, hook in hooks.items() if hook is self]:
            del hooks[key]

    def __call__(self, p: Any) -> None:
        """Update one parameter by its gradient, and free the gradient."""
        optimizer = self._optimizer()
        if optimizer is None:
            self.leave(p)
            if not self._reported:
                self._reported = True
                raise RuntimeError(
                    f"The {self._kind} that was fused into backward is gone, so this backward "
                    "could not update its parameters. Keep the optimizer, or the handle that "
                    "fuse_into_backward returned. From now on gradients stay in .grad."
                )
            return
        place, g = self.places.get(id(p)), p._grad
        if place is None or g is None:
            return
        group, times = place
        if g._requires_grad:
            raise RuntimeError(
                f"backward(create_graph=True) and a {self._kind} fused into backward exclude each "
                "other: the update would overwrite what the graph of the gradient holds. Call "
                "remove() on the handle of fuse_into_backward, or use autograd.grad."
            )
        updated = optimizer._updated if self.once else None
        if updated is not None:
            if id(p) in updated:
                raise RuntimeError(
                    f"This {self._kind} updates parameters in backward, and a second backward pass "
                    "came before its step(): gradients cannot be accumulated that way. Call step() "
                    "after each backward pass, or do not fuse the optimizer into backward."
                )
            updated.add(id(p))
        p._grad = None
        state = local.state
        phase, grad = state.phase, state.grad
        state.phase, state.grad = "optimizer", False
        try:
            for _ in range(times):
                optimizer.update(p, g, optimizer.state[p], group)
        finally:
            state.phase, state.grad = phase, grad
        optimizer._opt_called = True  # the schedulers ask


def _hooks_of(p: Any) -> dict[int, Any]:
    found: dict[int, Any] = (p._extra or {}).get("post_accumulate", {})
    return found


__all__ = ["FusedStep", "fuse_into_backward"]
