"""Compiled functions of numbers beside SciPy in float64: curves, gates, powers; also in place."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.special

import lowtide as lt
import lowtide.nn.functional as F

N = (1 << 14) + 13  # a little more than where compiled kernels begin
INF, NAN = float("inf"), float("nan")
SPECIAL = (NAN, INF, -INF, 0.0, -0.0, 100.0, -100.0, 1e-30, 3e38, -3e38)


def numbers(*shape, seed=0, dtype=np.float32):
    return (np.random.default_rng(seed).standard_normal(shape) * 2).astype(dtype)


def sigmoid(x):
    return scipy.special.expit(x)


def ulps(found, expected):
    """The largest distance in units of the last place of normal float32 numbers."""
    size = np.maximum(np.abs(expected), np.finfo(np.float32).tiny)
    return float(np.max(np.abs(found - expected) / np.spacing(size.astype(np.float32))))


@pytest.mark.parametrize("name", ["erf", "sigmoid"])
def test_curves_are_those_of_scipy(name):
    exact = {"erf": scipy.special.erf, "sigmoid": sigmoid}[name]
    slope = {
        "erf": lambda x: 2 / np.sqrt(np.pi) * np.exp(-x * x),
        "sigmoid": lambda x: sigmoid(x) * sigmoid(-x),
    }[name]
    values = np.concatenate([np.linspace(-9, 9, 1 << 16), [0.0, -0.0, 1e-30, 1e-7, 87, -87]])
    values = values.astype(np.float32)
    x = lt.tensor(values).requires_grad_()
    out = getattr(lt, name)(x)
    assert ulps(out.detach().numpy(), exact(values.astype(np.float64))) <= 4
    assert np.signbit(lt.erf(x).detach().numpy()[-5])
    expected = slope(values.astype(np.float64))
    g = numbers(len(values))
    for arriving in (lt.ones(()).expand(len(values)), lt.tensor(g)):
        x.grad = None
        out.backward(arriving, retain_graph=True)
        np.testing.assert_allclose(
            x.grad.numpy(), expected * arriving.numpy(), rtol=1e-5, atol=1e-6
        )


@pytest.mark.parametrize("name", ["erf", "sigmoid"])
def test_curves_of_special_numbers(name):
    x = lt.tensor(np.resize(np.array([NAN, INF, -INF, -100.0, 100.0], np.float32), N))
    x.requires_grad_()
    out = getattr(lt, name)(x)
    low = -1.0 if name == "erf" else 0.0
    np.testing.assert_array_equal(out.detach().numpy()[:5], [NAN, 1, low, low, 1])
    out.sum().backward()
    np.testing.assert_allclose(x.grad.numpy()[:5], [NAN, 0, 0, 0, 0], atol=1e-40)


@pytest.mark.parametrize("shape", [(129, 131), (3, 7, 801), (5, 4, 33, 27), (N,)])
@pytest.mark.parametrize("single", [True, False])
def test_prelu_is_that_of_the_formula(shape, single):
    channels = 1 if single or len(shape) == 1 else shape[1]
    a, g = numbers(*shape), numbers(*shape, seed=1)
    w = numbers(channels, seed=2)
    a.reshape(-1)[:2] = 0.0, -0.0
    x, weight = lt.tensor(a).requires_grad_(), lt.tensor(w).requires_grad_()
    out = F.prelu(x, weight)
    wide = w.astype(np.float64).reshape(-1, *[1] * (a.ndim - 2)) if channels > 1 else float(w[0])
    np.testing.assert_array_equal(out.detach().numpy(), np.where(a > 0, a, a * wide).astype("f4"))
    axes = tuple(k for k in range(a.ndim) if k != 1) if channels > 1 else None
    for arriving in (lt.tensor(g), lt.ones(()).expand(*shape)):
        x.grad = weight.grad = None
        out.backward(arriving, retain_graph=True)
        each = arriving.numpy().astype(np.float64)
        np.testing.assert_allclose(x.grad.numpy(), np.where(a > 0, each, each * wide), rtol=1e-6)
        total = np.where(a > 0, 0, each * a).sum(axes)
        np.testing.assert_allclose(weight.grad.numpy(), np.ravel(total), rtol=1e-5, atol=1e-4)


def test_prelu_needs_no_array_for_the_gradient_of_its_weight():
    x = lt.randn(64, 512)
    weight = lt.full((512,), 0.25).requires_grad_()
    out, g = F.prelu(x, weight), lt.randn(64, 512)
    before = lt.memory_allocated("cpu")
    lt.reset_peak_memory_stats("cpu")
    out.backward(g)
    assert lt.max_memory_allocated("cpu") - before <= 2 * weight.nbytes


GATES = {
    "gelu": F.gelu,
    "gelu tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "elu": F.elu,
    "mish": F.mish,
    "softplus": F.softplus,
    "logsigmoid": F.logsigmoid,
    "softsign": F.softsign,
    "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid,
    "relu": F.relu,
    "leaky relu": F.leaky_relu,
    "relu in place": lambda x: F.relu(x * 1, True),
    "softshrink": F.softshrink,
    "hardshrink": F.hardshrink,
    "leaky relu in place": lambda x: F.leaky_relu(x * 1, 0.1, True),
}


@pytest.mark.parametrize("number", [1.0, -0.3, INF, NAN])
@pytest.mark.parametrize("name", GATES)
def test_a_gradient_that_is_one_number_gives_what_it_gives_written_out(name, number):
    x = numbers(N)
    x[: len(SPECIAL)] = SPECIAL
    found = []
    for full in (False, True):
        v = lt.tensor(x).requires_grad_()
        out = GATES[name](v)
        g = lt.tensor(number).expand(N)
        out.backward(g.contiguous() if full else g)
        found.append(v.grad.numpy())
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize("name", ["xlogy", "logaddexp"])
def test_logarithms_of_pairs_are_those_of_scipy(name):
    exact = {"xlogy": scipy.special.xlogy, "logaddexp": np.logaddexp}[name]
    a, b = numbers(N), numbers(N, seed=1)
    if name == "xlogy":
        b = np.exp(b * 9)
    special = (*SPECIAL, 1e-40, 1.0, 2.0)
    pairs = np.array([(u, v) for u in special for v in special], np.float32)
    a[: len(pairs)], b[: len(pairs)] = pairs.T
    found = getattr(lt, name)(lt.tensor(a), lt.tensor(b)).numpy()
    with np.errstate(all="ignore"):
        expected = exact(a.astype(np.float64), b.astype(np.float64)).astype(np.float32)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("exponent", [3, 4, 5, 6, 7, 8, -2, 3.0])
def test_small_powers_are_products(exponent, dtype):
    a = np.array([-2.5, 0.0, -0.0, INF, -INF, NAN, 1e-10, 1e10, 3.1, -1.7], dtype)
    x = lt.tensor(a)
    with np.errstate(all="ignore"):
        expected = (a.astype(np.longdouble) ** int(exponent)).astype(dtype)
    found = (x**exponent).numpy()
    step = np.finfo(dtype).eps
    np.testing.assert_allclose(found, expected, rtol=5 * step, atol=np.finfo(dtype).tiny)
    numbers_ = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(found)[numbers_], np.signbit(expected)[numbers_])
    written = x.clone()
    written.pow_(exponent)
    np.testing.assert_array_equal(written.numpy(), found)
    np.testing.assert_array_equal(lt.pow(x, exponent, out=x).numpy(), found)


IN_PLACE = {
    "sigmoid": (lt.sigmoid, lambda x: x.sigmoid_()),
    "erf": (lt.erf, lambda x: x.erf_()),
    "elu": (F.elu, lambda x: F.elu(x, inplace=True)),
    "leaky relu": (F.leaky_relu, lambda x: F.leaky_relu(x, inplace=True)),
    "hardsigmoid": (F.hardsigmoid, lambda x: F.hardsigmoid(x, inplace=True)),
    "xlogy": (lambda x: lt.xlogy(x, x * 0.5 + 9), lambda x: x.xlogy_(x * 0.5 + 9)),
    "xlogy of itself": (lambda x: lt.xlogy(x, x), lambda x: x.xlogy_(x)),
}


@pytest.mark.parametrize("name", IN_PLACE)
def test_in_place_gives_the_same_bits(name):
    plain, written = IN_PLACE[name]
    values = numbers(3 * N)
    values[: len(SPECIAL)] = SPECIAL
    x = lt.tensor(values)
    expected = plain(x).numpy()
    assert written(x) is x
    np.testing.assert_array_equal(x.numpy(), expected)


def test_a_result_may_be_left_in_the_input():
    x = lt.tensor(numbers(3 * N))
    expected = lt.erf(x).numpy()
    assert lt.erf(x, out=x) is x
    np.testing.assert_array_equal(x.numpy(), expected)
