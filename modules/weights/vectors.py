"""Conversion of parameters to one vector, and back."""

from __future__ import annotations

from collections.abc import Iterable

from ...framework.ops.manipulation.cat import cat
from ...framework.tensor import Tensor


def parameters_to_vector(parameters: Iterable[Tensor]) -> Tensor:
    """Flatten parameters and concatenate them to one vector.

    Args:
        parameters: Tensors on one device.

    Returns:
        Tensor (n,), of their common dtype; gradients pass through it.

    Raises:
        TypeError: They lie on several devices.
    """
    found = list(parameters)
    _need_one_device(found)
    joined: Tensor = cat([p.view(-1) for p in found])
    return joined


def vector_to_parameters(vec: Tensor, parameters: Iterable[Tensor]) -> None:
    """Set parameters to slices of a vector.

    Args:
        vec: (n,), at least as long as the parameters together.
        parameters: Tensors on one device; they share the vector's memory from now on.

    Raises:
        TypeError: ``vec`` is no Tensor, or the parameters lie on several devices.
        RuntimeError: ``vec`` is shorter than the parameters together.

    Memory:
        The whole vector lives, as *parameter*, while one of them does.
    """
    if not isinstance(vec, Tensor):
        raise TypeError(f"expected torch.Tensor, but got: {type(vec).__name__}.")
    found = list(parameters)
    _need_one_device(found)
    needed = sum(p.numel() for p in found)
    if vec.numel() < needed:
        raise RuntimeError(
            f"vector_to_parameters: vec has {vec.numel()} elements, the parameters have {needed}. "
            "Pass a vector of parameters_to_vector of the same parameters."
        )
    start = 0
    for p in found:
        end = start + p.numel()
        p.data = vec[start:end].view_as(p).data
        start = end


def _need_one_device(parameters: list[Tensor]) -> None:
    devices = {p.device for p in parameters}
    if len(devices) > 1:
        raise TypeError(
            "Found parameters on different devices, this is currently not supported: "
            f"{', '.join(sorted(map(str, devices)))}. Move them to one with .to()."
        )


__all__ = ["parameters_to_vector", "vector_to_parameters"]
