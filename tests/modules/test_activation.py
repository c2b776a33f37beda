"""Activations: in place, random slopes, deprecated arguments."""

from __future__ import annotations

import pytest

import lowtide as lt
from lowtide import nn

IN_PLACE = [
    nn.ReLU,
    nn.ReLU6,
    nn.LeakyReLU,
    nn.Hardtanh,
    nn.ELU,
    nn.CELU,
    nn.SELU,
    nn.SiLU,
    nn.Mish,
    nn.Hardswish,
    nn.Hardsigmoid,
    nn.RReLU,
]


@pytest.mark.parametrize("cls", IN_PLACE)
def test_in_place_returns_its_input_with_the_same_values(cls):
    x = lt.randn(4, 5)
    expected = cls().eval()(x).tolist()
    assert cls(inplace=True).eval()(x) is x
    assert x.tolist() == expected


@pytest.mark.parametrize("cls", [nn.ReLU, nn.LeakyReLU, nn.Hardtanh, nn.ELU, nn.SELU])
def test_in_place_allocates_nothing(cls):
    x = lt.randn(100, 10, requires_grad=True) * 1
    before = lt.memory_allocated("cpu")
    cls(inplace=True)(x)
    assert lt.memory_allocated("cpu") == before


def test_a_leaf_that_requires_grad_is_not_overwritten():
    x = lt.randn(4, requires_grad=True)
    before = x.tolist()
    with pytest.raises(RuntimeError, match="leaf"):
        nn.ReLU(inplace=True)(x)
    assert x.tolist() == before


def test_random_slopes_lie_between_their_bounds():
    out = nn.RReLU(0.2, 0.4)(lt.full((1000,), -1.0))
    assert -0.4 <= out.min().item() < -0.39
    assert -0.21 < out.max().item() <= -0.2


def test_random_slopes_have_a_gradient():
    x = lt.full((50,), -1.0, requires_grad=True)
    out = nn.RReLU()(x)
    (g,) = lt.autograd.grad(out.sum(), [x])
    assert g.tolist() == pytest.approx([-v for v in out.tolist()])


def test_softmax2d_wants_channels():
    with pytest.raises(ValueError, match="3D or 4D; got 2D"):
        nn.Softmax2d()(lt.ones(2, 3))


def hooked():
    module = nn.Softmax()
    module.register_forward_hook(lambda *_: None)
    return module


@pytest.mark.parametrize("function", [nn.Softmax(), nn.functional.softmax, hooked()])
def test_softmax_without_a_dim_warns(function):
    with pytest.warns(UserWarning, match="Implicit dimension choice for softmax") as found:
        assert function(lt.zeros(2, 4)).tolist() == [[0.25] * 4] * 2
    assert [w.filename for w in found] == [__file__]  # the caller's line is what to change


def test_the_old_limits_of_hardtanh_warn():
    with pytest.warns(FutureWarning, match="min_value.*min_val"):
        assert nn.Hardtanh(min_value=-2.0).min_val == -2.0
    with pytest.warns(FutureWarning, match="max_value.*max_val"):
        assert nn.Hardtanh(max_value=2.0).max_val == 2.0


def test_hardtanh_needs_a_range():
    with pytest.raises(AssertionError, match=r"max_val must be larger than min_val; got 1\.0"):
        nn.Hardtanh(1.0, 1.0)


def test_clamped_elements_get_no_gradient_in_bfloat16():
    # 0.7 is 0.69921875 there: the limit has to be compared as the result holds it.
    x = lt.tensor([0.9, 0.5, -2.0]).bfloat16().requires_grad_()
    nn.Hardtanh(-0.7, 0.7)(x).sum().backward()
    assert x.grad.tolist() == [0.0, 1.0, 0.0]
