"""Kullback-Leibler divergences of vectors, and of distributions made of others."""

from __future__ import annotations

from typing import Any, cast

from ...autograd.engine import grad
from ...modes import enable_grad
from ...ops.linalg.solve import solve_triangular
from ...ops.views.as_strided import diag_embed
from ...tensor import Tensor
from ..derived.transformed_distribution import Independent, TransformedDistribution
from ..distribution import ExponentialFamily
from ..multivariate.multivariate_normal import (
    LowRankMultivariateNormal,
    MultivariateNormal,
    log_diagonal,
    low_rank_mahalanobis,
    mahalanobis,
)
from ..transforms.transform import sum_rightmost
from .registry import kl_divergence, register_kl

# Normal vectors: log det q - log det p + tr(q^-1 p) + |difference of means|^2 - n, over 2


def _factors(p: Any) -> list[Tensor]:
    # F with covariance = the sum of F F^T.
    if isinstance(p, MultivariateNormal):
        return [p._unbroadcasted_scale_tril]
    return [p._unbroadcasted_cov_factor, diag_embed(p._unbroadcasted_cov_diag.sqrt())]


def _half_log_det(p: Any) -> Tensor:
    if isinstance(p, MultivariateNormal):
        return log_diagonal(p._unbroadcasted_scale_tril)
    return cast(Tensor, p._half_log_det())


def _squares(x: Tensor) -> Tensor:
    return x.square().sum((-2, -1))


def _trace(q: Any, factor: Tensor) -> Tensor:
    # tr(F^T q^-1 F)
    if isinstance(q, MultivariateNormal):
        return _squares(solve_triangular(q._unbroadcasted_scale_tril, factor, upper=False))
    diagonal = q._unbroadcasted_cov_diag.unsqueeze(-1)
    inner = (q._unbroadcasted_cov_factor / diagonal).mT @ factor
    few = solve_triangular(q._capacitance_tril, inner, upper=False)
    return (factor.square() / diagonal).sum((-2, -1)) - _squares(few)


def _length(q: Any, x: Tensor) -> Tensor:
    if isinstance(q, MultivariateNormal):
        return mahalanobis(q._unbroadcasted_scale_tril, x)
    parts = q._unbroadcasted_cov_factor, q._unbroadcasted_cov_diag
    return low_rank_mahalanobis(*parts, x, q._capacitance_tril)


@register_kl(MultivariateNormal, MultivariateNormal)
@register_kl(MultivariateNormal, LowRankMultivariateNormal)
@register_kl(LowRankMultivariateNormal, MultivariateNormal)
@register_kl(LowRankMultivariateNormal, LowRankMultivariateNormal)
def _normal_vectors(p: Any, q: Any) -> Tensor:
    if p.event_shape != q.event_shape:
        raise ValueError(
            "KL-divergence between two Multivariate Normals with different event shapes cannot be "
            f"computed; got {tuple(p.event_shape)} and {tuple(q.event_shape)}."
        )
    trace: Any = sum(_trace(q, factor) for factor in _factors(p))
    twice = trace + _length(q, q.loc - p.loc) - p.event_shape[0]
    return cast(Tensor, _half_log_det(q) - _half_log_det(p) + 0.5 * twice)


# Made of others


@register_kl(TransformedDistribution, TransformedDistribution)
def _transformed(p: Any, q: Any) -> Tensor:
    if p.transforms != q.transforms or p.event_shape != q.event_shape:
        raise NotImplementedError(
            f"KL between transformed distributions of different transforms or event shapes is not "
            f"implemented; got {p.transforms}, {tuple(p.event_shape)} and {q.transforms}, "
            f"{tuple(q.event_shape)}. Take the mean of p.log_prob(x) - q.log_prob(x) over samples."
        )
    return kl_divergence(p.base_dist, q.base_dist)


@register_kl(Independent, Independent)
def _independent(p: Any, q: Any) -> Tensor:
    if p.reinterpreted_batch_ndims != q.reinterpreted_batch_ndims:
        raise NotImplementedError(
            "KL between Independents of different reinterpreted_batch_ndims is not implemented; "
            f"got {p.reinterpreted_batch_ndims} and {q.reinterpreted_batch_ndims}."
        )
    each = kl_divergence(p.base_dist, q.base_dist)
    return cast(Tensor, sum_rightmost(each, p.reinterpreted_batch_ndims))


@register_kl(ExponentialFamily, ExponentialFamily)
def _one_family(p: Any, q: Any) -> Tensor:
    """Bregman divergence of the log normalizer: ``F(q) - F(p) - (q - p) . F'(p)``.

    Source:
        Nielsen and Nock: "Entropies and cross-entropies of exponential families", ICIP 2010.
    """
    if type(p) is not type(q):
        raise NotImplementedError(
            "The cross KL-divergence between different exponential families cannot be computed "
            f"using Bregman divergences; got {type(p).__name__} and {type(q).__name__}. Register "
            "one with register_kl."
        )
    given, others = p._natural_params, q._natural_params
    recorded = any(x.requires_grad for x in given)
    with enable_grad():
        theta = [x if x.requires_grad else x.detach().requires_grad_() for x in given]
        normalizer = p._log_normalizer(*theta)
        slopes = grad([normalizer.sum()], theta, create_graph=recorded)
    found = q._log_normalizer(*others) - (normalizer if recorded else normalizer.detach())
    for own, other, slope in zip(given, others, slopes, strict=True):
        events = own.dim() - len(p.batch_shape)
        found = found - sum_rightmost((other - own) * slope, max(events, 0))
    return cast(Tensor, found)
