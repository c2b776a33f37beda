"""Loading a state dict: every problem in one message, or nothing changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ..framework.autograd.modes import no_grad
from ..framework.tensor import Tensor
from .parameter import Parameter

if TYPE_CHECKING:
    from .module import Module


class IncompatibleKeys(NamedTuple):
    """What ``load_state_dict`` did not find, and what it found too much."""

    missing_keys: list[str]
    unexpected_keys: list[str]


def _slots(module: Module) -> dict[str, tuple[Module, str, bool]]:
    # path -> (owner, name, is it a parameter), tied entries included
    found: dict[str, tuple[Module, str, bool]] = {}
    for path, owner in _paths(module):
        for name, p in owner._parameters.items():
            if p is not None:
                found[path + name] = (owner, name, True)
        for name, b in owner._buffers.items():
            if b is not None and name not in owner._non_persistent:
                found[path + name] = (owner, name, False)
    return found


def _paths(module: Module, prefix: str = "") -> Any:
    yield prefix, module
    for name, child in module.named_children():
        yield from _paths(child, f"{prefix}{name}.")


def load_state(module: Module, state: Any, strict: bool, assign: bool) -> IncompatibleKeys:
    """Copy or assign the tensors of ``state`` into the tree below ``module``."""
    slots = _slots(module)
    missing = sorted(set(slots) - set(state))
    unexpected = sorted(set(state) - set(slots))
    problems = []
    if strict and missing:
        problems.append(f"Missing key(s) in state_dict: {', '.join(missing)}.")
    if strict and unexpected:
        problems.append(f"Unexpected key(s) in state_dict: {', '.join(unexpected)}.")
    for key in sorted(set(slots) & set(state)):
        owner, name, _ = slots[key]
        have, given = getattr(owner, name), state[key]
        if not isinstance(given, Tensor):
            problems.append(f"{key} must be a Tensor; got {type(given).__name__}.")
        elif tuple(have.shape) != tuple(given.shape):
            problems.append(
                f"size mismatch for {key}: copying a param with shape {tuple(given.shape)} from "
                f"checkpoint, the shape in current model is {tuple(have.shape)}."
            )
    if problems:
        raise RuntimeError(
            f"Error(s) in loading state_dict for {type(module).__name__}:\n\t"
            + "\n\t".join(problems)
        )
    with no_grad():
        for key in set(slots) & set(state):
            owner, name, is_parameter = slots[key]
            have, given = getattr(owner, name), state[key]
            if not assign:
                have.copy_(given)
            elif is_parameter:
                owner._parameters[name] = Parameter(given, have.requires_grad)
            else:
                owner._set_buffer(name, given.detach())
    return IncompatibleKeys(missing, unexpected)
