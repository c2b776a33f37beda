"""Kullback-Leibler divergences between distributions of one real number.

``E_p[log p] = -H(p)``, so each is minus the entropy of p, less the mean under p of the log density
of q, of which these families know moments and logarithmic moments. Where p has mass outside of the
support of q, it is infinite.
"""

from __future__ import annotations

import math
from typing import Any, cast

from ...ops.elementwise.binary import xlogy
from ...tensor import Tensor
from ..continuous.beta import Beta, Dirichlet
from ..continuous.gamma import Exponential, Gamma
from ..continuous.location_scale import EULER, Cauchy, Gumbel, Laplace, Uniform
from ..continuous.normal import HalfNormal, Normal
from ..continuous.pareto import Pareto
from ..discrete.bernoulli import ContinuousBernoulli
from .registry import infinite_like, register_kl

_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


# Of one family


@register_kl(Normal, Normal)
def _normal_normal(p: Any, q: Any) -> Tensor:
    ratio = (p.scale / q.scale).square()
    away = ((p.loc - q.loc) / q.scale).square()
    return cast(Tensor, 0.5 * (ratio + away - 1 - ratio.log()))


@register_kl(HalfNormal, HalfNormal)
def _half_normals(p: Any, q: Any) -> Tensor:
    return _normal_normal(p.base_dist, q.base_dist)


@register_kl(Laplace, Laplace)
def _laplace_laplace(p: Any, q: Any) -> Tensor:
    ratio, away = p.scale / q.scale, (p.loc - q.loc).abs()
    return cast(Tensor, away / q.scale + ratio * (-away / p.scale).exp() - ratio.log() - 1)


@register_kl(Cauchy, Cauchy)
def _cauchy_cauchy(p: Any, q: Any) -> Tensor:
    # Chyzak and Nielsen: "A closed-form formula for the Kullback-Leibler divergence between
    # Cauchy distributions", 2019
    both = (p.scale + q.scale).square() + (p.loc - q.loc).square()
    return cast(Tensor, both.log() - (4 * p.scale * q.scale).log())


@register_kl(Gumbel, Gumbel)
def _gumbel_gumbel(p: Any, q: Any) -> Tensor:
    ratio = p.scale / q.scale
    away = (q.loc - p.loc) / q.scale
    term = (away + (ratio + 1).lgamma()).exp()
    return cast(Tensor, ratio * EULER - ratio.log() - away + term - (1 + EULER))


@register_kl(Exponential, Exponential)
def _exponential_exponential(p: Any, q: Any) -> Tensor:
    ratio = q.rate / p.rate
    return cast(Tensor, ratio - ratio.log() - 1)


@register_kl(Gamma, Gamma)
def _gamma_gamma(p: Any, q: Any) -> Tensor:
    a, b = p.concentration, q.concentration
    scale = b * (p.rate / q.rate).log() + a * (q.rate / p.rate - 1)
    return cast(Tensor, scale + b.lgamma() - a.lgamma() + (a - b) * a.digamma())


@register_kl(Beta, Beta)
def _beta_beta(p: Any, q: Any) -> Tensor:
    return _dirichlet_dirichlet(p._dirichlet, q._dirichlet)


@register_kl(Dirichlet, Dirichlet)
def _dirichlet_dirichlet(p: Any, q: Any) -> Tensor:
    a, b = p.concentration, q.concentration
    total = a.sum(-1)
    norms = total.lgamma() - b.sum(-1).lgamma() - (a.lgamma() - b.lgamma()).sum(-1)
    means = a.digamma() - total.digamma().unsqueeze(-1)  # E[log x]
    return cast(Tensor, norms + ((a - b) * means).sum(-1))


@register_kl(ContinuousBernoulli, ContinuousBernoulli)
def _continuous_bernoullis(p: Any, q: Any) -> Tensor:
    odds = p.mean * (p.logits - q.logits)
    norms = (-p.probs).log1p() - (-q.probs).log1p() + p._log_norm() - q._log_norm()
    return cast(Tensor, odds + norms)


