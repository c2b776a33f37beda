"""Normal distributions and those that they are made into by exp, abs and softmax."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, cast

from ...ops.creation.fill import zeros_like
from ...ops.random.draw import randn
from ...tensor import Tensor
from ..constraints import elementwise as constraints
from ..constraints import shaped as shaped_constraints
from ..derived.transformed_distribution import TransformedDistribution
from ..distribution import ExponentialFamily
from ..parameters import batch_shape_of, broadcast_all
from ..transforms.elementwise import AbsTransform, ExpTransform
from ..transforms.vector import StickBreakingTransform

_LOG_ROOT_2PI = 0.5 * math.log(2 * math.pi)


class Normal(ExponentialFamily):
    """Normal (Gaussian) distribution: ``exp(-((x - loc) / scale)^2 / 2) / (scale sqrt(2 pi))``.

    Args:
        loc: The mean, a number or a tensor.
        scale: The standard deviation, positive.
        validate_args: Whether parameters and values are checked.
    """

    arg_constraints = {"loc": constraints.real, "scale": constraints.positive}
    support = constraints.real
    has_rsample = True
    _mean_carrier_measure = 0

    def __init__(self, loc: Any, scale: Any, validate_args: bool | None = None) -> None:
        self.loc, self.scale = broadcast_all(loc, scale)
        super().__init__(batch_shape_of(self.loc, loc, scale), validate_args=validate_args)

    def expand(self, batch_shape: Iterable[int], _instance: Any = None) -> Any:
        return self._expanded(Normal, batch_shape, _instance, "loc", "scale")

    @property
    def mean(self) -> Tensor:
        return self.loc

    @property
    def mode(self) -> Tensor:
        return self.loc

    @property
    def stddev(self) -> Tensor:
        return self.scale

    @property
    def variance(self) -> Tensor:
        return self.scale.square()

    def rsample(self, sample_shape: Iterable[int] = ()) -> Tensor:
        shape = self._extended_shape(sample_shape)
        noise = randn(shape, dtype=self.loc.dtype, device=self.loc.device)
        return self.loc + noise * self.scale

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        z = (value - self.loc) / self.scale
        return z * z * -0.5 - self.scale.log() - _LOG_ROOT_2PI

    def cdf(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        return (((value - self.loc) / self.scale * 0.5**0.5).erf() + 1) * 0.5

    def icdf(self, value: Tensor) -> Tensor:
        return self.loc + self.scale * (value * 2 - 1).erfinv() * 2**0.5

    def entropy(self) -> Tensor:
        return self.scale.log() + (0.5 + _LOG_ROOT_2PI)

    @property
    def _natural_params(self) -> tuple[Tensor, ...]:
        precision = self.scale.square().reciprocal()
        return self.loc * precision, precision * -0.5

    def _log_normalizer(self, *natural_params: Tensor) -> Tensor:
        x, y = natural_params
        return x * x / y * -0.25 + 0.5 * (-math.pi / y).log()


class LogNormal(TransformedDistribution):
    """Log-normal distribution: of ``exp(x)`` for a normal ``x``.

    Args:
        loc: The mean of ``x``.
        scale: The standard deviation of ``x``, positive.
        validate_args: Whether parameters and values are checked.
    """

    arg_constraints = {"loc": constraints.real, "scale": constraints.positive}
    support = constraints.positive
    has_rsample = True
    base_dist: Normal

    def __init__(self, loc: Any, scale: Any, validate_args: bool | None = None) -> None:
        base = Normal(loc, scale, validate_args=validate_args)
        super().__init__(base, ExpTransform(), validate_args=validate_args)

    def expand(self, batch_shape: Iterable[int], _instance: Any = None) -> Any:
        return super().expand(batch_shape, self._get_checked_instance(LogNormal, _instance))

    @property
    def loc(self) -> Tensor:
        return self.base_dist.loc

    @property
    def scale(self) -> Tensor:
        return self.base_dist.scale

    @property
    def mean(self) -> Tensor:
        return (self.loc + self.scale.square() / 2).exp()

    @property
    def mode(self) -> Tensor:
        return (self.loc - self.scale.square()).exp()

    @property
    def variance(self) -> Tensor:
        square = self.scale.square()
        return square.expm1() * (self.loc * 2 + square).exp()

    def entropy(self) -> Tensor:
        return self.base_dist.entropy() + self.loc


class HalfNormal(TransformedDistribution):
    """Half-normal distribution: of ``|x|`` for a normal ``x`` of mean 0.

    Args:
        scale: The standard deviation of ``x``, positive.
        validate_args: Whether parameters and values are checked.
    """

    arg_constraints = {"scale": constraints.positive}
    support = constraints.nonnegative
    has_rsample = True
    base_dist: Normal

    def __init__(self, scale: Any, validate_args: bool | None = None) -> None:
        base = Normal(0, scale, validate_args=False)
        super().__init__(base, AbsTransform(), validate_args=validate_args)

    def expand(self, batch_shape: Iterable[int], _instance: Any = None) -> Any:
        return super().expand(batch_shape, self._get_checked_instance(HalfNormal, _instance))

    @property
    def scale(self) -> Tensor:
        return self.base_dist.scale

    @property
    def mean(self) -> Tensor:
        return self.scale * math.sqrt(2 / math.pi)

    @property
    def mode(self) -> Tensor:
        return zeros_like(self.scale)

    @property
    def variance(self) -> Tensor:
        return self.scale.square() * (1 - 2 / math.pi)

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


def half_log_prob(half: TransformedDistribution, value: Tensor) -> Tensor:
    """Log density of the magnitude of a variable whose density is even: twice, from 0 on."""
    if half._validate_args:
        half._validate_sample(value)
    both = half.base_dist.log_prob(value) + math.log(2)
    return both.masked_fill(value < 0, -math.inf)


class LogisticNormal(TransformedDistribution):
    """Logistic-normal distribution on the simplex: stick breaking of a normal vector.

    Args:
        loc: The means (..., n).
        scale: The standard deviations (..., n), positive. Draws have n + 1 elements.
        validate_args: Whether parameters and values are checked.
    """

    arg_constraints = {"loc": constraints.real, "scale": constraints.positive}
    support = shaped_constraints.simplex
    has_rsample = True

    def __init__(self, loc: Any, scale: Any, validate_args: bool | None = None) -> None:
        base = Normal(loc, scale, validate_args=validate_args)
        if not base.batch_shape:
            base = base.expand((1,))
        super().__init__(base, StickBreakingTransform(), validate_args=validate_args)

    def expand(self, batch_shape: Iterable[int], _instance: Any = None) -> Any:
        return super().expand(batch_shape, self._get_checked_instance(LogisticNormal, _instance))

    @property
    def loc(self) -> Tensor:
        return cast(Tensor, self.base_dist.base_dist.loc)  # type: ignore[attr-defined]

    @property
    def scale(self) -> Tensor:
        return cast(Tensor, self.base_dist.base_dist.scale)  # type: ignore[attr-defined]
