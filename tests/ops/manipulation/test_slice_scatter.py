"""Copies with a part replaced, flat writes, pairs and complex numbers, parts of numbers."""

import numpy as np
import pytest

import lowtide as lt
from lowtide.framework.testing import check_gradient, check_second_gradient

X, Y = np.random.default_rng(0).standard_normal((2, 4, 5))
ROWS = lt.tensor([2, 0, 2])


@pytest.mark.parametrize(
    "f",
    [
        lambda x, y: x.select_scatter(y[:, 0], 1, 2),
        lambda x, y: x.slice_scatter(y[:2], 0, 0, 4, 2),
        lambda x, y: x.diagonal_scatter(y[0, :4], 1),
        lambda x, y: x.as_strided_scatter(y[:2, :2], (2, 2), (6, 2), 1),
        lambda x, y: x.index_reduce(0, ROWS, y[:3], "prod"),
        lambda x, y: x.put(ROWS, y[0, :3], True),
        lambda x, y: (x * y).fill_diagonal_(2.0),
        lambda x, y: lt.view_as_real(lt.complex(x, y) ** 2),
    ],
)
def test_two_orders_of_gradient_agree_with_finite_differences(f):
    xs = [lt.tensor(a, requires_grad=True) for a in (X, Y)]
    check_gradient(lambda v: (f(*v),), xs)
    check_second_gradient(lambda v: (f(*v),), xs)


def test_the_input_of_a_patch_is_unchanged():
    x = lt.tensor(X)
    x.select_scatter(lt.zeros(5, dtype=lt.float64), 0, 1)
    x.put(ROWS, lt.zeros(3, dtype=lt.float64))
    np.testing.assert_array_equal(x.numpy(), X)


def test_pairs_and_complex_numbers_share_memory():
    z = lt.zeros(3, dtype=lt.complex64)
    lt.view_as_real(z)[1, 1] = 2.0
    assert z.tolist() == [0j, 2j, 0j]
    lt.view_as_complex(lt.view_as_real(z)).mul_(2)
    assert z[1].item() == 4j


def test_a_wrapped_diagonal_goes_on_below():
    assert lt.zeros(7, 3).fill_diagonal_(1.0, wrap=True).sum(1).tolist() == [1, 1, 1, 0, 1, 1, 1]


def test_a_mantissa_and_its_exponent_make_the_number():
    x = lt.tensor(X)
    assert lt.ldexp(*x.frexp()).equal(x)


def test_places_fill_up_or_cut_off_to_a_size():
    x = lt.tensor([[0, 1], [2, 0]])
    assert x.nonzero_static(size=3).tolist() == [[0, 1], [1, 0], [-1, -1]]
    assert x.nonzero_static(size=1).tolist() == [[0, 1]]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: lt.ones(2, 2).select_scatter(lt.ones(3), 0, 0), RuntimeError, "size equal to"),
        (lambda: lt.ones(2).slice_scatter(lt.ones(2), step=0), RuntimeError, "must be positive"),
        (lambda: lt.ones(2).put(ROWS, lt.ones(2)), IndexError, "same number of elements"),
        (lambda: lt.ones(2).put(ROWS.int(), lt.ones(3)), RuntimeError, "Expected a long tensor"),
        (lambda: lt.ones(2).fill_diagonal_(1), RuntimeError, "larger than 1"),
        (lambda: lt.view_as_real(lt.ones(2)), RuntimeError, "only supported for complex"),
        (lambda: lt.view_as_complex(lt.ones(3)), RuntimeError, "last dimension of size 2"),
        (lambda: lt.gcd(lt.ones(2), lt.ones(2)), NotImplementedError, "takes integers"),
        (lambda: lt.arange(3).frexp(), RuntimeError, "floating-point dtypes"),
        (lambda: lt.ones(2).mvlgamma(0), RuntimeError, "greater than or equal to 1"),
        (lambda: lt.ones(2).float_power_(2), RuntimeError, "requires dtype"),
        (
            lambda: lt.ones(3).index_reduce(0, ROWS, lt.ones(3), "sum"),
            RuntimeError,
            "prod, mean, amax or amin",
        ),
    ],
)
def test_errors_say_the_rule(call, error, message):
    with pytest.raises(error, match=message):
        call()
