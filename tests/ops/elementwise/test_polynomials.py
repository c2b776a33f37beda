"""Orthogonal polynomials, Bessel's and Airy's functions: values against SciPy, and their edges."""

import numpy as np
import pytest
from scipy import special as reference

import lowtide as lt
from lowtide import special
from lowtide.framework import testing

X = np.linspace(-2, 2, 9)
CASES = {
    "chebyshev_polynomial_t": reference.eval_chebyt,
    "chebyshev_polynomial_u": reference.eval_chebyu,
    "shifted_chebyshev_polynomial_t": reference.eval_sh_chebyt,
    "shifted_chebyshev_polynomial_u": reference.eval_sh_chebyu,
    "hermite_polynomial_h": reference.eval_hermite,
    "hermite_polynomial_he": reference.eval_hermitenorm,
    "laguerre_polynomial_l": reference.eval_laguerre,
    "legendre_polynomial_p": reference.eval_legendre,
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("n", [0, 1, 2, 7])
def test_values_are_scipys(name, n):
    ours = getattr(special, name)(lt.tensor(X), n)
    np.testing.assert_allclose(ours.numpy(), CASES[name](n, X), rtol=1e-10, atol=1e-9)


@pytest.mark.parametrize("kind", "vw")
def test_the_third_and_fourth_kind_by_their_angles(kind):
    angle = np.linspace(0.1, 3.0, 7)
    ours = getattr(special, f"chebyshev_polynomial_{kind}")(lt.tensor(np.cos(angle)), 5)
    wave, half = (np.cos, np.cos) if kind == "v" else (np.sin, np.sin)
    np.testing.assert_allclose(ours.numpy(), wave(5.5 * angle) / half(0.5 * angle))
    shifted = getattr(special, f"shifted_chebyshev_polynomial_{kind}")
    moved = shifted(lt.tensor((np.cos(angle) + 1) / 2), 5)
    np.testing.assert_allclose(moved.numpy(), ours.numpy())


def test_degrees_broadcast_are_cut_off_and_give_zero_below_zero():
    x, n = lt.tensor([0.5, -1.5]), lt.tensor([[-1], [0], [1], [3]])
    values = special.chebyshev_polynomial_t(x, n)
    np.testing.assert_allclose(
        values.numpy(), [[0, 0], [1, 1], [0.5, -1.5], [-1.0, 4 * -3.375 + 4.5]]
    )
    cut = special.legendre_polynomial_p(x, lt.tensor([1.9, -0.5]))
    np.testing.assert_allclose(cut.numpy(), [0.5, 1.0])


def test_degrees_of_hermite_too_high_for_the_precision_are_nan():
    assert special.hermite_polynomial_h(lt.ones(1), 129).isnan().all()
    assert special.hermite_polynomial_h(lt.ones(1, dtype=lt.float64), 129).isfinite().all()


def test_derivatives_of_any_order_follow_from_the_recurrence():
    x = lt.tensor([0.3, -0.7], dtype=lt.float64, requires_grad=True)
    y = special.legendre_polynomial_p(x, 4)  # (35 x^4 - 30 x^2 + 3) / 8
    for expected in (lambda v: (140 * v**3 - 60 * v) / 8, lambda v: (420 * v**2 - 60) / 8):
        (y,) = lt.autograd.grad(y.sum(), [x], create_graph=True)
        np.testing.assert_allclose(y.detach().numpy(), expected(x.detach().numpy()))


def test_a_degree_has_no_gradient():
    n = lt.tensor([2.0], requires_grad=True)
    with pytest.raises(NotImplementedError, match="with respect to n"):
        special.laguerre_polynomial_l(lt.ones(1), n)


# mpmath's values to 17 digits: besselj(0, 30.5), bessely(1, 20.25), besselk(0, 0.7), airyai(-1.5)
EXACT = {
    "bessel_j0": (30.5, -0.019389754517762152),
    "bessel_y1": (20.25, -0.14296347318040760),
    "modified_bessel_k0": (0.7, 0.66051985991510160),
    "airy_ai": (-1.5, 0.46425657774886940),
}


@pytest.mark.parametrize("name", EXACT)
def test_values_are_right_to_the_last_digits(name):
    x, expected = EXACT[name]
    got = getattr(special, name)(lt.tensor(x, dtype=lt.float64)).item()
    assert got == pytest.approx(expected, rel=4e-15, abs=3e-16)


def test_the_limits_of_the_spherical_function():
    x = lt.tensor([0.0, float("inf"), -float("inf"), float("nan")])
    np.testing.assert_array_equal(special.spherical_bessel_j0(x).numpy(), [1, 0, 0, np.nan])
    x = lt.zeros(1, dtype=lt.float64, requires_grad=True)
    special.spherical_bessel_j0(x).sum().backward()
    assert x.grad.item() == 0


def test_airy_of_many_elements_goes_tile_by_tile():
    x = lt.linspace(-5, 2, 10_001, dtype=lt.float64)
    np.testing.assert_array_equal(special.airy_ai(x).numpy(), reference.airy(x.numpy())[0])
    x = lt.tensor([0.3, -1.2], dtype=lt.float64, requires_grad=True)
    testing.check_second_gradient(lambda xs: [special.airy_ai(xs[0])], [x])
