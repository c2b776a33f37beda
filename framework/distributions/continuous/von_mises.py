"""The von Mises distribution of angles."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, cast

from ...modes import no_grad
from ...ops.elementwise.special import i0e, i1e
from ...tensor import Tensor
from ..constraints import elementwise as constraints
from ..distribution import Distribution
from ..parameters import broadcast_all
from ..sampling.draws import _von_mises, place_for


class VonMises(Distribution):
    """Von Mises distribution on the circle: density ``exp(k cos(x - loc)) / (2 pi I0(k))``.

    Args:
        loc: The mean angle in radians, a number or a tensor.
        concentration: k, positive: about one over the variance, where it is large.
        validate_args: Whether parameters and values are checked.
    """

    arg_constraints = {"loc": constraints.real, "concentration": constraints.positive}
    support = constraints.real
    has_rsample = False

    def __init__(self, loc: Any, concentration: Any, validate_args: bool | None = None) -> None:
        self.loc, self.concentration = broadcast_all(loc, concentration)
        super().__init__(self.loc.shape, validate_args=validate_args)

    def expand(self, batch_shape: Iterable[int], _instance: Any = None) -> Any:
        return self._expanded(VonMises, batch_shape, _instance, "loc", "concentration")

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        k = self.concentration
        # k cos(d) - log I0(k), of which i0e(k) = exp(-k) I0(k) leaves k (cos(d) - 1)
        turned = k * ((value - self.loc).cos() - 1)
        return cast(Tensor, turned - math.log(2 * math.pi) - i0e(k).log())

    def sample(self, sample_shape: Iterable[int] = ()) -> Tensor:
        """Draw angles in [-pi, pi)."""
        shape = self._extended_shape(sample_shape)
        with no_grad():
            concentration = self.concentration.detach().expand(shape)
            around = _von_mises(concentration, place_for(concentration))
            return cast(Tensor, (around + self.loc + math.pi) % (2 * math.pi) - math.pi)

    @property
    def mean(self) -> Tensor:
        """The circular mean."""
        return self.loc

    @property
    def mode(self) -> Tensor:
        return self.loc

    @property
    def variance(self) -> Tensor:
        """The circular variance, ``1 - I1(k) / I0(k)``."""
        k = self.concentration
        return cast(Tensor, 1 - i1e(k) / i0e(k))
