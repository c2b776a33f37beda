"""Special functions against PyTorch: values, dtypes, two orders of gradient, error types."""

import numpy as np
import pytest

import lowtide as lt

torch = pytest.importorskip("torch")

from tests.parity.comparing import close, compare, refuse_alike  # noqa: E402  # it imports torch

pytestmark = pytest.mark.parity

ANY, POSITIVE, UNIT = (-3.0, 3.0), (0.3, 3.0), (0.1, 0.9)
# name -> (range, orders of gradient that PyTorch has)
ONE = {
    **dict.fromkeys("i0 i0e i1 i1e erf erfc expit exp2 expm1 sinc ndtr".split(), (ANY, 2)),
    **dict.fromkeys("entr digamma psi gammaln log1p".split(), (POSITIVE, 2)),
    **dict.fromkeys("ndtri erfinv logit".split(), (UNIT, 2)),
    "log_ndtr": (ANY, 2),
    "erfcx": (ANY, 2),
    "round": (ANY, 0),
    **dict.fromkeys("bessel_j0 bessel_j1 modified_bessel_i0 modified_bessel_i1".split(), (ANY, 0)),
    **dict.fromkeys("bessel_y0 bessel_y1".split(), (POSITIVE, 0)),
}
TWO = {"xlogy": 2, "xlog1py": 2, "gammainc": 0, "gammaincc": 0, "zeta": 0}


def numbers(shape, span, dtype="float64", seed=0):
    return np.random.default_rng(seed).uniform(*span, shape).astype(dtype)


@pytest.mark.parametrize("name", ONE)
def test_functions_of_one_number_match(name):
    span, order = ONE[name]

    def f(m, x):
        return getattr(m.special, name)(x)

    for shape in ((3, 4), (), (0, 3)):
        compare(f, numbers(shape, span), order=order, atol=1e-7)
    compare(f, numbers(9, span, "float32"), order=0, rtol=2e-5, atol=1e-7)
    if name != "round":
        compare(f, np.array([1, 2, 3]), order=0, rtol=2e-5, atol=1e-7)


@pytest.mark.parametrize("name", TWO)
def test_functions_of_two_numbers_match(name):
    def f(m, x, y):
        return getattr(m.special, name)(x, y)

    for a, b in (((3, 4), (3, 4)), ((3, 1), (4,)), ((), (2,))):
        x, y = numbers(a, (1.2, 4.0)), numbers(b, POSITIVE, seed=1)
        compare(f, x, y, order=TWO[name], atol=1e-7)
    ends = np.array([0.0, 1.0, 2.0])
    compare(f, ends, ends, order=0, atol=1e-7)


@pytest.mark.parametrize("name", ["gammainc", "gammaincc"])
def test_the_upper_argument_of_incomplete_gamma_has_pytorchs_gradient(name):
    a, x = numbers(5, POSITIVE), numbers(5, POSITIVE, seed=1)
    compare(lambda m, x: getattr(m.special, name)(m.tensor(a), x), x, atol=1e-7)


@pytest.mark.parametrize("name", ["i0 zero", "i1 zero", "i0e zero", "i1e zero"])
def test_gradients_at_zero_match(name):
    x = np.array([0.0, -0.5, 0.5])
    name = name.split()[0]
    compare(lambda m, x: getattr(m.special, name)(x), x, order=1, atol=1e-7)


COMPOSED = {
    "mvlgamma": lambda m, x: m.mvlgamma(x + 2, 3),
    "mvlgamma_": lambda m, x: (x + 2).mvlgamma_(2),
    "multigammaln": lambda m, x: m.special.multigammaln(x + 2, 1),
    "polygamma": lambda m, x: m.special.polygamma(2, x),
    "Tensor.polygamma": lambda m, x: x.polygamma(1),
    "Tensor.polygamma_": lambda m, x: (x + 1).polygamma_(1),
    "i0_": lambda m, x: (x * 2).i0_(),
    "float_power_": lambda m, x: (x * 2).float_power_(3),
    "ldexp": lambda m, x: m.ldexp(x, m.tensor([1.0, -2.0, 3.0])),
    "ldexp ints": lambda m, x: m.ldexp(x, m.tensor([1, 2, 3])),
    "ldexp_": lambda m, x: (x * 1).ldexp_(m.tensor([1.0, -2.0, 3.0])),
    "frexp": lambda m, x: m.frexp(x * 10)[0],
    "conj_physical_": lambda m, x: (x * 1).conj_physical_(),
    "softmax": lambda m, x: m.special.softmax(x, 0),
    "log_softmax": lambda m, x: m.special.log_softmax(x, 0),
    "logsumexp": lambda m, x: m.special.logsumexp(x, 0),
    "logit eps": lambda m, x: m.special.logit(x / 4, 0.2),
}


# Their gradient has none itself.
LINEAR = (
    "ldexp",
    "ldexp ints",
    "ldexp_",
    "frexp",
    "conj_physical_",
)


@pytest.mark.parametrize("name", COMPOSED)
def test_compositions_match(name):
    order = 1 if name in LINEAR else 2
    compare(COMPOSED[name], numbers(3, POSITIVE), order=order, atol=1e-7)


def test_parts_of_numbers_match():
    x = np.array([0.0, -0.0, 1.0, -3.5, 1e-30, 1e30, np.inf])
    for dtype in ("float32", "float64"):
        a, b = lt.tensor(x.astype(dtype)), torch.tensor(x.astype(dtype))
        close(lt.frexp(a)[0], torch.frexp(b)[0])
        close(lt.frexp(a)[1][:-1], torch.frexp(b)[1][:-1])
        close(lt.nextafter(a, a[3]), torch.nextafter(b, b[3]), 0, 0)
        close(a.clone().nextafter_(a[2]), b.clone().nextafter_(b[2]), 0, 0)


@pytest.mark.parametrize("dtype", ["int64", "int32", "int16", "int8", "uint8"])
def test_integers_match(dtype):
    x = np.array([12, 0, 7, 30, 36], dtype)
    y = np.array([18, 5, 0, 12, 24], dtype)
    for name in ("gcd", "lcm"):
        pair = (
            getattr(lt, name)(lt.tensor(x), lt.tensor(y)),
            getattr(torch, name)(torch.tensor(x), torch.tensor(y)),
        )
        close(*pair)
        signed = -lt.tensor(x), -torch.tensor(x)
        if dtype != "uint8":
            close(getattr(signed[0], name)(lt.tensor(y)), getattr(signed[1], name)(torch.tensor(y)))


WRONG = {
    "gcd of floats": lambda m: m.gcd(m.ones(2), m.ones(2)),
    "gcd of bools": lambda m: m.gcd(m.ones(2) > 0, m.ones(2) > 0),
    "frexp of integers": lambda m: m.frexp(m.tensor([1, 2])),
    "mvlgamma": lambda m: m.mvlgamma(m.ones(2) + 3, 0),
    "polygamma": lambda m: m.polygamma(-1, m.ones(2)),
    "float_power_": lambda m: m.ones(2).float_power_(2),
    "broadcast": lambda m: m.igamma(m.ones(2), m.ones(3)),
    "order of igamma": lambda m: (
        m.igamma(m.ones(2, requires_grad=True), m.ones(2)).sum().backward()
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_errors_match_in_type(name):
    refuse_alike(WRONG[name])
