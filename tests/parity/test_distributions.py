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


# Where PyTorch fails: what lowtide gives there is tested in tests/distributions
FAILING = {
    ("kumaraswamy", "mode"),  # NaN: it takes the logarithm of a negative number
    ("multinomial", "expanded entropy"),  # an attribute is missing
    ("multinomial logits", "expanded entropy"),
}


@pytest.fixture(autouse=True)
def in_float64():
    """Have PyTorch make its constants in float64: some do not promote."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def made(m, name, leaves=True):
    """The distribution in a framework, and its parameters as leaves."""
    cls, arrays, settings = CASES[name]
    given = {k: m.tensor(np.ascontiguousarray(v), requires_grad=leaves) for k, v in arrays.items()}
    leaves = list(given.values())
    if "scale_tril" in given:  # above the diagonal nothing is read, and lowtide's gradient is 0
        given["scale_tril"] = m.tril(given["scale_tril"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return getattr(m.distributions, cls)(**given, **settings), leaves


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
        if result.requires_grad and m.isfinite(result).any():
            finite = m.where(m.isfinite(result), result, m.zeros_like(result))
            take = grad if m is lt else torch.autograd.grad
            grads = [*take([finite.sum()], leaves, allow_unused=True)]
        found.append((result, grads))
    if isinstance(found[0], type) or isinstance(found[1], type):
        assert found[0] == found[1], (name, found)
        return
    (mine, slopes), (reference, expected) = found
    close(mine, reference, rtol, 1e-9)
    if slopes or expected:
        expected = expected or [None] * len(slopes)
        slopes = slopes or [None] * len(expected)
        for a, b in zip(slopes, expected, strict=True):
            close(a, b, max(rtol, 1e-6), 1e-7)


NO_EMPTY_DRAWS = {
    "Categorical",
    "Multinomial",
    "OneHotCategorical",
    "OneHotCategoricalStraightThrough",
}


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
            if shape == (0,) and mine.__class__.__name__ in NO_EMPTY_DRAWS:
                assert tuple(x.shape) == tuple(mine._extended_shape(shape))
                continue
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
        if (name, what) not in FAILING:
            same(name, lambda m, d, what=what: getattr(d, what) * 1)
    same(name, lambda m, d: d.expand((2, *d.batch_shape)).mean * 1)


@pytest.mark.parametrize("name", CASES)
def test_entropies_match(name):
    same(name, lambda m, d: d.entropy())
    if (name, "expanded entropy") not in FAILING:
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
        outcomes = [refused(d, m.tensor(wrong)) for d, m in ((mine, lt), (reference, torch))]
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
    from lowtide.framework.distributions.sampling.implicit_gradients import (
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


# Divergences

KL = {  # class: two sets of parameters, of which the second covers the first's support
    "Bernoulli": ({"probs": UNIT}, {"probs": UNIT[::-1]}),
    "Beta": (
        {"concentration1": A, "concentration0": B},
        {"concentration1": B, "concentration0": A},
    ),
    "Binomial": ({"total_count": 4, "probs": UNIT}, {"total_count": 4, "probs": UNIT[::-1]}),
    "Categorical": ({"probs": A}, {"logits": REAL}),
    "Cauchy": ({"loc": REAL, "scale": B}, {"loc": REAL[::-1], "scale": A}),
    "ContinuousBernoulli": ({"probs": UNIT}, {"logits": REAL}),
    "Dirichlet": ({"concentration": A}, {"concentration": A[::-1]}),
    "Exponential": ({"rate": A}, {"rate": B}),
    "Gamma": ({"concentration": A, "rate": B}, {"concentration": B, "rate": A}),
    "Geometric": ({"probs": UNIT}, {"probs": UNIT[::-1]}),
    "Gumbel": ({"loc": REAL, "scale": B}, {"loc": REAL[::-1], "scale": A}),
    "HalfNormal": ({"scale": A}, {"scale": B}),
    "Laplace": ({"loc": REAL, "scale": B}, {"loc": REAL[::-1], "scale": A}),
    "LogNormal": ({"loc": REAL, "scale": B}, {"loc": REAL[::-1], "scale": A}),
    "LowRankMultivariateNormal": (
        {"loc": REAL, "cov_factor": THIN, "cov_diag": B},
        {"loc": REAL[::-1], "cov_factor": THIN * 2, "cov_diag": A},
    ),
    "MultivariateNormal": (
        {"loc": REAL, "covariance_matrix": SQUARE},
        {"loc": REAL[::-1], "covariance_matrix": SQUARES},
    ),
    "Normal": ({"loc": REAL, "scale": B}, {"loc": REAL[::-1], "scale": A}),
    "OneHotCategorical": ({"probs": A}, {"logits": REAL}),
    "Pareto": ({"scale": A, "alpha": B + 2}, {"scale": A * 0.8, "alpha": B}),
    "Poisson": ({"rate": A}, {"rate": B}),
    "Uniform": (
        {"low": A * 0.1 + 0.1, "high": A * 0.1 + 0.5},
        {"low": A * 0.1, "high": A * 0.1 + 1},
    ),
    "Wishart": (
        {"df": np.array(4.5), "covariance_matrix": SQUARE},
        {"df": np.array(5.5), "scale_tril": LOWER},
    ),
}


def registered():
    names = {(p.__name__, q.__name__) for p, q in torch.distributions.kl._KL_REGISTRY}
    made_of = {"Independent", "TransformedDistribution", "ExponentialFamily"}
    pairs = sorted(n for n in names if not set(n) & made_of)
    return [*pairs, ("LogNormal", "LogNormal"), ("Wishart", "Wishart")]


def member(m, name, which):
    settings = {k: v for k, v in KL[name][which].items() if not isinstance(v, np.ndarray)}
    leaves = {
        k: m.tensor(np.ascontiguousarray(v), requires_grad=True)
        for k, v in KL[name][which].items()
        if isinstance(v, np.ndarray)
    }
    given = dict(leaves)
    if "scale_tril" in given:
        given["scale_tril"] = m.tril(given["scale_tril"])
    return getattr(m.distributions, name)(**settings, **given), list(leaves.values())


@pytest.mark.parametrize("pair", registered(), ids="-".join)
def test_divergences_and_their_gradients_match(pair):
    found = []
    for m in (lt, torch):
        p, leaves = member(m, pair[0], 0)
        q, more = member(m, pair[1], 1)
        value = m.distributions.kl_divergence(p, q)
        slopes = None
        if value.requires_grad and m.isfinite(value).all():
            take = grad if m is lt else torch.autograd.grad
            slopes = take([value.sum()], [*leaves, *more], allow_unused=True)
        found.append((value, slopes))
    close(found[0][0], found[1][0], 1e-7, 1e-8)
    if "Wishart" in pair:  # PyTorch's has none by p, whose natural parameters it detaches
        return
    for a, b in zip(found[0][1] or (), found[1][1] or (), strict=True):
        close(a, b, 1e-6, 1e-7)


def test_every_pair_of_pytorchs_is_registered():
    from lowtide.framework.distributions.kl.registry import _REGISTRY

    ours = {(p.__name__, q.__name__) for p, q in _REGISTRY}
    assert {(p.__name__, q.__name__) for p, q in torch.distributions.kl._KL_REGISTRY} <= ours


# Names, transforms, constraints


@pytest.mark.parametrize(
    "home", ["", "transforms", "constraints", "kl", "constraint_registry", "utils"]
)
def test_names_and_parameters_are_pytorchs(home):
    import inspect

    mine = getattr(lt.distributions, home) if home else lt.distributions
    reference = getattr(torch.distributions, home) if home else torch.distributions
    names = getattr(reference, "__all__", mine.__all__)
    assert [n for n in names if not hasattr(mine, n)] == []
    for name in names:
        theirs = getattr(reference, name)
        if home != "constraints" and inspect.isclass(theirs) and name != "lazy_property":
            expected = list(inspect.signature(theirs.__init__).parameters)
            assert list(inspect.signature(getattr(mine, name).__init__).parameters) == expected


def test_pytorchs_modules_have_the_same_names():
    import importlib
    import pkgutil

    for found in pkgutil.iter_modules(torch.distributions.__path__):
        mine = importlib.import_module(f"lowtide.distributions.{found.name}")
        theirs = importlib.import_module(f"torch.distributions.{found.name}")
        assert [n for n in theirs.__all__ if not hasattr(mine, n)] == [], found.name


POINTS = np.random.default_rng(5).standard_normal((2, 4, 6))
TRANSFORMS = {
    "exp": lambda m, t: t.ExpTransform(),
    "power": lambda m, t: t.ComposeTransform(
        [t.ExpTransform(), t.PowerTransform(m.tensor(np.array(1.7)))]
    ),
    "sigmoid": lambda m, t: t.SigmoidTransform(),
    "softplus": lambda m, t: t.SoftplusTransform(),
    "tanh": lambda m, t: t.TanhTransform(),
    "affine": lambda m, t: t.AffineTransform(0.3, -1.7),
    "affine of vectors": lambda m, t: t.AffineTransform(
        m.tensor(np.arange(6.0)), m.tensor(np.arange(6.0) - 8), event_dim=1
    ),
    "stick breaking": lambda m, t: t.StickBreakingTransform(),
    "correlations": lambda m, t: t.CorrCholeskyTransform(),
    "reshape": lambda m, t: t.ReshapeTransform((4, 6), (3, 8)),
    "independent": lambda m, t: t.IndependentTransform(t.ExpTransform(), 1),
    "compose": lambda m, t: t.ComposeTransform(
        [t.TanhTransform(), t.AffineTransform(2.0, 1.0), t.StickBreakingTransform()]
    ),
    "inverse": lambda m, t: t.ComposeTransform([t.ExpTransform(), t.SoftplusTransform().inv]),
    "cat": lambda m, t: t.CatTransform(
        [t.ExpTransform(), t.AffineTransform(1.0, 2.0)], dim=-1, lengths=[2, 4]
    ),
    "stack": lambda m, t: t.StackTransform([t.ExpTransform(), t.TanhTransform()], dim=0),
    "cdf": lambda m, t: t.CumulativeDistributionTransform(
        m.distributions.Normal(m.tensor(0.2), m.tensor(1.5))
    ),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_match(name):
    found = []
    for m in (lt, torch):
        t = TRANSFORMS[name](m, m.distributions.transforms)
        x = m.tensor(POINTS, requires_grad=True)
        y = t(x)
        volume = t.log_abs_det_jacobian(x, y)
        back = t.inv(y)
        close_to = np.testing.assert_allclose
        close_to(back.detach().numpy(), POINTS, rtol=1e-6, atol=1e-6)
        take = grad if m is lt else torch.autograd.grad
        (slope,) = take([y.square().sum() + volume.sum()], [x])
        shapes = [t.forward_shape(x.shape), t.inverse_shape(y.shape)]
        sides = [t.domain.event_dim, t.codomain.event_dim, t.bijective]
        try:
            sides.append(float(t.sign.max() if hasattr(t.sign, "max") else t.sign))
        except NotImplementedError:
            sides.append(None)
        found.append(([y, volume, slope], [tuple(s) for s in shapes], sides))
    for a, b in zip(found[0][0], found[1][0], strict=True):
        close(a, b, 1e-7, 1e-8)
    assert found[0][1:] == found[1][1:]


@pytest.mark.parametrize(
    "name",
    ["SoftmaxTransform", "AbsTransform", "LowerCholeskyTransform", "PositiveDefiniteTransform"],
)
def test_transforms_without_a_jacobian_match(name):
    x = POINTS[:, :3, :3]
    a, b = (getattr(m.distributions, name)()(m.tensor(x)) for m in (lt, torch))
    close(a, b)
    inverses = (getattr(m.distributions, name)().inv(y) for m, y in ((lt, a), (torch, b)))
    close(*inverses)


REGIONS = {
    "real": lambda m, c: c.real,
    "positive": lambda m, c: c.positive,
    "greater_than": lambda m, c: c.greater_than(m.tensor(2.5)),
    "greater_than_eq": lambda m, c: c.greater_than_eq(-1.0),
    "less_than": lambda m, c: c.less_than(3.0),
    "unit_interval": lambda m, c: c.unit_interval,
    "interval": lambda m, c: c.interval(-1.0, 2.0),
    "half_open_interval": lambda m, c: c.half_open_interval(0.5, 2.0),
    "simplex": lambda m, c: c.simplex,
    "lower_cholesky": lambda m, c: c.lower_cholesky,
    "positive_definite": lambda m, c: c.positive_definite,
    "positive_semidefinite": lambda m, c: c.positive_semidefinite,
    "corr_cholesky": lambda m, c: c.corr_cholesky,
    "independent": lambda m, c: c.independent(c.positive, 1),
    "cat": lambda m, c: c.cat([c.positive, c.unit_interval], -1, [2, 4]),
    "stack": lambda m, c: c.stack([c.positive, c.unit_interval], 0),
    "boolean": lambda m, c: c.boolean,
    "integer_interval": lambda m, c: c.integer_interval(0, 3),
    "one_hot": lambda m, c: c.one_hot,
    "dependent": lambda m, c: c.dependent,
}


@pytest.mark.parametrize("way", ["biject_to", "transform_to"])
@pytest.mark.parametrize("name", REGIONS)
def test_ways_into_regions_match(way, name):
    x = POINTS[0, :, :4] if "definite" in name or name == "lower_cholesky" else POINTS
    found = []
    for m in (lt, torch):
        region = REGIONS[name](m, m.distributions.constraints)
        try:
            y = getattr(m.distributions, way)(region)(m.tensor(x))
        except NotImplementedError:
            found.append(None)
            continue
        assert region.check(y).all()
        found.append(y)
    if found[1] is None:
        assert found[0] is None
    else:
        close(*found)
