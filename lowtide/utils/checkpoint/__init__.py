"""Activation checkpointing under PyTorch's names and signatures.

PyTorch runs the function a second time in backward; here its kernels are run again. What steers
that second run (``preserve_rng_state``, ``use_reentrant``, ``determinism_check``, ``context_fn``'s
second context, ``early_stop``) is accepted and changes nothing.
"""

from collections.abc import Callable as _Callable
from contextlib import AbstractContextManager as _Context
from contextlib import contextmanager as _contextmanager
from contextlib import nullcontext as _nullcontext
from typing import Any as _Any

from lowtide.framework.checkpointing import regions as _regions
from lowtide.framework.checkpointing.selective import CheckpointPolicy as CheckpointPolicy
from lowtide.framework.checkpointing.selective import (
    SelectiveCheckpointContext as SelectiveCheckpointContext,
)
from lowtide.framework.checkpointing.selective import (
    create_selective_checkpoint_contexts as create_selective_checkpoint_contexts,
)
from lowtide.framework.errors import CheckpointError as CheckpointError
from lowtide.framework.interop.pytree import tree_map as _tree_map
from lowtide.framework.random.generator import get_rng_state as _get_rng_state
from lowtide.framework.random.generator import set_rng_state as _set_rng_state
from lowtide.framework.tensor import Tensor as _Tensor


def checkpoint(
    function: _Callable[..., _Any],
    *args: _Any,
    use_reentrant: bool | None = None,
    context_fn: _Callable[[], _Any] | None = None,
    determinism_check: str = "default",
    debug: bool = False,
    early_stop: bool = True,
    preserve_rng_state: bool = True,
    **kwargs: _Any,
) -> _Any:
    """Call ``function(*args, **kwargs)`` and recompute in backward what it would have kept.

    Args:
        function: Called once.
        args: Its arguments.
        use_reentrant: Accepted: there is one way, and it has no conditions.
        context_fn: Returns two context managers; the first is entered around the call.
        determinism_check: Accepted: kernels are repeated, so their results have the same shapes.
        debug: Accepted.
        early_stop: Accepted: never more is recomputed than is wanted.
        preserve_rng_state: Accepted: random values come again from the recorded stream.
        kwargs: Keyword arguments of ``function``.

    Returns:
        What ``function`` returns.

    Raises:
        ValueError: ``determinism_check`` is neither "default" nor "none".
    """
    if determinism_check not in ("default", "none"):
        raise ValueError(
            "determinism_check should be one of ['default', 'none'], but got "
            f"{determinism_check!r}. It changes nothing here: leave it away."
        )
    if context_fn is None:
        with _regions.checkpointing():
            return function(*args, **kwargs)
    around, _ = context_fn()
    with _regions.checkpointing(), around:
        return function(*args, **kwargs)


def checkpoint_sequential(
    functions: _Any,
    segments: int,
    input: _Any,
    use_reentrant: bool | None = None,
    preserve_rng_state: bool = True,
    **kwargs: _Any,
) -> _Any:
    """Run a ``Sequential``, or a list of functions, in ``segments`` checkpointed stretches.

    Args:
        functions: What to run, one after another.
        segments: How many stretches.
        input: What the first is called with.
        use_reentrant: Accepted.
        preserve_rng_state: Accepted.
        kwargs: None are taken, as in PyTorch.

    Returns:
        What the last returns.
    """
    if kwargs:
        raise ValueError(
            f"Unexpected keyword arguments: {', '.join(kwargs)}. checkpoint_sequential passes one "
            "input on; give a function what else it needs beforehand."
        )
    return _regions.checkpoint_sequential(functions, segments, input)


def noop_context_fn() -> tuple[_Context[None], _Context[None]]:
    """Two context managers that do nothing: what ``context_fn`` is by default."""
    return _nullcontext(), _nullcontext()


@_contextmanager
def _unchanged() -> _Any:
    yield


def set_checkpoint_early_stop(enable: bool) -> _Context[None]:
    """Accepted, as a context manager: never more is recomputed than is wanted."""
    return _unchanged()


def set_checkpoint_debug_enabled(enabled: bool | None) -> _Context[None]:
    """Accepted, as a context manager: errors of a replay name both places without it."""
    return _unchanged()


def get_device_states(*args: _Any) -> tuple[list[int], list[_Any]]:
    """Return the CUDA devices of tensors, and the states of their random generators.

    Reversible layers record these before forward and set them before they compute again.

    Args:
        args: Tensors and structures of tensors; those elsewhere than on CUDA are left out.
    """
    numbers: dict[int, None] = {}
    _tree_map(lambda x: numbers.setdefault(x.device.index or 0) if _on_cuda(x) else None, args)
    return list(numbers), [_get_rng_state(f"cuda:{n}") for n in numbers]


def set_device_states(
    devices: list[int], states: list[_Any], *, device_type: str | None = None
) -> None:
    """Set the states of devices' random generators, as :func:`get_device_states` returned them.

    Args:
        devices: Numbers of CUDA devices.
        states: One for each.
        device_type: ``"cuda"`` or None.
    """
    if device_type not in (None, "cuda", "cpu"):
        raise ValueError(f"set_device_states: no device is of type {device_type!r}; name cuda.")
    if len(devices) != len(states):
        raise ValueError(
            f"set_device_states: needs a state for each of {len(devices)} devices; got "
            f"{len(states)}. Pass what get_device_states returned."
        )
    for number, state in zip(devices, states, strict=True):
        _set_rng_state(state, f"cuda:{number}")


def _on_cuda(value: _Any) -> bool:
    return isinstance(value, _Tensor) and value.device.type == "cuda"
