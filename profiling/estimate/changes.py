"""Changes to a step that :func:`~lowtide.profiling.compare` and ``advise`` make in a forked copy.

Each is made by the means a user would have: ``forward`` of a module is wrapped, a parameter's
``requires_grad`` taken away, a module converted.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ...framework.attribution import scopes
from ...framework.checkpointing.budget import EvictionRule, memory_budget
from ...framework.checkpointing.regions import checkpointing
from ...framework.memory.ledger import format_bytes
from ...framework.modes import no_grad as no_grad_mode
from ...framework.tensor import Tensor
from .in_backward import check_stepped, fuse
from .targets import matches


class Change:
    """Base of changes to the program; by default wraps the ``forward`` of a module.

    Attributes:
        words: What it is, for a title.
        met: Whether the step has reached what the change applies to.
        calls_anew: A module's call that has begun must begin anew with it.
    """

    words: str
    module: Any = None
    met = False
    calls_anew = False

    def make(self) -> None:
        """Apply the change."""
        inner = self.module.forward

        @functools.wraps(inner)
        def forward(*args: Any, **kwargs: Any) -> Any:
            self.met = True
            return self.around(inner, args, kwargs)

        object.__setattr__(self.module, "forward", forward)

    def around(self, forward: Any, args: Any, kwargs: Any) -> Any:
        """Call ``forward`` under the change."""
        raise NotImplementedError

    def check(self) -> None:
        """Raise an error if the step never reached what the change applies to."""
        if not self.met:
            raise ValueError(
                f"compare: {self.words}: the step never called it. A parent that reads a child's "
                "parameters itself does not call it: name the parent."
            )


class NoGrad(Change):
    """A module's ``forward`` under ``no_grad``."""

    def __init__(self, name: str, module: Any) -> None:
        self.module, self.words = module, f"no_grad in {name}"

    def around(self, forward: Any, args: Any, kwargs: Any) -> Any:
        """Call ``forward`` under the change."""
        with no_grad_mode():
            return forward(*args, **kwargs)


class Scopes(Change):
    """A change that applies to named scopes each time they are entered."""

    def __init__(self, what: str, name: str, mode: Callable[[], Any], instead: str) -> None:
        self.name, self.mode, self.instead = name, mode, instead
        self.words = f"{what} {name}"

    def make(self) -> None:
        """Apply the change."""
        enter, leave, change = scopes.scope.__enter__, scopes.scope.__exit__, self
        open_modes: dict[int, list[Any]] = {}

        def entered(self: Any) -> Any:
            result = enter(self)
            mode = None
            top = scopes.current()
            path = top.path if top is not None else self.name
            if any(matches(change.name, called) for called in (self.name, path)):
                change.met = True
                mode = change.mode()
                mode.__enter__()
            open_modes.setdefault(id(self), []).append(mode)
            return result

        def left(self: Any, *exc: object) -> None:
            mode = open_modes[id(self)].pop()
            if mode is not None:
                mode.__exit__(*exc)
            leave(self, *exc)

        scopes.scope.__enter__ = entered  # type: ignore[method-assign]
        scopes.scope.__exit__ = left  # type: ignore[assignment]

    def check(self) -> None:
        """Raise an error if no scope of that name was entered."""
        if not self.met:
            raise ValueError(
                f"compare: {self.words}: the step reaches no module {self.name!r}, and enters no "
                f"scope of that name. {self.instead}"
            )


class Detached(Change):
    """A module's results, detached."""

    def __init__(self, name: str, module: Any) -> None:
        self.module, self.words = module, f"detach of {name}"

    def around(self, forward: Any, args: Any, kwargs: Any) -> Any:
        """Call ``forward`` under the change."""
        return mapped(forward(*args, **kwargs), lambda t: t.detach())


class Leaf(Change):
    """A change that turns off ``requires_grad`` of an existing tensor."""

    met = True

    def __init__(self, name: str, tensor: Tensor) -> None:
        self.tensor, self.words = tensor, f"detach of {name}"

    def make(self) -> None:
        """Apply the change."""
        self.tensor._node = None
        self.tensor._requires_grad = False


class Checkpointed(Change):
    """Activation checkpointing of a module."""

    def __init__(self, name: str, module: Any, policy: Any = None) -> None:
        self.module, self.policy, self.words = module, policy, f"checkpoint of {name}"

    def around(self, forward: Any, args: Any, kwargs: Any) -> Any:
        """Call ``forward`` under the change."""
        with checkpointing(self.policy):
            return forward(*args, **kwargs)


class Narrow(Change):
    """A module in another floating dtype, with conversions on the way in and out."""

    def __init__(self, name: str, module: Any, to: Any, whole: bool) -> None:
        self.module, self.to, self.whole = module, to, whole
        self.words = f"{to.name} in {name}"

    def make(self) -> None:
        """Apply the change."""
        self.module.to(self.to)
        super().make()

    def around(self, forward: Any, args: Any, kwargs: Any) -> Any:
        """Call ``forward`` under the change."""
        came: list[Any] = []

        def narrow(t: Any) -> Any:
            if not t.is_floating_point():
                return t
            came.append(t.dtype)
            return t.to(self.to)

        result = forward(*mapped(args, narrow), **mapped(kwargs, narrow))
        if self.whole or not came:
            return result
        return mapped(result, lambda t: t.to(came[0]) if t.is_floating_point() else t)


class FusedOptimizer(Change):
    """An optimizer that updates each parameter in backward, as soon as its gradient is there."""

    met = True

    def __init__(self, name: str, optimizer: Any) -> None:
        self.name, self.optimizer = name, optimizer
        self.words = f"{name} steps in backward"
        self.handles: list[Any] = []

    def make(self) -> None:
        """Apply the change."""
        self.handles = fuse([self.optimizer])

    def check(self) -> None:
        """Raise an error if the step leaves the optimizer's ``step()`` to others."""
        check_stepped(self.handles)


class Budgeted(Change):
    """A byte budget around all that follows."""

    met = True

    def __init__(self, limit: int, device: str, rule: EvictionRule | None = None) -> None:
        self.limit, self.device, self.rule = limit, device, rule
        self.words = f"a byte budget of {format_bytes(limit)}"

    def make(self) -> None:
        """Enter the budget; it ends with the copy."""
        memory_budget(self.limit, self.device, rule=self.rule).__enter__()


def mapped(tree: Any, f: Callable[[Any], Any]) -> Any:
    """Return the same tuples, lists and dicts with ``f`` of each tensor."""
    if isinstance(tree, Tensor):
        return f(tree)
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*[mapped(t, f) for t in tree])
    if isinstance(tree, list | tuple):
        return type(tree)([mapped(t, f) for t in tree])
    if isinstance(tree, dict):
        return type(tree)({k: mapped(v, f) for k, v in tree.items()})
    return tree
