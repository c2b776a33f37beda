"""Modules for ``vmap``: ensembles as stacked states, and BatchNorm without running statistics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..ops.manipulation.cat import stack
from ..tensor import Tensor

States = dict[str, Tensor]


def stack_module_state(models: Sequence[Any]) -> tuple[States, States]:
    """Stack the parameters and buffers of models that are alike, for ``vmap`` over an ensemble.

    Args:
        models: Modules of one class, with parameters and buffers of the same names and shapes.

    Returns:
        (parameters, buffers): dicts from names to tensors of shape (models, *shape). Parameters
        are leaves that require grad where the models' do.

    Raises:
        RuntimeError: There are no models, or they are of several classes, or in training and
            evaluation mode.

    Example:
        >>> import lowtide as lt
        >>> models = [lt.nn.Linear(2, 3) for _ in range(4)]
        >>> parameters, buffers = lt.func.stack_module_state(models)
        >>> run = lambda p, x: lt.func.functional_call(models[0], p, x)
        >>> lt.vmap(run, (0, None))(parameters, lt.ones(5, 2)).shape
        lowtide.Size([4, 5, 3])
    """
    models = list(models)
    if not models:
        raise RuntimeError("stack_module_state: Expected at least one model, got 0.")
    if len({m.training for m in models}) > 1:
        raise RuntimeError(
            "stack_module_state: Expected all models to have the same training/eval mode. Call "
            ".train() or .eval() on all of them."
        )
    if len({type(m) for m in models}) > 1:
        raise RuntimeError(
            "stack_module_state: Expected all models to be of the same class; got "
            f"{', '.join(sorted({type(m).__name__ for m in models}))}."
        )
    parameters = _stacked([dict(m.named_parameters()) for m in models], "parameters")
    buffers = _stacked([dict(m.named_buffers()) for m in models], "buffers")
    return parameters, buffers


def _stacked(states: list[dict[str, Any]], what: str) -> States:
    names = states[0].keys()
    for k, state in enumerate(states):
        if state.keys() != names:
            raise RuntimeError(
                f"stack_module_state: model {k} has other {what} than model 0: "
                f"{sorted(names ^ state.keys())}. Make all models alike."
            )
    found: States = {}
    for name in names:
        tensors = [state[name] for state in states]
        needed = {t.requires_grad for t in tensors}
        if len(needed) > 1:
            raise RuntimeError(
                f"stack_module_state: Expected {name} of all models to have the same "
                ".requires_grad. Freeze it in all of them, or in none."
            )
        made: Tensor = stack([t.detach() for t in tensors])
        found[name] = made.requires_grad_() if needed.pop() else made
    return found


def replace_all_batch_norm_modules_(root: Any) -> Any:
    """Have every BatchNorm in a module use the batch's statistics only, in place.

    Running statistics would be written by one sample of a ``vmap`` for all others.

    Args:
        root: The module; it is returned.
    """
    for module in root.modules():
        if hasattr(module, "track_running_stats") and "BatchNorm" in type(module).__name__:
            module.running_mean = None
            module.running_var = None
            module.num_batches_tracked = None
            module.track_running_stats = False
    return root