@register_kl(Pareto, Pareto)
def _pareto_pareto(p: Any, q: Any) -> Tensor:
    scale, ratio = (p.scale / q.scale).log(), q.alpha / p.alpha
    found = q.alpha * scale - ratio.log() + ratio - 1
    return cast(Tensor, found.masked_fill(p.scale < q.scale, math.inf))


@register_kl(Uniform, Uniform)
def _uniform_uniform(p: Any, q: Any) -> Tensor:
    found = ((q.high - q.low) / (p.high - p.low)).log()
    return cast(Tensor, found.masked_fill((q.low > p.low) | (q.high < p.high), math.inf))


# The mean under p of the log density of q, by p's mean, variance and E[log x]


def _minus_normal(mean: Any, variance: Any, q: Any) -> Tensor:
    return cast(
        Tensor,
        (variance + (mean - q.loc).square()) / (2 * q.scale.square())
        + q.scale.log()
        + _HALF_LOG_2PI,
    )


def _minus_exponential(mean: Any, q: Any) -> Tensor:
    return cast(Tensor, q.rate * mean - q.rate.log())


def _minus_gamma(mean: Any, log_mean: Any, q: Any) -> Tensor:
    a = q.concentration
    return cast(Tensor, a.lgamma() - a * q.rate.log() - (a - 1) * log_mean + q.rate * mean)


def _minus_gumbel(mean: Any, moment: Any, q: Any) -> Tensor:
    # moment: E[exp(-x / scale of q)]
    location = q.loc / q.scale
    return cast(Tensor, q.scale.log() - location + mean / q.scale + location.exp() * moment)


def _minus_continuous_bernoulli(mean: Any, q: Any) -> Tensor:
    return cast(Tensor, -mean * q.logits - (-q.probs).log1p() - q._log_norm())


def _minus_beta(log_mean: Any, log_rest: Any, q: Any) -> Tensor:
    # log_mean and log_rest: E[log x] and E[log(1 - x)]
    a, b = q.concentration1, q.concentration0
    norm = a.lgamma() + b.lgamma() - (a + b).lgamma()
    return cast(Tensor, norm - (a - 1) * log_mean - (b - 1) * log_rest)


def _beta_logs(p: Any) -> tuple[Tensor, Tensor]:
    total = (p.concentration1 + p.concentration0).digamma()
    return p.concentration1.digamma() - total, p.concentration0.digamma() - total


@register_kl(Beta, ContinuousBernoulli)
def _beta_continuous_bernoulli(p: Any, q: Any) -> Tensor:
    return -p.entropy() + _minus_continuous_bernoulli(p.mean, q)


@register_kl(Beta, Exponential)
def _beta_exponential(p: Any, q: Any) -> Tensor:
    return -p.entropy() + _minus_exponential(p.mean, q)


@register_kl(Beta, Gamma)
def _beta_gamma(p: Any, q: Any) -> Tensor:
    return -p.entropy() + _minus_gamma(p.mean, _beta_logs(p)[0], q)


@register_kl(Beta, Normal)
@register_kl(ContinuousBernoulli, Normal)
@register_kl(Exponential, Normal)
@register_kl(Gamma, Normal)
@register_kl(Gumbel, Normal)
@register_kl(Laplace, Normal)
@register_kl(Uniform, Normal)
def _any_normal(p: Any, q: Any) -> Tensor:
    return -p.entropy() + _minus_normal(p.mean, p.variance, q)


def _finite(p: Any, moments: int) -> Pareto:
    # Another where moments are infinite: these would make gradients of what is masked NaN.
    alpha = p.alpha.masked_fill(p.alpha <= moments, moments + 1)
    return Pareto(p.scale, alpha, validate_args=False)


