"""The gradient checks accept what is right and refuse what is wrong."""

from __future__ import annotations

import pytest

import lowtide as lt
from lowtide.autograd import Function, GradcheckError, gradcheck, gradgradcheck


def leaf(*shape: int, dtype: lt.dtype = lt.float64) -> lt.Tensor:
    return lt.randn(shape, dtype=dtype).requires_grad_()


class WrongSquare(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * 3 * x


class WrongSecond(Function):
    """The first derivative is right; its own derivative is lost."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * 2 * x.detach()


@pytest.mark.parametrize("fast", [False, True])
def test_right_gradients_pass(fast):
    x, y = leaf(2, 3), leaf(3)
    assert gradcheck(lambda x, y: x * y + x, (x, y), fast_mode=fast)
    assert gradgradcheck(lambda x, y: x * x * y, (x, y), fast_mode=fast)


@pytest.mark.parametrize("fast", [False, True])
def test_wrong_gradients_fail(fast):
    with pytest.raises(GradcheckError, match="Jacobian mismatch for output 0 with respect to inp"):
        gradcheck(WrongSquare.apply, (leaf(3),), fast_mode=fast)
    assert not gradcheck(WrongSquare.apply, (leaf(3),), fast_mode=fast, raise_exception=False)


def test_wrong_second_derivatives_fail():
    x = leaf(3)
    assert gradcheck(WrongSecond.apply, (x,))
    with pytest.raises(GradcheckError):
        gradgradcheck(WrongSecond.apply, (x,))


def test_several_outputs_and_plain_arguments():
    x = leaf(2)
    assert gradcheck(lambda x, k, y: (x * k, (x * y).sum()), (x, 3.0, lt.ones(2)))


@pytest.mark.parametrize("fast", [False, True])
def test_complex_inputs(fast):
    z = lt.tensor([1.0 + 2.0j, -0.5 + 0.1j], dtype=lt.complex128, requires_grad=True)
    assert gradcheck(lambda z: z * z * (2.0 + 1.0j), (z,), fast_mode=fast)
    assert gradcheck(lambda z: z.abs(), (z,), fast_mode=fast)


def test_an_input_must_require_grad():
    with pytest.raises(ValueError, match="at least one input tensor to require gradient"):
        gradcheck(lambda x: x * 2, (lt.ones(2),))


def test_single_precision_warns():
    x = leaf(2, dtype=lt.float32)
    with pytest.warns(UserWarning, match="not a double precision"):
        gradcheck(lambda x: x * 2, (x,), atol=1.0, eps=1e-2)


def test_overlapping_inputs_are_refused():
    x = lt.ones(1, dtype=lt.float64).expand(3).requires_grad_()
    with pytest.raises(RuntimeError, match="stride 0"):
        gradcheck(lambda x: x * 2, (x,))


def test_a_backward_that_changes_between_runs_fails():
    class Drifts(Function):
        runs = 0

        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, g):
            Drifts.runs += 1
            return g * (1 + 1e-7 * Drifts.runs)

    with pytest.raises(GradcheckError, match="not reentrant"):
        gradcheck(Drifts.apply, (leaf(2),))
    Drifts.runs = 0
    assert gradcheck(Drifts.apply, (leaf(2),), nondet_tol=1e-3)


def test_a_backward_that_cannot_take_none_fails():
    class NeedsOne(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.set_materialize_grads(False)
            return x * 2, x * 3

        @staticmethod
        def backward(ctx, a, b):
            if a is None:
                return b * 3
            return a * 2 if b is None else a * 2 + b * 3

    x = leaf(2)
    with pytest.raises(GradcheckError, match="undefined output grads"):
        gradcheck(NeedsOne.apply, (x,))
    assert gradcheck(NeedsOne.apply, (x,), check_undefined_grad=False)


def test_zero_sized_and_scalar_inputs():
    assert gradcheck(lambda x: x * 2, (leaf(0, 3),))
    assert gradcheck(lambda x: x * x, (leaf(),))


def test_inputs_are_as_they_were():
    x = leaf(3)
    before = x.tolist()
    gradcheck(lambda x: x * x, (x,))
    assert x.tolist() == before
    assert x._version == 0


def test_the_function_may_reach_its_input_by_another_way():
    x = leaf(3)
    assert gradcheck(lambda y: x * y, (x,))
