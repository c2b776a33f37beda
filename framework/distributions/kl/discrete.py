"""Kullback-Leibler divergences between distributions of counts and categories.

A value that q gives no probability makes it infinite, one that p gives none adds 0.
"""

from __future__ import annotations

import math
from typing import Any, cast

from ...ops.activation.gelu import softplus
from ...ops.elementwise.binary import xlogy
from ...tensor import Tensor
from ..discrete.bernoulli import Bernoulli, Geometric
from ..discrete.categorical import Categorical, OneHotCategorical
from ..discrete.counts import Binomial, Poisson
from ..parameters import decided
from .registry import infinite_like, register_kl


def _part(probability: Tensor, other: Tensor, log_ratio: Tensor) -> Tensor:
    # probability * log(probability / other)
    found = (probability * log_ratio).masked_fill(other == 0, math.inf)
    return found.masked_fill(probability == 0, 0.0)


def _log_ratios(p: Any, q: Any) -> tuple[Tensor, Tensor]:
    # log(p / q) and log((1 - p) / (1 - q)), from log-odds
    success = softplus(-q.logits) - softplus(-p.logits)
    return success, softplus(q.logits) - softplus(p.logits)


@register_kl(Bernoulli, Bernoulli)
def _bernoulli_bernoulli(p: Any, q: Any) -> Tensor:
    success, failure = _log_ratios(p, q)
    one, zero = _part(p.probs, q.probs, success), _part(1 - p.probs, 1 - q.probs, failure)
    return one + zero


@register_kl(Binomial, Binomial)
def _binomial_binomial(p: Any, q: Any) -> Tensor:
    n, m = p.total_count, q.total_count
    if decided((n < m).any(), False):
        raise NotImplementedError(
            "KL between Binomials where q.total_count > p.total_count is not implemented: it has "
            "no closed form. Enumerate the support of p."
        )
    return cast(Tensor, (n * _bernoulli_bernoulli(p, q)).masked_fill(n > m, math.inf))


@register_kl(Categorical, Categorical)
def _categorical_categorical(p: Any, q: Any) -> Tensor:
    return _part(p.probs, q.probs, p.logits - q.logits).sum(-1)


@register_kl(OneHotCategorical, OneHotCategorical)
def _one_hots(p: Any, q: Any) -> Tensor:
    return _categorical_categorical(p._categorical, q._categorical)


@register_kl(Geometric, Geometric)
def _geometric_geometric(p: Any, q: Any) -> Tensor:
    return cast(Tensor, -p.entropy() - (-q.probs).log1p() / p.probs - q.logits)


@register_kl(Poisson, Poisson)
def _poisson_poisson(p: Any, q: Any) -> Tensor:
    return cast(Tensor, xlogy(p.rate, p.rate) - xlogy(p.rate, q.rate) - (p.rate - q.rate))


@register_kl(Bernoulli, Poisson)
def _bernoulli_poisson(p: Any, q: Any) -> Tensor:
    return cast(Tensor, -p.entropy() - xlogy(p.probs, q.rate) + q.rate)


@register_kl(Poisson, Bernoulli)
@register_kl(Poisson, Binomial)
def _poisson_infinite(p: Any, q: Any) -> Tensor:
    return infinite_like(p.rate)
