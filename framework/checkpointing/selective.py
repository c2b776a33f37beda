"""Selective activation checkpointing with PyTorch's API.

A policy function of PyTorch gets a context, an op and the op's arguments, and returns a
:class:`CheckpointPolicy`. Here the op is the function that the registry has for it (``lt.matmul``
for ``lt.mm`` and ``lt.bmm`` too), and the arguments are specs, with shape, dtype and device: a
policy decides by shapes, never by values.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from typing import Any

from ..autograd.remat.recorder import PREFER_SAVE, RECOMPUTE, SAVE, Value
from ..interrupts import WholeContext
from ..modes import local
from .offload import offload
from .policies import Policy, ops_named


class CheckpointPolicy(enum.Enum):
    """PyTorch's decisions about the results of an op.

    ``MUST_SAVE`` keeps them, ``PREFER_SAVE`` too unless a region around says otherwise; those of
    ``RECOMPUTE`` recompute them; those of ``CPU_OFFLOAD`` send them to the host.
    """

    MUST_SAVE = 0
    PREFER_SAVE = 1
    MUST_RECOMPUTE = 2
    PREFER_RECOMPUTE = 3
    MUST_CPU_OFFLOAD = 4
    PREFER_CPU_OFFLOAD = 5


class SelectiveCheckpointContext:
    """The first argument of a policy function.

    Attributes:
        is_recompute: False: a policy is asked once, in the forward.
        op_output: None.
    """

    def __init__(self, *, is_recompute: bool, op_output: Any = None) -> None:
        self.is_recompute = is_recompute
        self.op_output = op_output


_FORWARD = SelectiveCheckpointContext(is_recompute=False)


class _Selective(Policy):
    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self._sent = offload()

    def __call__(self, value: Value) -> Any:
        """Call the policy function."""
        plan = value.plan
        op: Any = value.op if plan is None else plan.op.function
        attributes = {} if plan is None else plan.attributes
        specs = () if plan is None else plan.specs
        said = self.function(_FORWARD, op, *specs, **attributes)
        if isinstance(said, bool):
            return SAVE if said else RECOMPUTE
        if said is CheckpointPolicy.MUST_SAVE:
            return SAVE
        if said is CheckpointPolicy.PREFER_SAVE:
            return PREFER_SAVE
        if said in (CheckpointPolicy.MUST_RECOMPUTE, CheckpointPolicy.PREFER_RECOMPUTE):
            return RECOMPUTE
        if said in (CheckpointPolicy.MUST_CPU_OFFLOAD, CheckpointPolicy.PREFER_CPU_OFFLOAD):
            return self._sent
        raise TypeError(
            "a selective checkpoint policy returns a CheckpointPolicy or a bool; for "
            f"{value.op} it returned {said!r}."
        )


class _Listed(Policy):
    def __init__(self, ops: frozenset[str]) -> None:
        self.ops = ops

    def __call__(self, value: Value) -> str:
        """Save the results of listed ops."""
        return SAVE if value.op.removesuffix("_") in self.ops else RECOMPUTE


class _Deciding(WholeContext):
    # A context manager that gives the region in which it is entered a policy.
    def __init__(self, policy: Policy) -> None:
        self.policy = policy

    def _enter(self) -> None:
        recorder = local.state.recorder
        self._region = None if recorder is None else recorder.region
        if self._region is not None:
            self._before, self._region.policy = self._region.policy, self.policy

    def _leave(self) -> None:
        if self._region is not None:
            self._region.policy = self._before
            self._region = None


class _Nothing:
    def __enter__(self) -> None:
        pass

    def __exit__(self, *exc: object) -> None:
        pass


def create_selective_checkpoint_contexts(
    policy_fn_or_list: Any, allow_cache_entry_mutation: bool = False
) -> tuple[Any, Any]:
    """Create the contexts for ``checkpoint(..., context_fn=)`` from a policy by ops.

    Args:
        policy_fn_or_list: ``policy_fn(ctx, op, *args, **kwargs)``, which returns a
            :class:`CheckpointPolicy`; or a list of ops whose results are kept: functions, such as
            ``lt.mm``, or names. ``lt.mm``, ``lt.bmm`` and ``lt.matmul`` are one op.
        allow_cache_entry_mutation: Accepted: a write in place makes a new value.

    Raises:
        TypeError: It is neither a function nor a list of functions and names.
        ValueError: A function in the list is no op.

    Returns:
        A context manager that gives the surrounding region the policy, and one that does nothing.

    Example:
        >>> import functools
        >>> import lowtide as lt
        >>> from lowtide.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts
        >>> context_fn = functools.partial(create_selective_checkpoint_contexts, [lt.matmul])
        >>> w = lt.ones(3, 3, requires_grad=True)
        >>> y = checkpoint(lambda x: (x @ w).exp(), lt.ones(2, 3), context_fn=context_fn)
    """
    if callable(policy_fn_or_list):
        return _Deciding(_Selective(policy_fn_or_list)), _Nothing()
    if isinstance(policy_fn_or_list, str) or not isinstance(policy_fn_or_list, Iterable):
        raise TypeError(
            "policy_fn_or_list must be either a function or a list of ops; got "
            f"{type(policy_fn_or_list).__name__}."
        )
    names = [op if isinstance(op, str) else getattr(op, "__name__", "") for op in policy_fn_or_list]
    if not all(names):
        raise TypeError(
            f"the ops of a selective checkpoint are functions or names; got {policy_fn_or_list!r}."
        )
    return _Deciding(_Listed(frozenset(op for name in names for op in ops_named(name)))), _Nothing()


__all__ = [
    "CheckpointPolicy",
    "SelectiveCheckpointContext",
    "create_selective_checkpoint_contexts",
]
