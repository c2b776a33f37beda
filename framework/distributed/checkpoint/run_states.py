"""The states of what a run consists of: those that ranks share, and those that each rank has.

Models and optimizers are shared: a path of theirs has no rank in it. All else that has a state
(schedules, scalers, loaders, generators) is stored once for each rank.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import partial
from itertools import accumulate
from typing import Any

from ...errors import SerializationError
from ...random.generator import generators_in_use
from ...serialization.restore import ends_of
from .index import Index
from .reading import Files, is_plain_tensor, read_objects, require, require_rows
from .state import flatten
from .state_dicts import (
    get_model_state_dict,
    local_state,
    make_state,
    named_state,
    set_model_state_dict,
    set_optimizer_state_dict,
)

VALUES = "values"  # the path of values that have no state


def is_model(thing: Any) -> bool:
    """Whether an object is a model."""
    return callable(getattr(thing, "named_parameters", None))


def is_optimizer(thing: Any) -> bool:
    """Whether an object is an optimizer."""
    return hasattr(thing, "param_groups") and hasattr(thing, "state")


def _model_of(optimizer: Any, models: list[Any]) -> Any:
    # The model whose parameters an optimizer updates; None if it is not among those given.
    wanted = {id(p) for group in optimizer.param_groups for p in group["params"]}
    return next((m for m in models if wanted <= {id(p) for p in m.parameters()}), None)


def shared_states(objects: Mapping[str, Any], to_fill: bool = False) -> dict[str, Any]:
    """Return the states that ranks share out or have alike: of models, and of optimizers.

    Args:
        objects: Of a run, by name.
        to_fill: The states will be filled. Optimizers that have none yet make theirs.
    """
    models = [o for o in objects.values() if is_model(o)]
    found: dict[str, Any] = {}
    for name, thing in objects.items():
        if is_model(thing):
            found[name] = get_model_state_dict(thing)
        elif is_optimizer(thing):
            if to_fill:
                make_state(thing)
            model = _model_of(thing, models)
            found[name] = local_state(thing) if model is None else named_state(model, thing)
    return found


def paths(shared: dict[str, Any]) -> dict[str, Any]:
    """Return these states by path, as a checkpoint has them."""
    flat = flatten({"states": shared}) if shared else {}
    # An optimizer without a state has an empty dict; other ranks may have a state.
    return {p: v for p, v in flat.items() if not (isinstance(v, Mapping) and not v)}


def _leave_out(shared: dict[str, Any], objects: Mapping[str, Any], index: Index) -> None:
    # An optimizer has no state of parameters that have had no gradient yet.
    known = {
        start
        for path in (*index.tensors, *index.objects)
        for start in accumulate(path.split("."), "{}.{}".format)
    }
    for name, state in shared.items():
        if is_optimizer(objects[name]):
            state["state"] = {
                key: one
                for key, one in state["state"].items()
                if f"states.{name}.state.{key}" in known
            }


def set_shared(thing: Any, state: dict[str, Any], models: list[Any]) -> None:
    """Give a model or an optimizer its state."""
    if is_model(thing):
        set_model_state_dict(thing, state)
    elif (model := _model_of(thing, models)) is None:
        thing.load_state_dict(state)
    else:
        set_optimizer_state_dict(model, thing, state)


def give_own(
    states: dict[str, Any], objects: dict[str, Any], undo: list[Callable[[], None]]
) -> None:
    """Give objects the states that this rank has of its own; note in ``undo`` how to go back."""
    for name, state in states.items():
        ends = ends_of(objects[name]) if name in objects else None
        if ends is not None:
            get, put = (getattr(objects[name], end) for end in ends)
            undo.append(partial(put, copy.deepcopy(get())))
            put(state)


def set_generators(states: dict[str, list[int]]) -> None:
    """Set seeds and offsets of the generators in use, by device."""
    for place, generator in generators_in_use().items():
        if str(place) in states:
            seed, offset = states[str(place)]
            generator.manual_seed(seed)
            generator.set_offset(offset)


def _need_same_groups(name: str, saved: Any, own: Any) -> None:
    # An optimizer would refuse others, when tensors have been written.
    theirs, ours = ([list(g["params"]) for g in groups] for groups in (saved, own))
    if theirs != ours:
        raise SerializationError(
            f"{name} has {len(ours)} groups of parameters, with {[len(g) for g in ours]}; the "
            f"checkpoint has {len(theirs)}, with {[len(g) for g in theirs]}."
        )


def fitting(
    index: Index, files: Files, shared: dict[str, Any], objects: dict[str, Any], rank: int
) -> tuple[Any, ...]:
    """Compare states with a checkpoint.

    Returns:
        Tensors with what the checkpoint has for them, other values of shared states, the rank's own
        states, and the values that were saved.

    Raises:
        SerializationError: Something is missing, or does not fit.
    """
    _leave_out(shared, objects, index)
    flat = paths(shared)
    tensors = {k: (t, require(k, t, index)) for k, t in flat.items() if is_plain_tensor(t)}
    for k, (t, saved) in tensors.items():
        require_rows(k, t, saved, files)
    missing = [k for k in flat if k not in tensors and k not in index.objects]
    if missing:
        raise SerializationError(f"the checkpoint has no value {missing[0]!r}.")
    others = read_objects({k: index.objects[k] for k in flat if k not in tensors}, files)
    for name, state in shared.items():
        if (groups := f"states.{name}.param_groups") in others:
            _need_same_groups(name, others[groups], state["param_groups"])
    number = rank if f"rank {rank}" in index.objects else 0
    key = f"rank {number}"
    found = read_objects({k: index.objects[k] for k in (key, VALUES)}, files)
    own = {"rank": number, **found[key]}
    for name in objects:
        if name not in shared and name not in own["states"]:
            raise SerializationError(
                f"the checkpoint has no state {name!r}; it has {sorted(own['states'])}."
            )
    return tensors, others, own, found[VALUES]
