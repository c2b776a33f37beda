"""Relaxed distributions: Bernoulli and categorical draws made continuous, with a temperature.

Source:
    Maddison, Mnih, Teh: "The concrete distribution", ICLR 2017. Jang, Gu, Poole: "Categorical
    reparameterization with Gumbel-softmax", ICLR 2017.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from ...ops.activation.gelu import softplus
from ...ops.random.draw import rand
from ...spec import Size
from ...tensor import Tensor
from ..constraints import elementwise as constraints
from ..constraints import shaped as shaped_constraints
from ..discrete.categorical import Categorical
from ..distribution import Distribution
from ..parameters import (
    batch_shape_of,
    broadcast_all,
    clamp_probs,
    given_one,
    lazy_property,
    logits_to_probs,
    normalized_logits,
    probs_to_logits,
)
from ..transforms.elementwise import ExpTransform, SigmoidTransform
from .transformed_distribution import TransformedDistribution, filled


class LogitRelaxedBernoulli(Distribution):
    """The log-odds of a relaxed Bernoulli variable: a logistic variable of scale 1 / temperature.

    Args:
        temperature: Positive, a tensor; towards 0 the draws become 0 and 1.
        probs: The probability of 1, a number or a tensor.
        logits: Its log-odds; exactly one of both is given.
        validate_args: Whether parameters and values are checked.
    """

    arg_constraints = {"probs": constraints.unit_interval, "logits": constraints.real}
    support = constraints.real
    has_rsample = True

    def __init__(
        self,
        temperature: Any,
        probs: Any = None,
        logits: Any = None,
        validate_args: bool | None = None,
    ) -> None:
        given_one("LogitRelaxedBernoulli", probs=probs, logits=logits)
        self.temperature = temperature
        name, value = ("probs", probs) if logits is None else ("logits", logits)
        (self._param,) = broadcast_all(value)
        setattr(self, name, self._param)
        super().__init__(batch_shape_of(self._param, value), validate_args=validate_args)

    def expand(self, batch_shape: Iterable[int], _instance: Any = None) -> Any:
        names = ("probs", "logits", "_param")
        new = self._expanded(LogitRelaxedBernoulli, batch_shape, _instance, *names)
        new.temperature = self.temperature
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

    def rsample(self, sample_shape: Iterable[int] = ()) -> Tensor:
        shape = self._extended_shape(sample_shape)
        u = clamp_probs(rand(shape, dtype=self._param.dtype, device=self._param.device))
        noise = u.log() - (-u).log1p()  # a standard logistic variable
        return cast(Tensor, (noise + self.logits) / self.temperature)

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        logits, value = broadcast_all(self.logits, value)
        temperature = self.temperature
        log = temperature.log() if isinstance(temperature, Tensor) else _log(temperature, value)
        z = logits - value * temperature
        return cast(Tensor, log + z - softplus(z) * 2)


def _log(number: Any, like: Tensor) -> Tensor:
    return filled((), float(number), like).log()


class RelaxedBernoulli(TransformedDistribution):
    """Relaxed Bernoulli distribution on (0, 1), whose draws have gradients.

    Args:
        temperature: Positive, a tensor; towards 0 the draws become 0 and 1.
        probs: The probability of 1, a number or a tensor.
        logits: Its log-odds; exactly one of both is given.
        validate_args: Whether parameters and values are checked.
    """

    arg_constraints = {"probs": constraints.unit_interval, "logits": constraints.real}
    support = constraints.unit_interval
    has_rsample = True
    base_dist: LogitRelaxedBernoulli

    def __init__(
        self,
        temperature: Any,
        probs: Any = None,
        logits: Any = None,
        validate_args: bool | None = None,
    ) -> None:
        base = LogitRelaxedBernoulli(temperature, probs, logits)
        super().__init__(base, SigmoidTransform(), validate_args=validate_args)

    def expand(self, batch_shape: Iterable[int], _instance: Any = None) -> Any:
        return super().expand(batch_shape, self._get_checked_instance(RelaxedBernoulli, _instance))

    @property
    def temperature(self) -> Any:
        """How far the draws are from 0 and 1."""
        return self.base_dist.temperature

    @property
    def logits(self) -> Tensor:
        """The log-odds."""
        return cast(Tensor, self.base_dist.logits)

    @property
    def probs(self) -> Tensor:
        """The probabilities."""
        return cast(Tensor, self.base_dist.probs)


class ExpRelaxedCategorical(Distribution):
    """The logarithms of a relaxed one-hot vector.

    Args:
        temperature: Positive, a tensor.
        probs: (..., n), not negative; divided by their sum.
        logits: (..., n), unnormalized log-probabilities; exactly one of both is given.
        validate_args: Whether parameters and values are checked.
    """

    arg_constraints = {"probs": shaped_constraints.simplex, "logits": constraints.real_vector}
    support = constraints.real_vector
    has_rsample = True

    def __init__(
        self,
        temperature: Any,
        probs: Any = None,
        logits: Any = None,
        validate_args: bool | None = None,
    ) -> None:
        self._categorical = Categorical(probs, logits)
        self.temperature = temperature
        shape = self._categorical.param_shape
        super().__init__(shape[:-1], shape[-1:], validate_args=validate_args)

    def expand(self, batch_shape: Iterable[int], _instance: Any = None) -> Any:
        new = self._get_checked_instance(ExpRelaxedCategorical, _instance)
        batch = Size(batch_shape)
        new.temperature = self.temperature
        new._categorical = self._categorical.expand(batch)
        Distribution.__init__(new, batch, self._event_shape, validate_args=False)
        new._validate_args = self._validate_args
        return new

    def _new(self, *args: Any, **kwargs: Any) -> Tensor:
        return self._categorical._new(*args, **kwargs)

    @property
    def param_shape(self) -> Size:
        """The shape of the parameter that was given."""
        return self._categorical.param_shape

    @property
    def logits(self) -> Tensor:
        """The log-probabilities, normalized."""
        return cast(Tensor, self._categorical.logits)

    @property
    def probs(self) -> Tensor:
        """The probabilities."""
        return cast(Tensor, self._categorical.probs)

    def rsample(self, sample_shape: Iterable[int] = ()) -> Tensor:
        shape = self._extended_shape(sample_shape)
        u = clamp_probs(rand(shape, dtype=self.logits.dtype, device=self.logits.device))
        gumbels = -(-u.log()).log()
        return normalized_logits((self.logits + gumbels) / self.temperature)

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        n = self._event_shape[0]
        logits, value = broadcast_all(self.logits, value)
        temperature = filled((), 1.0, value) * self.temperature
        # log((n - 1)! t^(n - 1)), for the density by n - 1 of the numbers
        scale = filled(temperature.shape, float(n), value).lgamma() + temperature.log() * (n - 1)
        score = normalized_logits(logits - value * self.temperature).sum(-1)
        return cast(Tensor, score + scale)


class RelaxedOneHotCategorical(TransformedDistribution):
    """Relaxed one-hot vectors on the simplex (Gumbel-softmax), whose draws have gradients.

    Args:
        temperature: Positive, a tensor; towards 0 the draws become one-hot.
        probs: (..., n), not negative; divided by their sum.
        logits: (..., n), unnormalized log-probabilities; exactly one of both is given.
        validate_args: Whether parameters and values are checked.
    """

    arg_constraints = {"probs": shaped_constraints.simplex, "logits": constraints.real_vector}
    support = shaped_constraints.simplex
    has_rsample = True
    base_dist: ExpRelaxedCategorical

    def __init__(
        self,
        temperature: Any,
        probs: Any = None,
        logits: Any = None,
        validate_args: bool | None = None,
    ) -> None:
        base = ExpRelaxedCategorical(temperature, probs, logits, validate_args=validate_args)
        super().__init__(base, ExpTransform(), validate_args=validate_args)

    def expand(self, batch_shape: Iterable[int], _instance: Any = None) -> Any:
        new = self._get_checked_instance(RelaxedOneHotCategorical, _instance)
        return super().expand(batch_shape, new)

    @property
    def temperature(self) -> Any:
        """How far the draws are from one-hot vectors."""
        return self.base_dist.temperature

    @property
    def logits(self) -> Tensor:
        """The log-probabilities, normalized."""
        return self.base_dist.logits

    @property
    def probs(self) -> Tensor:
        """The probabilities."""
        return self.base_dist.probs
