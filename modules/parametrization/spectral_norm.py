"""Spectral normalization: a weight divided by its largest singular value.

The value is estimated by power iteration, one step for each forward in training, going on from the
vectors of the step before. As in PyTorch there are two forms: the parametrization
(``spectral_norm`` here, buffers ``_u`` and ``_v`` below it), and the older one made of a hook
(``hooked_spectral_norm``, ``weight_orig``, ``weight_u`` and ``weight_v``).

Source:
    Miyato et al. 2018, algorithm 1.
"""

from __future__ import annotations

from typing import Any, TypeVar

from ...framework.modes import no_grad
from ...framework.ops.normalization.functional import normalize
from ...framework.tensor import Tensor
from ..convolution import ConvTranspose1d, ConvTranspose2d, ConvTranspose3d
from ..module import Module
from ..parameter import Parameter
from .parametrize import register_parametrization

T = TypeVar("T", bound=Module)


def _as_matrix(weight: Tensor, dim: int) -> Tensor:
    # The dimension of outputs first, all others joined.
    if dim:
        weight = weight.permute(dim, *(k for k in range(weight.ndim) if k != dim))
    return weight.reshape(weight.shape[0], -1) if weight.ndim != 2 else weight


def _iterate_v(matrix: Tensor, u: Tensor, v: Tensor, eps: float) -> None:
    v.copy_(normalize(matrix.mH.mv(u), dim=0, eps=eps))


def _iterate_u(matrix: Tensor, u: Tensor, v: Tensor, eps: float) -> None:
    u.copy_(normalize(matrix.mv(v), dim=0, eps=eps))


def _drawn(matrix: Tensor, n: int, eps: float) -> Tensor:
    return normalize(matrix.new_empty(n).normal_(0, 1), dim=0, eps=eps)


def _default_dim(module: Module) -> int:
    return int(isinstance(module, ConvTranspose1d | ConvTranspose2d | ConvTranspose3d))


def _check_iterations(n: int) -> None:
    if n <= 0:
        raise ValueError(f"Expected n_power_iterations to be positive, but got {n}")


class _SpectralNorm(Module):
    _u: Tensor
    _v: Tensor

    def __init__(
        self, weight: Tensor, n_power_iterations: int = 1, dim: int = 0, eps: float = 1e-12
    ) -> None:
        super().__init__()
        _check_iterations(n_power_iterations)
        if not -weight.ndim <= dim < max(weight.ndim, 1):
            raise IndexError(
                f"Dimension out of range (expected to be in range of [-{weight.ndim}, "
                f"{weight.ndim - 1}] but got {dim})"
            )
        self.dim = dim % max(weight.ndim, 1)
        self.eps = eps
        if weight.ndim > 1:
            self.n_power_iterations = n_power_iterations
            with no_grad():
                matrix = _as_matrix(weight.detach(), self.dim)
                u, v = (_drawn(matrix, n, eps) for n in matrix.shape)
                self.register_buffer("_u", u)
                self.register_buffer("_v", v)
                self._power_method(matrix, 15)

    @no_grad()
    def _power_method(self, matrix: Tensor, n: int) -> None:
        for _ in range(n):
            _iterate_u(matrix, self._u, self._v, self.eps)
            _iterate_v(matrix, self._u, self._v, self.eps)

    def forward(self, weight: Tensor) -> Tensor:
        if weight.ndim == 1:  # the vector's norm is its only singular value
            return normalize(weight, dim=0, eps=self.eps)
        matrix = _as_matrix(weight, self.dim)
        if self.training:
            self._power_method(matrix.detach(), self.n_power_iterations)
        u, v = self._u.clone(), self._v.clone()  # the next forward writes the buffers
        return weight / u.vdot(matrix.mv(v))

    def right_inverse(self, value: Tensor) -> Tensor:
        return value


