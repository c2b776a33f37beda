"""Weight normalization: a weight as a direction times a magnitude.

Both forms of PyTorch: the parametrization (``weight_norm`` here), which keeps ``original0`` (the
length) and ``original1`` (the direction), and the older one made of a hook
(``hooked_weight_norm``), which keeps ``weight_g`` and ``weight_v``. A state dict of the older one
loads into the newer one.

Source:
    Salimans and Kingma 2016: ``weight = g * v / |v|``.
"""

from __future__ import annotations

from typing import Any, TypeVar

from ...framework.ops.linalg.norms import vector_norm
from ...framework.tensor import Tensor
from ..module import Module
from ..parameter import Parameter
from .parametrize import register_parametrization

T = TypeVar("T", bound=Module)


def _length(weight: Tensor, dim: int) -> Tensor:
    # The norm over every dimension but one; over all for -1.
    if dim == -1:
        return vector_norm(weight, 2.0)
    others = tuple(k for k in range(weight.ndim) if k != dim)
    return vector_norm(weight, 2.0, others, keepdim=True) if others else weight.abs()


def _weight(g: Tensor, v: Tensor, dim: int) -> Tensor:
    return v * (g / _length(v, dim))


class _WeightNorm(Module):
    def __init__(self, dim: int | None = 0) -> None:
        super().__init__()
        self.dim = -1 if dim is None else dim

    def forward(self, weight_g: Tensor, weight_v: Tensor) -> Tensor:
        return _weight(weight_g, weight_v, self.dim)

    def right_inverse(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        return _length(weight, self.dim), weight


def weight_norm(module: T, name: str = "weight", dim: int | None = 0) -> T:
    """Apply weight normalization by a parametrization: direction times magnitude.

    Args:
        module: Whose weight.
        name: The weight's name.
        dim: The dimension along which lengths differ; None for one length in all.

    Returns:
        ``module``; its state dict has ``parametrizations.<name>.original0``, the length, and
        ``original1``, the direction.

    Memory:
        Each read of the weight computes it, and keeps it for backward as long as its graph lives.
    """
    register_parametrization(module, name, _WeightNorm(dim), unsafe=True)
    module._register_load_state_dict_pre_hook(_FromHooked(name))
    return module


class _FromHooked:
    """A hook that loads state dicts of the older form."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
        g, v = f"{prefix}{self.name}_g", f"{prefix}{self.name}_v"
        if g in state_dict and v in state_dict:
            kept = f"{prefix}parametrizations.{self.name}.original"
            state_dict[f"{kept}0"] = state_dict.pop(g)
            state_dict[f"{kept}1"] = state_dict.pop(v)


# The older form


class _Hook:
    """A forward pre-hook that computes the normalized weight."""

    def __init__(self, name: str, dim: int | None) -> None:
        self.name = name
        self.dim = -1 if dim is None else dim

    def compute(self, module: Module) -> Tensor:
        g, v = getattr(module, f"{self.name}_g"), getattr(module, f"{self.name}_v")
        return _weight(g, v, self.dim)

    def __call__(self, module: Module, args: Any) -> None:
        setattr(module, self.name, self.compute(module))


def hooked_weight_norm(module: T, name: str = "weight", dim: int | None = 0) -> T:
    """Apply weight normalization in the older form, by a forward pre-hook.

    Args:
        module: Whose weight.
        name: The weight's name; ``<name>_g`` and ``<name>_v`` take its place.
        dim: The dimension along which lengths differ; None for one length in all.

    Raises:
        RuntimeError: The weight has such a hook already.
    """
    for found in module._forward_pre_hooks.values():
        if isinstance(found, _Hook) and found.name == name:
            raise RuntimeError(
                f"Cannot register two weight_norm hooks on the same parameter {name}"
            )
    hook = _Hook(name, dim)
    weight = getattr(module, name)
    delattr(module, name)
    module.register_parameter(f"{name}_g", Parameter(_length(weight.detach(), hook.dim)))
    module.register_parameter(f"{name}_v", Parameter(weight.detach()))
    setattr(module, name, hook.compute(module))
    module.register_forward_pre_hook(hook)
    return module


def remove_weight_norm(module: T, name: str = "weight") -> T:
    """Remove weight normalization that was applied in the older form.

    Raises:
        ValueError: It is not normalized so.
    """
    for key, hook in module._forward_pre_hooks.items():
        if isinstance(hook, _Hook) and hook.name == name:
            weight = hook.compute(module).detach()
            for attribute in (name, f"{name}_g", f"{name}_v"):
                delattr(module, attribute)
            module.register_parameter(name, Parameter(weight))
            del module._forward_pre_hooks[key]
            return module
    raise ValueError(f"weight_norm of '{name}' not found in {module}")


__all__ = ["hooked_weight_norm", "remove_weight_norm", "weight_norm"]
