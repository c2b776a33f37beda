"""Data parallelism over the devices of one process, of which there may be one.

Over processes it is ``distributed_data_parallel.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ...framework.device import device as as_device
from ...framework.tensor import Tensor
from ..module import Module


def _one_device(device_ids: Sequence[Any] | None, what: str) -> None:
    if device_ids is not None and len(device_ids) > 1:
        raise ValueError(
            f"{what}: device_ids {list(device_ids)} are {len(device_ids)} devices, and lowtide "
            "trains on one for now. Name one, or leave device_ids out."
        )


class DataParallel(Module):
    """Data parallelism over the devices of one process, of which there may be one.

    PyTorch runs the module as it is where there is no GPU; so does this.

    Args:
        module: what computes; ``.module`` afterwards.
        device_ids: devices, at most one.
        output_device: where the output goes: that same device.
        dim: dim of the inputs that is cut among devices.
    """

    def __init__(
        self,
        module: Module,
        device_ids: Sequence[Any] | None = None,
        output_device: Any = None,
        dim: int = 0,
    ) -> None:
        super().__init__()
        _one_device(device_ids, "DataParallel")
        self.module = module
        self.dim = dim
        self.device_ids = [] if device_ids is None else list(device_ids)
        self.output_device = output_device

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Call the module."""
        return self.module(*inputs, **kwargs)


def data_parallel(
    module: Module,
    inputs: Any,
    device_ids: Sequence[Any] | None = None,
    output_device: Any = None,
    dim: int = 0,
    module_kwargs: dict[str, Any] | None = None,
) -> Any:
    """Call a module on inputs cut among devices, of which there may be one."""
    _one_device(device_ids, "data_parallel")
    given = inputs if isinstance(inputs, tuple) else (inputs,)
    return module(*given, **(module_kwargs or {}))


def scatter(inputs: Any, target_gpus: Sequence[Any], dim: int = 0) -> list[Any]:
    """Cut the tensors of a structure among devices: return it, moved, as the only entry."""
    _one_device(target_gpus, "scatter")
    return [_moved(inputs, as_device(target_gpus[0]))]


def gather(outputs: Iterable[Any], target_device: Any, dim: int = 0) -> Any:
    """Concatenate the outputs of devices on one: return the only one, moved."""
    found = list(outputs)
    if len(found) != 1:
        raise ValueError(f"gather: expected the output of one device; got {len(found)}.")
    return _moved(found[0], as_device(target_device))


def replicate(network: Module, devices: Sequence[Any], detach: bool = False) -> list[Module]:
    """Return a replica of a module a device: the module itself, as there is one device."""
    _one_device(devices, "replicate")
    return [network]


def parallel_apply(
    modules: Sequence[Module],
    inputs: Sequence[Any],
    kwargs_tup: Sequence[dict[str, Any]] | None = None,
    devices: Sequence[Any] | None = None,
) -> list[Any]:
    """Call each module on its inputs, one after the other."""
    named = kwargs_tup or [{}] * len(modules)
    if not len(modules) == len(inputs) == len(named):
        raise ValueError(
            f"parallel_apply: {len(modules)} modules, {len(inputs)} inputs, {len(named)} kwargs."
        )
    return [
        module(*(given if isinstance(given, (list, tuple)) else (given,)), **more)
        for module, given, more in zip(modules, inputs, named, strict=True)
    ]


def _moved(value: Any, target: Any) -> Any:
    if isinstance(value, Tensor):
        return value.to(target)
    if isinstance(value, dict):
        return type(value)((key, _moved(entry, target)) for key, entry in value.items())
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_moved(entry, target) for entry in value))
    if isinstance(value, (list, tuple)):
        return type(value)(_moved(entry, target) for entry in value)
    return value