def spectral_norm(
    module: T,
    name: str = "weight",
    n_power_iterations: int = 1,
    eps: float = 1e-12,
    dim: int | None = None,
) -> T:
    """Apply spectral normalization to a weight by a parametrization.

    Args:
        module: Whose weight.
        name: The weight's name.
        n_power_iterations: Steps of power iteration for each read in training.
        eps: Keeps vectors from being divided by 0.
        dim: The dimension of outputs; by default 1 for transposed convolutions, else 0.

    Returns:
        ``module``; its state dict has ``parametrizations.<name>.original``, and under
        ``parametrizations.<name>.0`` the vectors ``_u`` and ``_v``.

    Raises:
        ValueError: There is no such tensor, or ``n_power_iterations`` is not positive.
    """
    weight = getattr(module, name, None)
    if not isinstance(weight, Tensor):
        raise ValueError(f"Module '{module}' has no parameter or buffer with name '{name}'")
    if dim is None:
        dim = _default_dim(module)
    register_parametrization(module, name, _SpectralNorm(weight, n_power_iterations, dim, eps))
    return module


# The older form


class _Hook:
    """A forward pre-hook that computes the normalized weight."""

    def __init__(self, name: str, n_power_iterations: int, dim: int, eps: float) -> None:
        _check_iterations(n_power_iterations)
        self.name = name
        self.n_power_iterations = n_power_iterations
        self.dim = dim
        self.eps = eps

    def compute(self, module: Module, iterate: bool) -> Tensor:
        weight = getattr(module, f"{self.name}_orig")
        u, v = getattr(module, f"{self.name}_u"), getattr(module, f"{self.name}_v")
        matrix = _as_matrix(weight, self.dim)
        if iterate:
            with no_grad():
                for _ in range(self.n_power_iterations):
                    _iterate_v(matrix.detach(), u, v, self.eps)
                    _iterate_u(matrix.detach(), u, v, self.eps)
        return weight / u.clone().dot(matrix.mv(v.clone()))

    def __call__(self, module: Module, args: Any) -> None:
        setattr(module, self.name, self.compute(module, module.training))


def hooked_spectral_norm(
    module: T,
    name: str = "weight",
    n_power_iterations: int = 1,
    eps: float = 1e-12,
    dim: int | None = None,
) -> T:
    """Apply spectral normalization in the older form, by a forward pre-hook.

    Args:
        module: Whose weight.
        name: The weight's name; ``<name>_orig``, ``<name>_u`` and ``<name>_v`` are registered.
        n_power_iterations: Steps of power iteration for each forward in training.
        eps: Keeps vectors from being divided by 0.
        dim: The dimension of outputs; by default 1 for transposed convolutions, else 0.

    Raises:
        RuntimeError: The weight has such a hook already.
        ValueError: It is None, or ``n_power_iterations`` is not positive.
    """
    for found in module._forward_pre_hooks.values():
        if isinstance(found, _Hook) and found.name == name:
            raise RuntimeError(
                f"Cannot register two spectral_norm hooks on the same parameter {name}"
            )
    hook = _Hook(name, n_power_iterations, _default_dim(module) if dim is None else dim, eps)
    weight = module._parameters[name]
    if weight is None:
        raise ValueError(f"`SpectralNorm` cannot be applied as parameter `{name}` is None")
    with no_grad():
        u, v = (_drawn(weight.detach(), n, eps) for n in _as_matrix(weight, hook.dim).shape)
    delattr(module, name)
    module.register_parameter(f"{name}_orig", weight)
    setattr(module, name, weight.detach())
    module.register_buffer(f"{name}_u", u)
    module.register_buffer(f"{name}_v", v)
    module.register_forward_pre_hook(hook)
    return module


def remove_spectral_norm(module: T, name: str = "weight") -> T:
    """Remove spectral normalization that was applied in the older form.

    Raises:
        ValueError: It is not normalized so.
    """
    for key, hook in module._forward_pre_hooks.items():
        if isinstance(hook, _Hook) and hook.name == name:
            with no_grad():
                weight = hook.compute(module, iterate=False)
            for attribute in (name, f"{name}_u", f"{name}_v", f"{name}_orig"):
                delattr(module, attribute)
            module.register_parameter(name, Parameter(weight))
            del module._forward_pre_hooks[key]
            return module
    raise ValueError(f"spectral_norm of '{name}' not found in {module}")


__all__ = ["hooked_spectral_norm", "remove_spectral_norm", "spectral_norm"]
