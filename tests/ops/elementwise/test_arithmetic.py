"""Arithmetic: promotion, operators, edges of gradients, messages."""

import numpy as np
import pytest

import lowtide as lt
from lowtide.framework.ops.elementwise.arithmetic import _add, _div, _sub, mul

FOUR = [
    (lambda a, b: a + b, _add),
    (lambda a, b: a - b, _sub),
    (lambda a, b: a * b, mul),
    (lambda a, b: a / b, _div),
]


def leaf(*values):
    return lt.tensor(values, requires_grad=True)


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (lt.tensor([1]), 1.5, lt.float32),
        (lt.tensor([1], dtype=lt.uint8), lt.tensor([1], dtype=lt.int8), lt.int16),
        (lt.tensor([1.0]), lt.tensor(1.0, dtype=lt.float64), lt.float32),
        (lt.tensor([1], dtype=lt.int8), 300, lt.int8),
        (lt.tensor([True]), 1, lt.int64),
        (lt.tensor([1.0]), 1j, lt.complex64),
        (lt.tensor([1.0], dtype=lt.float16), lt.tensor([1.0], dtype=lt.bfloat16), lt.float32),
    ],
)
def test_addition_promotes(a, b, expected):
    assert (a + b).dtype is expected
    assert (b + a).dtype is expected


def test_true_division_of_integers_gives_the_default_float():
    assert (lt.tensor([1]) / 2).dtype is lt.float32
    lt.set_default_dtype(lt.float64)
    assert (lt.tensor([1]) / lt.tensor([2])).dtype is lt.float64


@pytest.mark.parametrize(("apply", "function"), FOUR)
def test_operators_find_their_plan_again(apply, function):
    a, b = lt.ones(3), lt.ones(3)
    apply(a, b)
    plans = dict(function.op.plans)
    apply(a, b)
    assert function.op.plans == plans


