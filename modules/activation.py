"""Activation modules; ``framework/ops`` says what each saves for backward.

With ``inplace`` a module writes into its input; whether that saves memory depends on what backward
needs: relu and its kin need the result only, silu and its kin keep a copy of the input.
"""

from __future__ import annotations

import warnings
from typing import Any

from ..framework.ops.creation.fill import empty
from ..framework.tensor import Tensor
from . import functional as F
from .initialization import init as initial
from .module import Module
from .parameter import Parameter


class _Activation(Module):
    repr_fields: tuple[str, ...] = ()  # the attributes in repr

    def extra_repr(self) -> str:
        """The arguments, as PyTorch shows them."""
        parts = [f"{name}={getattr(self, name)!r}" for name in self.repr_fields]
        return ", ".join(parts + ["inplace=True"] * bool(getattr(self, "inplace", False)))


class ReLU(_Activation):
    """Apply ``max(input, 0)``.

    Args:
        inplace: Write into the input.
    """

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.inplace = inplace

    def forward(self, input: Tensor) -> Tensor:
        """Apply the activation elementwise."""
        return F.relu(input, inplace=self.inplace)


class LeakyReLU(_Activation):
    """Apply leaky ReLU: negative elements are multiplied by a fixed slope.

    Args:
        negative_slope: The slope.
        inplace: Write into the input.
    """

    repr_fields = ("negative_slope",)

    def __init__(self, negative_slope: float = 0.01, inplace: bool = False) -> None:
        super().__init__()
        self.negative_slope = negative_slope
        self.inplace = inplace

    def forward(self, input: Tensor) -> Tensor:
        """Apply the activation elementwise."""
        return F.leaky_relu(input, self.negative_slope, self.inplace)


