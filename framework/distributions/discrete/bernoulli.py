"""Distributions of one trial's probability: Bernoulli, continuous Bernoulli, geometric."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, cast

from ...modes import no_grad
from ...ops.activation.gelu import softplus
from ...ops.creation.fill import zeros_like
from ...ops.creation.ranges import arange
from ...ops.random.distributions import bernoulli
from ...ops.random.draw import rand
from ...spec import Size
from ...tensor import Tensor
from ..constraints import elementwise as constraints
from ..distribution import ExponentialFamily
from ..parameters import (
    batch_shape_of,
    broadcast_all,
    clamp_probs,
    decided,
    given_one,
    lazy_property,
    logits_to_probs,
    probs_to_logits,
    tiny_of,
)


def cross_entropy(logits: Tensor, value: Tensor) -> Tensor:
    """Compute ``-(value log p + (1 - value) log(1 - p))`` from log-odds: binary cross entropy."""
    return cast(Tensor, softplus(logits) - logits * value)


class _OfOdds(ExponentialFamily):
    # A distribution of one probability for each number, given as such or as log-odds.

    arg_constraints = {"probs": constraints.unit_interval, "logits": constraints.real}

    def __init__(
        self, probs: Any = None, logits: Any = None, validate_args: bool | None = None
    ) -> None:
        given_one(type(self).__name__, probs=probs, logits=logits)
        name, value = ("probs", probs) if logits is None else ("logits", logits)
        (tensor,) = broadcast_all(value)
        setattr(self, name, tensor)
        self._param = tensor
        super().__init__(batch_shape_of(tensor, value), validate_args=validate_args)

    def expand(self, batch_shape: Iterable[int], _instance: Any = None) -> Any:
        batch_shape = Size(batch_shape)
        new = self._expanded(_OfOdds, batch_shape, _instance, "probs", "logits", "_param")
        for name in ("probs", "logits"):  # the one that was given stays one tensor with _param
            if self.__dict__.get(name) is self._param:
                setattr(new, name, new._param)
        return new

    def _new(self, *args: Any, **kwargs: Any) -> Tensor:
        return self._param.new_empty(*args, **kwargs)

    @lazy_property
    def logits(self) -> Any:
        """The log-odds."""
        return probs_to_logits(self.probs, is_binary=True)

    @lazy_property
    def probs(self) -> Any:
        """The probabilities."""
        return logits_to_probs(self.logits, is_binary=True)

    @property
    def param_shape(self) -> Size:
        """The shape of the parameter that was given."""
        return self._param.shape


class Bernoulli(_OfOdds):
    """Bernoulli distribution: 1 with probability ``probs``, else 0.

    Args:
        probs: The probability of 1, a number or a tensor.
        logits: Its log-odds; exactly one of both is given.
        validate_args: Whether parameters and values are checked.
    """

    support = constraints.boolean
    has_enumerate_support = True
    _mean_carrier_measure = 0

    @property
    def mean(self) -> Tensor:
        return cast(Tensor, self.probs)

    @property
    def mode(self) -> Tensor:
        return (self.probs >= 0.5).to(self.probs.dtype).masked_fill(self.probs == 0.5, math.nan)

    @property
    def variance(self) -> Tensor:
        return cast(Tensor, self.probs * (1 - self.probs))

    def sample(self, sample_shape: Iterable[int] = ()) -> Tensor:
        with no_grad():
            return cast(Tensor, bernoulli(self.probs.expand(self._extended_shape(sample_shape))))

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        return -cross_entropy(*broadcast_all(self.logits, value))

    def entropy(self) -> Tensor:
        return cross_entropy(self.logits, self.probs)

    def enumerate_support(self, expand: bool = True) -> Tensor:
        values = arange(2, dtype=self._param.dtype, device=self._param.device)
        values = values.reshape(2, *[1] * len(self._batch_shape))
        return values.expand(2, *self._batch_shape) if expand else values

    @property
    def _natural_params(self) -> tuple[Tensor, ...]:
        return (cast(Tensor, self.logits),)

    def _log_normalizer(self, *natural_params: Tensor) -> Tensor:
        return cast(Tensor, softplus(natural_params[0]))


class Geometric(_OfOdds):
    """Geometric distribution: the number of failures before the first success.

    Args:
        probs: The probability of success in each trial, in (0, 1].
        logits: Its log-odds; exactly one of both is given.
        validate_args: Whether parameters and values are checked.
    """

    support = constraints.nonnegative_integer

    def __init__(
        self, probs: Any = None, logits: Any = None, validate_args: bool | None = None
    ) -> None:
        super().__init__(probs, logits, validate_args)
        if self._validate_args and probs is not None:
            zeros = (self.probs <= 0).sum()
            if decided(zeros > 0, False):
                raise ValueError(
                    f"Expected parameter probs (Tensor of shape {tuple(self.probs.shape)}) of "
                    f"distribution {self!r} to be positive but found invalid values: {int(zeros)} "
                    f"of {self.probs.numel()} are 0. A success must be possible."
                )

    def expand(self, batch_shape: Iterable[int], _instance: Any = None) -> Any:
        return super().expand(batch_shape, self._get_checked_instance(Geometric, _instance))

    @property
    def mean(self) -> Tensor:
        return cast(Tensor, 1.0 / self.probs - 1.0)

    @property
    def mode(self) -> Tensor:
        return zeros_like(self.probs)

    @property
    def variance(self) -> Tensor:
        return cast(Tensor, (1.0 / self.probs - 1.0) / self.probs)

    def sample(self, sample_shape: Iterable[int] = ()) -> Tensor:
        shape = self._extended_shape(sample_shape)
        with no_grad():
            u = rand(shape, dtype=self.probs.dtype, device=self.probs.device)
            u.clamp_(min=tiny_of(u))
            return cast(Tensor, (u.log() / (-self.probs).log1p()).floor())

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        value, probs = broadcast_all(value, self.probs)
        certain = (probs == 1) & (value == 0)  # 0 times the logarithm of 0
        return value * (-probs.masked_fill(certain, 0.0)).log1p() + probs.log()

    def entropy(self) -> Tensor:
        return cast(Tensor, cross_entropy(self.logits, self.probs) / self.probs)


class ContinuousBernoulli(_OfOdds):
    """Continuous Bernoulli distribution on [0, 1]: density ``C(p) p^x (1 - p)^(1 - x)``.

    Near p = 0.5 the normalizer ``C(p) = 2 artanh(1 - 2p) / (1 - 2p)`` and the moments are computed
    by their Taylor series.

    Args:
        probs: p, a number or a tensor.
        logits: Its log-odds; exactly one of both is given.
        lims: Between which the series are used.
        validate_args: Whether parameters and values are checked.

    Source:
        Loaiza-Ganem and Cunningham: "The continuous Bernoulli", NeurIPS 2019.
    """

    support = constraints.unit_interval
    has_rsample = True
    _mean_carrier_measure = 0

    def __init__(
        self,
        probs: Any = None,
        logits: Any = None,
        lims: tuple[float, float] = (0.499, 0.501),
        validate_args: bool | None = None,
    ) -> None:
        self._lims = lims
        super().__init__(probs, logits, validate_args)
        if probs is not None:  # 0 and 1 have no log-odds
            self.probs = self._param = clamp_probs(self.probs)

    def expand(self, batch_shape: Iterable[int], _instance: Any = None) -> Any:
        new = self._get_checked_instance(ContinuousBernoulli, _instance)
        new._lims = self._lims
        return super().expand(batch_shape, new)

    def _apart(self) -> tuple[Tensor, Tensor]:
        # Where p is away from 0.5, and p there; elsewhere the lower limit, so that all is finite.
        p = self.probs
        apart = (p <= self._lims[0]) | (p > self._lims[1])
        return apart, p.where(apart, self._lims[0])

    def _series(self, *coefficients: float) -> Tensor:
        # Of (p - 0.5) squared.
        square = (self.probs - 0.5).square()
        found = square * 0 + coefficients[-1]
        for c in reversed(coefficients[:-1]):
            found = found * square + c
        return cast(Tensor, found)

    def _log_norm(self) -> Tensor:
        apart, p = self._apart()
        exact = ((-p).log1p() - p.log()).abs().log() - (1 - p * 2).abs().log()
        return exact.where(apart, self._series(math.log(2.0), 4.0 / 3.0, 104.0 / 45.0))

    @property
    def mean(self) -> Tensor:
        apart, p = self._apart()
        exact = p / (p * 2 - 1) + 1 / ((-p).log1p() - p.log())
        near = 0.5 + (self.probs - 0.5) * self._series(1.0 / 3.0, 16.0 / 45.0)
        return cast(Tensor, exact.where(apart, near))

    @property
    def variance(self) -> Tensor:
        apart, p = self._apart()
        exact = p * (p - 1) / (1 - p * 2).square() + 1 / ((-p).log1p() - p.log()).square()
        return cast(Tensor, exact.where(apart, self._series(1 / 12, -1 / 15, -128 / 945)))

    @property
    def stddev(self) -> Tensor:
        return self.variance.sqrt()

    def rsample(self, sample_shape: Iterable[int] = ()) -> Tensor:
        shape = self._extended_shape(sample_shape)
        return self.icdf(rand(shape, dtype=self.probs.dtype, device=self.probs.device))

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        return -cross_entropy(*broadcast_all(self.logits, value)) + self._log_norm()

    def cdf(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        apart, p = self._apart()
        inside = value.clamp(0, 1)
        exact = (p**inside * (1 - p) ** (1 - inside) + p - 1) / (p * 2 - 1)
        return exact.where(apart, inside).clamp(0, 1)

    def icdf(self, value: Tensor) -> Tensor:
        apart, p = self._apart()
        exact = ((-p + value * (p * 2 - 1)).log1p() - (-p).log1p()) / (p.log() - (-p).log1p())
        return exact.where(apart, value)

    def entropy(self) -> Tensor:
        log_odds = self.probs.log() - (-self.probs).log1p()
        return -self.mean * log_odds - self._log_norm() - (-self.probs).log1p()

    @property
    def _natural_params(self) -> tuple[Tensor, ...]:
        return (cast(Tensor, self.logits),)

    def _log_normalizer(self, *natural_params: Tensor) -> Tensor:
        (x,) = natural_params
        near = (x > self._lims[0] - 0.5) & (x < self._lims[1] - 0.5)
        away = x.masked_fill(near, self._lims[0] - 0.5)
        exact = (away.exp() - 1).abs().log() - away.abs().log()
        square = x.square()
        return (0.5 * x + square / 24 - square.square() / 2880).where(near, exact)
