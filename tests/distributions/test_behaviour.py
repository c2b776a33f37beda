"""What distributions refuse, how they are shown, expanded, registered, and what they load."""

from __future__ import annotations

import pickle
import subprocess
import sys

import numpy as np
import pytest

import lowtide as lt
from lowtide import distributions as D
from lowtide.distributions import constraints, transforms
from lowtide.distributions.utils import tril_matrix_to_vec, vec_to_tril_matrix


def test_lowtide_loads_distributions_when_they_are_asked_for():
    code = (
        "import sys, lowtide; name = 'lowtide.framework.distributions.continuous.normal'\n"
        "assert name not in sys.modules and 'distributions' in dir(lowtide)\n"
        "lowtide.distributions.Normal(0, 1); assert name in sys.modules\n"
        "assert 'scipy' not in sys.modules and 'numba' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        lt.nonsense  # noqa: B018


# Checks


def test_a_wrong_parameter_is_named_with_its_constraint_and_values():
    with pytest.raises(ValueError, match="Expected parameter") as caught:
        D.Normal(lt.zeros(4), lt.tensor([1.0, -2.0, 0.0, 3.0]))
    message = str(caught.value)
    for part in ("parameter scale", "Normal(", "GreaterThan(lower_bound=0.0)", "-2, 0", "(2 of 4)"):
        assert part in message
    assert "validate_args=False" in message


def test_a_value_outside_is_named_with_the_support():
    with pytest.raises(ValueError, match=r"GreaterThanEq\(lower_bound=0.0\).*-1 \(1 of 2\)"):
        D.Exponential(1.0).log_prob(lt.tensor([1.0, -1.0]))
    with pytest.raises(ValueError, match=r"Simplex\(\).*1 of 2 events"):
        D.Dirichlet(lt.ones(2)).log_prob(lt.tensor([[0.5, 0.5], [0.5, 0.6]]))
    assert D.Exponential(1.0, validate_args=False).log_prob(lt.tensor(-1.0)).isfinite()


@pytest.mark.parametrize(("make", "error", "says"), [
    (lambda: D.Normal("a", 1.0), ValueError, "numbers and tensors"),
    (lambda: D.Bernoulli(), ValueError, "exactly one of `probs` or `logits`"),
    (lambda: D.Bernoulli(0.1, 0.2), ValueError, "exactly one"),
    (lambda: D.Categorical(lt.tensor(0.5)), ValueError, "at least one-dimensional"),
    (lambda: D.Uniform(2.0, 1.0), ValueError, "parameter low"),
    (lambda: D.Geometric(0.0), ValueError, "to be positive"),
    (lambda: D.Multinomial(lt.tensor([1, 2]), lt.ones(2)), NotImplementedError, "inhomogeneous"),
    (lambda: D.MultivariateNormal(lt.zeros(2)), ValueError, "exactly one of `covariance_matrix`"),
    (lambda: D.MultivariateNormal(lt.zeros(2), -lt.eye(2)), ValueError, "PositiveDefinite"),
    (lambda: D.MultivariateNormal(lt.zeros(2), lt.ones(2)), ValueError, "at least two-dimensional"),
    (lambda: D.LowRankMultivariateNormal(lt.zeros(3), lt.ones(2, 2), lt.ones(3)), ValueError,
     "shape 3 x m"),
    (lambda: D.Wishart(1.0, lt.eye(3)), ValueError, "greater than ndim - 1 = 2"),
    (lambda: D.LKJCholesky(1), ValueError, "dim=1"),
    (lambda: D.Independent(D.Normal(lt.zeros(3), 1.0), 2), ValueError, "actual 2 vs 1"),
    (lambda: D.MixtureSameFamily(D.Normal(0, 1), D.Normal(0, 1)), ValueError, "Categorical"),
    (lambda: D.MixtureSameFamily(D.Categorical(lt.ones(3)), D.Normal(lt.zeros(2), 1.0)),
     ValueError, r"\(3\) does not equal"),
    (lambda: D.TransformedDistribution(D.Normal(0, 1), [3]), ValueError, "must be a Transform"),
    (lambda: D.Distribution.set_default_validate_args("yes"), ValueError, "True or False"),
    (lambda: D.Normal(0, 1).log_prob(3), ValueError, "must be a Tensor"),
    (lambda: D.Normal(lt.zeros(2), 1).log_prob(lt.zeros(3)), ValueError, "not broadcastable"),
    (lambda: D.Dirichlet(lt.ones(3)).log_prob(lt.ones(2)), ValueError, "event_shape"),
    (lambda: D.Bernoulli(0.5).rsample(), NotImplementedError, "no rsample"),
    (lambda: D.Beta(1.0, 1.0).cdf(lt.tensor(0.5)), NotImplementedError, "no cdf"),
    (lambda: D.StudentT(2.0).icdf(lt.tensor(0.5)), NotImplementedError, "no icdf"),
    (lambda: D.Normal(0, 1).enumerate_support(), NotImplementedError, "enumerate_support"),
    (lambda: D.VonMises(0.0, 1.0).entropy(), NotImplementedError, "no entropy"),
    (lambda: D.Binomial(lt.tensor([1, 2]), lt.tensor(0.5)).entropy(), NotImplementedError,
     "Inhomogeneous"),
    (lambda: D.register_kl(1, D.Normal), TypeError, "type_p"),
    (lambda: D.kl_divergence(D.VonMises(0.0, 1.0), D.Normal(0, 1)), NotImplementedError,
     "register_kl"),
    (lambda: D.biject_to(constraints.boolean), NotImplementedError, "Cannot transform"),
    (lambda: D.transform_to.register(3, None)(3), TypeError, "Constraint subclass"),
    (lambda: transforms.ExpTransform(cache_size=2), ValueError, "cache_size"),
    (lambda: transforms.AbsTransform().log_abs_det_jacobian(lt.ones(1), lt.ones(1)),
     NotImplementedError, "not bijective"),
    (lambda: transforms.ReshapeTransform((2,), (3,)), ValueError, "numbers of elements"),
    (lambda: transforms.StickBreakingTransform().event_dim + transforms.SoftmaxTransform().sign,
     NotImplementedError, "no sign"),
    (lambda: transforms.CorrCholeskyTransform()(lt.ones(2)), ValueError, "lower triangular"),
    (lambda: constraints.dependent.check(lt.ones(1)), ValueError, "without them"),
    (lambda: constraints.cat([constraints.real], 0, [1, 2]), ValueError, "one length for each"),
    (lambda: vec_to_tril_matrix(lt.ones(4)), ValueError, "cannot be expressed"),
])  # fmt: skip
def test_refusals_say_what_is_wrong(make, error, says):
    with pytest.raises(error, match=says):
        make()


def test_checks_can_be_switched_off_for_all():
    D.Distribution.set_default_validate_args(False)
    try:
        D.Normal(0.0, -1.0)
    finally:
        D.Distribution.set_default_validate_args(True)


def test_a_check_leaves_no_graph_and_no_bytes(leak_check):
    loc = lt.zeros(1000, requires_grad=True)
    d = D.Normal(loc, 1.0)
    d.log_prob(lt.ones(1000)).sum().backward()
    del d, loc


# Where PyTorch fails


def test_the_mode_of_kumaraswamy_is_where_the_density_is_greatest():
    d = D.Kumaraswamy(lt.tensor([2.0, 0.5, 3.0]), lt.tensor([3.0, 2.0, 1.5]))
    grid = lt.linspace(0.001, 0.999, 999).unsqueeze(-1)
    best = grid[d.log_prob(grid).argmax(0), 0]
    np.testing.assert_allclose(d.mode[[0, 2]].numpy(), best[[0, 2]].numpy(), atol=2e-3)
    assert d.mode[1].isnan()


def test_the_mode_of_weibull_below_a_concentration_of_one_is_zero():
    assert D.Weibull(1.0, lt.tensor([0.5, 1.0])).mode.tolist() == [0.0, 0.0]


def test_a_generalized_pareto_with_an_end_has_its_density_there():
    d = D.GeneralizedPareto(0.0, 1.0, lt.tensor([-0.5, -2.0, 0.5]))
    assert d.log_prob(lt.tensor([2.0, 0.5, 0.0])).tolist() == [-lt.inf, lt.inf, 0.0]
    assert d.cdf(lt.tensor([2.0, 0.5, 0.0])).tolist() == [1.0, 1.0, 0.0]


def test_an_expanded_multinomial_has_its_entropy():
    d = D.Multinomial(3, lt.tensor([0.2, 0.8]))
    np.testing.assert_allclose(d.expand((2,)).entropy().numpy(), [d.entropy().item()] * 2)
    values = lt.tensor([[k, 3.0 - k] for k in range(4)])
    logs = d.log_prob(values)
    assert d.entropy().item() == pytest.approx(-(logs.exp() * logs).sum().item(), rel=1e-5)


@pytest.mark.parametrize("family", [D.Exponential, D.HalfNormal, D.HalfCauchy])
def test_a_mode_of_zero_is_a_constant(family):
    parameter = lt.tensor([2.0, lt.inf], requires_grad=True)
    mode = family(parameter, validate_args=False).mode
    assert mode.tolist() == [0, 0]
    assert not mode.requires_grad


def test_a_distribution_function_begins_at_the_bound_of_the_support():
    assert D.LogNormal(0.0, 1.0).cdf(lt.tensor(0.0)).item() == 0
    with pytest.raises(ValueError, match="support"):
        D.LogNormal(0.0, 1.0).cdf(lt.tensor(-1.0))


@pytest.mark.parametrize("other", [D.Exponential(1.0), D.Gamma(2.0, 1.0), D.Normal(0.0, 1.0)])
def test_an_infinite_divergence_has_a_gradient_of_zero(other):
    alpha = lt.tensor([0.5, 1.0, 3.0], requires_grad=True)
    kl = D.kl_divergence(D.Pareto(1.0, alpha), other)
    assert kl.isinf().tolist() == [True, True, False]
    kl.sum().backward()
    assert alpha.grad[:2].tolist() == [0, 0]
    assert alpha.grad[2].isfinite()


def test_the_divergence_from_a_rate_of_zero_is_the_other_rate():
    kl = D.kl_divergence(D.Poisson(lt.tensor([0.0, 2.0])), D.Poisson(lt.tensor([0.3, 0.0])))
    np.testing.assert_allclose(kl.numpy(), [0.3, np.inf], rtol=1e-6)


# Shapes, words, copies


def test_expanding_copies_no_parameter():
    scale = lt.tensor([1.0, 2.0])
    d = D.Normal(0.0, scale).expand((1000, 2))
    assert d.scale.data_ptr() == scale.data_ptr()
    assert d.scale.stride() == (0, 1)
    normal = D.MultivariateNormal(lt.zeros(3), lt.eye(3)).expand((100,))
    assert normal._unbroadcasted_scale_tril.numel() == 9


def test_many_values_share_one_solution_with_the_factor():
    d = D.MultivariateNormal(lt.zeros(40), lt.eye(40))
    x = lt.randn(500, 40)
    lt.reset_peak_memory_stats("cpu")
    before = lt.memory_allocated("cpu")
    d.log_prob(x)
    grown = lt.max_memory_allocated("cpu") - before
    assert grown < 6 * x.nbytes  # a copy of the factor for each would be 40


def test_distributions_are_shown_with_their_parameters():
    assert repr(D.Normal(0.0, 1.5)) == "Normal(loc: 0.0, scale: 1.5)"
    assert repr(D.Independent(D.Normal(lt.zeros(3), 1.0), 1)).endswith(", 1)")
    assert repr(transforms.ExpTransform().inv) == "_InverseTransform(ExpTransform())"
    assert (
        repr(constraints.interval(0, lt.tensor(2.0))) == "Interval(lower_bound=0, upper_bound=2.0)"
    )


def test_a_subclass_with_its_own_init_must_define_expand():
    class Standard(D.Normal):
        def __init__(self):
            super().__init__(0.0, 1.0)

    with pytest.raises(NotImplementedError, match=r"must also define a custom .expand\(\)"):
        Standard().expand((2,))


def test_distributions_and_transforms_can_be_pickled():
    for thing in (D.LogNormal(0.0, 1.0), D.Beta(1.0, 2.0), transforms.ExpTransform()):
        again = pickle.loads(pickle.dumps(thing))
        assert type(again) is type(thing)
    x = lt.tensor([0.5])
    again = pickle.loads(pickle.dumps(D.LogNormal(0.0, 1.0)))
    assert lt.equal(again.log_prob(x), D.LogNormal(0.0, 1.0).log_prob(x))


def test_sample_n_warns():
    with pytest.warns(FutureWarning, match="sample_n"):
        assert tuple(D.Normal(lt.zeros(2), 1.0).sample_n(3).shape) == (3, 2)


def test_a_cached_transform_gives_back_the_very_tensor():
    t = transforms.TanhTransform(cache_size=1)
    x = lt.tensor([30.0, -2.0])
    y = t(x)
    assert t.inv(y) is x
    assert transforms.TanhTransform()(x)[0] == 1
    d = D.TransformedDistribution(D.Normal(0.0, 100.0), [transforms.TanhTransform(cache_size=1)])
    assert d.log_prob(d.rsample((50,))).isfinite().all()


def test_a_transform_and_its_inverse_keep_each_other_only_as_long_as_needed():
    t = transforms.ExpTransform()
    assert t.inv.inv is t
    assert t.inv == transforms.ExpTransform().inv
    assert transforms.AffineTransform(1, lt.tensor(2.0)) == transforms.AffineTransform(1, 2.0)
    assert transforms.AffineTransform(1, 2.0) != transforms.AffineTransform(1, 3.0)


def test_a_triangle_of_numbers_goes_to_a_matrix_and_back():
    for diag in (-2, -1, 0, 1, 2):
        matrix = lt.randn(2, 4, 4).tril(diag)
        vector = tril_matrix_to_vec(matrix, diag)
        assert lt.equal(vec_to_tril_matrix(vector, diag), matrix)


# The registry of divergences


def test_the_nearest_bases_decide_a_divergence():
    class Mine(D.Normal):
        pass

    assert D.kl_divergence(Mine(0.0, 1.0), D.Normal(1.0, 1.0)).item() == 0.5

    from lowtide.framework.distributions.kl import registry as kl

    before = dict(kl._REGISTRY)
    try:

        @D.register_kl(Mine, D.Normal)
        def _(p, q):
            return lt.tensor(7.0)

        assert D.kl_divergence(Mine(0.0, 1.0), D.Normal(1.0, 1.0)).item() == 7
        assert D.kl_divergence(D.Normal(0.0, 1.0), Mine(1.0, 1.0)).item() == 0.5
        D.register_kl(D.Normal, Mine)(lambda p, q: lt.tensor(8.0))
        with pytest.warns(RuntimeWarning, match="Ambiguous kl_divergence"):
            D.kl_divergence(Mine(0.0, 1.0), Mine(1.0, 1.0))
    finally:
        kl._REGISTRY.clear()
        kl._REGISTRY.update(before)
        kl._FOUND.clear()


def test_divergences_agree_with_means_over_draws():
    lt.manual_seed(0)
    pairs = [
        (D.Normal(0.3, 1.2), D.Laplace(0.1, 0.8)),
        (D.Gamma(2.0, 1.5), D.Gumbel(0.5, 1.0)),
        (D.Uniform(1.5, 3.0), D.Pareto(1.0, 2.0)),
        (D.Beta(2.0, 3.0), D.ContinuousBernoulli(0.3)),
        (D.Cauchy(0.0, 1.0), D.Cauchy(1.0, 2.0)),
        (D.Exponential(2.0), D.Gamma(0.7, 1.0)),
    ]
    for p, q in pairs:
        x = p.sample((40_000,))
        differences = (p.log_prob(x) - q.log_prob(x)).numpy().astype(np.float64)
        error = differences.std() / len(differences) ** 0.5
        assert abs(differences.mean() - D.kl_divergence(p, q).item()) < 4 * error + 1e-5, (p, q)


# In estimates and checkpoints


def test_the_bytes_of_a_step_with_draws_are_estimated_exactly():
    mean, log_scale = lt.zeros(64, requires_grad=True), lt.zeros(64, requires_grad=True)

    def step():
        d, scale = D.Normal(mean, log_scale.exp()), log_scale.exp()
        x = d.rsample((32,)).square() + D.Gamma(scale, 1.0).rsample((32,))
        loss = (x + D.Dirichlet(scale).rsample((32,))).mean()
        c = D.Categorical(logits=log_scale)
        loss = loss + c.log_prob(c.sample((32,))).sum()
        loss = loss + D.kl_divergence(d, D.Normal(0.0, 1.0)).sum()
        (loss + D.MultivariateNormal(mean, lt.eye(64)).log_prob(d.sample())).backward()

    found = lt.profiling.estimate(step)
    with lt.profiling.MemoryProfiler() as prof:
        step()
    assert found.peak_bytes == prof.peak_bytes


def test_a_checkpointed_draw_is_repeated_in_backward():
    a = lt.tensor([0.7, 2.0], dtype=lt.float64, requires_grad=True)

    def f(a):
        return (D.Gamma(a, 1.0).rsample((5,)).sqrt() * a).sum()

    slopes = []
    for run in (f, lambda a: lt.checkpoint(f, a)):
        lt.manual_seed(8)
        (slope,) = lt.autograd.grad(run(a), a)
        slopes.append(slope)
    np.testing.assert_array_equal(slopes[0].numpy(), slopes[1].numpy())
