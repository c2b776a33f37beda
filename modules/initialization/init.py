"""Weight initialization: PyTorch's functions, in place and outside of autograd.

On meta they check their arguments and do nothing else.

Not optimal: ``orthogonal_`` needs about three times the tensor's bytes while it runs.
"""

from __future__ import annotations

import math
import warnings
from typing import Any

from ...framework.dtypes import float32
from ...framework.modes import no_grad
from ...framework.ops.creation.fill import empty
from ...framework.ops.linalg.cholesky_qr import qr
from ...framework.ops.random.draw import randperm
from ...framework.tensor import Tensor

_GAINS = {
    "linear": 1.0,
    "conv1d": 1.0,
    "conv2d": 1.0,
    "conv3d": 1.0,
    "conv_transpose1d": 1.0,
    "conv_transpose2d": 1.0,
    "conv_transpose3d": 1.0,
    "sigmoid": 1.0,
    "tanh": 5 / 3,
    "relu": math.sqrt(2),
    "selu": 0.75,
}


def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """Return the recommended gain of a nonlinearity.

    Args:
        nonlinearity: ``"linear"``, the name of a convolution, ``"sigmoid"``, ``"tanh"``,
            ``"relu"``, ``"leaky_relu"`` or ``"selu"``.
        param: The negative slope of leaky relu, 0.01 if left out.

    Raises:
        ValueError: Another name, or a slope that is no number.

    Source:
        He et al. 2015 for (leaky) relu; PyTorch's table for the others.
    """
    if nonlinearity == "leaky_relu":
        if param is not None and (isinstance(param, bool) or not isinstance(param, int | float)):
            raise ValueError(f"negative_slope {param} not a valid number")
        return math.sqrt(2 / (1 + (0.01 if param is None else param) ** 2))
    if nonlinearity not in _GAINS:
        known = ", ".join(sorted([*_GAINS, "leaky_relu"]))
        raise ValueError(f"Unsupported nonlinearity {nonlinearity}. Pass one of {known}.")
    return _GAINS[nonlinearity]


def _calculate_fan_in_and_fan_out(tensor: Tensor) -> tuple[int, int]:
    # PyTorch's private name, which public model code imports.
    if tensor.ndim < 2:
        raise ValueError(
            "Fan in and fan out can not be computed for tensor with fewer than 2 dimensions; got "
            f"shape {tuple(tensor.shape)}."
        )
    receptive = math.prod(tensor.shape[2:])
    return tensor.shape[1] * receptive, tensor.shape[0] * receptive


def _calculate_correct_fan(tensor: Tensor, mode: str) -> int:
    mode = mode.lower()
    if mode not in ("fan_in", "fan_out"):
        raise ValueError(f"Mode {mode} not supported, please use one of ['fan_in', 'fan_out'].")
    return _calculate_fan_in_and_fan_out(tensor)[mode == "fan_out"]


@no_grad()
def uniform_(tensor: Any, a: float = 0.0, b: float = 1.0, generator: Any = None) -> Any:
    """Fill with values of the uniform distribution on [a, b)."""
    return tensor if tensor.is_meta else tensor.uniform_(a, b, generator=generator)


@no_grad()
def normal_(tensor: Any, mean: float = 0.0, std: float = 1.0, generator: Any = None) -> Any:
    """Fill with values of a normal distribution."""
    return tensor if tensor.is_meta else tensor.normal_(mean, std, generator=generator)


@no_grad()
def trunc_normal_(
    tensor: Any,
    mean: float = 0.0,
    std: float = 1.0,
    a: float = -2.0,
    b: float = 2.0,
    generator: Any = None,
) -> Any:
    """Fill with values of a normal distribution truncated to [a, b].

    Source:
        Inversion of the distribution function, with the error function's inverse. Exact if the mean
        is within two standard deviations of the range, else it warns.
    """
    if mean < a - 2 * std or mean > b + 2 * std:
        warnings.warn(
            "mean is more than 2 std from [a, b] in nn.init.trunc_normal_. The distribution of "
            "values may be incorrect.",
            stacklevel=3,
        )
    if tensor.is_meta:
        return tensor
    low, high = (math.erf((x - mean) / (std * math.sqrt(2))) for x in (a, b))
    tensor.uniform_(low, high, generator=generator).erfinv_()
    return tensor.mul_(std * math.sqrt(2)).add_(mean).clamp_(a, b)


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


@no_grad()
def eye_(tensor: Any) -> Any:
    """Fill a matrix with the identity.

    Raises:
        ValueError: It has not 2 dimensions.
    """
    if tensor.ndim != 2:
        raise ValueError(
            f"Only tensors with 2 dimensions are supported; got shape {tuple(tensor.shape)}."
        )
    tensor.zero_().diagonal().fill_(1)
    return tensor


