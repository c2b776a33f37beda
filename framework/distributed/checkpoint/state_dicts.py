"""States of models and optimizers for checkpoints, by the names of parameters.

Source of the interface: PyTorch's ``torch.distributed.checkpoint.state_dict``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ...modes import no_grad
from ...ops.creation.fill import zeros_like
from ...tensor import Tensor
from ..objects import all_gather_object
from ..process_group import ProcessGroup
from ..shards import shard_of
from ..whole_tensors import gathered_state


@dataclass
class StateDictOptions:
    """What states contain.

    Attributes:
        full_state_dict: Tensors of all ranks in place of shards. All ranks get them.
        cpu_offload: Copy them to the CPU.
        strict: As of ``load_state_dict``.
    """

    full_state_dict: bool = False
    cpu_offload: bool = False
    ignore_frozen_params: bool = False
    keep_submodule_prefixes: bool = True
    strict: bool = True
    broadcast_from_rank0: bool = False
    flatten_optimizer_state_dict: bool = False


def get_model_state_dict(
    model: Any, *, submodules: Any = None, options: StateDictOptions | None = None
) -> dict[str, Any]:
    """Return the state of a model, without the prefixes of wrappers."""
    chosen = _options(options, submodules)
    state = {_plain(name): value for name, value in model.state_dict().items()}
    if chosen.ignore_frozen_params:
        frozen = {_plain(n) for n, p in model.named_parameters() if not p.requires_grad}
        state = {name: value for name, value in state.items() if name not in frozen}
    return _shown(state, chosen)  # type: ignore[no-any-return]


def set_model_state_dict(
    model: Any, model_state_dict: Mapping[str, Any], *, options: StateDictOptions | None = None
) -> Any:
    """Load the state of a model: of shards, or of all ranks."""
    chosen = _options(options)
    names = {_plain(name): name for name in model.state_dict()}
    given = {names.get(name, name): value for name, value in model_state_dict.items()}
    return model.load_state_dict(given, strict=chosen.strict)


def get_optimizer_state_dict(
    model: Any,
    optimizers: Any,
    *,
    submodules: Any = None,
    options: StateDictOptions | None = None,
) -> dict[str, Any]:
    """Return the state of an optimizer by the names of parameters.

    Before the first step it makes the state, by a step with gradients and learning rates of 0. Of
    an optimizer that shares its state out, such as ``ZeroRedundancyOptimizer``, each rank returns
    the state that it has.
    """
    chosen = _options(options, submodules)
    optimizer = _one(optimizers)
    make_state(optimizer)
    found = named_state(model, optimizer)
    state = found["state"]
    if chosen.full_state_dict and is_shared_out(optimizer):
        state = _of_all_ranks(state, optimizer.process_group)
    return {"state": _shown(state, chosen), "param_groups": found["param_groups"]}


def named_state(model: Any, optimizer: Any) -> dict[str, Any]:
    """Return the state of an optimizer that lies in this rank, by the names of parameters."""
    found = local_state(optimizer)
    names = _names(model, optimizer)
    state = {names[k]: value for k, value in found["state"].items()}
    groups = [{**g, "params": [names[k] for k in g["params"]]} for g in found["param_groups"]]
    return {"state": state, "param_groups": groups}


def set_optimizer_state_dict(
    model: Any,
    optimizers: Any,
    optim_state_dict: Mapping[str, Any],
    *,
    options: StateDictOptions | None = None,
) -> None:
    """Load the state of an optimizer: of shards, or of all ranks."""
    _options(options)
    optimizer = _one(optimizers)
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    numbers = {name: k for k, name in _names(model, optimizer).items()}
    state = {
        numbers[name]: {key: _rows(value, parameters[numbers[name]]) for key, value in one.items()}
        for name, one in optim_state_dict["state"].items()
    }
    groups = [
        {**g, "params": [numbers[name] for name in g["params"]]}
        for g in optim_state_dict["param_groups"]
    ]
    optimizer.load_state_dict({"state": state, "param_groups": groups})


def get_state_dict(
    model: Any,
    optimizers: Any,
    *,
    submodules: Any = None,
    options: StateDictOptions | None = None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the states of a model and of its optimizer."""
    return (
        get_model_state_dict(model, submodules=submodules, options=options),
        get_optimizer_state_dict(model, optimizers, submodules=submodules, options=options),
    )


