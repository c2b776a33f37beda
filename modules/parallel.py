"""Parallel training of a module: in one process and on one device, for now.

The wrappers are there for what programs see of them: ``.module``, names in the state dict, the
``no_sync`` context. With one replica there is nothing to reduce, and the result is the module's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

from ..framework.device import device as as_device
from ..framework.distributed.process_group import resolve
from ..framework.tensor import Tensor
from .module import Module


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


class DistributedDataParallel(Module):
    """Data parallelism over the processes of a group, of which there is one.

    Args:
        module: what computes; ``.module`` afterwards. Must have a parameter that takes a gradient.
        device_ids: the device of this process, at most one.
        output_device: likewise.
        dim: must be 0.
        broadcast_buffers: whether ranks take rank 0's buffers before forward: the only rank does.
        init_sync: whether ranks take rank 0's parameters at the start.
        process_group: the group, None for the default one, which must be there.
        bucket_cap_mb: size of the buckets that gradients travel in: none travel.
        find_unused_parameters: whether a parameter may be unused; with one rank it always may.
        check_reduction: no meaning, as in PyTorch.
        gradient_as_bucket_view: whether gradients lie in the buckets.
        static_graph: whether every step uses the same parameters.
        delay_all_reduce_named_params: refused, as there is nothing to delay.
        param_to_hook_all_reduce: refused, likewise.
        mixed_precision: refused: use ``autocast``.
        device_mesh: refused.
        skip_all_reduce_unused_params: no meaning with one rank.

    Raises:
        ValueError: there is no process group, or more than one device.
        RuntimeError: no parameter takes a gradient.
    """

    def __init__(
        self,
        module: Module,
        device_ids: Sequence[Any] | None = None,
        output_device: Any = None,
        dim: int = 0,
        broadcast_buffers: bool = True,
        init_sync: bool = True,
        process_group: Any = None,
        bucket_cap_mb: float | None = None,
        find_unused_parameters: bool = False,
        check_reduction: bool = False,
        gradient_as_bucket_view: bool = False,
        static_graph: bool = False,
        delay_all_reduce_named_params: Any = None,
        param_to_hook_all_reduce: Any = None,
        mixed_precision: Any = None,
        device_mesh: Any = None,
        skip_all_reduce_unused_params: bool = False,
    ) -> None:
        super().__init__()
        group = resolve(process_group, "DistributedDataParallel")
        _one_device(device_ids, "DistributedDataParallel")
        for name, given in (
            ("delay_all_reduce_named_params", delay_all_reduce_named_params),
            ("param_to_hook_all_reduce", param_to_hook_all_reduce),
            ("mixed_precision", mixed_precision),
            ("device_mesh", device_mesh),
        ):
            if given is not None:
                raise NotImplementedError(
                    f"DistributedDataParallel: {name} is not there for one process. Leave it out."
                )
        if not any(p.requires_grad for p in module.parameters()):
            raise RuntimeError(
                "DistributedDataParallel: no parameter of the module takes a gradient, so there is"
                " nothing to reduce. Use the module itself."
            )
        self.module = module
        self.dim = dim
        self.process_group = group
        self.device_ids = None if device_ids is None else list(device_ids)
        self.output_device = output_device
        self.device = next(module.parameters()).device
        self.device_type = self.device.type
        self.broadcast_buffers = broadcast_buffers
        self.find_unused_parameters = find_unused_parameters
        self.gradient_as_bucket_view = gradient_as_bucket_view
        self.static_graph = static_graph
        self.require_backward_grad_sync = True
        self.require_forward_param_sync = True
        self.parameters_to_ignore: set[str] = set()

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Call the module."""
        return self.module(*inputs, **kwargs)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Leave gradients unreduced inside: a context that, with one rank, only sets a flag."""
        before = self.require_backward_grad_sync
        self.require_backward_grad_sync = False
        try:
            yield
        finally:
            self.require_backward_grad_sync = before

    @contextmanager
    def join(
        self,
        divide_by_initial_world_size: bool = True,
        enable: bool = True,
        throw_on_early_termination: bool = False,
    ) -> Iterator[None]:
        """Let ranks have different numbers of inputs inside; one rank has one number."""
        yield

    def register_comm_hook(self, state: object, hook: Any) -> NoReturn:
        """Refused: no gradient is communicated, so the hook would never run."""
        raise NotImplementedError(
            "DistributedDataParallel.register_comm_hook: with one process no gradient is "
            "communicated, and the hook would never run. Use Tensor.register_hook for a gradient."
        )

    def _set_static_graph(self) -> None:
        self.static_graph = True


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
