"""Checkpointed regions: ``checkpoint`` a call, a block of code, or a sequence of functions.

A region keeps what flows into it and what its policy says, and lets go of the rest. ``fn`` runs
once; backward runs kernels again, never ``fn``. So there is nothing to switch off for dropout,
BatchNorm, prints or branches on data: they happened once, and random values come again from the
recorded place in their stream.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from threading import get_ident
from typing import Any

from ..attribution.frames import user_line
from ..attribution.scopes import listen, unlisten
from ..autograd.remat.replay import Region
from ..autograd.saved import HookSaver
from ..interrupts import WholeContext
from ..modes import _Mode, local
from .saved_tensor_hooks import Hooks
from .stash import Stash, StashRecorder, StashRegion, WriteCheckingRecorder

Policy = Callable[[Any], Any]


class checkpointing(WholeContext, _Mode):
    """Recompute, instead of saving, what ops inside save for backward.

    A context manager; as ``@checkpointing()`` or ``@checkpointing(policy)`` also a decorator, for
    functions and generators. Without a graph to record (``no_grad``) it changes nothing.

    Args:
        policy: What becomes of each value made inside (``checkpointing.policies``); None recomputes
            all.

    Memory:
        Keeps what flows in from outside, as far as backward needs it, and nothing made inside, but
        for what others hold. In backward a region's plain activations come back once, and fall as
        their readers pass.

    Example:
        >>> import lowtide as lt
        >>> x = lt.ones(1000, requires_grad=True)
        >>> with lt.checkpointing():
        ...     y = x.exp().sin().sum()
        >>> [v.held_bytes for v in y.grad_fn.next_functions[0][0].saved]
        [0]
    """

    def __init__(self, policy: Policy | None = None) -> None:
        if policy is not None and not callable(policy):
            raise TypeError(
                f"checkpointing: a policy is called with each value; got {type(policy).__name__}. "
                "Pass one of lowtide.checkpointing.policies, or a function of a value."
            )
        self.policy = policy
        self._open: dict[int, list[Any]] = {}  # what was entered, by thread

    def _again(self) -> Any:
        return type(self)(self.policy)

    def _enter(self) -> None:
        state = local.state
        mine = self._open.setdefault(get_ident(), [])
        if not state.grad:
            mine.append(None)
            return
        stashes = isinstance(self.policy, Stash)
        around = None
        if state.saver.__class__ is HookSaver and state.recorder is None and not stashes:
            around = checkpointing(Hooks(state.saver))
            around._enter()
        recorder = state.recorder
        before = (recorder, state.saver)
        kind = StashRegion if stashes else Region
        parent = None if recorder is None else recorder.region
        region = kind(self.policy, user_line() or "an unknown line", parent)
        if region.by_module:
            listen(False)
        if recorder is None:
            recorder = (
                StashRecorder(region)
                if isinstance(region, StashRegion)
                else WriteCheckingRecorder()
            )
            state.recorder = recorder
        mine.append((before, recorder, region, around))
        recorder.region = region
        state.saver, state.notes_results = recorder, True

    def _leave(self) -> None:
        mine = self._open[get_ident()]
        opened = mine.pop()
        if not mine:
            del self._open[get_ident()]
        if opened is not None:
            before, recorder, region, around = opened
            self._close(before, recorder, region)
            if around is not None:
                around._leave()

    def _close(self, before: Any, recorder: Any, region: Region) -> None:
        outer, saver = before
        if region.by_module:
            unlisten(False)
        state = local.state
        parent = region.parent
        innermost: Region | None = recorder.region if state.recorder is recorder else None
        while innermost is not region:
            if innermost is None:  # left out of turn, by a generator: the one around it is closed
                return
            innermost = innermost.parent
        recorder.region = parent
        if outer is None:
            recorder.recorded.clear()
        state.recorder, state.saver = outer, saver
        state.notes_results = state.inference or outer is not None or state.dependence is not None


def checkpoint(
    function: Any = None, /, *args: Any, policy: Policy | None = None, **kwargs: Any
) -> Any:
    """Call ``function(*args, **kwargs)`` and recompute its activations in backward.

    Args:
        function: Called once. Without ``args`` and ``kwargs``, it is decorated instead, as is what
            ``@checkpoint`` and ``@checkpoint(policy=...)`` stand above.
        args: Its arguments: tensors and anything else.
        policy: What becomes of each value made inside; None recomputes all.
        kwargs: Its keyword arguments.

    Returns:
        What ``function`` returns; decorated, a function.

    Memory:
        See :class:`checkpointing`.

    Example:
        >>> import lowtide as lt
        >>> block = lt.nn.Sequential(lt.nn.Linear(8, 8), lt.nn.Tanh())
        >>> y = lt.checkpoint(block, lt.ones(2, 8))
        >>> y.sum().backward()
        >>> block[0].weight.grad.shape
        lowtide.Size([8, 8])
    """
    if function is None:
        return functools.partial(checkpoint, policy=policy)
    if not callable(function):
        raise TypeError(
            f"checkpoint calls a function or module; got {type(function).__name__}. Pass it first, "
            "and its arguments after it."
        )
    if not args and not kwargs:
        return checkpointing(policy)(function)
    with checkpointing(policy):
        return function(*args, **kwargs)


def checkpoint_sequential(
    functions: Iterable[Any], segments: int, input: Any, policy: Policy | None = None
) -> Any:
    """Checkpoint a sequence of functions in ``segments`` regions of equal length.

    Args:
        functions: A ``Sequential``, or functions of one argument.
        segments: How many regions; about the square root of their number takes the least memory.
        input: What the first is called with.
        policy: Of each region.

    Returns:
        What the last returns.

    Memory:
        Keeps the input of each region. PyTorch's function of this name keeps the activations of the
        last segment too; here they come back like the others.
    """
    items = list(functions)
    if not 1 <= segments <= max(len(items), 1):
        raise ValueError(
            f"checkpoint_sequential: segments must be in [1, {len(items)}], the number of "
            f"functions; got {segments}."
        )
    for k in range(segments):
        part = items[k * len(items) // segments : (k + 1) * len(items) // segments]
        with checkpointing(policy):
            for function in part:
                input = function(input)
    return input


__all__ = ["Policy", "checkpoint", "checkpoint_sequential", "checkpointing"]
