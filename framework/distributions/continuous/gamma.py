"""Gamma distributions and their kin: exponential, chi-squared, inverse gamma, Student's t, F."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, cast

from ...ops.creation.fill import empty, zeros_like
from ...ops.elementwise.binary import xlogy
from ...ops.random.draw import randn
from ...tensor import Tensor
from ..constraints import elementwise as constraints
from ..derived.transformed_distribution import TransformedDistribution, filled
from ..distribution import Distribution, ExponentialFamily
from ..parameters import batch_shape_of, broadcast_all, tiny_of
from ..sampling.implicit_gradients import draw_gamma, gamma_cdf
from ..transforms.elementwise import PowerTransform


class Gamma(ExponentialFamily):
    """Gamma distribution: density ``rate^a x^(a-1) exp(-rate x) / Gamma(a)``, a the concentration.

    Draws have implicit gradients by the concentration (``implicit_gradients.py``).

    Args:
        concentration: The shape parameter, positive.
        rate: One over the scale, positive.
        validate_args: Whether parameters and values are checked.
    """

    arg_constraints: Any = {
        "concentration": constraints.positive,
        "rate": constraints.positive,
    }
    support = constraints.nonnegative
    has_rsample = True
    _mean_carrier_measure = 0

    def __init__(self, concentration: Any, rate: Any, validate_args: bool | None = None) -> None:
        self.concentration, self.rate = broadcast_all(concentration, rate)
        batch = batch_shape_of(self.concentration, concentration, rate)
        super().__init__(batch, validate_args=validate_args)

    def expand(self, batch_shape: Iterable[int], _instance: Any = None) -> Any:
        return self._expanded(Gamma, batch_shape, _instance, "concentration", "rate")

    @property
    def mean(self) -> Tensor:
        return self.concentration / self.rate

    @property
    def mode(self) -> Tensor:
        return ((self.concentration - 1) / self.rate).clamp(min=0)

    @property
    def variance(self) -> Tensor:
        return self.concentration / self.rate.square()

    def rsample(self, sample_shape: Iterable[int] = ()) -> Tensor:
        shape = self._extended_shape(sample_shape)
        drawn = draw_gamma(self.concentration.expand(shape)) / self.rate
        return drawn.clamp(min=tiny_of(drawn))  # of 0 there is no logarithm

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        a, rate = self.concentration, self.rate
        return cast(Tensor, xlogy(a, rate) + xlogy(a - 1, value) - rate * value - a.lgamma())

    def cdf(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        return gamma_cdf(*broadcast_all(self.concentration, self.rate * value))

    def entropy(self) -> Tensor:
        a = self.concentration
        return a - self.rate.log() + a.lgamma() + (1 - a) * a.digamma()

    @property
    def _natural_params(self) -> tuple[Tensor, ...]:
        return self.concentration - 1, -self.rate

    def _log_normalizer(self, *natural_params: Tensor) -> Tensor:
        x, y = natural_params
        return (x + 1).lgamma() + (x + 1) * (-y.reciprocal()).log()


class Chi2(Gamma):
    """Chi-squared distribution: a gamma distribution of concentration df / 2 and rate 1 / 2.

    Args:
        df: Degrees of freedom, positive.
        validate_args: Whether parameters and values are checked.
    """

    arg_constraints = {"df": constraints.positive}

    def __init__(self, df: Any, validate_args: bool | None = None) -> None:
        half = df * 0.5 if isinstance(df, Tensor) else 0.5 * df
        super().__init__(half, 0.5, validate_args=validate_args)

    def expand(self, batch_shape: Iterable[int], _instance: Any = None) -> Any:
        return super().expand(batch_shape, self._get_checked_instance(Chi2, _instance))

    @property
    def df(self) -> Tensor:
        return self.concentration * 2


class InverseGamma(TransformedDistribution):
    """Inverse gamma distribution: of ``1 / x`` for a gamma variable ``x``.

    Args:
        concentration: The shape parameter of ``x``, positive.
        rate: Of ``x``, positive; the scale of ``1 / x``.
        validate_args: Whether parameters and values are checked.
    """

    arg_constraints = {"concentration": constraints.positive, "rate": constraints.positive}
    support = constraints.positive
    has_rsample = True
    base_dist: Gamma

    def __init__(self, concentration: Any, rate: Any, validate_args: bool | None = None) -> None:
        base = Gamma(concentration, rate, validate_args=validate_args)
        inverse = PowerTransform(filled((), -1.0, base.rate))
        super().__init__(base, inverse, validate_args=validate_args)

    def expand(self, batch_shape: Iterable[int], _instance: Any = None) -> Any:
        return super().expand(batch_shape, self._get_checked_instance(InverseGamma, _instance))

    @property
    def concentration(self) -> Tensor:
        return self.base_dist.concentration

    @property
    def rate(self) -> Tensor:
        return self.base_dist.rate

    @property
    def mean(self) -> Tensor:
        a = self.concentration
        return (self.rate / (a - 1)).where(a > 1, filled((), math.inf, a))

    @property
    def mode(self) -> Tensor:
        return self.rate / (self.concentration + 1)

    @property
    def variance(self) -> Tensor:
        a = self.concentration
        finite = self.rate.square() / ((a - 1).square() * (a - 2))
        return finite.where(a > 2, filled((), math.inf, a))

    def entropy(self) -> Tensor:
        a = self.concentration
        return a + self.rate.log() + a.lgamma() - (1 + a) * a.digamma()


class Exponential(ExponentialFamily):
    """Exponential distribution: density ``rate exp(-rate x)``.

    Args:
        rate: One over the mean, positive.
        validate_args: Whether parameters and values are checked.
    """

    arg_constraints = {"rate": constraints.positive}
    support = constraints.nonnegative
    has_rsample = True
    _mean_carrier_measure = 0

    def __init__(self, rate: Any, validate_args: bool | None = None) -> None:
        (self.rate,) = broadcast_all(rate)
        super().__init__(batch_shape_of(self.rate, rate), validate_args=validate_args)

    def expand(self, batch_shape: Iterable[int], _instance: Any = None) -> Any:
        return self._expanded(Exponential, batch_shape, _instance, "rate")

    @property
    def mean(self) -> Tensor:
        return self.rate.reciprocal()

    @property
    def mode(self) -> Tensor:
        return zeros_like(self.rate)

    @property
    def stddev(self) -> Tensor:
        return self.rate.reciprocal()

    @property
    def variance(self) -> Tensor:
        return self.rate**-2

    def rsample(self, sample_shape: Iterable[int] = ()) -> Tensor:
        noise = empty(
            self._extended_shape(sample_shape), dtype=self.rate.dtype, device=self.rate.device
        ).exponential_()
        return noise / self.rate

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        return self.rate.log() - self.rate * value

    def cdf(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        return -(-self.rate * value).expm1()

    def icdf(self, value: Tensor) -> Tensor:
        return -(-value).log1p() / self.rate

    def entropy(self) -> Tensor:
        return 1.0 - self.rate.log()

    @property
    def _natural_params(self) -> tuple[Tensor, ...]:
        return (-self.rate,)

    def _log_normalizer(self, *natural_params: Tensor) -> Tensor:
        return -(-natural_params[0]).log()


class StudentT(Distribution):
    """Student's t distribution: of ``loc + scale x / sqrt(z / df)``, x normal, z chi-squared.

    Args:
        df: Degrees of freedom, positive.
        loc: The location, a number or a tensor.
        scale: Positive.
        validate_args: Whether parameters and values are checked.
    """

    arg_constraints = {
        "df": constraints.positive,
        "loc": constraints.real,
        "scale": constraints.positive,
    }
    support = constraints.real
    has_rsample = True

    def __init__(
        self, df: Any, loc: Any = 0.0, scale: Any = 1.0, validate_args: bool | None = None
    ) -> None:
        self.df, self.loc, self.scale = broadcast_all(df, loc, scale)
        self._chi2 = Chi2(self.df, validate_args=False)
        super().__init__(self.df.shape, validate_args=validate_args)

    def expand(self, batch_shape: Iterable[int], _instance: Any = None) -> Any:
        batch_shape = tuple(batch_shape)
        new = self._expanded(StudentT, batch_shape, _instance, "df", "loc", "scale")
        new._chi2 = self._chi2.expand(batch_shape)
        return new

    @property
    def mean(self) -> Tensor:
        return self.loc.masked_fill(self.df <= 1, math.nan)

    @property
    def mode(self) -> Tensor:
        return self.loc

    @property
    def variance(self) -> Tensor:
        df = self.df
        found = self.scale.square() * (df / (df - 2))
        return found.masked_fill(df <= 2, math.inf).masked_fill(df <= 1, math.nan)

    def rsample(self, sample_shape: Iterable[int] = ()) -> Tensor:
        shape = self._extended_shape(sample_shape)
        x = randn(shape, dtype=self.df.dtype, device=self.df.device)
        z = self._chi2.rsample(sample_shape)
        return self.loc + self.scale * (x * (z / self.df).rsqrt())

    def _log_scale(self) -> Tensor:
        # the logarithm of what the density is divided by
        df = self.df
        beta = (df * 0.5).lgamma() - ((df + 1) * 0.5).lgamma()
        return self.scale.log() + 0.5 * df.log() + 0.5 * math.log(math.pi) + beta

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        z = (value - self.loc) / self.scale
        return (z.square() / self.df).log1p() * (self.df + 1) * -0.5 - self._log_scale()

    def entropy(self) -> Tensor:
        df = self.df
        spread = (df + 1) * 0.5 * (((df + 1) * 0.5).digamma() - (df * 0.5).digamma())
        return self._log_scale() + spread


class FisherSnedecor(Distribution):
    """Fisher's F distribution: of ``(x1 / df1) / (x2 / df2)`` for chi-squared x1 and x2.

    Args:
        df1: Degrees of freedom of the numerator, positive.
        df2: Degrees of freedom of the denominator, positive.
        validate_args: Whether parameters and values are checked.
    """

    arg_constraints = {"df1": constraints.positive, "df2": constraints.positive}
    support = constraints.positive
    has_rsample = True

    def __init__(self, df1: Any, df2: Any, validate_args: bool | None = None) -> None:
        self.df1, self.df2 = broadcast_all(df1, df2)
        super().__init__(batch_shape_of(self.df1, df1, df2), validate_args=validate_args)

    def expand(self, batch_shape: Iterable[int], _instance: Any = None) -> Any:
        return self._expanded(FisherSnedecor, batch_shape, _instance, "df1", "df2")

    @property
    def mean(self) -> Tensor:
        return (self.df2 / (self.df2 - 2)).masked_fill(self.df2 <= 2, math.nan)

    @property
    def mode(self) -> Tensor:
        found = (self.df1 - 2) / self.df1 * self.df2 / (self.df2 + 2)
        return found.masked_fill(self.df1 <= 2, math.nan)

    @property
    def variance(self) -> Tensor:
        a, b = self.df1, self.df2
        found = 2 * b.square() * (a + b - 2) / (a * (b - 2).square() * (b - 4))
        return found.masked_fill(b <= 4, math.nan)

    def rsample(self, sample_shape: Iterable[int] = ()) -> Tensor:
        sample_shape = tuple(sample_shape)
        above = Gamma(self.df1 * 0.5, self.df1, validate_args=False).rsample(sample_shape)
        below = Gamma(self.df2 * 0.5, self.df2, validate_args=False).rsample(sample_shape)
        found = above / below
        return found.clamp(min=tiny_of(found))

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        a, b = self.df1 * 0.5, self.df2 * 0.5
        ratio = self.df1 / self.df2
        norm = (a + b).lgamma() - a.lgamma() - b.lgamma()
        shape = a * ratio.log() + (a - 1) * value.log()
        return norm + shape - (a + b) * (ratio * value).log1p()
