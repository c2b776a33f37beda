"""Quantization, which lowtide does not have: the parts that do nothing before it, and refusals.

Models that can be quantized have a ``QuantStub``, a ``DeQuantStub`` and ``FloatFunctional``: in
floating point they pass values on, and compute as usual. To quantize a model is refused.
"""

from __future__ import annotations

import sys
from typing import Any

import lowtide as _lt


class QuantStub(_lt.nn.Module):
    """Where values would become integers: it passes them on."""

    def __init__(self, qconfig: Any = None) -> None:
        super().__init__()

    def forward(self, x: Any) -> Any:
        """Return ``x``."""
        return x


class DeQuantStub(QuantStub):
    """Where integers would become values: it passes them on."""


class FloatFunctional(_lt.nn.Module):
    """Operations as a module, which observers could watch: they compute as usual."""

    def add(self, x: Any, y: Any) -> Any:
        """Add."""
        return x + y

    add_scalar = add

    def mul(self, x: Any, y: Any) -> Any:
        """Multiply."""
        return x * y

    mul_scalar = mul

    def cat(self, x: Any, dim: int = 0) -> Any:
        """Join."""
        return _lt.cat(x, dim)

    def add_relu(self, x: Any, y: Any) -> Any:
        """Add, and cut what is negative."""
        return _lt.relu(x + y)

    def matmul(self, x: Any, y: Any) -> Any:
        """Multiply matrices."""
        return x @ y


def _refusal(name: str) -> Any:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(
            f"{name}: lowtide has no quantized tensors. Train in bfloat16 (lowtide.autocast), or "
            "keep the optimizer's state in 8 bits (lowtide.optim.Adam8bit)."
        )

    refuse.__name__ = refuse.__qualname__ = name
    refuse.__doc__ = "Not supported: raises when called."
    return refuse


def __getattr__(name: str) -> Any:
    """Any other name is a function that refuses when it is called."""
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _refusal(name)


# torch.ao.quantization, torch.ao.nn.quantized: all one module
quantization = nn = quantized = sys.modules[__name__]
supported_engines: list[str] = []
engine = "none"
