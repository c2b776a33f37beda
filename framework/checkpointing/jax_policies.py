"""Checkpoint policies under JAX's names, and ``checkpoint_name``.

``checkpoint_name(x, "scores")`` names a value, so that policies can speak of it. A name is only
that: no op is recorded. Give it where the value is made, before it is used: a policy is asked once
more then, and what was saved until then follows if it can.

JAX's policies say what may be *saved*; the rest is recomputed. A value is anything that an op
makes, as there.

Source: the semantics of ``jax.checkpoint_policies``.
"""

from __future__ import annotations

from typing import Any

from ..autograd.remat.recorder import RECOMPUTE, SAVE, Value, _decide
from ..autograd.remat.replay import asks_for_modules
from ..autograd.remat.values import StashCall
from ..modes import local
from ..tensor import Tensor
from .offload import offload
from .policies import PRODUCTS, Policy, decision_of, everything, names_of
from .stash import UncopiedStorage


class NamedValue(Value):
    """A value that was given a name by ``checkpoint_name``.

    Attributes:
        given: The name.
    """

    __slots__ = ("given",)
    given: str


def checkpoint_name(x: Tensor, name: str) -> Tensor:
    """Name a value, for the checkpoint policy of the region that computed it.

    Args:
        x: What an op in the region returned.
        name: Such as "scores".

    Returns:
        ``x`` itself. Outside of regions with a policy nothing happens.

    Example:
        >>> import lowtide as lt
        >>> from lowtide.checkpointing import checkpoint_name, policies
        >>> keep = policies.save_only_these_names("hidden")
        >>> x = lt.ones(3, requires_grad=True)
        >>> with lt.checkpointing(keep):
        ...     hidden = checkpoint_name(x.exp(), "hidden")
        ...     y = hidden.sin().sum()
    """
    if not isinstance(name, str) or not name:
        raise TypeError(f"checkpoint_name: a name is a non-empty string; got {name!r}.")
    recorder = local.state.recorder
    region = None if recorder is None else recorder.region
    if region is None or region.policy is None:
        return x
    value = recorder.value_of(x._storage)
    if value is None or value.producer is None or isinstance(value.producer, StashCall):
        return x
    plan = getattr(value.producer, "plan", None)
    op = value.producer.name
    names = ("out",) if plan is None else (*plan.op.returns, *plan.op.aux)
    result = names[value.index] if value.index < len(names) else "out"
    described = NamedValue(plan, op, f"{op}.{result}", x._spec, region)
    described.number -= 1
    described.given = name
    value.owner_region, value.stash = _decide(region, described)
    value.saved = value.saved or value.owner_region is None  # for what is made from it
    if value.consumers and (value.owner_region is None or value.stash is not None):
        # Its own op saved it before it had the name.
        stashed = UncopiedStorage(x._storage) if value.stash is None else value.stash(x)
        value.producer, value.index = StashCall(stashed, value.producer), 0
    return x


def everything_saveable(value: Value) -> str:
    """Save everything: as without checkpointing."""
    return SAVE


nothing_saveable = everything


def dots_saveable(value: Value) -> str:
    """Save the results of matrix products, but not of attention and convolutions."""
    return SAVE if value.op in PRODUCTS else RECOMPUTE


def dots_with_no_batch_dims(value: Value) -> str:
    """Save the results of products in which one operand has no batch dims, as in linear layers.

    The batched products of attention, whose results grow with the square of the length, are made
    again.
    """
    return SAVE if _unbatched(value) else RECOMPUTE


dots_with_no_batch_dims_saveable = dots_with_no_batch_dims
checkpoint_dots = dots_saveable
checkpoint_dots_with_no_batch_dims = dots_with_no_batch_dims


def _unbatched(value: Value) -> bool:
    if value.op == "linear":
        return True
    return value.op in PRODUCTS and any(len(shape) <= 2 for shape in value.inputs[-2:])


class _Named(Policy):
    def __init__(self, *names: str) -> None:
        self.names = names

    def __repr__(self) -> str:
        return f"{type(self).__name__}{self.names!r}"