@register_kl(Pareto, Normal)
def _pareto_normal(p: Any, q: Any) -> Tensor:
    least = _finite(p, 2)
    found = -p.entropy() + _minus_normal(least.mean, least.variance, q)
    return found.masked_fill(p.alpha <= 2, math.inf)


@register_kl(Beta, Uniform)
def _beta_uniform(p: Any, q: Any) -> Tensor:
    found = -p.entropy() + (q.high - q.low).log()
    return found.masked_fill((q.low > 0) | (q.high < 1), math.inf)


@register_kl(ContinuousBernoulli, Uniform)
def _continuous_bernoulli_uniform(p: Any, q: Any) -> Tensor:
    found = -p.entropy() + (q.high - q.low).log()
    return found.masked_fill((q.low > 0) | (q.high < 1), math.inf)


@register_kl(ContinuousBernoulli, Exponential)
def _continuous_bernoulli_exponential(p: Any, q: Any) -> Tensor:
    return -p.entropy() + _minus_exponential(p.mean, q)


@register_kl(Exponential, Gamma)
def _exponential_gamma(p: Any, q: Any) -> Tensor:
    return -p.entropy() + _minus_gamma(p.mean, -EULER - p.rate.log(), q)


@register_kl(Exponential, Gumbel)
def _exponential_gumbel(p: Any, q: Any) -> Tensor:
    moment = p.rate / (p.rate + q.scale.reciprocal())
    return -p.entropy() + _minus_gumbel(p.mean, moment, q)


@register_kl(Gamma, Exponential)
def _gamma_exponential(p: Any, q: Any) -> Tensor:
    return -p.entropy() + _minus_exponential(p.mean, q)


@register_kl(Gamma, Gumbel)
def _gamma_gumbel(p: Any, q: Any) -> Tensor:
    moment = (1 + (p.rate * q.scale).reciprocal()) ** -p.concentration
    return -p.entropy() + _minus_gumbel(p.mean, moment, q)


@register_kl(Normal, Gumbel)
def _normal_gumbel(p: Any, q: Any) -> Tensor:
    moment = (0.5 * (p.scale / q.scale).square() - p.loc / q.scale).exp()
    return -p.entropy() + _minus_gumbel(p.mean, moment, q)


@register_kl(Normal, Laplace)
def _normal_laplace(p: Any, q: Any) -> Tensor:
    # E|x - loc of q|: the mean of a folded normal variable
    away = p.loc - q.loc
    z = away / p.scale
    folded = p.scale * (-0.5 * z.square()).exp() * math.sqrt(2 / math.pi)
    folded = folded + away * (z * 0.5**0.5).erf()
    return cast(Tensor, -p.entropy() + folded / q.scale + (2 * q.scale).log())


@register_kl(Pareto, Exponential)
def _pareto_exponential(p: Any, q: Any) -> Tensor:
    found = -p.entropy() + _minus_exponential(_finite(p, 1).mean, q)
    return found.masked_fill(p.alpha <= 1, math.inf)


@register_kl(Pareto, Gamma)
def _pareto_gamma(p: Any, q: Any) -> Tensor:
    log_mean = p.scale.log() + p.alpha.reciprocal()
    found = -p.entropy() + _minus_gamma(_finite(p, 1).mean, log_mean, q)
    return found.masked_fill(p.alpha <= 1, math.inf)


def _uniform_logs(low: Tensor, high: Tensor) -> Tensor:
    # E[log x] of a uniform variable: the integral of log x is x log x - x
    return cast(Tensor, (xlogy(high, high) - xlogy(low, low)) / (high - low) - 1)


@register_kl(Uniform, Beta)
def _uniform_beta(p: Any, q: Any) -> Tensor:
    low, high = p.low.clamp(0, 1), p.high.clamp(0, 1)
    outside = (p.low < 0) | (p.high > 1)
    high = high.where(high > low, low + 1)
    logs = _uniform_logs(low, high), _uniform_logs(1 - high, 1 - low)
    return (-p.entropy() + _minus_beta(*logs, q)).masked_fill(outside, math.inf)


