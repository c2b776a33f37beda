"""Layer, RMS, group and local response normalization."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..framework.ops.creation.fill import empty
from ..framework.tensor import Tensor
from . import functional as F
from .initialization import init
from .module import Module
from .parameter import Parameter


class LayerNorm(Module):
    """Layer normalization: mean 0 and variance 1 over the last dimensions, then scale and shift.

    Args:
        normalized_shape: Sizes of the last dimensions, which are averaged over; one int or more.
        eps: Added to the variance.
        elementwise_affine: Whether to learn a scale and a shift of that shape.
        bias: With ``elementwise_affine``: whether to learn the shift.
        device: Where its parameters lie.
        dtype: Their type.

    Attributes:
        weight: (*normalized_shape), ones; or None.
        bias: (*normalized_shape), zeros; or None.

    Source:
        Ba, Kiros, Hinton: "Layer Normalization", 2016.
    """

    weight: Parameter | None
    bias: Parameter | None

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.normalized_shape = _sizes(normalized_shape)
        self.eps = eps
        self.elementwise_affine = elementwise_affine
        for name, there in (("weight", True), ("bias", bias)):
            value = None
            if elementwise_affine and there:
                value = Parameter(empty(self.normalized_shape, device=device, dtype=dtype))
            self.register_parameter(name, value)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the scale to 1 and the shift to 0."""
        _reset(self)

    def forward(self, input: Tensor) -> Tensor:
        """Normalize (*, normalized_shape)."""
        return F.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        """The arguments, as PyTorch shows them."""
        return (
            f"{self.normalized_shape}, eps={self.eps}, "
            f"elementwise_affine={self.elementwise_affine}, bias={self.bias is not None}"
        )


class RMSNorm(Module):
    """RMS normalization: divide the last dimensions by their root mean square, then scale.

    Args:
        normalized_shape: Sizes of the last dimensions, which are averaged over; one int or more.
        eps: Added to the mean square; None for the machine epsilon of the input's dtype, and of
            float32 for float16 and bfloat16.
        elementwise_affine: Whether to learn a scale of that shape.
        device: Where it lies.
        dtype: Its type.

    Attributes:
        weight: (*normalized_shape), ones; or None.

    Source:
        Zhang, Sennrich: "Root Mean Square Layer Normalization", 2019.
    """

    weight: Parameter | None

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float | None = None,
        elementwise_affine: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.normalized_shape = _sizes(normalized_shape)
        self.eps = eps
        self.elementwise_affine = elementwise_affine
        value = None
        if elementwise_affine:
            value = Parameter(empty(self.normalized_shape, device=device, dtype=dtype))
        self.register_parameter("weight", value)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the scale to 1."""
        _reset(self)

    def forward(self, x: Tensor) -> Tensor:
        """Normalize (*, normalized_shape)."""
        return F.rms_norm(x, self.normalized_shape, self.weight, self.eps)

    def extra_repr(self) -> str:
        """The arguments, as PyTorch shows them."""
        return (
            f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"
        )


class GroupNorm(Module):
    """Group normalization: normalize groups of channels per example, then scale and shift.

    Args:
        num_groups: Groups that the channels are divided into.
        num_channels: C of (N, C, *).
        eps: Added to the variance.
        affine: Whether to learn a scale and a shift.
        device: Where its parameters lie.
        dtype: Their type.
        bias: With ``affine``: whether to learn the shift.

    Attributes:
        weight: (num_channels,), ones; or None.
        bias: (num_channels,), zeros; or None.

    Raises:
        ValueError: ``num_groups`` does not divide ``num_channels``.

    Source:
        Wu, He: "Group Normalization", 2018.
    """

    weight: Parameter | None
    bias: Parameter | None

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__()
        if num_groups == 0:
            raise ZeroDivisionError(
                f"GroupNorm: {num_channels} channels cannot be divided into 0 groups. Pass "
                "num_groups of at least 1."
            )
        if num_channels % num_groups:
            raise ValueError(
                f"GroupNorm: num_channels must be divisible by num_groups; got {num_channels} and "
                f"{num_groups}."
            )
        self.num_groups = num_groups
        self.num_channels = num_channels
        self.eps = eps
        self.affine = affine
        for name, there in (("weight", affine), ("bias", affine and bias)):
            value = Parameter(empty(num_channels, device=device, dtype=dtype)) if there else None
            self.register_parameter(name, value)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the scale to 1 and the shift to 0."""
        _reset(self)

    def forward(self, input: Tensor) -> Tensor:
        """Normalize (N, C, *)."""
        return F.group_norm(input, self.num_groups, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        """The arguments, as PyTorch shows them."""
        return (
            f"{self.num_groups}, {self.num_channels}, eps={self.eps}, affine={self.affine}, "
            f"bias={self.bias is not None}"
        )


class LocalResponseNorm(Module):
    """Local response normalization over neighboring channels.

    Args:
        size: Number of neighboring channels, this one included.
        alpha: Factor of the mean square.
        beta: Exponent.
        k: Added to the mean square.

    Source:
        Krizhevsky, Sutskever, Hinton: "ImageNet Classification with Deep Convolutional Neural
        Networks", 2012.
    """

    def __init__(self, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> None:
        super().__init__()
        self.size = size
        self.alpha = alpha
        self.beta = beta
        self.k = k

    def forward(self, input: Tensor) -> Tensor:
        """Normalize (N, C, *)."""
        return F.local_response_norm(input, self.size, self.alpha, self.beta, self.k)

    def extra_repr(self) -> str:
        """The arguments, as PyTorch shows them."""
        return f"{self.size}, alpha={self.alpha}, beta={self.beta}, k={self.k}"


def _sizes(normalized_shape: int | Sequence[int]) -> tuple[int, ...]:
    if isinstance(normalized_shape, int):
        return (normalized_shape,)
    return tuple(normalized_shape)


def _reset(module: Module) -> None:
    for name, fill in (("weight", init.ones_), ("bias", init.zeros_)):
        value = getattr(module, name, None)
        if value is not None:
            fill(value)
