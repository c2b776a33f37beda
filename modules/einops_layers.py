"""The layers of ``einops.layers.torch`` for lowtide; they need ``einops``.

What a layer does is einops' own code; here it becomes a Module. ``lowtide.nn.einops`` is where
users import it from.
"""

from __future__ import annotations

from typing import Any

from einops.layers import RearrangeMixin, ReduceMixin
from einops.layers._einmix import _EinmixMixin

from ..framework.ops.creation.fill import empty
from ..framework.ops.linalg.einsum import einsum
from ..framework.tensor import Tensor
from .initialization import init
from .module import Module
from .parameter import Parameter


class Rearrange(RearrangeMixin, Module):
    """``einops.rearrange`` as a layer: ``Rearrange("b c h w -> b (h w) c")``."""

    def forward(self, input: Tensor) -> Tensor:
        """Rearrange the dimensions."""
        out: Tensor = self._apply_recipe(input)
        return out


class Reduce(ReduceMixin, Module):
    """``einops.reduce`` as a layer: ``Reduce("b n c -> b c", "mean")``."""

    def forward(self, input: Tensor) -> Tensor:
        """Reduce and rearrange."""
        out: Tensor = self._apply_recipe(input)
        return out


class EinMix(_EinmixMixin, Module):
    """A linear layer over any dimensions: ``EinMix("b c -> b d", weight_shape="c d", c=3, d=4)``.

    Attributes:
        weight: Of the shape that ``weight_shape`` names, uniform within einops' bound.
        bias: Of the shape that ``bias_shape`` names, likewise; or None.
    """

    weight: Parameter
    bias: Parameter | None

    def _create_parameters(
        self, weight_shape: Any, weight_bound: float, bias_shape: Any, bias_bound: float
    ) -> None:
        self.weight = Parameter(empty(tuple(weight_shape)))
        init.uniform_(self.weight, -weight_bound, weight_bound)
        bias = None
        if bias_shape is not None:
            bias = Parameter(empty(tuple(bias_shape)))
            init.uniform_(bias, -bias_bound, bias_bound)
        self.register_parameter("bias", bias)

    def _create_rearrange_layers(
        self, before: str | None, before_sizes: Any, after: str | None, after_sizes: Any
    ) -> None:
        self.pre_rearrange = None if before is None else Rearrange(before, **before_sizes)
        self.post_rearrange = None if after is None else Rearrange(after, **after_sizes)

    def forward(self, input: Tensor) -> Tensor:
        """Contract the input with the weight."""
        if self.pre_rearrange is not None:
            input = self.pre_rearrange(input)
        out: Tensor = einsum(self.einsum_pattern, input, self.weight)
        if self.bias is not None:
            out = out + self.bias
        return out if self.post_rearrange is None else self.post_rearrange(out)
