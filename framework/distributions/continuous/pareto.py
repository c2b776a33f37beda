"""Distributions of excesses and lifetimes: Pareto, generalized Pareto, Weibull."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from ...ops.random.draw import rand
from ...spec import Size
from ...tensor import Tensor
from ..constraints import elementwise as constraints
from ..derived.transformed_distribution import TransformedDistribution, filled
from ..distribution import Distribution
from ..parameters import batch_shape_of, broadcast_all
from ..transforms.elementwise import AffineTransform, ExpTransform, PowerTransform
from .gamma import Exponential
from .location_scale import EULER

_NEAR = 1e-4  # where three terms of a series have an error below 1e-12


class Pareto(TransformedDistribution):
    """Pareto distribution: density ``alpha scale^alpha / x^(alpha + 1)`` from ``scale`` on.

    Args:
        scale: The least value, positive, a number or a tensor.
        alpha: The tail's exponent, positive.
        validate_args: Whether parameters and values are checked.
    """

    arg_constraints = {"alpha": constraints.positive, "scale": constraints.positive}

    def __init__(self, scale: Any, alpha: Any, validate_args: bool | None = None) -> None:
        self.scale, self.alpha = broadcast_all(scale, alpha)
        base = Exponential(self.alpha, validate_args=validate_args)
        parts = [ExpTransform(), AffineTransform(0, self.scale)]
        super().__init__(base, parts, validate_args=validate_args)

    def expand(self, batch_shape: Iterable[int], _instance: Any = None) -> Any:
        new = self._get_checked_instance(Pareto, _instance)
        batch = Size(batch_shape)
        new.scale, new.alpha = self.scale.expand(batch), self.alpha.expand(batch)
        return super().expand(batch, new)

    @property
    def mean(self) -> Tensor:
        a = self.alpha.clamp(min=1)  # infinite up to 1
        return a * self.scale / (a - 1)

    @property
    def mode(self) -> Tensor:
        return self.scale

    @property
    def variance(self) -> Tensor:
        a = self.alpha.clamp(min=2)  # infinite up to 2
        return self.scale.square() * a / ((a - 1).square() * (a - 2))

    @constraints.dependent_property(is_discrete=False, event_dim=0)
    def support(self) -> Any:
        return constraints.greater_than_eq(self.scale)

    def entropy(self) -> Tensor:
        return (self.scale / self.alpha).log() + (1 + self.alpha.reciprocal())


def _log1p_ratio(u: Tensor) -> Tensor:
    # log(1 + u) / u, by its series near 0, so that it and its slope are right there
    near = u.abs() < _NEAR
    away = u.masked_fill(near, 1.0)
    return (1 - u / 2 + u * u / 3).where(near, away.log1p() / away)


def _expm1_ratio(u: Tensor) -> Tensor:
    # (exp(u) - 1) / u, likewise
    near = u.abs() < _NEAR
    away = u.masked_fill(near, 1.0)
    return (1 + u / 2 + u * u / 6).where(near, away.expm1() / away)


class GeneralizedPareto(Distribution):
    """Generalized Pareto distribution: ``1 - (1 + c z)^(-1/c)`` with z = (x - loc) / scale.

    For a concentration c of 0 that is ``1 - exp(-z)``, which it approaches smoothly; for c below 0
    there is an upper end.

    Args:
        loc: The least value, a number or a tensor.
        scale: Positive.
        concentration: c, any real number.
        validate_args: Whether parameters and values are checked.
    """

    arg_constraints = {
        "loc": constraints.real,
        "scale": constraints.positive,
        "concentration": constraints.real,
    }
    has_rsample = True

    def __init__(
        self, loc: Any, scale: Any, concentration: Any, validate_args: bool | None = None
    ) -> None:
        self.loc, self.scale, self.concentration = broadcast_all(loc, scale, concentration)
        batch = batch_shape_of(self.loc, loc, scale, concentration)
        super().__init__(batch, validate_args=validate_args)

    def expand(self, batch_shape: Iterable[int], _instance: Any = None) -> Any:
        names = ("loc", "scale", "concentration")
        return self._expanded(GeneralizedPareto, batch_shape, _instance, *names)

    def rsample(self, sample_shape: Iterable[int] = ()) -> Tensor:
        shape = self._extended_shape(sample_shape)
        return self.icdf(rand(shape, dtype=self.loc.dtype, device=self.loc.device))

    def log_survival_function(self, value: Tensor) -> Tensor:
        """Compute ``log(1 - cdf(value))``."""
        z = ((value - self.loc) / self.scale).clamp(min=0)
        return -z * _log1p_ratio((self.concentration * z).clamp(min=-1))

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        z = (value - self.loc) / self.scale
        cz = self.concentration * z
        inside = cz.clamp(min=-1)
        log = inside.log1p()
        # (1 + 1 / c) log(1 + c z); where c is about 0, by log(1 + u) / u
        near = inside.abs() < _NEAR
        slope = -(self.concentration.expand(z.shape).masked_fill(near, 1.0).reciprocal() + 1)
        found = (-z * _log1p_ratio(inside.masked_fill(~near, 0.0)) - log).where(near, slope * log)
        found = found - self.scale.log()
        return found.masked_fill((z < 0) | (cz < -1), -math.inf)

    def log_cdf(self, value: Tensor) -> Tensor:
        """Compute ``log(cdf(value))``."""
        return (-self.log_survival_function(value).exp()).log1p()

    def cdf(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        return -self.log_survival_function(value).expm1()

    def icdf(self, value: Tensor) -> Tensor:
        left = -(-value).log1p()  # -log(1 - value)
        return self.loc + self.scale * left * _expm1_ratio(self.concentration * left)

    @property
    def mean(self) -> Tensor:
        c = self.concentration
        return (self.loc + self.scale / (1 - c)).masked_fill(c >= 1, math.nan)

    @property
    def variance(self) -> Tensor:
        c = self.concentration
        found = self.scale.square() / ((1 - c).square() * (1 - 2 * c))
        return found.masked_fill(c >= 0.5, math.nan)

    @property
    def mode(self) -> Tensor:
        return self.loc

    def entropy(self) -> Tensor:
        return self.scale.log() + self.concentration + 1

    @constraints.dependent_property(is_discrete=False, event_dim=0)
    def support(self) -> Any:
        c = self.concentration
        upper = self.loc - self.scale / c
        return constraints.interval(self.loc, upper.masked_fill(c >= 0, math.inf))


class Weibull(TransformedDistribution):
    """Weibull distribution: distribution function ``1 - exp(-(x / scale)^k)``.

    Args:
        scale: Positive, a number or a tensor.
        concentration: k, positive.
        validate_args: Whether parameters and values are checked.
    """

    arg_constraints = {"scale": constraints.positive, "concentration": constraints.positive}
    support = constraints.positive

    def __init__(self, scale: Any, concentration: Any, validate_args: bool | None = None) -> None:
        self.scale, self.concentration = broadcast_all(scale, concentration)
        batch = batch_shape_of(self.scale, scale, concentration)
        base = Exponential(filled(batch, 1.0, self.scale), validate_args=validate_args)
        parts = [
            PowerTransform(self.concentration.reciprocal()),
            AffineTransform(0, self.scale),
        ]
        super().__init__(base, parts, validate_args=validate_args)

    def expand(self, batch_shape: Iterable[int], _instance: Any = None) -> Any:
        new = self._get_checked_instance(Weibull, _instance)
        batch = Size(batch_shape)
        new.scale, new.concentration = self.scale.expand(batch), self.concentration.expand(batch)
        return super().expand(batch, new)

    def _log_moment(self, n: int) -> Tensor:
        return (n / self.concentration + 1).lgamma()

    @property
    def mean(self) -> Tensor:
        return self.scale * self._log_moment(1).exp()

    @property
    def mode(self) -> Tensor:
        k = self.concentration
        return self.scale * ((k - 1) / k).clamp(min=0) ** k.reciprocal()

    @property
    def variance(self) -> Tensor:
        return self.scale.square() * (self._log_moment(2).exp() - (self._log_moment(1) * 2).exp())

    def entropy(self) -> Tensor:
        k = self.concentration
        return (1 - k.reciprocal()) * EULER + (self.scale / k).log() + 1
