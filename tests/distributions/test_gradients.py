"""Gradients: of densities against finite differences, of draws against exact derivatives."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from scipy import special, stats

import lowtide as lt
from lowtide import distributions as D
from lowtide.autograd import gradcheck, gradgradcheck
from lowtide.distributions import constraints, transform_to
from lowtide.framework.distributions.sampling.implicit_gradients import (
    dirichlet_grad,
    draw_gamma,
    standard_gamma_grad,
)

# class: (parameters as unconstrained numbers, by constraint; settings)
DENSITIES = {
    D.Bernoulli: ({"logits": constraints.real}, {}),
    D.Beta: ({"concentration1": constraints.positive, "concentration0": constraints.positive}, {}),
    D.Cauchy: ({"loc": constraints.real, "scale": constraints.positive}, {}),
    D.ContinuousBernoulli: ({"logits": constraints.real}, {}),
    D.Dirichlet: ({"concentration": constraints.positive}, {}),
    D.FisherSnedecor: ({"df1": constraints.positive, "df2": constraints.positive}, {}),
    D.Gamma: ({"concentration": constraints.positive, "rate": constraints.positive}, {}),
    D.Gumbel: ({"loc": constraints.real, "scale": constraints.positive}, {}),
    D.InverseGamma: ({"concentration": constraints.positive, "rate": constraints.positive}, {}),
    D.Laplace: ({"loc": constraints.real, "scale": constraints.positive}, {}),
    D.LogNormal: ({"loc": constraints.real, "scale": constraints.positive}, {}),
    D.Normal: ({"loc": constraints.real, "scale": constraints.positive}, {}),
    D.NegativeBinomial: ({"logits": constraints.real}, {"total_count": 3.0}),
    D.Poisson: ({"rate": constraints.positive}, {}),
    D.RelaxedBernoulli: ({"logits": constraints.real}, {"temperature": lt.tensor(0.7)}),
    D.StudentT: ({"df": constraints.positive, "scale": constraints.positive}, {}),
    D.VonMises: ({"loc": constraints.real, "concentration": constraints.positive}, {}),
    D.Weibull: ({"scale": constraints.positive, "concentration": constraints.positive}, {}),
}


@pytest.mark.parametrize("family", DENSITIES, ids=lambda f: f.__name__)
def test_log_densities_pass_gradcheck(family):
    limits, settings = DENSITIES[family]
    # away from 0: there draws are so small that a finite difference steps over them
    free = [(lt.randn(3, dtype=lt.float64) * 0.3 + 1).requires_grad_() for _ in limits]

    def made(numbers):
        pairs = zip(limits.items(), numbers, strict=True)
        given = {name: transform_to(limit)(x) for (name, limit), x in pairs}
        return family(**given, **settings)

    with lt.no_grad():
        value = made(free).sample((2,))
    discrete = made(free).support.is_discrete
    leaves = free if discrete else [*free, value.requires_grad_()]

    def density(*leaves):
        d = made(leaves[: len(free)])
        d._validate_args = False  # a step may leave the simplex
        return d.log_prob(value if discrete else leaves[-1])

    assert gradcheck(density, leaves)


def gamma_velocity(a, x):
    """By finite differences of the quantile function."""
    h = 1e-5 * a
    p = special.gammainc(a, x)
    return (special.gammaincinv(a + h, p) - special.gammaincinv(a - h, p)) / (2 * h)


def beta_velocity(a, b, x):
    h = 1e-5 * a
    p = special.betainc(a, b, x)
    return (special.betaincinv(a + h, b, p) - special.betaincinv(a - h, b, p)) / (2 * h)


def test_velocities_of_gamma_draws_are_those_of_their_quantiles():
    a, p = np.meshgrid([0.3, 1.0, 2.5, 40.0, 900.0], [0.05, 0.3, 0.5, 0.8, 0.97])
    x = special.gammaincinv(a, p)
    found = standard_gamma_grad(lt.tensor(a), lt.tensor(x)).numpy()
    np.testing.assert_allclose(found, gamma_velocity(a, x), rtol=1e-6)


def test_velocities_of_beta_draws_are_those_of_their_quantiles():
    a, b, p = np.meshgrid([0.4, 1.0, 7.0, 60.0], [0.5, 1.0, 3.0, 90.0], [0.05, 0.5, 0.9])
    x = special.betaincinv(a, b, p)
    found = dirichlet_grad(lt.tensor(x), lt.tensor(a), lt.tensor(a + b)).numpy() * (1 - x)
    np.testing.assert_allclose(found, beta_velocity(a, b, x), rtol=2e-6)


def test_extreme_draws_have_finite_velocities():
    a = np.array([1e-3, 1e-3, 0.02, 1e5, 1e7, 3.0])
    x = np.array([1e-300, 2.0, 1e-38, 1.003e5, 0.9995e7, 90.0])
    assert np.isfinite(standard_gamma_grad(lt.tensor(a), lt.tensor(x)).numpy()).all()
    x = np.array([1e-300, 1 - 1e-16, 0.5, 1e-3])
    a, b = np.array([1e-3, 50.0, 1e4, 1e-2]), np.array([2.0, 1e-3, 1e4, 1e3])
    assert np.isfinite(dirichlet_grad(*map(lt.tensor, (x, a, a + b))).numpy()).all()


def test_velocities_pass_gradcheck_themselves():
    a = lt.tensor([0.4, 1.7, 6.0], dtype=lt.float64, requires_grad=True)
    x = lt.tensor([0.2, 2.5, 5.0], dtype=lt.float64, requires_grad=True)
    assert gradcheck(standard_gamma_grad, [a, x])
    u = lt.tensor([0.2, 0.7, 0.95], dtype=lt.float64, requires_grad=True)
    total = lt.tensor([1.0, 9.0, 6.3], dtype=lt.float64, requires_grad=True)
    assert gradcheck(dirichlet_grad, [u, a, total])


def test_the_gamma_distribution_function_has_both_gradients():
    a = lt.tensor([0.4, 1.7, 6.0], dtype=lt.float64, requires_grad=True)
    x = lt.tensor([0.2, 2.5, 5.0], dtype=lt.float64, requires_grad=True)

    def cdf(a, x):
        return D.Gamma(a, 1.3).cdf(x)

    assert gradcheck(cdf, [a, x])
    assert gradgradcheck(cdf, [a, x])


# d E[f(x)] / d parameter, which a mean of gradients of draws approaches
EXPECTED = {
    "gamma": (lambda a: D.Gamma(a, 2.0), 1.7, lambda x: x * x, (2 * 1.7 + 1) / 4),
    "beta": (lambda a: D.Beta(a, 3.0), 2.0, lambda x: x, 3 / 25),
    "chi2": (lambda a: D.Chi2(a), 3.0, lambda x: x, 1.0),
    "student": (lambda a: D.StudentT(a), 8.0, lambda x: x * x, -2 / 36),
    "normal": (lambda a: D.Normal(0.5, a), 1.2, lambda x: x * x, 2.4),
    "laplace": (lambda a: D.Laplace(0.0, a), 1.2, lambda x: x * x, 4 * 1.2),
    "weibull": (lambda a: D.Weibull(a, 2.0), 1.5, lambda x: x * x, 3.0),
    "inverse gamma": (lambda a: D.InverseGamma(a, 1.0), 5.0, lambda x: x, -1 / 16),
    "kumaraswamy": (lambda a: D.Kumaraswamy(1.0, a), 2.0, lambda x: x, -1 / 9),
    "generalized pareto": (lambda a: D.GeneralizedPareto(0.0, 1.0, a), 0.1, lambda x: x, 1 / 0.81),
    "dirichlet": (
        lambda a: D.Dirichlet(lt.stack([a, lt.full_like(a, 0.5), lt.full_like(a, 0.5)], -1)),
        0.5,
        lambda x: x[..., 0] ** 2,
        0.32,
    ),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_gradients_of_draws_have_the_mean_of_the_expectation(name):
    make, at, f, expected = EXPECTED[name]
    n = 40_000
    parameter = lt.full((n,), at, dtype=lt.float64, requires_grad=True)
    f(make(parameter).rsample()).sum().backward()
    slopes = parameter.grad.numpy()
    error = slopes.std() / n**0.5
    assert abs(slopes.mean() - expected) < 4 * error
    assert error < 0.05 * max(1, abs(expected))


def test_a_draw_can_be_differentiated_twice():
    lt.manual_seed(1)
    a = lt.tensor([0.7, 4.0], dtype=lt.float64, requires_grad=True)
    x = draw_gamma(a)
    (slope,) = lt.autograd.grad(x.sum(), a, create_graph=True)
    (second,) = lt.autograd.grad(slope.sum(), a)
    p, h = special.gammainc(a.detach().numpy(), x.detach().numpy()), 1e-4
    at = a.detach().numpy()
    quantile = [special.gammaincinv(at + k * h, p) for k in (-1, 0, 1)]
    by_a = (quantile[2] - 2 * quantile[1] + quantile[0]) / h**2
    np.testing.assert_allclose(second.numpy(), by_a, rtol=1e-4)


@pytest.mark.parametrize("make", [lambda a: D.Gamma(a, 1.0), lambda a: D.Dirichlet(a)])
def test_a_third_derivative_of_a_draw_is_refused(make):
    a = lt.tensor([0.7, 4.0], dtype=lt.float64, requires_grad=True)
    found = make(a).rsample()[0] ** 2
    for _ in range(2):
        (slope,) = lt.autograd.grad(found.sum(), a, create_graph=True)
        found = slope
    with pytest.raises(NotImplementedError, match="a third was asked for"):
        lt.autograd.grad(found.sum(), a)


def test_a_generalized_pareto_is_smooth_where_its_concentration_is_zero():
    c = lt.tensor([0.0, 1e-6, -1e-6, 5e-5, 0.3], dtype=lt.float64, requires_grad=True)
    x = lt.tensor([0.4, 1.0, 2.0, 3.0, 0.5], dtype=lt.float64, requires_grad=True)
    p = lt.tensor([0.4, 0.1, 0.2, 0.9, 0.5], dtype=lt.float64, requires_grad=True)
    assert gradcheck(lambda c, x: D.GeneralizedPareto(0.0, 1.5, c).log_prob(x), [c, x])
    assert gradcheck(lambda c, x: D.GeneralizedPareto(0.0, 1.5, c).cdf(x), [c, x])
    assert gradcheck(lambda c, p: D.GeneralizedPareto(0.0, 1.5, c).icdf(p), [c, p])


def test_the_straight_through_gradient_is_that_of_the_probabilities():
    logits = lt.randn(4, 3, dtype=lt.float64, requires_grad=True)
    x = D.OneHotCategoricalStraightThrough(logits=logits).rsample()
    assert set(x.detach().reshape(-1).round(decimals=12).tolist()) == {0.0, 1.0}
    weights = lt.randn(4, 3, dtype=lt.float64)
    (slope,) = lt.autograd.grad((x * weights).sum(), logits)
    (expected,) = lt.autograd.grad((logits.softmax(-1) * weights).sum(), logits)
    np.testing.assert_allclose(slope.numpy(), expected.numpy(), atol=1e-12)


def test_wishart_draws_have_gradients_by_the_factor():
    factor = lt.linalg.cholesky(lt.tensor([[2.0, 0.3], [0.3, 1.0]], dtype=lt.float64))
    factor = factor.requires_grad_()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        drawn = D.Wishart(lt.tensor(6.0, dtype=lt.float64), scale_tril=factor).rsample((5,))
    drawn.sum().backward()
    assert factor.grad.abs().sum() > 0


def test_entropies_of_exponential_families_have_gradients():
    rate = lt.tensor([0.5, 3.0], dtype=lt.float64, requires_grad=True)
    generic = D.ExponentialFamily.entropy(D.Exponential(rate))
    np.testing.assert_allclose(
        generic.detach().numpy(), stats.expon.entropy(scale=1 / rate.detach().numpy())
    )
    generic.sum().backward()
    np.testing.assert_allclose(rate.grad.numpy(), -1 / rate.detach().numpy())
    assert not D.ExponentialFamily.entropy(D.Exponential(2.0)).requires_grad
