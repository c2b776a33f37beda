"""Distributions of counts: binomial, negative binomial, Poisson."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from ...modes import no_grad
from ...ops.activation.gelu import logsigmoid
from ...ops.creation.ranges import arange
from ...ops.elementwise.binary import xlogy
from ...ops.random.distributions import poisson
from ...spec import Size
from ...tensor import Tensor
from ..constraints import elementwise as constraints
from ..continuous.gamma import Gamma
from ..distribution import Distribution, ExponentialFamily
from ..parameters import (
    batch_shape_of,
    broadcast_all,
    given_one,
    known,
    lazy_property,
    logits_to_probs,
    probs_to_logits,
)
from ..sampling.draws import _binomial, place_for


class _OfTrials(Distribution):
    # A count of trials, and the odds of each.

    def __init__(
        self, total_count: Any, probs: Any, logits: Any, validate_args: bool | None
    ) -> None:
        given_one(type(self).__name__, probs=probs, logits=logits)
        name, value = ("probs", probs) if logits is None else ("logits", logits)
        self.total_count, tensor = broadcast_all(total_count, value)
        self.total_count = self.total_count.to(tensor.dtype)
        setattr(self, name, tensor)
        super().__init__(tensor.shape, validate_args=validate_args)

    def _expand_trials(self, cls: type, batch_shape: Iterable[int], _instance: Any) -> Any:
        return self._expanded(cls, batch_shape, _instance, "total_count", "probs", "logits")

    @property
    def _param(self) -> Tensor:
        found = self.__dict__.get("probs")
        return cast(Tensor, self.__dict__["logits"] if found is None else found)

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


class Binomial(_OfTrials):
    """Binomial distribution: successes in ``total_count`` trials of probability ``probs``.

    Args:
        total_count: The number of trials, a number or a tensor of whole numbers.
        probs: The probability of success, a number or a tensor.
        logits: Its log-odds; exactly one of both is given.
        validate_args: Whether parameters and values are checked.
    """

    arg_constraints = {
        "total_count": constraints.nonnegative_integer,
        "probs": constraints.unit_interval,
        "logits": constraints.real,
    }
    has_enumerate_support = True

    def __init__(
        self,
        total_count: Any = 1,
        probs: Any = None,
        logits: Any = None,
        validate_args: bool | None = None,
    ) -> None:
        super().__init__(total_count, probs, logits, validate_args)

    def expand(self, batch_shape: Iterable[int], _instance: Any = None) -> Any:
        return self._expand_trials(Binomial, batch_shape, _instance)

    @constraints.dependent_property(is_discrete=True, event_dim=0)
    def support(self) -> Any:
        return constraints.integer_interval(0, self.total_count)

    @property
    def mean(self) -> Tensor:
        return cast(Tensor, self.total_count * self.probs)

    @property
    def mode(self) -> Tensor:
        return ((self.total_count + 1) * self.probs).floor().clamp(max=self.total_count)

    @property
    def variance(self) -> Tensor:
        return cast(Tensor, self.total_count * self.probs * (1 - self.probs))

    def sample(self, sample_shape: Iterable[int] = ()) -> Tensor:
        shape = self._extended_shape(sample_shape)
        with no_grad():
            count = self.total_count.detach().expand(shape)
            return cast(
                Tensor, _binomial(count, self.probs.detach().expand(shape), place_for(count))
            )

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        n, logits = self.total_count, self.logits
        choices = (n + 1).lgamma() - (value + 1).lgamma() - (n - value + 1).lgamma()
        return choices + value * logits + n * logsigmoid(-logits)

    def entropy(self) -> Tensor:
        log_prob = self.log_prob(self._enumerated("entropy", False))
        return -(log_prob.exp() * log_prob).sum(0)

    def enumerate_support(self, expand: bool = True) -> Tensor:
        return self._enumerated("enumerate_support", expand)

    def _enumerated(self, what: str, expand: bool) -> Tensor:
        if not known(self.total_count):
            raise NotImplementedError(
                f"Binomial.{what}: the shape of its result depends on total_count, which has no "
                "values here. Compute it outside of the estimate, on a device with values."
            )
        total = int(self.total_count.max())
        if not int(self.total_count.min()) == total:
            raise NotImplementedError(
                f"Inhomogeneous total count not supported by `{what}`; got counts from "
                f"{int(self.total_count.min())} to {total}. Ask for one count at a time."
            )
        values = arange(1 + total, dtype=self._param.dtype, device=self._param.device)
        values = values.reshape(-1, *[1] * len(self._batch_shape))
        return values.expand(-1, *self._batch_shape) if expand else values


class NegativeBinomial(_OfTrials):
    """Negative binomial distribution: successes before ``total_count`` failures.

    Args:
        total_count: The number of failures, a number or a tensor, not negative.
        probs: The probability of success in each trial, in [0, 1).
        logits: Its log-odds; exactly one of both is given.
        validate_args: Whether parameters and values are checked.
    """

    arg_constraints = {
        "total_count": constraints.greater_than_eq(0),
        "probs": constraints.half_open_interval(0.0, 1.0),
        "logits": constraints.real,
    }
    support = constraints.nonnegative_integer

    def __init__(
        self,
        total_count: Any,
        probs: Any = None,
        logits: Any = None,
        validate_args: bool | None = None,
    ) -> None:
        super().__init__(total_count, probs, logits, validate_args)

    def expand(self, batch_shape: Iterable[int], _instance: Any = None) -> Any:
        return self._expand_trials(NegativeBinomial, batch_shape, _instance)

    @property
    def mean(self) -> Tensor:
        return cast(Tensor, self.total_count * self.logits.exp())

    @property
    def mode(self) -> Tensor:
        return ((self.total_count - 1) * self.logits.exp()).floor().clamp(min=0)

    @property
    def variance(self) -> Tensor:
        return cast(Tensor, self.mean / (-self.logits).sigmoid())

    def sample(self, sample_shape: Iterable[int] = ()) -> Tensor:
        with no_grad():  # a Poisson count of gamma rates
            rates = Gamma(self.total_count, (-self.logits).exp(), validate_args=False)
            return cast(Tensor, poisson(rates.sample(sample_shape)))

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        n, logits = self.total_count, self.logits
        unnormalized = n * logsigmoid(-logits) + value * logsigmoid(logits)
        choices = (n + value).lgamma() - (value + 1).lgamma() - n.lgamma()
        none = n + value == 0  # no failures to wait for: 0 successes, for sure
        return cast(Tensor, unnormalized + choices.masked_fill(none, 0.0))


class Poisson(ExponentialFamily):
    """Poisson distribution: probability ``rate^k exp(-rate) / k!``.

    Args:
        rate: The mean, a number or a tensor, not negative.
        validate_args: Whether parameters and values are checked.
    """

    arg_constraints = {"rate": constraints.nonnegative}
    support = constraints.nonnegative_integer

    def __init__(self, rate: Any, validate_args: bool | None = None) -> None:
        (self.rate,) = broadcast_all(rate)
        super().__init__(batch_shape_of(self.rate, rate), validate_args=validate_args)

    def expand(self, batch_shape: Iterable[int], _instance: Any = None) -> Any:
        return self._expanded(Poisson, batch_shape, _instance, "rate")

    @property
    def mean(self) -> Tensor:
        return self.rate

    @property
    def mode(self) -> Tensor:
        return self.rate.floor()

    @property
    def variance(self) -> Tensor:
        return self.rate

    def sample(self, sample_shape: Iterable[int] = ()) -> Tensor:
        with no_grad():
            return cast(Tensor, poisson(self.rate.expand(self._extended_shape(sample_shape))))

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        rate, value = broadcast_all(self.rate, value)
        return cast(Tensor, xlogy(value, rate) - rate - (value + 1).lgamma())

    @property
    def _natural_params(self) -> tuple[Tensor, ...]:
        return (self.rate.log(),)

    def _log_normalizer(self, *natural_params: Tensor) -> Tensor:
        return natural_params[0].exp()
