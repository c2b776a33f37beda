"""A byte budget whose optimizers step in backward: gradients need no room of their own."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from ...framework.attribution.scopes import optimizers
from ...framework.autograd.remat.replay_costs import EvictionRule
from ...framework.checkpointing.budget import memory_budget


def fuse(optimizer: Any, once: bool = False) -> Any:
    """Fuse an optimizer into backward; return the handle of ``optim.fuse_into_backward``."""
    # An optimizer is there, so its package is; this one does not import it.
    return sys.modules["lowtide.optim"].fuse_into_backward(optimizer, once=once)


def as_optimizers(given: Any, who: str) -> tuple[Any, ...]:
    """Return the optimizers that may step in backward.

    Args:
        given: An optimizer, or several.
        who: For messages.

    Raises:
        TypeError: Something else is among them.
    """
    known = {id(o) for o in list(optimizers)}
    found = (given,) if id(given) in known else tuple(given) if _is_several(given) else (given,)
    for each in found:
        if id(each) not in known:
            raise TypeError(
                f"{who}: in_backward is an optimizer of lowtide.optim, or several in a list; got "
                f"{type(each).__name__}."
            )
    return found


def _is_several(given: Any) -> bool:
    return isinstance(given, list | tuple | set | frozenset)


class FusedBudget(memory_budget):
    """A :class:`memory_budget` inside which optimizers step in backward.

    Attributes:
        in_backward: The optimizers. One that is fused already stays so.
    """

    in_backward: tuple[Any, ...]

    def __init__(
        self,
        limit: int,
        device: Any,
        *,
        of: str,
        rule: EvictionRule,
        in_backward: Sequence[Any] = (),
    ) -> None:
        super().__init__(limit, device, of=of, rule=rule)
        self.in_backward = tuple(in_backward)
        self._handles: list[list[Any]] = []

    def _again(self) -> Any:
        found = FusedBudget(
            self.limit, self.device, of=self.of, rule=self.rule, in_backward=self.in_backward
        )
        found.stashes = self.stashes
        found.where = self.where
        found._regions = self._regions
        return found

    def _enter(self) -> Any:
        handles: list[Any] = []
        try:
            for optimizer in self.in_backward:
                if optimizer._in_backward is None:
                    handles.append(fuse(optimizer, once=True))
            super()._enter()
        except BaseException:
            _undo(handles)
            raise
        self._handles.append(handles)
        return self

    def _leave(self) -> None:
        super()._leave()
        _undo(self._handles.pop())


def _undo(handles: list[Any]) -> None:
    while handles:
        handles.pop().remove()
