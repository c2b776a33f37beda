"""A byte budget whose optimizers step in backward: gradients need no extra memory."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ...framework.attribution.scopes import optimizers
from ...framework.autograd.remat.replay_costs import EvictionRule
from ...framework.checkpointing.budget import memory_budget


def fuse(optimizers: Sequence[Any]) -> list[Any]:
    """Fuse optimizers into backward, all of them or none.

    Returns:
        The handles of ``optim.fuse_into_backward``, of those that were not fused already.
    """
    handles: list[Any] = []
    try:
        for optimizer in optimizers:
            if optimizer._in_backward is None:
                # An optimizer is there, so its package is; this one does not import it.
                fused = sys.modules["lowtide.optim"].fuse_into_backward(optimizer, once=True)
                handles.append(fused)
    except BaseException:
        undo(handles)
        raise
    return handles


def undo(handles: list[Any]) -> None:
    """Let optimizers step by themselves again."""
    while handles:
        handles.pop().remove()


def check_stepped(handles: list[Any]) -> None:
    """Raise an error if a step has ended without the ``step()`` of an optimizer.

    Raises:
        RuntimeError: Backward has updated parameters; the program would have them as they were.
    """
    for handle in handles:
        if handle.pending:
            raise RuntimeError(
                f"the step calls backward() and not step() of {type(handle.optimizer).__name__}, "
                "which would update parameters in backward all the same. Call step() in it after "
                "each backward pass, or leave the optimizer to itself."
            )


def as_optimizers(given: Any, who: str) -> tuple[Any, ...]:
    """Return the optimizers that may step in backward.

    Args:
        given: An optimizer, or several.
        who: For messages.

    Raises:
        TypeError: Something else is among them.
    """
    known = {id(o) for o in list(optimizers)}
    found = tuple(given) if isinstance(given, list | tuple) else (given,)
    for each in found:
        if id(each) not in known:
            raise TypeError(
                f"{who}: in_backward is an optimizer of lowtide.optim, or several in a list; got "
                f"{type(each).__name__}."
            )
    return found


@contextmanager
def noting(optimizers: Sequence[Any]) -> Iterator[None]:
    """Add to an error that optimizers stepped in backward, where some did."""
    try:
        yield
    except Exception as error:  # whatever the step raises that way
        if optimizers:
            error.add_note(
                "fit ran the step with in_backward: optimizers that step in backward, after which "
                "p.grad is None and parameters have changed."
            )
        raise


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
        handles = fuse(self.in_backward)
        try:
            super()._enter()
        except BaseException:
            undo(handles)
            raise
        self._handles.append(handles)
        return self

    def _leave(self) -> None:
        try:
            super()._leave()
        finally:
            undo(self._handles.pop())
