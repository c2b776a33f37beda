"""Distributions of a location and a scale: uniform, Laplace, Cauchy, Gumbel, and half-Cauchy."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from ...ops.creation.fill import empty, zeros_like
from ...ops.random.draw import rand
from ...tensor import Tensor
from ..constraints import elementwise as constraints
from ..derived.transformed_distribution import TransformedDistribution, filled, nan_like
from ..distribution import Distribution
from ..parameters import batch_shape_of, broadcast_all, eps_of, tiny_of
from ..transforms.elementwise import AbsTransform, AffineTransform, ExpTransform
from ..transforms.transform import Transform
from .normal import half_log_prob

EULER = 0.57721566490153286060  # Euler's constant


class Uniform(Distribution):
    """Uniform distribution on [low, high): density ``1 / (high - low)``.

    Args:
        low: The lower end, a number or a tensor.
        high: The upper end, which does not belong to it.
        validate_args: Whether parameters and values are checked.
    """

    has_rsample = True

    def __init__(self, low: Any, high: Any, validate_args: bool | None = None) -> None:
        self.low, self.high = broadcast_all(low, high)
        super().__init__(batch_shape_of(self.low, low, high), validate_args=validate_args)

    @property
    def arg_constraints(self) -> dict[str, constraints.Constraint]:
        return {
            "low": constraints.less_than(self.high),
            "high": constraints.greater_than(self.low),
        }

    @constraints.dependent_property(is_discrete=False, event_dim=0)
    def support(self) -> Any:
        return constraints.interval(self.low, self.high)

    def expand(self, batch_shape: Iterable[int], _instance: Any = None) -> Any:
        return self._expanded(Uniform, batch_shape, _instance, "low", "high")

    @property
    def mean(self) -> Tensor:
        return (self.high + self.low) / 2

    @property
    def mode(self) -> Tensor:
        return nan_like(self.high)

    @property
    def stddev(self) -> Tensor:
        return (self.high - self.low) / 12**0.5

    @property
    def variance(self) -> Tensor:
        return (self.high - self.low).square() / 12

    def rsample(self, sample_shape: Iterable[int] = ()) -> Tensor:
        noise = rand(
            self._extended_shape(sample_shape), dtype=self.low.dtype, device=self.low.device
        )
        return self.low + noise * (self.high - self.low)

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        inside = (self.low <= value) & (self.high > value)
        return inside.to(self.low.dtype).log() - (self.high - self.low).log()

    def cdf(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        return ((value - self.low) / (self.high - self.low)).clamp(0, 1)

    def icdf(self, value: Tensor) -> Tensor:
        return value * (self.high - self.low) + self.low

    def entropy(self) -> Tensor:
        return (self.high - self.low).log()


class Laplace(Distribution):
    """Laplace distribution: density ``exp(-|x - loc| / scale) / (2 scale)``.

    Args:
        loc: The mean, a number or a tensor.
        scale: Positive.
        validate_args: Whether parameters and values are checked.
    """

    arg_constraints = {"loc": constraints.real, "scale": constraints.positive}
    support = constraints.real
    has_rsample = True

    def __init__(self, loc: Any, scale: Any, validate_args: bool | None = None) -> None:
        self.loc, self.scale = broadcast_all(loc, scale)
        super().__init__(batch_shape_of(self.loc, loc, scale), validate_args=validate_args)

    def expand(self, batch_shape: Iterable[int], _instance: Any = None) -> Any:
        return self._expanded(Laplace, batch_shape, _instance, "loc", "scale")

    @property
    def mean(self) -> Tensor:
        return self.loc

    @property
    def mode(self) -> Tensor:
        return self.loc

    @property
    def variance(self) -> Tensor:
        return self.scale.square() * 2

    @property
    def stddev(self) -> Tensor:
        return self.scale * 2**0.5

    def rsample(self, sample_shape: Iterable[int] = ()) -> Tensor:
        u = empty(
            self._extended_shape(sample_shape), dtype=self.loc.dtype, device=self.loc.device
        ).uniform_(eps_of(self.loc) - 1, 1)
        # the sign of u, and 1 - |u| of [0, 1) for the quantile
        return self.loc - self.scale * u.sign() * (-u.abs().clamp(max=1 - eps_of(u))).log1p()

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        return -(self.scale * 2).log() - (value - self.loc).abs() / self.scale

    def cdf(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        away = value - self.loc
        return 0.5 - 0.5 * away.sign() * (-away.abs() / self.scale).expm1()

    def icdf(self, value: Tensor) -> Tensor:
        term = value - 0.5
        return self.loc - self.scale * term.sign() * (term.abs() * -2).log1p()

    def entropy(self) -> Tensor:
        return (self.scale * 2).log() + 1


class Cauchy(Distribution):
    """Cauchy distribution: density ``1 / (pi scale (1 + ((x - loc) / scale)^2))``, without moments.

    Args:
        loc: The median, a number or a tensor.
        scale: Half the distance between the quartiles, positive.
        validate_args: Whether parameters and values are checked.
    """

    arg_constraints = {"loc": constraints.real, "scale": constraints.positive}
    support = constraints.real
    has_rsample = True

    def __init__(self, loc: Any, scale: Any, validate_args: bool | None = None) -> None:
        self.loc, self.scale = broadcast_all(loc, scale)
        super().__init__(batch_shape_of(self.loc, loc, scale), validate_args=validate_args)

    def expand(self, batch_shape: Iterable[int], _instance: Any = None) -> Any:
        return self._expanded(Cauchy, batch_shape, _instance, "loc", "scale")

    @property
    def mean(self) -> Tensor:
        return filled(self._batch_shape, math.nan, self.loc)

    @property
    def mode(self) -> Tensor:
        return self.loc

    @property
    def variance(self) -> Tensor:
        return filled(self._batch_shape, math.inf, self.loc)

    def rsample(self, sample_shape: Iterable[int] = ()) -> Tensor:
        noise = empty(
            self._extended_shape(sample_shape), dtype=self.loc.dtype, device=self.loc.device
        ).cauchy_()
        return self.loc + noise * self.scale

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        z = (value - self.loc) / self.scale
        return -math.log(math.pi) - self.scale.log() - z.square().log1p()

    def cdf(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        return ((value - self.loc) / self.scale).atan() / math.pi + 0.5

    def icdf(self, value: Tensor) -> Tensor:
        return ((value - 0.5) * math.pi).tan() * self.scale + self.loc

    def entropy(self) -> Tensor:
        return self.scale.log() + math.log(4 * math.pi)


class HalfCauchy(TransformedDistribution):
    """Half-Cauchy distribution: of ``|x|`` for a Cauchy variable ``x`` of median 0.

    Args:
        scale: Of ``x``, positive; the median of ``|x|``.
        validate_args: Whether parameters and values are checked.
    """

    arg_constraints = {"scale": constraints.positive}
    support = constraints.nonnegative
    has_rsample = True
    base_dist: Cauchy

    def __init__(self, scale: Any, validate_args: bool | None = None) -> None:
        base = Cauchy(0, scale, validate_args=False)
        super().__init__(base, AbsTransform(), validate_args=validate_args)

    def expand(self, batch_shape: Iterable[int], _instance: Any = None) -> Any:
        return super().expand(batch_shape, self._get_checked_instance(HalfCauchy, _instance))

    @property
    def scale(self) -> Tensor:
        return self.base_dist.scale

    @property
    def mean(self) -> Tensor:
        return filled(self._extended_shape(), math.inf, self.scale)

    @property
    def mode(self) -> Tensor:
        return zeros_like(self.scale)

    @property
    def variance(self) -> Tensor:
        return self.base_dist.variance

    def log_prob(self, value: Tensor) -> Tensor:
        return half_log_prob(self, value)

    def cdf(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        return self.base_dist.cdf(value) * 2 - 1

    def icdf(self, value: Tensor) -> Tensor:
        return self.base_dist.icdf((value + 1) / 2)

    def entropy(self) -> Tensor:
        return self.base_dist.entropy() - math.log(2)


class Gumbel(TransformedDistribution):
    """Gumbel distribution, of extremes: density ``exp(z - exp(z)) / scale``, z = (loc - x) / scale.

    Args:
        loc: The mode, a number or a tensor.
        scale: Positive.
        validate_args: Whether parameters and values are checked.
    """

    arg_constraints = {"loc": constraints.real, "scale": constraints.positive}
    support = constraints.real

    def __init__(self, loc: Any, scale: Any, validate_args: bool | None = None) -> None:
        self.loc, self.scale = broadcast_all(loc, scale)
        batch = batch_shape_of(self.loc, loc, scale)
        base = open_uniform(self.loc).expand(batch)
        parts: list[Transform] = [
            ExpTransform().inv,
            AffineTransform(0, -filled(batch, 1.0, self.scale)),
            ExpTransform().inv,
            AffineTransform(loc, -self.scale),
        ]
        super().__init__(base, parts, validate_args=validate_args)

    def expand(self, batch_shape: Iterable[int], _instance: Any = None) -> Any:
        new = self._get_checked_instance(Gumbel, _instance)
        new.loc, new.scale = self.loc.expand(batch_shape), self.scale.expand(batch_shape)
        return super().expand(batch_shape, new)

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        z = (self.loc - value) / self.scale
        return z - z.exp() - self.scale.log()

    @property
    def mean(self) -> Tensor:
        return self.loc + self.scale * EULER

    @property
    def mode(self) -> Tensor:
        return self.loc

    @property
    def stddev(self) -> Tensor:
        return self.scale * (math.pi / 6**0.5)

    @property
    def variance(self) -> Tensor:
        return self.stddev.square()

    def entropy(self) -> Tensor:
        return self.scale.log() + (1 + EULER)


def open_uniform(like: Tensor, above: float | None = None) -> Uniform:
    """Return the uniform distribution between the least number above 0 and the greatest below 1.

    Its draws have finite logarithms on both sides.

    Args:
        like: Whose dtype and device it has.
        above: The lower end, if not the least normal number of the dtype.
    """
    low = filled((), tiny_of(like) if above is None else above, like)
    high = filled((), 1 - eps_of(like), like)
    return Uniform(low, high, validate_args=False)