@register_kl(Uniform, ContinuousBernoulli)
def _uniform_continuous_bernoulli(p: Any, q: Any) -> Tensor:
    found = -p.entropy() + _minus_continuous_bernoulli(p.mean, q)
    return found.masked_fill((p.low < 0) | (p.high > 1), math.inf)


@register_kl(Uniform, Exponential)
def _uniform_exponential(p: Any, q: Any) -> Tensor:
    found = -p.entropy() + _minus_exponential(p.mean, q)
    return found.masked_fill(p.low < 0, math.inf)


@register_kl(Uniform, Gamma)
def _uniform_gamma(p: Any, q: Any) -> Tensor:
    outside = p.low < 0
    low = p.low.masked_fill(outside, 0.0)
    high = p.high.where(p.high > low, low + 1)
    found = -p.entropy() + _minus_gamma(p.mean, _uniform_logs(low, high), q)
    return found.masked_fill(outside, math.inf)


@register_kl(Uniform, Gumbel)
def _uniform_gumbel(p: Any, q: Any) -> Tensor:
    powers = (-p.low / q.scale).exp() - (-p.high / q.scale).exp()
    moment = q.scale * powers / (p.high - p.low)
    return -p.entropy() + _minus_gumbel(p.mean, moment, q)


@register_kl(Uniform, Pareto)
def _uniform_pareto(p: Any, q: Any) -> Tensor:
    outside = p.low < q.scale
    low = p.low.where(~outside, q.scale)
    high = p.high.where(p.high > low, low + 1)
    mean_log = _uniform_logs(low, high)
    found = -p.entropy() - (q.alpha * q.scale**q.alpha).log() + (q.alpha + 1) * mean_log
    return found.masked_fill(outside, math.inf)


@register_kl(Exponential, Pareto)
@register_kl(Exponential, Beta)
@register_kl(Exponential, ContinuousBernoulli)
@register_kl(Exponential, Uniform)
def _exponential_infinite(p: Any, q: Any) -> Tensor:
    return infinite_like(p.rate)


@register_kl(Beta, Pareto)
def _beta_infinite(p: Any, q: Any) -> Tensor:
    return infinite_like(p.concentration1)


@register_kl(ContinuousBernoulli, Pareto)
def _continuous_bernoulli_infinite(p: Any, q: Any) -> Tensor:
    return infinite_like(p.probs)


@register_kl(Gamma, Beta)
@register_kl(Gamma, ContinuousBernoulli)
@register_kl(Gamma, Pareto)
@register_kl(Gamma, Uniform)
def _gamma_infinite(p: Any, q: Any) -> Tensor:
    return infinite_like(p.concentration)


@register_kl(Gumbel, Beta)
@register_kl(Gumbel, ContinuousBernoulli)
@register_kl(Gumbel, Exponential)
@register_kl(Gumbel, Gamma)
@register_kl(Gumbel, Pareto)
@register_kl(Gumbel, Uniform)
@register_kl(Laplace, Beta)
@register_kl(Laplace, ContinuousBernoulli)
@register_kl(Laplace, Exponential)
@register_kl(Laplace, Gamma)
@register_kl(Laplace, Pareto)
@register_kl(Laplace, Uniform)
@register_kl(Normal, Beta)
@register_kl(Normal, ContinuousBernoulli)
@register_kl(Normal, Exponential)
@register_kl(Normal, Gamma)
@register_kl(Normal, Pareto)
@register_kl(Normal, Uniform)
def _whole_line_infinite(p: Any, q: Any) -> Tensor:
    return infinite_like(p.loc)


@register_kl(Pareto, Beta)
@register_kl(Pareto, ContinuousBernoulli)
@register_kl(Pareto, Uniform)
def _pareto_infinite(p: Any, q: Any) -> Tensor:
    return infinite_like(p.scale)
