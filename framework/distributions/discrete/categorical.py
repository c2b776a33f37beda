"""Distributions over categories: categorical, one-hot, straight-through, multinomial."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, cast

from ...dtypes import finfo
from ...modes import no_grad
from ...ops.creation.fill import full, ones, zeros
from ...ops.creation.ranges import arange, eye
from ...ops.indexing.nonzero import one_hot
from ...ops.random.distributions import multinomial
from ...spec import Size
from ...tensor import Tensor
from ..constraints import elementwise as constraints
from ..constraints import shaped as shaped_constraints
from ..distribution import Distribution
from ..parameters import (
    broadcast_all,
    given_one,
    lazy_property,
    logits_to_probs,
    need_vector,
    normalized_logits,
    probs_to_logits,
)
from .counts import Binomial

_ARGUMENTS = {"probs": shaped_constraints.simplex, "logits": constraints.real_vector}


class Categorical(Distribution):
    """Categorical distribution: index k with probability ``probs[..., k]``.

    Args:
        probs: (..., n), not negative; divided by their sum.
        logits: (..., n), unnormalized log-probabilities; exactly one of both is given.
        validate_args: Whether parameters and values are checked.
    """

    arg_constraints = _ARGUMENTS
    has_enumerate_support = True

    def __init__(
        self, probs: Any = None, logits: Any = None, validate_args: bool | None = None
    ) -> None:
        given_one("Categorical", probs=probs, logits=logits)
        if probs is not None:
            need_vector("Categorical", "probs", probs)
            self.probs = self._param = probs / probs.sum(-1, keepdim=True)
        else:
            need_vector("Categorical", "logits", logits)
            self.logits = self._param = normalized_logits(logits)
        self._num_events = self._param.shape[-1]
        super().__init__(self._param.shape[:-1], validate_args=validate_args)

    def expand(self, batch_shape: Iterable[int], _instance: Any = None) -> Any:
        new = self._get_checked_instance(Categorical, _instance)
        batch = Size(batch_shape)
        for name in ("probs", "logits"):
            if name in self.__dict__:
                value = self.__dict__[name].expand(Size((*batch, self._num_events)))
                setattr(new, name, value)
                if self.__dict__[name] is self._param:
                    new._param = value
        new._num_events = self._num_events
        Distribution.__init__(new, batch, validate_args=False)
        new._validate_args = self._validate_args
        return new

    def _new(self, *args: Any, **kwargs: Any) -> Tensor:
        return cast(Tensor, self._param.new_empty(*args, **kwargs))

    @constraints.dependent_property(is_discrete=True, event_dim=0)
    def support(self) -> Any:
        return constraints.integer_interval(0, self._num_events - 1)

    @lazy_property
    def logits(self) -> Any:
        """The log-probabilities, normalized."""
        return probs_to_logits(self.probs)

    @lazy_property
    def probs(self) -> Any:
        """The probabilities."""
        return logits_to_probs(self.logits)

    @property
    def param_shape(self) -> Size:
        """The shape of the parameter that was given."""
        return cast(Size, self._param.shape)

    @property
    def mean(self) -> Tensor:
        return self._undefined()

    @property
    def mode(self) -> Tensor:
        return cast(Tensor, self.probs.argmax(-1))

    @property
    def variance(self) -> Tensor:
        return self._undefined()

    def _undefined(self) -> Tensor:
        # Categories have no order and no distance.
        like = self._param
        return cast(Tensor, full(self._batch_shape, math.nan, dtype=like.dtype, device=like.device))

    def sample(self, sample_shape: Iterable[int] = ()) -> Tensor:
        sample_shape = Size(sample_shape)
        with no_grad():
            rows = self.probs.reshape(-1, self._num_events)
            count = sample_shape.numel()
            if not count or not rows.shape[0]:
                shape = self._extended_shape(sample_shape)
                return cast(Tensor, zeros(shape, dtype=rows.argmax(-1).dtype, device=rows.device))
            drawn = multinomial(rows, count, True).T
            return cast(Tensor, drawn.reshape(self._extended_shape(sample_shape)))

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        index, logits = broadcast_all(value.long().unsqueeze(-1), self.logits)
        return logits.gather(-1, index[..., :1]).squeeze(-1)

    def entropy(self) -> Tensor:
        logits = self.logits.clamp(
            min=float(finfo(self.logits.dtype).min)
        )  # of probability 0: 0 times a number
        return cast(Tensor, -(logits * self.probs).sum(-1))

    def enumerate_support(self, expand: bool = True) -> Tensor:
        values = arange(self._num_events, device=self._param.device)
        values = values.reshape(-1, *[1] * len(self._batch_shape))
        return values.expand(-1, *self._batch_shape) if expand else values


class OneHotCategorical(Distribution):
    """Categorical distribution whose draws are one-hot vectors.

    Args:
        probs: (..., n), not negative; divided by their sum.
        logits: (..., n), unnormalized log-probabilities; exactly one of both is given.
        validate_args: Whether parameters and values are checked.
    """

    arg_constraints = _ARGUMENTS
    support = shaped_constraints.one_hot
    has_enumerate_support = True

    def __init__(
        self, probs: Any = None, logits: Any = None, validate_args: bool | None = None
    ) -> None:
        self._categorical = Categorical(probs, logits)
        shape = self._categorical.param_shape
        super().__init__(shape[:-1], shape[-1:], validate_args=validate_args)

    def expand(self, batch_shape: Iterable[int], _instance: Any = None) -> Any:
        new = self._get_checked_instance(OneHotCategorical, _instance)
        batch = Size(batch_shape)
        new._categorical = self._categorical.expand(batch)
        Distribution.__init__(new, batch, self._event_shape, validate_args=False)
        new._validate_args = self._validate_args
        return new

    def _new(self, *args: Any, **kwargs: Any) -> Tensor:
        return self._categorical._new(*args, **kwargs)

    @property
    def _param(self) -> Tensor:
        return cast(Tensor, self._categorical._param)

    @property
    def probs(self) -> Tensor:
        """The probabilities."""
        return cast(Tensor, self._categorical.probs)

    @property
    def logits(self) -> Tensor:
        """The log-probabilities, normalized."""
        return cast(Tensor, self._categorical.logits)

    @property
    def mean(self) -> Tensor:
        return self.probs

    @property
    def mode(self) -> Tensor:
        return self._hot(self._categorical.mode)

    @property
    def variance(self) -> Tensor:
        return self.probs * (1 - self.probs)

    @property
    def param_shape(self) -> Size:
        """The shape of the parameter that was given."""
        return self._categorical.param_shape

    def _hot(self, index: Tensor) -> Tensor:
        return cast(Tensor, one_hot(index, self._event_shape[0]).to(self._param.dtype))

    def sample(self, sample_shape: Iterable[int] = ()) -> Tensor:
        return self._hot(self._categorical.sample(sample_shape))

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        return self._categorical.log_prob(value.argmax(-1))

    def entropy(self) -> Tensor:
        return self._categorical.entropy()

    def enumerate_support(self, expand: bool = True) -> Tensor:
        n = self._event_shape[0]
        values = eye(n, dtype=self._param.dtype, device=self._param.device)
        values = values.reshape(n, *[1] * len(self._batch_shape), n)
        return values.expand(n, *self._batch_shape, n) if expand else values


class OneHotCategoricalStraightThrough(OneHotCategorical):
    """One-hot draws with the straight-through gradient: that of the probabilities.

    Source:
        Bengio, Leonard, Courville: "Estimating or propagating gradients through stochastic
        neurons for conditional computation", 2013.
    """

    has_rsample = True

    def rsample(self, sample_shape: Iterable[int] = ()) -> Tensor:
        drawn, probs = self.sample(sample_shape), self.probs
        return drawn + (probs - probs.detach())


class Multinomial(Distribution):
    """Multinomial distribution: counts of each category in ``total_count`` independent draws.

    Args:
        total_count: A whole number.
        probs: (..., n), not negative; divided by their sum.
        logits: (..., n), unnormalized log-probabilities; exactly one of both is given.
        validate_args: Whether parameters and values are checked.
    """

    arg_constraints = _ARGUMENTS
    total_count: int

    def __init__(
        self,
        total_count: int = 1,
        probs: Any = None,
        logits: Any = None,
        validate_args: bool | None = None,
    ) -> None:
        if not isinstance(total_count, int):
            raise NotImplementedError(
                "Multinomial: inhomogeneous total_count is not supported; it is an int. Got "
                f"{total_count!r}."
            )
        self.total_count = total_count
        self._categorical = Categorical(probs=probs, logits=logits)
        self._binomial = Binomial(total_count=total_count, probs=self.probs, validate_args=False)
        shape = self._categorical.param_shape
        super().__init__(shape[:-1], shape[-1:], validate_args=validate_args)

    def expand(self, batch_shape: Iterable[int], _instance: Any = None) -> Any:
        new = self._get_checked_instance(Multinomial, _instance)
        batch = Size(batch_shape)
        new._categorical = self._categorical.expand(batch)
        new.total_count = self.total_count
        new._binomial = self._binomial.expand(Size((*batch, *self._event_shape)))
        Distribution.__init__(new, batch, self._event_shape, validate_args=False)
        new._validate_args = self._validate_args
        return new

    def _new(self, *args: Any, **kwargs: Any) -> Tensor:
        return self._categorical._new(*args, **kwargs)

    @constraints.dependent_property(is_discrete=True, event_dim=1)
    def support(self) -> Any:
        return shaped_constraints.multinomial(self.total_count)

    @property
    def logits(self) -> Tensor:
        """The log-probabilities, normalized."""
        return cast(Tensor, self._categorical.logits)

    @property
    def probs(self) -> Tensor:
        """The probabilities."""
        return cast(Tensor, self._categorical.probs)

    @property
    def param_shape(self) -> Size:
        """The shape of the parameter that was given."""
        return self._categorical.param_shape

    @property
    def mean(self) -> Tensor:
        return self.probs * self.total_count

    @property
    def variance(self) -> Tensor:
        return self.probs * (1 - self.probs) * self.total_count

    def sample(self, sample_shape: Iterable[int] = ()) -> Tensor:
        sample_shape = Size(sample_shape)
        with no_grad():
            drawn = self._categorical.sample(Size((self.total_count, *sample_shape)))
            shape = self._extended_shape(sample_shape)
            counts = zeros(shape, dtype=self.probs.dtype, device=self.probs.device)
            if not self.total_count:
                return cast(Tensor, counts)
            last = drawn.permute(*range(1, drawn.dim()), 0)
            each = ones(last.shape, dtype=counts.dtype, device=counts.device)
            return cast(Tensor, counts.scatter_add_(-1, last, each))

    def entropy(self) -> Tensor:
        n = self.total_count
        coefficient = math.lgamma(n + 1)
        probabilities = self._binomial.log_prob(self._support_of_one()).exp()
        weights = (self._support_of_one() + 1).lgamma()
        spread = (probabilities * weights).sum((0, -1))
        return self._categorical.entropy() * n - coefficient + spread

    def _support_of_one(self) -> Tensor:
        # What each count may be: 1 .. n, along a new first axis.
        return self._binomial.enumerate_support(expand=False)[1:]

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        logits, value = broadcast_all(self.logits, value)
        # 0 times the logarithm of 0
        logits = logits.masked_fill((value == 0) & (logits == -math.inf), 0.0)
        choices = (value.sum(-1) + 1).lgamma() - (value + 1).lgamma().sum(-1)
        return choices + (logits * value).sum(-1)