@no_grad()
def dirac_(tensor: Any, groups: int = 1) -> Any:
    """Fill a convolution's weight with the identity (Dirac delta), as far as channels allow.

    Args:
        tensor: (out, in, *kernel), with 1 to 3 kernel dimensions.
        groups: Groups of the convolution.

    Raises:
        ValueError: The shape is another, or ``groups`` does not divide ``out``.
    """
    if tensor.ndim not in (3, 4, 5):
        raise ValueError(
            "Only tensors with 3, 4, or 5 dimensions are supported; got shape "
            f"{tuple(tensor.shape)}."
        )
    if tensor.shape[0] % groups:
        raise ValueError(
            f"dim 0 must be divisible by groups; got {tensor.shape[0]} and {groups} groups."
        )
    tensor.zero_()
    n = tensor.shape[0] // groups
    middle = tuple(k // 2 for k in tensor.shape[2:])
    for g in range(groups):
        tensor[(slice(g * n, (g + 1) * n), slice(None), *middle)].diagonal().fill_(1)
    return tensor


def xavier_uniform_(tensor: Any, gain: float = 1.0, generator: Any = None) -> Any:
    """Fill uniformly with bound ``gain * sqrt(6 / (fan_in + fan_out))`` (Glorot, Bengio 2010)."""
    bound = gain * math.sqrt(6.0 / sum(_calculate_fan_in_and_fan_out(tensor)))
    return uniform_(tensor, -bound, bound, generator)


def xavier_normal_(tensor: Any, gain: float = 1.0, generator: Any = None) -> Any:
    """Fill normally with ``std = gain * sqrt(2 / (fan_in + fan_out))`` (Glorot and Bengio 2010)."""
    std = gain * math.sqrt(2.0 / sum(_calculate_fan_in_and_fan_out(tensor)))
    return normal_(tensor, 0.0, std, generator)


def _kaiming_std(tensor: Any, a: float, mode: str, nonlinearity: str) -> float:
    return calculate_gain(nonlinearity, a) / math.sqrt(_calculate_correct_fan(tensor, mode))


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


@no_grad()
def orthogonal_(tensor: Any, gain: float = 1, generator: Any = None) -> Any:
    """Fill with a random orthogonal matrix times ``gain``.

    Args:
        tensor: (rows, *); what follows the rows counts as one dimension. Rows are orthonormal if
            there are at most as many as columns, else columns are.
        gain: A factor.
        generator: Where the randomness comes from.

    Raises:
        ValueError: It has fewer than 2 dimensions.

    Source:
        Saxe, McClelland and Ganguli 2013; the signs of R's diagonal moved into Q, which makes the
        distribution uniform (Mezzadri 2007).
    """
    if tensor.ndim < 2:
        raise ValueError(
            f"Only tensors with 2 or more dimensions are supported; got shape "
            f"{tuple(tensor.shape)}."
        )
    if tensor.numel() == 0 or tensor.is_meta:
        return tensor
    rows = tensor.shape[0]
    columns = tensor.numel() // rows
    dtype = float32 if tensor.dtype.is_half else tensor.dtype
    drawn = empty(rows, columns, dtype=dtype, device=tensor.device)
    drawn.normal_(0, 1, generator=generator)
    q, r = qr(drawn if rows >= columns else drawn.t())
    q.mul_(r.diagonal().sgn())
    tensor.copy_((q if rows >= columns else q.t()).reshape(tensor.shape))
    return tensor.mul_(gain)


@no_grad()
def sparse_(tensor: Any, sparsity: float, std: float = 0.01, generator: Any = None) -> Any:
    """Fill a matrix with normals, and a share of each column with zeros (Martens 2010).

    Args:
        tensor: (rows, columns).
        sparsity: The share, in [0, 1]; rounded up to whole elements.
        std: Standard deviation of the others.
        generator: Where the randomness comes from.

    Raises:
        ValueError: It has not 2 dimensions.
    """
    if tensor.ndim != 2:
        raise ValueError(
            f"Only tensors with 2 dimensions are supported; got shape {tuple(tensor.shape)}."
        )
    if tensor.is_meta:
        return tensor
    rows, columns = tensor.shape
    zeros = math.ceil(sparsity * rows)
    tensor.normal_(0, std, generator=generator)
    for column in range(columns):
        order = randperm(rows, generator=generator, device=tensor.device)
        tensor[order[:zeros], column] = 0
    return tensor


__all__ = [
    "calculate_gain",
    "constant_",
    "dirac_",
    "eye_",
    "kaiming_normal_",
    "kaiming_uniform_",
    "normal_",
    "ones_",
    "orthogonal_",
    "sparse_",
    "trunc_normal_",
    "uniform_",
    "xavier_normal_",
    "xavier_uniform_",
    "zeros_",
]
