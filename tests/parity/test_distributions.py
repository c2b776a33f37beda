"""Distributions against PyTorch: shapes, densities, moments, quantiles, gradients, refusals.

A case is a class, parameters as arrays (leaves of the gradients) and settings. Values come from
lowtide's own draws, so that they lie in the support.
"""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import lowtide as lt

torch = pytest.importorskip("torch")

from lowtide.framework.autograd.engine import grad  # noqa: E402
from tests.parity.comparing import close  # noqa: E402  # it imports torch

pytestmark = [
    pytest.mark.parity,
    pytest.mark.filterwarnings("ignore:Low df values", "ignore:Singular sample"),
]

A = np.array([[0.7, 1.3, 2.4], [1.8, 0.4, 3.1]])
B = np.array([1.1, 0.6, 2.2])
REAL = np.array([[-0.7, 0.3, 1.4], [0.1, -1.2, 0.6]])
UNIT = np.array([[0.2, 0.55, 0.9], [0.35, 0.7, 0.1]])
ROWS = np.array([[0.2, 0.5, 0.3], [0.6, 0.1, 0.3]])
SQUARE = np.array([[2.0, 0.3, -0.4], [0.3, 1.5, 0.2], [-0.4, 0.2, 1.1]])
SQUARES = np.stack([SQUARE, SQUARE[::-1, ::-1] * 1.5])
LOWER = np.linalg.cholesky(SQUARE)
THIN = np.array([[0.5, -0.2], [0.1, 0.7], [-0.3, 0.4]])

# name: (class, parameters, settings)
CASES = {
    "bernoulli": ("Bernoulli", {"probs": UNIT}, {}),
    "bernoulli logits": ("Bernoulli", {"logits": REAL}, {}),
    "beta": ("Beta", {"concentration1": A, "concentration0": B}, {}),
    "binomial": ("Binomial", {"probs": UNIT}, {"total_count": 5}),
    "binomial logits": ("Binomial", {"logits": REAL}, {"total_count": 4}),
    "categorical": ("Categorical", {"probs": A}, {}),
    "categorical logits": ("Categorical", {"logits": REAL}, {}),
    "cauchy": ("Cauchy", {"loc": REAL, "scale": B}, {}),
    "chi2": ("Chi2", {"df": A}, {}),
    "continuous bernoulli": ("ContinuousBernoulli", {"probs": UNIT}, {}),
    "continuous bernoulli near a half": (
        "ContinuousBernoulli", {"probs": np.array([0.4993, 0.5, 0.5009])}, {},
    ),
    "continuous bernoulli logits": ("ContinuousBernoulli", {"logits": REAL}, {}),
    "dirichlet": ("Dirichlet", {"concentration": A}, {}),
    "exponential": ("Exponential", {"rate": A}, {}),
    "fisher": ("FisherSnedecor", {"df1": A, "df2": B + 4}, {}),
    "gamma": ("Gamma", {"concentration": A, "rate": B}, {}),
    "generalized pareto": (
        "GeneralizedPareto", {"loc": REAL, "scale": A, "concentration": REAL * 0.3}, {},
    ),
    "generalized pareto flat": (
        "GeneralizedPareto", {"loc": REAL, "scale": B}, {"concentration": 0.0},
    ),
    "geometric": ("Geometric", {"probs": UNIT}, {}),
    "geometric logits": ("Geometric", {"logits": REAL}, {}),
    "gumbel": ("Gumbel", {"loc": REAL, "scale": B}, {}),
    "half cauchy": ("HalfCauchy", {"scale": A}, {}),
    "half normal": ("HalfNormal", {"scale": A}, {}),
    "inverse gamma": ("InverseGamma", {"concentration": A + 2, "rate": B}, {}),
    "kumaraswamy": ("Kumaraswamy", {"concentration1": A + 1, "concentration0": B + 1}, {}),
    "laplace": ("Laplace", {"loc": REAL, "scale": B}, {}),
    "lkj": ("LKJCholesky", {"concentration": B}, {"dim": 3}),
    "log normal": ("LogNormal", {"loc": REAL, "scale": B}, {}),
    "logistic normal": ("LogisticNormal", {"loc": REAL, "scale": B}, {}),
    "low rank normal": (
        "LowRankMultivariateNormal", {"loc": REAL, "cov_factor": THIN, "cov_diag": B}, {},
    ),
    "multinomial": ("Multinomial", {"probs": ROWS}, {"total_count": 4}),
    "multinomial logits": ("Multinomial", {"logits": REAL}, {"total_count": 3}),
    "normal vector": ("MultivariateNormal", {"loc": REAL, "covariance_matrix": SQUARE}, {}),
    "normal vectors": ("MultivariateNormal", {"loc": REAL, "covariance_matrix": SQUARES}, {}),
    "normal vector by precision": (
        "MultivariateNormal", {"loc": REAL, "precision_matrix": SQUARE}, {},
    ),
    "normal vector by factor": ("MultivariateNormal", {"loc": REAL, "scale_tril": LOWER}, {}),
    "negative binomial": ("NegativeBinomial", {"total_count": A, "probs": UNIT}, {}),
    "negative binomial logits": ("NegativeBinomial", {"total_count": A, "logits": REAL}, {}),
    "normal": ("Normal", {"loc": REAL, "scale": B}, {}),
    "one hot": ("OneHotCategorical", {"probs": A}, {}),
    "straight through": ("OneHotCategoricalStraightThrough", {"logits": REAL}, {}),
    "pareto": ("Pareto", {"scale": B, "alpha": A + 2}, {}),
    "poisson": ("Poisson", {"rate": A}, {}),
    "relaxed bernoulli": ("RelaxedBernoulli", {"temperature": np.array(0.7), "probs": UNIT}, {}),
    "relaxed one hot": (
        "RelaxedOneHotCategorical", {"temperature": np.array(0.7), "logits": REAL}, {},
    ),
    "student": ("StudentT", {"df": A + 2, "loc": REAL, "scale": B}, {}),
    "uniform": ("Uniform", {"low": REAL, "high": REAL + B}, {}),
    "von mises": ("VonMises", {"loc": REAL, "concentration": B}, {}),
    "weibull": ("Weibull", {"scale": A, "concentration": B + 1}, {}),
    "wishart": ("Wishart", {"df": np.array([4.5, 6.0]), "covariance_matrix": SQUARE}, {}),
    "wishart by factor": ("Wishart", {"df": np.array(5.0), "scale_tril": LOWER}, {}),
    "wishart by precision": ("Wishart", {"df": np.array(5.0), "precision_matrix": SQUARE}, {}),
}  # fmt: skip
PROPERTIES = "mean mode variance stddev probs logits scale_tril covariance_matrix".split()
PROPERTIES += ["precision_matrix"]
ROUGH = {"von mises": 1e-6}  # PyTorch's Bessel functions are short polynomials