class PReLU(_Activation):
    """Apply PReLU: negative elements are multiplied by a learned slope, one or one per channel.

    Args:
        num_parameters: 1, or the channels of (N, C, *).
        init: The slope to begin with.
        device: Where the slopes lie.
        dtype: Their type.

    Attributes:
        weight: (num_parameters,)
    """

    repr_fields = ("num_parameters",)

    def __init__(
        self, num_parameters: int = 1, init: float = 0.25, device: Any = None, dtype: Any = None
    ) -> None:
        super().__init__()
        self.num_parameters = num_parameters
        self.init = init
        self.weight = Parameter(empty(num_parameters, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set every slope to ``init``."""
        initial.constant_(self.weight, self.init)

    def forward(self, input: Tensor) -> Tensor:
        """Apply the activation to (N, C, *)."""
        return F.prelu(input, self.weight)


class RReLU(_Activation):
    """Apply randomized leaky ReLU: random negative slopes in training, their mean otherwise.

    Args:
        lower: The least slope.
        upper: The largest slope.
        inplace: Write into the input.
    """

    repr_fields = ("lower", "upper")

    def __init__(
        self, lower: float = 1.0 / 8, upper: float = 1.0 / 3, inplace: bool = False
    ) -> None:
        super().__init__()
        self.lower = lower
        self.upper = upper
        self.inplace = inplace

    def forward(self, input: Tensor) -> Tensor:
        """Apply the activation elementwise."""
        return F.rrelu(input, self.lower, self.upper, self.training, self.inplace)


class Threshold(_Activation):
    """Threshold elements: keep those above ``threshold``, replace the others by ``value``.

    Args:
        threshold: The threshold.
        value: What replaces elements at or below it.
        inplace: Write into the input.
    """

    repr_fields = ("threshold", "value")

    def __init__(self, threshold: float, value: float, inplace: bool = False) -> None:
        super().__init__()
        self.threshold = threshold
        self.value = value
        self.inplace = inplace

    def forward(self, input: Tensor) -> Tensor:
        """Apply the activation elementwise."""
        return F.threshold(input, self.threshold, self.value, self.inplace)


class Hardtanh(_Activation):
    """Clamp elements to [``min_val``, ``max_val``].

    Args:
        min_val: The least result.
        max_val: The largest result.
        inplace: Write into the input.
        min_value: Old name of ``min_val``.
        max_value: Old name of ``max_val``.

    Raises:
        AssertionError: ``max_val`` is not above ``min_val``.
    """

    repr_fields: tuple[str, ...] = ("min_val", "max_val")

    def __init__(
        self,
        min_val: float = -1.0,
        max_val: float = 1.0,
        inplace: bool = False,
        min_value: float | None = None,
        max_value: float | None = None,
    ) -> None:
        super().__init__()
        for old, new, value in (
            ("min_value", "min_val", min_value),
            ("max_value", "max_val", max_value),
        ):
            if value is not None:
                warnings.warn(
                    f"keyword argument `{old}` is deprecated; pass `{new}` instead.",
                    FutureWarning,
                    stacklevel=2,
                )
        self.min_val = min_val if min_value is None else min_value
        self.max_val = max_val if max_value is None else max_value
        self.inplace = inplace
        if self.max_val <= self.min_val:
            raise AssertionError(
                f"Hardtanh: max_val must be larger than min_val; got {self.max_val} and "
                f"{self.min_val}."
            )

    def forward(self, input: Tensor) -> Tensor:
        """Apply the activation elementwise."""
        return F.hardtanh(input, self.min_val, self.max_val, self.inplace)


class ReLU6(Hardtanh):
    """Apply ``min(max(input, 0), 6)``.

    Args:
        inplace: Write into the input.
    """

    repr_fields = ()

    def __init__(self, inplace: bool = False) -> None:
        super().__init__(0.0, 6.0, inplace)


class ELU(_Activation):
    """Apply ``alpha * (exp(input) - 1)`` to negative elements.

    Args:
        alpha: Minus the limit for very negative elements.
        inplace: Write into the input.
    """

    repr_fields = ("alpha",)

    def __init__(self, alpha: float = 1.0, inplace: bool = False) -> None:
        super().__init__()
        self.alpha = alpha
        self.inplace = inplace

    def forward(self, input: Tensor) -> Tensor:
        """Apply the activation elementwise."""
        return F.elu(input, self.alpha, self.inplace)


class CELU(ELU):
    """Apply ``alpha * (exp(input / alpha) - 1)`` to negative elements; arguments as :class:`ELU`.

    Source:
        Barron: "Continuously Differentiable Exponential Linear Units", 2017.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Apply the activation elementwise."""
        return F.celu(input, self.alpha, self.inplace)


class SELU(_Activation):
    """Apply the scaled ELU that keeps mean 0 and variance 1.

    Args:
        inplace: Write into the input.

    Source:
        Klambauer et al.: "Self-Normalizing Neural Networks", 2017.
    """

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.inplace = inplace

    def forward(self, input: Tensor) -> Tensor:
        """Apply the activation elementwise."""
        return F.selu(input, self.inplace)


class GELU(_Activation):
    """Apply ``input * Phi(input)``.

    Args:
        approximate: ``"none"`` for the error function, ``"tanh"`` for its approximation.
    """

    repr_fields = ("approximate",)

    def __init__(self, approximate: str = "none") -> None:
        super().__init__()
        self.approximate = approximate

    def forward(self, input: Tensor) -> Tensor:
        """Apply the activation elementwise."""
        return F.gelu(input, approximate=self.approximate)


class SiLU(_Activation):
    """Apply ``input * sigmoid(input)``.

    Args:
        inplace: Write into the input.
    """

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.inplace = inplace

    def forward(self, input: Tensor) -> Tensor:
        """Apply the activation elementwise."""
        return F.silu(input, inplace=self.inplace)


class Mish(_Activation):
    """Apply ``input * tanh(softplus(input))``.

    Args:
        inplace: Write into the input.
    """

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.inplace = inplace

    def forward(self, input: Tensor) -> Tensor:
        """Apply the activation elementwise."""
        return F.mish(input, inplace=self.inplace)


class Hardswish(Module):
    """Apply ``input * min(max(input + 3, 0), 6) / 6``.

    Args:
        inplace: Write into the input.
    """

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.inplace = inplace

    def forward(self, input: Tensor) -> Tensor:
        """Apply the activation elementwise."""
        return F.hardswish(input, self.inplace)


class Hardsigmoid(Module):
    """Apply ``min(max(input + 3, 0), 6) / 6``.

    Args:
        inplace: Write into the input.
    """

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.inplace = inplace

    def forward(self, input: Tensor) -> Tensor:
        """Apply the activation elementwise."""
        return F.hardsigmoid(input, self.inplace)


class Sigmoid(Module):
    """Apply ``1 / (1 + exp(-input))``."""

    def forward(self, input: Tensor) -> Tensor:
        """Apply the activation elementwise."""
        return F.sigmoid(input)


class LogSigmoid(Module):
    """Apply ``log(1 / (1 + exp(-input)))``."""

    def forward(self, input: Tensor) -> Tensor:
        """Apply the activation elementwise."""
        return F.logsigmoid(input)


class Tanh(Module):
    """Apply the hyperbolic tangent."""

    def forward(self, input: Tensor) -> Tensor:
        """Apply the activation elementwise."""
        return F.tanh(input)


class Tanhshrink(Module):
    """Apply ``input - tanh(input)``."""

    def forward(self, input: Tensor) -> Tensor:
        """Apply the activation elementwise."""
        return F.tanhshrink(input)


class Softsign(Module):
    """Apply ``input / (1 + |input|)``."""

    def forward(self, input: Tensor) -> Tensor:
        """Apply the activation elementwise."""
        return F.softsign(input)


class Softplus(_Activation):
    """Apply ``log(1 + exp(beta * input)) / beta``, a smooth relu.

    Args:
        beta: Sharpness of the bend.
        threshold: Where ``beta * input`` is larger, the input itself is the result.
    """

    repr_fields = ("beta", "threshold")

    def __init__(self, beta: float = 1.0, threshold: float = 20.0) -> None:
        super().__init__()
        self.beta = beta
        self.threshold = threshold

    def forward(self, input: Tensor) -> Tensor:
        """Apply the activation elementwise."""
        return F.softplus(input, self.beta, self.threshold)


class Hardshrink(Module):
    """Apply hard shrinkage: zero the elements in [-lambd, lambd].

    Args:
        lambd: Half the width of what becomes zero.
    """

    def __init__(self, lambd: float = 0.5) -> None:
        super().__init__()
        self.lambd = lambd

    def forward(self, input: Tensor) -> Tensor:
        """Apply the activation elementwise."""
        return F.hardshrink(input, self.lambd)

    def extra_repr(self) -> str:
        """The threshold, as PyTorch shows it."""
        return f"{self.lambd}"


class Softshrink(Module):
    """Apply soft shrinkage: move each element toward zero by ``lambd``, at most to zero.

    Args:
        lambd: How far.
    """

    def __init__(self, lambd: float = 0.5) -> None:
        super().__init__()
        self.lambd = lambd

    def forward(self, input: Tensor) -> Tensor:
        """Apply the activation elementwise."""
        return F.softshrink(input, self.lambd)

    def extra_repr(self) -> str:
        """The threshold, as PyTorch shows it."""
        return f"{self.lambd}"


class GLU(_Activation):
    """Apply the gated linear unit: the first half of ``dim`` times the sigmoid of the second.

    Args:
        dim: The dimension; its size is even.
    """

    repr_fields = ("dim",)

    def __init__(self, dim: int = -1) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, input: Tensor) -> Tensor:
        """Apply the gated linear unit, which halves dimension ``dim``."""
        return F.glu(input, self.dim)


class Softmax(_Activation):
    """Apply the softmax along ``dim``.

    Args:
        dim: The dimension whose elements sum to 1; None is deprecated.
    """

    repr_fields = ("dim",)

    def __init__(self, dim: int | None = None) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, input: Tensor) -> Tensor:
        """Return probabilities of the shape of ``input``."""
        return F.softmax(input, self.dim, _stacklevel=5)


class Softmin(Softmax):
    """Apply the softmax to ``-input``; argument as :class:`Softmax`."""

    def forward(self, input: Tensor) -> Tensor:
        """Return probabilities of the shape of ``input``."""
        return F.softmin(input, self.dim, _stacklevel=5)


class LogSoftmax(Softmax):
    """Apply the logarithm of the softmax; argument as :class:`Softmax`."""

    def forward(self, input: Tensor) -> Tensor:
        """Return log-probabilities of the shape of ``input``."""
        return F.log_softmax(input, self.dim, _stacklevel=5)


class Softmax2d(Module):
    """Apply the softmax over the channels of (N, C, H, W) or (C, H, W)."""

    def forward(self, input: Tensor) -> Tensor:
        """Return probabilities of the shape of ``input``."""
        if input.ndim not in (3, 4):
            raise ValueError(
                f"Softmax2d: expected input to be 3D or 4D; got {input.ndim}D. Pass (N, C, H, W)."
            )
        return F.softmax(input, -3)
