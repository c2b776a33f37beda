"""Comparison and logic: results, other types, ties and ends, messages."""

import pytest

import lowtide as lt

NAN, INF = float("nan"), float("inf")


def leaf(*values):
    return lt.tensor(values, requires_grad=True)


@pytest.mark.parametrize("name", ["eq", "ne", "lt", "le", "gt", "ge"])
def test_comparisons_are_bool_and_carry_no_gradient(name):
    out = getattr(lt, name)(leaf(1.0, 2.0), 1.5)
    assert out.dtype is lt.bool
    assert not out.requires_grad


def test_equality_with_something_else_is_pythons():
    x = lt.ones(2)
    assert (x == None) is False  # noqa: E711 - the operator is what is tested
    assert (x != "text") is True
    with pytest.raises(TypeError, match="not supported between"):
        x < None  # noqa: B015


def test_a_tensor_stays_hashable():
    x = lt.ones(2)
    assert {x: 1}[x] == 1


def test_logic_takes_any_nonzero_value_for_true():
    x = lt.tensor([0.0, 2.0])
    assert x.logical_not().tolist() == [True, False]
    assert x.logical_and(lt.tensor([1, 1])).tolist() == [False, True]


def test_bits_refuse_floats():
    with pytest.raises(NotImplementedError, match="bitwise_and.*float32"):
        lt.ones(2) & 1
    with pytest.raises(NotImplementedError, match="bitwise_not.*float32"):
        lt.bitwise_not(lt.ones(2))
    with pytest.raises(TypeError, match="invert.*float32"):
        ~lt.ones(2)


def test_bit_operators():
    x = lt.tensor([6, 3])
    assert (x & 2).tolist() == [2, 2]
    assert (x | 1).tolist() == [7, 3]
    assert (x ^ x).tolist() == [0, 0]
    assert (~x).tolist() == [-7, -4]
    assert (x << 1).tolist() == [12, 6]
    assert (x >> 1).tolist() == [3, 1]
    x &= 2
    assert x.tolist() == [2, 2]


@pytest.mark.parametrize("dtype", [lt.float32, lt.float16, lt.bfloat16])
def test_kinds_of_numbers(dtype):
    x = lt.tensor([1.0, INF, -INF, NAN], dtype=dtype)
    assert x.isnan().tolist() == [False, False, False, True]
    assert x.isinf().tolist() == [False, True, True, False]
    assert x.isfinite().tolist() == [True, False, False, False]
    assert x.isposinf().tolist() == [False, True, False, False]
    assert x.isneginf().tolist() == [False, False, True, False]


def test_equal_wants_the_same_shape():
    assert lt.equal(lt.ones(2), lt.ones(2))
    assert not lt.equal(lt.ones(2), lt.ones(1))
    with pytest.raises(TypeError, match="must be Tensor"):
        lt.equal(lt.ones(2), 1)


def test_allclose_and_nan():
    x, y = lt.tensor([1.0, NAN]), lt.tensor([1.0 + 1e-7, NAN])
    assert not lt.allclose(x, y)
    assert lt.allclose(x, y, equal_nan=True)
    assert lt.isclose(lt.tensor([INF]), lt.tensor([INF])).tolist() == [True]
    with pytest.raises(RuntimeError, match="greater than or equal to zero"):
        lt.isclose(x, y, rtol=-1.0)
    with pytest.raises(RuntimeError, match="did not match"):
        lt.isclose(x, y.double())


@pytest.mark.parametrize("name", ["maximum", "minimum"])
def test_equal_elements_share_the_gradient(name):
    a, b = leaf(1.0), leaf(1.0)
    getattr(lt, name)(a, b).sum().backward()
    assert (a.grad.tolist(), b.grad.tolist()) == ([0.5], [0.5])


@pytest.mark.parametrize("name", ["fmax", "fmin"])
def test_nan_loses(name):
    a, b = leaf(NAN, 1.0), leaf(2.0, NAN)
    out = getattr(lt, name)(a, b)
    out.sum().backward()
    assert out.tolist() == [2.0, 1.0]
    assert (a.grad.tolist(), b.grad.tolist()) == ([0.0, 1.0], [1.0, 0.0])


def test_gradient_at_a_bound_of_clamp_is_one():
    x = leaf(-1.0, 0.0, 0.5, 1.0, 2.0)
    x.clamp(0.0, 1.0).sum().backward()
    assert x.grad.tolist() == [0.0, 1.0, 1.0, 1.0, 0.0]


def test_clamp_needs_an_end():
    with pytest.raises(RuntimeError, match="At least one of 'min' or 'max'"):
        lt.ones(2).clamp()


def test_clamp_in_place_with_one_end():
    x = lt.tensor([-1.0, 2.0])
    assert x.clamp_(min=0.0) is x
    assert x.clamp_max_(1.0).tolist() == [0.0, 1.0]


@pytest.mark.parametrize(
    "call",
    [
        lambda x: lt.maximum(x, 1),
        lambda x: lt.fmin(1, x),
        lambda x: lt.eq(1, x),
        lambda x: lt.logical_and(x, True),
        lambda x: lt.atan2(x, 2.0),
        lambda x: lt.clamp_min(1, x),
        lambda x: lt.ldexp(x, 2),
        lambda x: lt.rsub(2, x),
        lambda x: lt.max(2, x),
        lambda x: lt.gcd(x.int(), 2),
        lambda x: lt.isclose(x, 1.0),
        lambda x: lt.polar(x, 1.0),
        lambda x: lt.Tensor.__radd__(2, x),
        lambda x: lt.float_power(2, 3),
    ],
)
def test_numbers_do_not_stand_for_tensors_where_pytorch_asks_for_one(call):
    with pytest.raises(TypeError, match=r"Tensor"):
        call(lt.ones(2))


def test_what_is_real():
    assert lt.isreal(lt.tensor([0.0, 2.0])).tolist() == [True, True]
    assert lt.isreal(lt.tensor([1j, 2 + 0j])).tolist() == [False, True]


def test_clamp_refuses_complex_numbers():
    with pytest.raises(NotImplementedError, match="clamp is not supported for complex types"):
        lt.clamp(lt.tensor([1j]), 0, 1)