def made(m, name, leaves=True):
    """The distribution in a framework, and its parameters as leaves."""
    cls, arrays, settings = CASES[name]
    given = {k: m.tensor(np.ascontiguousarray(v), requires_grad=leaves) for k, v in arrays.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return getattr(m.distributions, cls)(**given, **settings), list(given.values())


def drawn(name):
    lt.manual_seed(3)
    return np.array(made(lt, name, leaves=False)[0].sample((4,)).numpy())


def attempt(f):
    """A result, or the type of the refusal."""
    try:
        return f()
    except (NotImplementedError, AttributeError) as error:
        return type(error)


def same(name, f, *arrays):
    """Check ``f(framework, distribution, *tensors)``, and its gradients by all leaves."""
    rtol = ROUGH.get(name, 1e-7)
    found = []
    for m in (lt, torch):
        d, leaves = made(m, name)
        tensors = [m.tensor(x, requires_grad=x.dtype.kind == "f") for x in arrays]
        result = attempt(lambda m=m, d=d, tensors=tensors: f(m, d, *tensors))
        if isinstance(result, type):
            found.append(result)
            continue
        leaves = [*leaves, *[t for t in tensors if t.requires_grad]]
        grads = []
        if result.requires_grad:
            finite = m.where(m.isfinite(result), result, m.zeros_like(result))
            take = grad if m is lt else torch.autograd.grad
            grads = [*take([finite.sum()], leaves, allow_unused=True)]
        found.append((result, grads))
    if isinstance(found[0], type) or isinstance(found[1], type):
        assert found[0] == found[1], (name, found)
        return
    (mine, slopes), (reference, expected) = found
    close(mine, reference, rtol, 1e-9)
    if expected:
        slopes = slopes or [None] * len(expected)
        for a, b in zip(slopes, expected, strict=True):
            close(a, b, max(rtol, 1e-6), 1e-7)


@pytest.mark.parametrize("name", CASES)
def test_shapes_match(name):
    mine, reference = made(lt, name)[0], made(torch, name)[0]
    for what in ("batch_shape", "event_shape"):
        assert tuple(getattr(mine, what)) == tuple(getattr(reference, what))
    for what in ("has_rsample", "has_enumerate_support"):
        assert getattr(mine, what) == getattr(reference, what)
    batch = (5, *mine.batch_shape)
    mine, reference = mine.expand(batch), reference.expand(batch)
    assert tuple(mine.batch_shape) == batch
    assert tuple(mine.event_shape) == tuple(reference.event_shape)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for shape in ((), (2,), (2, 3), (0,)):
            x = mine.sample(shape)
            y = reference.sample(shape)
            assert tuple(x.shape) == tuple(y.shape)
            assert x.dtype.name == str(y.dtype).removeprefix("torch.")
            if mine.has_rsample:
                assert tuple(mine.rsample(shape).shape) == tuple(y.shape)


@pytest.mark.parametrize("name", CASES)
def test_log_densities_and_their_gradients_match(name):
    x = drawn(name)
    if name in ("uniform",):
        x = x * 0.999 + 0.0005  # the gradient by an end of the support is a matter of the side
    same(name, lambda m, d, x: d.log_prob(x), x)
    batch = (4, *made(lt, name)[0].batch_shape)
    same(name, lambda m, d, x: d.expand(batch).log_prob(x), x)


@pytest.mark.parametrize("name", CASES)
def test_moments_and_derived_parameters_match(name):
    for what in PROPERTIES:
        same(name, lambda m, d, what=what: getattr(d, what) * 1)
    same(name, lambda m, d: d.expand((2, *d.batch_shape)).mean * 1)


# PyTorch differentiates these by detached parameters, and so has no gradient
WITHOUT_GRADIENT = ()


@pytest.mark.parametrize("name", CASES)
def test_entropies_match(name):
    same(name, lambda m, d: d.entropy())
    same(name, lambda m, d: d.expand((2, *d.batch_shape)).entropy())
    same(name, lambda m, d: d.perplexity())


@pytest.mark.parametrize("name", CASES)
def test_distribution_functions_and_quantiles_match(name):
    x = drawn(name)
    if name in ("gamma", "chi2", "inverse gamma"):  # PyTorch has no gradient by the concentration
        values_alike(name, lambda m, d, x: d.cdf(x), x)
    else:
        same(name, lambda m, d, x: d.cdf(x), x)
    if not made(lt, name)[0].event_shape:
        p = np.random.default_rng(1).uniform(0.05, 0.95, x.shape)
        same(name, lambda m, d, p: d.icdf(p), p)


def values_alike(name, f, x):
    mine = f(lt, made(lt, name, leaves=False)[0], lt.tensor(x))
    close(mine, f(torch, made(torch, name, leaves=False)[0], torch.tensor(x)), 1e-7, 1e-9)


@pytest.mark.parametrize("name", CASES)
def test_supports_are_enumerated_alike(name):
    for expand in (True, False):
        same(name, lambda m, d, expand=expand: d.enumerate_support(expand) * 1)


@pytest.mark.parametrize("name", CASES)
def test_supports_and_constraints_have_the_same_words(name):
    mine, reference = made(lt, name, leaves=False)[0], made(torch, name, leaves=False)[0]
    words = {k: repr(v).partition("(")[0] for k, v in mine.arg_constraints.items()}
    assert words == {k: repr(v).partition("(")[0] for k, v in reference.arg_constraints.items()}
    assert repr(mine.support).partition("(")[0] == repr(reference.support).partition("(")[0]
    for what in ("is_discrete", "event_dim"):
        assert getattr(mine.support, what) == getattr(reference.support, what)
    x = drawn(name)
    assert mine.support.check(lt.tensor(x)).all()
    for wrong in (x - 0.5, x * 0 - 1, x * np.nan if x.dtype.kind == "f" else x + 7):
        a = mine.support.check(lt.tensor(wrong)).numpy()
        b = reference.support.check(torch.tensor(wrong)).numpy()
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("name", CASES)
def test_values_outside_are_refused_alike(name):
    x = drawn(name)
    mine, reference = made(lt, name, leaves=False)[0], made(torch, name, leaves=False)[0]
    for wrong in (x - 0.5, x * 0 - 1, x[..., :0], x[..., None] * np.ones(7)):
        outcomes = [
            refused(d, m.tensor(wrong)) for d, m in ((mine, lt), (reference, torch))
        ]  # fmt: skip
        assert outcomes[0] == outcomes[1], (name, wrong.shape, outcomes)


def refused(d, x):
    try:
        d.log_prob(x)
    except (ValueError, NotImplementedError) as error:
        return type(error)
    except RuntimeError:
        return RuntimeError
    return None


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_velocities_of_gamma_and_dirichlet_draws_are_pytorchs(dtype):
    from lowtide.framework.distributions.implicit_gradients import (
        dirichlet_grad,
        standard_gamma_grad,
    )

    rng = np.random.default_rng(0)
    a = rng.uniform(0.2, 20, 400)
    x = rng.gamma(a)
    ours = standard_gamma_grad(lt.tensor(a.astype(dtype)), lt.tensor(x.astype(dtype))).numpy()
    theirs = torch._standard_gamma_grad(torch.tensor(a), torch.tensor(x)).numpy()
    np.testing.assert_allclose(ours, theirs, rtol=2e-3)  # PyTorch's is an approximation
    b = rng.uniform(0.2, 20, 400)
    x = rng.beta(a, b)
    given = [v.astype(dtype) for v in (x, a, a + b)]
    ours = dirichlet_grad(*map(lt.tensor, given)).numpy()
    theirs = torch._dirichlet_grad(*map(torch.tensor, (x, a, a + b))).numpy()
    np.testing.assert_allclose(ours, theirs, rtol=2e-2, atol=1e-4)
