"""Functions of one number: dtypes, edges, what is kept, complex numbers."""

import math
import subprocess
import sys

import numpy as np
import pytest

import lowtide as lt

INF = float("inf")


def leaf(*values):
    return lt.tensor(values, requires_grad=True)


@pytest.mark.parametrize("name", ["exp", "tanh", "sigmoid", "tan", "expm1"])
def test_the_result_is_all_that_is_kept(name):
    out = getattr(leaf(0.5), name)()
    assert [label for label, *_ in out.grad_fn.saved] == [f"{name}.out"]


@pytest.mark.parametrize("name", ["floor", "ceil", "round", "trunc"])
def test_rounding_leaves_integers_alone(name):
    assert getattr(lt.tensor([1, 2]), name)().dtype is lt.int64


def test_rounding_has_a_gradient_of_zeros():
    x = leaf(1.2)
    x.floor().sum().backward()
    assert x.grad.tolist() == [0.0]


def test_round_takes_halves_to_even_and_decimals():
    assert lt.tensor([0.5, 1.5, 2.5]).round().tolist() == [0.0, 2.0, 2.0]
    np.testing.assert_allclose(lt.tensor([1.25, 15.0]).round(decimals=-1).numpy(), [0.0, 20.0])


def test_integers_become_the_default_float():
    assert lt.tensor([1]).exp().dtype is lt.float32
    assert lt.tensor([True]).sigmoid().dtype is lt.float32


def test_sigmoid_saturates_without_warning():
    assert lt.tensor([-1e4, 1e4]).sigmoid().tolist() == [0.0, 1.0]


def test_nan_to_num_takes_the_limits_of_the_dtype():
    x = lt.tensor([float("nan"), INF, -INF, 1.0])
    high = lt.finfo(lt.float32).max
    assert x.nan_to_num().tolist() == [0.0, high, -high, 1.0]
    assert x.nan_to_num(nan=2.0, posinf=3.0, neginf=4.0).tolist() == [2.0, 3.0, 4.0, 1.0]
    assert x.nan_to_num_(0.5) is x
    assert x.tolist() == [0.5, high, -high, 1.0]


@pytest.mark.parametrize("size", [1, 5000])  # NumPy's calls, and compiled loops
@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64", "complex64"])
def test_nan_to_num_takes_the_limits_of_every_dtype(name, size):
    dtype = getattr(lt, name)
    part = dtype.to_real()
    high = lt.finfo(part).max
    x = lt.tensor([math.nan, math.inf, -math.inf, 1.0] * size, dtype=part)
    x = lt.complex(x, x) if dtype.is_complex else x
    for found in (x.nan_to_num(), x.clone().nan_to_num_(), lt.nan_to_num(x, out=x.clone())):
        assert found.dtype is dtype
        for values in (found.real, found.imag) if dtype.is_complex else (found,):
            assert values.tolist() == [0.0, high, -high, 1.0] * size


def test_xlogy_is_zero_where_its_first_argument_is():
    x, y = leaf(0.0, 1.0), leaf(0.0, 2.0)
    out = lt.xlogy(x, y)
    out.sum().backward()
    np.testing.assert_allclose(out.detach().numpy(), [0.0, np.log(2.0)], rtol=1e-6)
    assert x.grad[0].item() == 0.0


def test_sinc_is_one_and_flat_at_zero():
    x = leaf(0.0)
    out = x.sinc()
    out.backward(lt.ones(1))
    assert (out.tolist(), x.grad.tolist()) == ([1.0], [0.0])


def test_float_power_computes_in_float64():
    assert lt.float_power(lt.tensor([2]), 2).dtype is lt.float64


def test_heaviside_wants_equal_dtypes():
    with pytest.raises(RuntimeError, match="same dtype"):
        lt.heaviside(lt.ones(2), lt.tensor([1]))


def test_real_and_imaginary_parts_are_views():
    z = lt.tensor([1 + 2j, 3 - 4j])
    z.imag.fill_(0.0)
    assert z.tolist() == [1 + 0j, 3 + 0j]
    x = lt.ones(2)
    assert x.real is x
    with pytest.raises(RuntimeError, match="not implemented for tensors with non-complex"):
        lt.imag(x)


def test_modulus_and_angle_of_complex_numbers():
    z = lt.tensor([3 + 4j])
    assert z.abs().tolist() == [5.0]
    assert z.abs().dtype is lt.float32
    assert lt.tensor([-1.0, 1.0, -0.0]).angle().tolist() == [pytest.approx(np.pi), 0.0, 0.0]


def test_scipy_is_imported_on_first_use_only():
    code = (
        "import sys, lowtide as lt; assert 'scipy.special' not in sys.modules; "
        "lt.ones(1).erf(); assert 'scipy.special' in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_lgamma_is_infinite_where_the_gamma_function_has_no_end():
    x = lt.tensor([-float("inf"), -2.0, 0.0, float("inf"), float("nan"), 1.0])
    inf = float("inf")
    np.testing.assert_array_equal(lt.lgamma(x).numpy(), [inf, inf, inf, inf, np.nan, 0])
    np.testing.assert_array_equal(x.lgamma_().numpy(), [inf, inf, inf, inf, np.nan, 0])
