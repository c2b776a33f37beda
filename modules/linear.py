"""Linear, bilinear and identity layers."""

from __future__ import annotations

import math
from typing import Any

from ..framework.ops.creation.fill import empty
from ..framework.tensor import Tensor
from . import functional as F
from .initialization import init
from .module import Module
from .parameter import Parameter


class Identity(Module):
    """Return the input; any constructor arguments are ignored."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()

    def forward(self, input: Tensor) -> Tensor:
        """Return ``input``."""
        return input


class Linear(Module):
    """Affine map of the last dimension: ``input @ weight.T + bias``.

    Args:
        in_features: Size of the input's last dimension.
        out_features: Size of the result's last dimension.
        bias: Whether to add a bias.
        device: Where its parameters lie.
        dtype: Their type.

    Attributes:
        weight: (out_features, in_features), uniform within ``1 / sqrt(in_features)``.
        bias: (out_features,), the same distribution; or None.
    """

    bias: Parameter | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.in_features = in_features
        self.out_features = out_features
        self.weight = Parameter(empty(out_features, in_features, device=device, dtype=dtype))
        if bias:
            self.bias = Parameter(empty(out_features, device=device, dtype=dtype))
        else:
            self.register_parameter("bias", None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Reinitialize the parameters from PyTorch's distribution."""
        init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        if self.bias is not None:
            bound = 1 / math.sqrt(self.in_features) if self.in_features > 0 else 0
            init.uniform_(self.bias, -bound, bound)

    def forward(self, input: Tensor) -> Tensor:
        """Map (*, in_features) to (*, out_features)."""
        return F.linear(input, self.weight, self.bias)

    def extra_repr(self) -> str:
        """Sizes, as PyTorch shows them."""
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}"
        )


class NonDynamicallyQuantizableLinear(Linear):
    """What the projection of an attention's result is called in printed models and tables."""


class Bilinear(Module):
    """Bilinear map: ``input1 @ weight[k] @ input2 + bias[k]`` for each output ``k``.

    Args:
        in1_features: Size of the first input's last dimension.
        in2_features: Size of the second's.
        out_features: Size of the result's.
        bias: Whether to add a bias.
        device: Where its parameters lie.
        dtype: Their type.

    Attributes:
        weight: (out_features, in1_features, in2_features), uniform within
            ``1 / sqrt(in1_features)``.
        bias: (out_features,), the same distribution; or None.

    Raises:
        ValueError: ``in1_features`` is not positive.
    """

    bias: Parameter | None

    def __init__(
        self,
        in1_features: int,
        in2_features: int,
        out_features: int,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        if in1_features <= 0:
            raise ValueError(f"Bilinear: in1_features must be > 0, but got {in1_features}.")
        self.in1_features = in1_features
        self.in2_features = in2_features
        self.out_features = out_features
        like = {"device": device, "dtype": dtype}
        self.weight = Parameter(empty(out_features, in1_features, in2_features, **like))
        if bias:
            self.bias = Parameter(empty(out_features, **like))
        else:
            self.register_parameter("bias", None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Reinitialize the parameters from PyTorch's distribution."""
        bound = 1 / math.sqrt(self.in1_features)
        init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            init.uniform_(self.bias, -bound, bound)

    def forward(self, input1: Tensor, input2: Tensor) -> Tensor:
        """Map (*, in1_features) and (*, in2_features) to (*, out_features)."""
        return F.bilinear(input1, input2, self.weight, self.bias)

    def extra_repr(self) -> str:
        """Sizes, as PyTorch shows them."""
        return (
            f"in1_features={self.in1_features}, in2_features={self.in2_features}, "
            f"out_features={self.out_features}, bias={self.bias is not None}"
        )