def test_reflected_operators_keep_the_order():
    x = lt.tensor([2.0, 4.0])
    assert (8 - x).tolist() == [6.0, 4.0]
    assert (8 / x).tolist() == [4.0, 2.0]
    assert (9 // x).tolist() == [4.0, 2.0]
    assert (9 % x).tolist() == [1.0, 1.0]
    assert (2**x).tolist() == [4.0, 16.0]


def test_in_place_operators_write_into_the_same_memory():
    x = lt.tensor([2.0, 4.0])
    before = x.data_ptr()
    x += 1
    x -= 2
    x *= 6
    x /= 3
    x **= 2
    x //= 3
    x %= 5
    assert x.data_ptr() == before
    assert x.tolist() == [1.0, 2.0]


def test_integers_wrap_as_in_pytorch():
    assert (lt.tensor([1], dtype=lt.uint8) + 300).tolist() == [45]
    assert (lt.tensor([1], dtype=lt.uint8) - 2).tolist() == [255]
    assert (lt.tensor([2], dtype=lt.int8) * 200).tolist() == [-112]


def test_overflow_and_division_by_zero_are_silent():
    x = lt.tensor([3e38, 0.0, -1.0])
    assert (x * 10)[0].item() == float("inf")
    assert (1 / x)[1].item() == float("inf")
    assert ((x * 10) - (x * 10))[0].isnan().item()
    assert x.sqrt()[2].isnan().item()


@pytest.mark.parametrize("name", "add sub mul div maximum eq pow bitwise_and".split())
def test_shapes_that_do_not_broadcast_are_named_with_the_op(name):
    a, b = lt.ones(2, 3, dtype=lt.int64), lt.ones(2, 4, dtype=lt.int64)
    with pytest.raises(RuntimeError, match=rf"^{name} broadcasts .*\(2, 3\) and \(2, 4\).*1 \(3"):
        getattr(lt, name)(a, b)


@pytest.mark.parametrize("name", ["add_", "mul_", "div_", "pow_", "lerp_", "clamp_"])
def test_in_place_refuses_a_broader_result(name):
    x, wide = lt.ones(3), lt.ones(2, 3)
    with pytest.raises(RuntimeError, match="doesn't match the broadcast shape"):
        getattr(x, name)(wide, *([0.5] if name == "lerp_" else []))


def test_in_place_refuses_a_result_of_a_higher_kind():
    with pytest.raises(RuntimeError, match="can't be cast"):
        lt.tensor([1]).div_(2)
    with pytest.raises(RuntimeError, match="can't be cast"):
        lt.tensor([1]).add_(1.5)


def test_subtracting_bools_is_refused():
    mask = lt.tensor([True])
    with pytest.raises(RuntimeError, match="with two bool tensors"):
        lt.sub(mask, mask)
    with pytest.raises(RuntimeError, match="with a bool tensor"):
        1 - mask
    with pytest.raises(RuntimeError, match="on a bool tensor"):
        lt.neg(mask)


def test_none_is_refused_by_name():
    with pytest.raises(TypeError, match="^add takes Tensors and Python scalars; got None"):
        lt.ones(2) + None


@pytest.mark.parametrize("name", ["floor_divide", "remainder", "fmod"])
def test_integers_divided_by_zero_raise(name):
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        getattr(lt, name)(lt.tensor([1]), 0)


def test_unknown_rounding_mode_is_refused():
    with pytest.raises(RuntimeError, match="rounding_mode to be one of"):
        lt.div(lt.ones(1), 2, rounding_mode="up")


def test_rounded_divisions_of_negative_integers():
    x = lt.tensor([-7, 7])
    assert lt.div(x, 2, rounding_mode="trunc").tolist() == [-3, 3]
    assert lt.div(x, 2, rounding_mode="floor").tolist() == [-4, 3]
    x.div_(2, rounding_mode="trunc")
    assert x.tolist() == [-3, 3]


def test_float_alpha_for_integers_is_refused():
    with pytest.raises(RuntimeError, match="alpha must not be a floating point"):
        lt.add(lt.tensor([1]), lt.tensor([1]), alpha=0.5)


def test_power_of_integers_refuses_negative_exponents():
    with pytest.raises(RuntimeError, match="negative integer powers"):
        lt.tensor([2]) ** -1


def test_power_is_differentiable_at_zero():
    x = leaf(0.0, 2.0)
    (x**0).sum().backward()
    assert x.grad.tolist() == [0.0, 0.0]
    base, exponent = leaf(0.0, 0.0), leaf(0.0, 2.0)
    (base**exponent).sum().backward()
    assert base.grad.tolist() == [0.0, 0.0]
    assert exponent.grad.tolist() == [0.0, 0.0]


def test_square_root_keeps_only_its_result():
    out = leaf(4.0).sqrt()
    assert [label for label, *_ in out.grad_fn.saved] == ["sqrt.out"]


def test_product_keeps_only_the_constant_factor():
    x, mask = leaf(1.0, 2.0), lt.tensor([0.0, 1.0])
    assert [label for label, *_ in (x * mask).grad_fn.saved] == ["mul.other"]


def test_lerp_in_place_moves_an_average():
    average, value = lt.tensor([1.0, 2.0]), lt.tensor([3.0, 4.0])
    average.lerp_(value, 0.25)
    np.testing.assert_allclose(average.numpy(), [1.5, 2.5])


def test_aliases_are_the_same_functions():
    for alias, name in (("subtract", "sub"), ("multiply", "mul"), ("true_divide", "div")):
        assert getattr(lt, alias) is getattr(lt, name)
        assert getattr(lt.Tensor, f"{alias}_") is getattr(lt.Tensor, f"{name}_")


@pytest.mark.parametrize(
    "make",
    [lambda x: x.lerp(x.detach(), 0.25), lambda x: lt.sub(1.0, x, alpha=2), lambda x: x * 3.0],
)
def test_what_keeps_only_numbers_can_go_backward_twice(make):
    x = lt.ones(3, requires_grad=True)
    y = make(x).sum()
    y.backward()
    first = x.grad.tolist()
    y.backward()
    assert x.grad.tolist() == [2 * v for v in first]


def test_lerp_wants_one_dtype():
    x = lt.ones(2)
    with pytest.raises(RuntimeError, match="same dtype; got input lowtide.float32, end"):
        lt.lerp(x, x.double(), 0.5)
    with pytest.raises(RuntimeError, match="expected dtype lowtide.float32 for `weight`"):
        lt.lerp(x, x, x.double())
    with pytest.raises(NotImplementedError, match="not implemented for 'int64'"):
        lt.lerp(x.long(), x.long(), 0.5)
    assert lt.lerp(x, x, lt.tensor(0.5, dtype=lt.float64)).dtype is lt.float32


def test_bool_to_the_power_of_a_bool():
    b = lt.tensor([True, False])
    assert (b**True).tolist() == [True, False]
    assert (b**False).tolist() == [True, True]
    with pytest.raises(NotImplementedError, match="pow.*Bool"):
        b**b


def test_integers_to_negative_powers_round_toward_zero():
    base = lt.tensor([2, 1, -1, -1, 0, 3])
    power = lt.tensor([-1, -5, -3, -2, 0, 2])
    assert (base**power).tolist() == [0, 1, -1, 1, 1, 9]
    with pytest.raises(RuntimeError, match="negative integer powers"):
        base**-1


@pytest.mark.parametrize("name", ["abs", "floor", "ceil", "round", "trunc", "frac"])
def test_bool_is_no_number_to_round(name):
    with pytest.raises(NotImplementedError, match=f'"{name}" not implemented for'):
        getattr(lt, name)(lt.tensor([True]))


@pytest.mark.parametrize("name", ["log10", "expm1", "tanh", "acosh", "sinc", "sigmoid"])
def test_gradients_of_analytic_functions_conjugate_the_derivative(name):
    z = np.array([1.3 + 0.7j, -0.4 + 2.1j])
    x = lt.tensor(z).requires_grad_()
    getattr(x, name)().backward(lt.ones(2, dtype=lt.complex128))
    h = 1e-6
    f = getattr(lt, name)
    slope = (f(lt.tensor(z + h)).numpy() - f(lt.tensor(z - h)).numpy()) / (2 * h)
    np.testing.assert_allclose(x.grad.numpy(), slope.conj(), rtol=1e-6)


def test_abs_of_complex_zero_is_flat_in_every_derivative():
    x = lt.tensor([0j, 3 + 4j], dtype=lt.complex128, requires_grad=True)
    (g,) = lt.autograd.grad(x.abs().sum(), x, create_graph=True)
    np.testing.assert_allclose(g.detach().numpy(), [0j, 0.6 + 0.8j], rtol=1e-15)
    (h,) = lt.autograd.grad(g.abs().square().sum(), x)  # |g| is 1 off zero, and 0 at zero
    assert np.abs(h.numpy()).max() < 1e-15


@pytest.mark.parametrize("dtype", [lt.complex64, lt.complex128], ids=str)
@pytest.mark.parametrize("in_place", [False, True])
def test_complex_powers_whose_inverse_overflows_are_zero(dtype, in_place):
    base = lt.tensor([250.0, 3 + 4j, -1e10j, 1j], dtype=dtype)
    exponent = -57 if dtype is lt.complex64 else -99
    for e in (exponent, lt.full((4,), exponent)):
        found = base.clone().pow_(e) if in_place else base**e
        expected = np.exp(np.log(base.numpy().astype(complex)) * exponent)
        scale = abs(expected).max()
        assert (abs(found.numpy() - expected) <= 1e-4 * scale).all()
        assert found.isfinite().all()
