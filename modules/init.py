"""Initial values: PyTorch's functions, writing in place and outside the graph."""

from __future__ import annotations

import math
from typing import Any

from ..framework.autograd.modes import no_grad
from ..framework.tensor import Tensor

_GAINS = {
    "linear": 1.0, "identity": 1.0, "sigmoid": 1.0, "tanh": 5 / 3, "relu": math.sqrt(2),
    "selu": 0.75,
}  # fmt: skip


def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """The factor that keeps a signal's variance through a nonlinearity.

    Source:
        He et al. 2015 for (leaky) relu; PyTorch's table for the others.
    """
    if nonlinearity == "leaky_relu":
        return math.sqrt(2 / (1 + (0.01 if param is None else param) ** 2))
    if nonlinearity.startswith("conv"):
        return 1.0
    if nonlinearity not in _GAINS:
        raise ValueError(f"Unsupported nonlinearity {nonlinearity}. Pass one of {sorted(_GAINS)}.")
    return _GAINS[nonlinearity]


def _fans(tensor: Tensor) -> tuple[int, int]:
    if tensor.ndim < 2:
        raise ValueError(
            "Fan in and fan out can not be computed for tensor with fewer than 2 dimensions; got "
            f"shape {tuple(tensor.shape)}."
        )
    receptive = math.prod(tensor.shape[2:])
    return tensor.shape[1] * receptive, tensor.shape[0] * receptive


@no_grad()
def uniform_(tensor: Any, a: float = 0.0, b: float = 1.0, generator: Any = None) -> Any:
    """Fill with values drawn uniformly from [a, b)."""
    return tensor.uniform_(a, b, generator=generator)


@no_grad()
def normal_(tensor: Any, mean: float = 0.0, std: float = 1.0, generator: Any = None) -> Any:
    """Fill with values drawn from a normal distribution."""
    return tensor.normal_(mean, std, generator=generator)


@no_grad()
def constant_(tensor: Any, val: float) -> Any:
    """Fill with one value."""
    return tensor.fill_(val)


def zeros_(tensor: Any) -> Any:
    """Fill with zeros."""
    return constant_(tensor, 0.0)


def ones_(tensor: Any) -> Any:
    """Fill with ones."""
    return constant_(tensor, 1.0)


def xavier_uniform_(tensor: Any, gain: float = 1.0, generator: Any = None) -> Any:
    """Fill uniformly, bound ``gain * sqrt(6 / (fan_in + fan_out))`` (Glorot and Bengio 2010)."""
    bound = gain * math.sqrt(6.0 / sum(_fans(tensor)))
    return uniform_(tensor, -bound, bound, generator)


def xavier_normal_(tensor: Any, gain: float = 1.0, generator: Any = None) -> Any:
    """Fill normally with ``std = gain * sqrt(2 / (fan_in + fan_out))`` (Glorot and Bengio 2010)."""
    return normal_(tensor, 0.0, gain * math.sqrt(2.0 / sum(_fans(tensor))), generator)


def _kaiming_std(tensor: Any, a: float, mode: str, nonlinearity: str) -> float:
    if mode not in ("fan_in", "fan_out"):
        raise ValueError(f"Mode {mode} not supported, please use one of fan_in, fan_out.")
    fan = _fans(tensor)[mode == "fan_out"]
    return calculate_gain(nonlinearity, a) / math.sqrt(fan)


def kaiming_uniform_(
    tensor: Any,
    a: float = 0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    generator: Any = None,
) -> Any:
    """Fill uniformly with bound ``gain * sqrt(3 / fan)`` (He et al. 2015)."""
    if 0 in tensor.shape:
        return tensor
    bound = math.sqrt(3.0) * _kaiming_std(tensor, a, mode, nonlinearity)
    return uniform_(tensor, -bound, bound, generator)


def kaiming_normal_(
    tensor: Any,
    a: float = 0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    generator: Any = None,
) -> Any:
    """Fill normally with ``std = gain / sqrt(fan)`` (He et al. 2015)."""
    if 0 in tensor.shape:
        return tensor
    return normal_(tensor, 0.0, _kaiming_std(tensor, a, mode, nonlinearity), generator)