def set_state_dict(
    model: Any,
    optimizers: Any,
    *,
    model_state_dict: Mapping[str, Any],
    optim_state_dict: Mapping[str, Any],
    options: StateDictOptions | None = None,
) -> Any:
    """Load the states of a model and of its optimizer."""
    found = set_model_state_dict(model, model_state_dict, options=options)
    set_optimizer_state_dict(model, optimizers, optim_state_dict, options=options)
    return found


def _options(options: StateDictOptions | None, submodules: Any = None) -> StateDictOptions:
    chosen = options or StateDictOptions()
    if submodules is not None:
        raise NotImplementedError("state_dict of submodules is not there; pass the submodule.")
    if chosen.broadcast_from_rank0 or chosen.flatten_optimizer_state_dict:
        raise NotImplementedError(
            "StateDictOptions: broadcast_from_rank0 and flatten_optimizer_state_dict are not there."
        )
    return chosen


def _shown(state: Any, options: StateDictOptions) -> Any:
    if options.full_state_dict:
        state = gathered_state(state)
    return _on_cpu(state) if options.cpu_offload else state


def _on_cpu(state: Any) -> Any:
    if isinstance(state, Tensor):
        return state if state.device.type == "cpu" else state.to("cpu")
    if isinstance(state, Mapping):
        return {key: _on_cpu(value) for key, value in state.items()}
    return state


def _plain(name: str) -> str:
    # DistributedDataParallel has its model as `module`.
    return name.removeprefix("module.")


def _one(optimizers: Any) -> Any:
    if isinstance(optimizers, Iterable):
        found = list(optimizers)
        if len(found) != 1:
            raise NotImplementedError(
                f"state_dict of {len(found)} optimizers: call it once for each of them."
            )
        return found[0]
    return optimizers


def _names(model: Any, optimizer: Any) -> dict[int, str]:
    # The names of an optimizer's parameters by number.
    names = {id(p): _plain(name) for name, p in model.named_parameters()}
    found: dict[int, str] = {}
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for k, p in enumerate(parameters):
        if id(p) not in names:
            raise ValueError(
                f"get_optimizer_state_dict: parameter {k} of the optimizer, of shape "
                f"{tuple(p.shape)}, is not one of the model's."
            )
        found[k] = names[id(p)]
    return found


def is_shared_out(optimizer: Any) -> bool:
    """Whether each rank has the state of some parameters, as in ``ZeroRedundancyOptimizer``."""
    return callable(getattr(optimizer, "own_state_dict", None))


def local_state(optimizer: Any) -> dict[str, Any]:
    """Return the state of an optimizer that lies in this rank."""
    give = optimizer.own_state_dict if is_shared_out(optimizer) else optimizer.state_dict
    return give()  # type: ignore[no-any-return]


def _of_all_ranks(state: dict[str, Any], group: ProcessGroup) -> dict[str, Any]:
    every: list[Any] = [None] * group.size()
    all_gather_object(every, state, group)
    return {name: one for part in every for name, one in part.items()}


def make_state(optimizer: Any) -> None:
    """Let an optimizer that has no state make it, by a step with gradients and rates of 0."""
    if optimizer.state:
        return
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    before = [p.grad for p in parameters]
    rates = [group.get("lr") for group in optimizer.param_groups]
    step = optimizer.step_own if is_shared_out(optimizer) else optimizer.step
    try:
        with no_grad():
            for p in parameters:
                p.grad = zeros_like(p) if p.requires_grad else None
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                if rate is not None:
                    group["lr"] = 0.0
            step()
    finally:
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            if rate is not None:
                group["lr"] = rate
        for p, grad in zip(parameters, before, strict=True):
            p.grad = grad


def _rows(value: Any, p: Tensor) -> Any:
    # This rank's rows of a value of all ranks.
    shard = shard_of(p)
    if shard is None or not isinstance(value, Tensor) or shard_of(value) is not None:
        return value
    return value[slice(*shard.own)] if tuple(value.shape) == shard.shape else value
