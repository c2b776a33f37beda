"""Draws: they follow their distributions, repeat with the seed, and never leave the support."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from scipy import stats

import lowtide as lt
from lowtide import distributions as D

N = 20_000
CONTINUOUS = {
    "normal": (lambda: D.Normal(0.5, 2.0), stats.norm(0.5, 2)),
    "uniform": (lambda: D.Uniform(-1.0, 3.0), stats.uniform(-1, 4)),
    "laplace": (lambda: D.Laplace(0.5, 2.0), stats.laplace(0.5, 2)),
    "cauchy": (lambda: D.Cauchy(0.5, 2.0), stats.cauchy(0.5, 2)),
    "half cauchy": (lambda: D.HalfCauchy(2.0), stats.halfcauchy(scale=2)),
    "half normal": (lambda: D.HalfNormal(2.0), stats.halfnorm(scale=2)),
    "log normal": (lambda: D.LogNormal(0.5, 0.7), stats.lognorm(0.7, scale=np.exp(0.5))),
    "gumbel": (lambda: D.Gumbel(0.5, 2.0), stats.gumbel_r(0.5, 2)),
    "exponential": (lambda: D.Exponential(2.0), stats.expon(scale=0.5)),
    "gamma": (lambda: D.Gamma(2.5, 2.0), stats.gamma(2.5, scale=0.5)),
    "gamma of a small shape": (lambda: D.Gamma(0.3, 2.0), stats.gamma(0.3, scale=0.5)),
    "chi2": (lambda: D.Chi2(3.0), stats.chi2(3)),
    "inverse gamma": (lambda: D.InverseGamma(2.5, 2.0), stats.invgamma(2.5, scale=2)),
    "beta": (lambda: D.Beta(0.7, 2.0), stats.beta(0.7, 2)),
    "kumaraswamy": (lambda: D.Kumaraswamy(1.0, 3.0), stats.beta(1, 3)),
    "student": (lambda: D.StudentT(4.0, 1.0, 2.0), stats.t(4, 1, 2)),
    "fisher": (lambda: D.FisherSnedecor(3.0, 6.0), stats.f(3, 6)),
    "pareto": (lambda: D.Pareto(2.0, 3.0), stats.pareto(3, scale=2)),
    "generalized pareto": (lambda: D.GeneralizedPareto(1.0, 2.0, 0.3), stats.genpareto(0.3, 1, 2)),
    "weibull": (lambda: D.Weibull(2.0, 1.5), stats.weibull_min(1.5, scale=2)),
    "von mises": (lambda: D.VonMises(0.3, 2.0), stats.vonmises(2, 0.3)),
    "marginal of dirichlet": (
        lambda: D.Dirichlet(lt.tensor([0.7, 1.2, 0.8])),
        stats.beta(0.7, 2.0),
    ),
    "mixture": (
        lambda: D.MixtureSameFamily(
            D.Categorical(lt.tensor([0.3, 0.7])), D.Normal(lt.tensor([0.0, 0.0]), 1.5)
        ),
        stats.norm(0, 1.5),
    ),
}
DISCRETE = {
    "bernoulli": (lambda: D.Bernoulli(0.3), stats.bernoulli(0.3)),
    "binomial": (lambda: D.Binomial(7, lt.tensor(0.3)), stats.binom(7, 0.3)),
    "geometric": (lambda: D.Geometric(0.3), stats.geom(0.3, -1)),
    "negative binomial": (
        lambda: D.NegativeBinomial(3.0, lt.tensor(0.4)),
        stats.nbinom(3, 0.6),
    ),
    "poisson": (lambda: D.Poisson(3.5), stats.poisson(3.5)),
    "categorical": (
        lambda: D.Categorical(lt.tensor([0.2, 0.5, 0.3])),
        stats.rv_discrete(values=([0, 1, 2], [0.2, 0.5, 0.3])),
    ),
    "marginal of multinomial": (
        lambda: D.Multinomial(5, lt.tensor([0.2, 0.5, 0.3])),
        stats.binom(5, 0.2),
    ),
}


def sampled(make):
    lt.manual_seed(11)
    x = make().sample((N,))
    assert make().support.check(x).all()
    return np.asarray(x.numpy(), dtype=np.float64).reshape(N, -1)[:, 0]


@pytest.mark.parametrize("name", CONTINUOUS)
def test_continuous_draws_follow_their_distribution(name):
    make, reference = CONTINUOUS[name]
    assert stats.kstest(sampled(make), reference.cdf).pvalue > 1e-3


@pytest.mark.parametrize("name", DISCRETE)
def test_discrete_draws_follow_their_distribution(name):
    make, reference = DISCRETE[name]
    x = sampled(make)
    values = np.arange(x.max() + 1)
    expected = reference.pmf(values) * N
    often = expected > 20
    seen = np.array([(x == v).sum() for v in values])
    seen = np.append(seen[often], N - seen[often].sum())
    expected = np.append(expected[often], max(N - expected[often].sum(), 1e-9))
    if expected[-1] < 5:
        seen, expected = seen[:-1], expected[:-1] * (seen[:-1].sum() / expected[:-1].sum())
    assert stats.chisquare(seen, expected).pvalue > 1e-3


def test_vectors_and_matrices_have_their_moments():
    lt.manual_seed(5)
    covariance = lt.tensor([[2.0, 0.6], [0.6, 1.0]])
    mean = lt.tensor([1.0, -1.0])
    low_rank = lt.tensor([[1.0], [0.6]]), lt.tensor([1.0, 0.64])
    for d in (
        D.MultivariateNormal(mean, covariance),
        D.MultivariateNormal(mean, precision_matrix=lt.linalg.inv(covariance)),
        D.LowRankMultivariateNormal(mean, *low_rank),
    ):
        x = d.sample((N,)).numpy()
        np.testing.assert_allclose(x.mean(0), [1, -1], atol=0.05)
        np.testing.assert_allclose(np.cov(x.T), covariance.numpy(), atol=0.08)
    w = D.Wishart(5.0, covariance).sample((N,)).numpy()
    np.testing.assert_allclose(w.mean(0), 5 * covariance.numpy(), atol=0.2)
    np.testing.assert_allclose(w.var(0), D.Wishart(5.0, covariance).variance.numpy(), rtol=0.1)
    factors = D.LKJCholesky(3, 1.0).sample((N,))
    correlations = (factors @ factors.mT).numpy()
    for row, column in ((1, 0), (2, 0), (2, 1)):
        # for three variables and concentration 1, (r + 1) / 2 is a beta variable of 3 / 2
        r = correlations[:, row, column]
        assert stats.kstest((r + 1) / 2, stats.beta(1.5, 1.5).cdf).pvalue > 1e-3


def test_relaxed_draws_lie_on_the_simplex_and_find_the_probabilities():
    lt.manual_seed(2)
    p = lt.tensor([0.2, 0.5, 0.3])
    x = D.RelaxedOneHotCategorical(lt.tensor(0.5), p).sample((N,))
    np.testing.assert_allclose(x.sum(-1).numpy(), 1, atol=1e-5)
    share = np.bincount(x.argmax(-1).numpy(), minlength=3) / N
    np.testing.assert_allclose(share, p.numpy(), atol=0.02)
    y = D.RelaxedBernoulli(lt.tensor(0.5), lt.tensor(0.2)).sample((N,))
    assert abs(float((y > 0.5).float().mean()) - 0.2) < 0.02


def test_a_seed_repeats_and_successive_draws_differ():
    for make in [m for m, _ in (*CONTINUOUS.values(), *DISCRETE.values())]:
        d = make()
        lt.manual_seed(4)
        first, second = d.sample((50,)), d.sample((50,))
        lt.manual_seed(4)
        assert lt.equal(d.sample((50,)), first)
        assert not lt.equal(first, second)


@pytest.mark.parametrize(
    "make",
    [
        lambda x: D.Gamma(x, 2.0),
        lambda x: D.Dirichlet(x),
        lambda x: D.VonMises(0.0, x),
        lambda x: D.Binomial(4, logits=x),
        lambda x: D.Poisson(x),
    ],
)
def test_draws_are_equal_on_every_device(make):
    found = []
    for device in ("cpu", "sim"):
        lt.manual_seed(9)
        parameter = lt.tensor([0.5, 1.5, 2.0], device=device)
        found.append(make(parameter).sample((3,)).cpu().numpy())
    np.testing.assert_array_equal(*found)


def test_tiny_concentrations_give_draws_with_finite_logarithms():
    lt.manual_seed(0)
    for dtype in (lt.float32, lt.float64):
        x = D.Dirichlet(lt.full((4, 3), 1e-4, dtype=dtype)).sample((200,))
        assert x.log().isfinite().all()
        np.testing.assert_allclose(x.sum(-1).numpy(), 1, atol=1e-6)
        assert D.Gamma(lt.tensor(1e-4, dtype=dtype), 1.0).sample((200,)).log().isfinite().all()
        assert D.Gumbel(0.0, lt.tensor(1.0, dtype=dtype)).sample((200,)).isfinite().all()
        assert D.Laplace(0.0, lt.tensor(1.0, dtype=dtype)).sample((2000,)).isfinite().all()


def test_nothing_is_checked_or_drawn_on_meta():
    scale = lt.ones(3, device="meta")
    x = D.Normal(lt.zeros(3, device="meta"), scale).rsample((2,))
    assert tuple(x.shape) == (2, 3)
    assert tuple(D.Normal(0.0, scale).log_prob(x).shape) == (2, 3)
    assert tuple(D.Gamma(scale, scale).rsample((2,)).shape) == (2, 3)
    assert tuple(D.Dirichlet(scale).rsample((2,)).shape) == (2, 3)


def test_singular_wishart_draws_are_drawn_anew():
    lt.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        d = D.Wishart(lt.tensor(2.01), lt.eye(3) * 1.0, validate_args=False)
        x = d.rsample((300,))
    assert tuple(x.shape) == (300, 3, 3)
    assert x.isfinite().all()
