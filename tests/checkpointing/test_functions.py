"""A user's own ``autograd.Function`` inside a region."""

from __future__ import annotations

import numpy as np
import pytest

import lowtide as lt
from lowtide.framework.errors import GradientError
from tests.checkpointing.twice import assert_same, gradients, live, message_of, outcome

pytestmark = pytest.mark.usefixtures("leak_check")
calls = []


class OfOps(lt.autograd.Function):
    """Forward by ops; keeps an input, an output, and what is neither."""

    @staticmethod
    def forward(ctx, x, w):
        calls.append("forward")
        between = (x * w).sin()
        out = between.exp()
        ctx.save_for_backward(x, w, between, out)
        return out

    @staticmethod
    def backward(ctx, g):
        x, w, between, out = ctx.saved_tensors
        g = g * out * (1 - between * between).sqrt()
        return g * w, (g * x).sum(0)


class OfOpsAgain(OfOps):
    """Can be differentiated again: computes what has no history once more."""

    @staticmethod
    def backward(ctx, g):
        x, w, _, out = ctx.saved_tensors
        g = g * out * (x * w).cos()
        return g * w, (g * x).sum(0)


class ThroughNumPy(lt.autograd.Function):
    """Forward by NumPy, into memory of its own, of lowtide, and in place."""

    @staticmethod
    def forward(ctx, x):
        calls.append("forward")
        new = lt.from_numpy(np.exp(x.detach().numpy()))
        into = lt.empty_like(new)
        np.sin(new.numpy(), out=into.numpy())
        ctx.save_for_backward(new, into)
        return into

    @staticmethod
    def backward(ctx, g):
        new, into = ctx.saved_tensors
        return g * new * (1 - into * into) ** 0.5


class Once(OfOps):
    """Says that it cannot be repeated."""

    recompute = False


class Several(lt.autograd.Function):
    """Two outputs, one of them without a gradient."""

    @staticmethod
    def forward(x):
        return x.exp(), x.argsort(-1)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(*output)

    @staticmethod
    def backward(ctx, g, _):
        out, order = ctx.saved_tensors
        return g * out + order * 0


class Dirty(lt.autograd.Function):
    """Writes its input in place, by an op or through the array."""

    @staticmethod
    def forward(ctx, x, by_op):
        ctx.mark_dirty(x)
        if by_op:
            x.mul_(2)
        else:
            np.multiply(x.detach().numpy(), 2, out=x.detach().numpy())
        ctx.save_for_backward(x)
        return x

    @staticmethod
    def backward(ctx, g):
        (out,) = ctx.saved_tensors
        return g * 2 + out * 0, None


def cases():
    def ops(x, w):
        return OfOps.apply(x.sin(), w).exp()

    def numpy(x, w):
        return ThroughNumPy.apply((x * w).sin()) * x

    def once(x, w):
        return Once.apply(x.sin(), w).exp()

    def several(x, w):
        y, order = Several.apply(x * w)
        return y.gather(-1, order) * y

    def dirty(x, w):
        return Dirty.apply(x * w, True).sin() * Dirty.apply(x.exp() * w, False).sin()

    return [ops, numpy, once, several, dirty]


@pytest.mark.parametrize("case", cases(), ids=lambda f: f.__name__)
def test_a_function_runs_once_and_gives_the_same(case):
    def step(region):
        x, w = lt.randn(3, 4, requires_grad=True), lt.randn(4, requires_grad=True)
        y = region(lambda x: region(case, x, w) + case(x * 2, w), x)
        return y, gradients(y, x, w)

    assert_same(step)
    calls.clear()
    outcome(step, lt.checkpoint)
    assert len(calls) in (0, 2)


# Bytes kept beside the output: what NumPy wrote into ours, and what must not be repeated.
KEPT = {"ops": 0, "numpy": 480, "once": 2 * 480, "several": 0, "dirty": 480}


@pytest.mark.parametrize("case", cases(), ids=lambda f: f.__name__)
def test_what_a_function_keeps(case):
    x, w = lt.randn(3, 40, requires_grad=True), lt.randn(40, requires_grad=True)
    before = live()
    y = lt.checkpoint(case, x, w)
    assert live() - before == y.nbytes + KEPT[case.__name__]
    y.sum().backward()


def second_gradients(function):
    def step(region):
        x, w = lt.randn(3, 4, requires_grad=True), lt.randn(4, requires_grad=True)
        y = region(lambda x: function(x.sin(), w).exp(), x)
        (g,) = lt.autograd.grad(y.sum(), x, create_graph=True)
        return g, gradients(g.exp(), x, w)

    return step


def test_second_gradients_of_a_function():
    assert_same(second_gradients(OfOpsAgain.apply))


def test_second_gradients_through_what_has_no_history_are_refused():
    step = second_gradients(OfOps.apply)
    for region in (lambda f, x: f(x), lt.checkpoint):
        message = message_of(lambda region=region: step(region), GradientError)
        assert "OfOps.saved_tensors[2] (shape (3, 4)) was computed in forward" in message


def test_an_input_kept_by_a_function_may_not_change():
    w = lt.randn(4)
    x = lt.randn(3, 4, requires_grad=True)
    y = lt.checkpoint(lambda x: OfOps.apply(x.sin(), w).exp(), x)
    w.add_(1)
    message = message_of(lambda: y.sum().backward(), GradientError)
    assert "operation (add_ at" in message