class save_only_these_names(_Named):
    """Save the values with these names, and recompute all others.

    Args:
        names: As given by ``checkpoint_name``; also an op's name, or op and result
            (``softmax.out``).
    """

    def __call__(self, value: Value) -> str:
        """Decide on one value."""
        return SAVE if any(n in self.names for n in names_of(value)) else RECOMPUTE


class save_any_names_but_these(_Named):
    """Save the named values except those with these names; recompute all others.

    Args:
        names: What is recomputed, like all that has no name.
    """

    def __call__(self, value: Value) -> str:
        """Decide on one value."""
        given = getattr(value, "given", None)
        return SAVE if given is not None and given not in self.names else RECOMPUTE


class save_anything_except_these_names(_Named):
    """Save every value except those with these names.

    Args:
        names: As given by ``checkpoint_name``; also an op's name, or op and result.
    """

    reconsiders = True  # a kept value that is named later may yet be recomputed

    def __call__(self, value: Value) -> str:
        """Decide on one value."""
        return RECOMPUTE if any(n in self.names for n in names_of(value)) else SAVE


class save_and_offload_only_these_names(Policy):
    """Save some named values on the device and others in host memory; recompute the rest.

    Args:
        names_which_can_be_saved: Kept.
        names_which_can_be_offloaded: Sent to the host.
        offload_src: Accepted: values are sent from where they are.
        offload_dst: "pinned_host", or "unpinned_host".
    """

    def __init__(
        self,
        *,
        names_which_can_be_saved: Any,
        names_which_can_be_offloaded: Any,
        offload_src: str = "device",
        offload_dst: str = "pinned_host",
    ) -> None:
        self.saved = tuple(names_which_can_be_saved)
        self.offloaded = tuple(names_which_can_be_offloaded)
        self.stash = _sent_to(offload_dst)

    def __call__(self, value: Value) -> Any:
        """Decide on one value."""
        names = names_of(value)
        if any(n in self.offloaded for n in names):
            return self.stash
        return SAVE if any(n in self.saved for n in names) else RECOMPUTE


class offload_dot_with_no_batch_dims(Policy):
    """Offload the results of products without batch dims to the host; recompute the rest.

    Args:
        offload_src: Accepted: values are sent from where they are.
        offload_dst: "pinned_host", or "unpinned_host".
    """

    def __init__(self, offload_src: str = "device", offload_dst: str = "pinned_host") -> None:
        self.stash = _sent_to(offload_dst)

    def __call__(self, value: Value) -> Any:
        """Decide on one value."""
        return self.stash if _unbatched(value) else RECOMPUTE


class save_from_both_policies(Policy):
    """Save what either of two policies saves, in the form that the first of them decides.

    Args:
        policy_1: Asked first.
        policy_2: Asked where the first recomputes.
    """

    def __init__(self, policy_1: Any, policy_2: Any) -> None:
        self.policies = (decision_of(policy_1), decision_of(policy_2))
        self.by_module = any(map(asks_for_modules, self.policies))

    @property
    def reconsiders(self) -> bool:  # type: ignore[override]
        """True if one of the policies reconsiders decisions."""
        return any(getattr(p, "reconsiders", False) for p in self.policies)

    def __call__(self, value: Value) -> Any:
        """Decide on one value."""
        for each in self.policies:
            decision = each if isinstance(each, str) else each(value)
            if decision != RECOMPUTE:
                return decision
        return RECOMPUTE


def _sent_to(where: str) -> offload:
    if where not in ("pinned_host", "unpinned_host"):
        raise ValueError(
            f"offload_dst is 'pinned_host' or 'unpinned_host'; got {where!r}. For a disk, decide "
            "offload_to_disk(dir) in a policy."
        )
    return offload(pin_memory=where == "pinned_host")


__all__ = [
    "NamedValue",
    "checkpoint_dots",
    "checkpoint_dots_with_no_batch_dims",
    "checkpoint_name",
    "dots_saveable",
    "dots_with_no_batch_dims",
    "dots_with_no_batch_dims_saveable",
    "everything_saveable",
    "nothing_saveable",
    "offload_dot_with_no_batch_dims",
    "save_and_offload_only_these_names",
    "save_any_names_but_these",
    "save_anything_except_these_names",
    "save_from_both_policies",
    "save_only_these_names",
]
