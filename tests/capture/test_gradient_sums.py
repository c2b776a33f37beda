"""Gradients of a compiled model: sums in the order of the model as written, second derivatives."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import numpy as np
import pytest

import lowtide as lt
from lowtide import nn, optim
from lowtide.nn import functional as F
from tests.capture.nets import bits, data


class Critic(nn.Module):
    """Of smooth ops; its argument and a weight are used several times."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(6, 12), nn.Linear(12, 6)
        self.drop = nn.Dropout(0.3)

    def forward(self, x: Any) -> Any:
        h = self.drop(F.silu(self.inner(x)) * self.inner(x.flip(1)).tanh())
        return (self.outer(h) * x + x.sin()).sum(1)


def penalty(net: Any, x: Any) -> Any:
    scores = net(x)
    (g,) = lt.autograd.grad(scores.sum(), x, create_graph=True)
    return scores.sin().mean() + (g.norm(dim=1) - 1).square().mean()


@pytest.mark.parametrize("which", ["penalty", "both", "hessian"])
def test_second_derivatives_are_those_of_the_model_as_written(which: str) -> None:
    net = Critic()
    other = copy.deepcopy(net)
    compiled = lt.compile(other)
    found: list[Any] = [[], []]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lt.CaptureWarning)
        for k in range(14):
            for m, owner, notes in ((net, net, found[0]), (compiled, other, found[1])):
                lt.manual_seed(k)
                owner.zero_grad(set_to_none=True)
                x = (data() + k / 10).requires_grad_()
                y = x * 2  # no leaf
                if which == "both":
                    m(y).sin().sum().backward(retain_graph=True)
                    m(y).exp().sum().backward(retain_graph=True)
                if which == "hessian":
                    (g,) = lt.autograd.grad(m(y).sum(), y, create_graph=True)
                    (h,) = lt.autograd.grad(g.square().sum(), y, create_graph=True)
                    h.square().sum().backward()
                else:
                    penalty(m, y).backward()
                notes.append([x.grad, *(p.grad for p in owner.parameters())])
    for expected, given in zip(*found, strict=True):
        for a, b in zip(expected, given, strict=True):
            assert np.allclose(a.numpy(), b.numpy(), rtol=1e-4, atol=1e-6)
    assert compiled._compiled.replays > 0 or which == "hessian"
    if which != "both":
        why = ("its backward has to run it again", "no backward follows")
        assert any(w in compiled._compiled.explain() for w in why), compiled._compiled.explain()


def test_second_derivatives_are_an_error_if_what_was_read_has_changed() -> None:
    net = lt.compile(Critic())
    x = data().requires_grad_()
    for _ in range(5):
        net(x).sum().backward()
    assert net._compiled.replays > 0
    loss = net(x).sum()
    with lt.no_grad():
        net.outer.bias.add_(1)  # which backward does not read
    with pytest.raises(RuntimeError, match="a tensor that it reads has been modified"):
        lt.autograd.grad(loss, x, create_graph=True)


def twice(net: Any, x: Any) -> Any:
    return net(x).sin().sum() + net(x * 2).cos().sum()


def behind(net: Any, x: Any) -> Any:
    y = x.tanh()
    return (net(y).sin()[:, None] + y).square().sum()


def in_a_row(net: Any, x: Any) -> Any:
    for _ in range(3):
        x = x * 0.5 + net(x).sin()[:, None]
    return x.square().sum()


@pytest.mark.parametrize("use", [twice, behind, in_a_row])
@pytest.mark.parametrize("dtype", [lt.float32, lt.float64, lt.bfloat16])
def test_sums_of_gradients_are_formed_in_the_order_of_the_model_as_written(
    use: Any, dtype: Any
) -> None:
    net = Critic().to(dtype)
    other = copy.deepcopy(net)
    compiled = lt.compile(other)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lt.CaptureWarning)
        for k in range(12):
            found = []
            for m, owner in ((net, net), (compiled, other)):
                lt.manual_seed(k)
                owner.zero_grad()
                x = (data() + k / 10).to(dtype).requires_grad_()
                loss = use(m, x)
                loss.backward()
                grads = [x.grad, *(p.grad for p in owner.parameters())]
                found.append(
                    [bits(t.float() if dtype is lt.bfloat16 else t) for t in (loss, *grads)]
                )
            assert found[0] == found[1], k
    assert compiled._compiled.replays > 6


class Unused(lt.autograd.Function):
    """A function of two tensors that gives one of them no gradient."""

    @staticmethod
    def forward(ctx: Any, x: Any, y: Any) -> Any:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        (x,) = ctx.saved_tensors
        return 2 * x * g, None


@pytest.mark.parametrize("leaf", [False, True])
def test_gradients_that_a_call_makes_beyond_its_arguments_are_there_within_it(leaf: bool) -> None:
    # A part of the graph is never run, so it is not freed either.
    found = []
    for compile in (False, True):
        lt.manual_seed(0)
        w = nn.Parameter(lt.randn(4))
        optimizer = optim.SGD([w], lr=0.1, momentum=0.9)

        def step(loss: Any, w: Any = w, optimizer: Any = optimizer) -> Any:
            loss.sum().backward()
            if w.grad is not None:
                w.grad.clamp_(-0.5, 0.5)
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach() * 1

        run = lt.compile(step) if compile else step
        losses = []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", lt.CaptureWarning)
            for k in range(10):
                losses.append(run(w if leaf else Unused.apply(w * (k + 1), w.exp().sin())))
        found.append([bits(t) for t in (*losses, w)])
    assert found[0] == found[1]


class Signs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(lt.ones(4))

    def forward(self, x: Any) -> Any:
        return (x * self.weight + x.abs() * self.weight.neg() + x * self.weight).exp()


def test_nothing_that_has_arrived_is_a_zero_that_keeps_signs() -> None:
    net = Signs()
    compiled = lt.compile(net)
    x = lt.full((4,), -0.0)
    for _ in range(10):
        net.zero_grad()
        (compiled(x).sum() + compiled(x * 2).sum()).backward()
        assert bits(net.weight.grad) == bits(x)
    assert compiled._compiled.replays > 6


def test_a_recording_that_lacks_what_arrives_is_made_anew() -> None:
    net = lt.compile(Critic().eval())
    x = data()
    for k in range(20):
        loss = net(x).sin().sum() if k < 6 else twice(net, x)
        loss.backward()
        if k == 5:
            assert net._compiled.replays == 3
        if k == 14:
            before = runs_again(net)
    assert runs_again(net) == before > 0
    assert net._compiled.replays > 20


def runs_again(net: Any) -> int:
    (kind,) = net._compiled._kinds.values()
    return kind.again + sum(r.replay.again for r in kind.recordings)
