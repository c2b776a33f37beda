"""The calls of ``torch.utils.checkpoint``, as programs written for PyTorch make them."""

from __future__ import annotations

import contextlib
import inspect
import warnings

import pytest

import lowtide as lt
from lowtide import nn
from lowtide.utils.checkpoint import checkpoint, checkpoint_sequential
from tests.checkpointing.twice import assert_same, gradients, live, plain

pytestmark = pytest.mark.usefixtures("leak_check")


def model():
    return nn.Sequential(
        nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Dropout(0.5), nn.Linear(4, 2)
    )


OPTIONS = [
    {},
    {"use_reentrant": False},
    {"use_reentrant": True},
    {"use_reentrant": False, "preserve_rng_state": False},
    {"use_reentrant": False, "determinism_check": "none", "debug": True},
    {"use_reentrant": False, "early_stop": False},
    {"context_fn": lambda: (contextlib.nullcontext(), contextlib.nullcontext())},
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: ",".join(o) or "none")
def test_every_option_is_taken_and_changes_no_bit(options):
    def step(region):
        layers, x = model(), lt.randn(5, 4, requires_grad=True)
        if region is plain:
            y = layers(x)
        else:
            with warnings.catch_warnings():
                warnings.simplefilter("error")  # PyTorch warns where use_reentrant is missing
                y = checkpoint(layers, x, **options)
        return y, gradients(y, x, *layers.parameters()), dict(layers.named_buffers())

    assert_same(step)


def test_keywords_of_the_function_are_passed_on():
    def f(x, w=None, *, scale, use=None):
        return (x @ w * scale).tanh() if use is None else None

    def step(region):
        x, w = lt.randn(3, 4, requires_grad=True), lt.randn(4, 4, requires_grad=True)
        if region is plain:
            y = f(x, w=w, scale=2)
        else:
            y = checkpoint(f, x, w=w, scale=2, use_reentrant=False)
        return y, gradients(y, x, w)

    assert_same(step)
    assert checkpoint(f, lt.ones(1), scale=1, use=1) is None


def test_the_first_context_is_entered_around_the_call():
    entered = []

    @contextlib.contextmanager
    def noted(name):
        entered.append(name)
        yield

    x = lt.randn(3, requires_grad=True)
    y = checkpoint(
        lambda x: x.exp().sin(),
        x,
        use_reentrant=False,
        context_fn=lambda: (noted("forward"), noted("recompute")),
    )
    y.sum().backward()
    assert entered == ["forward"]  # there is no second run of the function


def test_bytes_are_those_of_our_own_checkpoint():
    x = lt.randn(100, requires_grad=True)
    before = live()
    y = checkpoint(lambda x: x.exp().sin().tanh(), x, use_reentrant=False)
    assert live() - before == y.nbytes
    y.sum().backward()


@pytest.mark.parametrize("segments", [1, 2, 5])
def test_sequential(segments):
    def step(region):
        layers, x = model(), lt.randn(5, 4, requires_grad=True)
        if region is plain:
            y = layers(x)
        else:
            y = checkpoint_sequential(layers, segments, x, use_reentrant=False)
        found = gradients(y, x)
        if region is plain:
            y = layers(x)
        else:
            y = checkpoint_sequential(list(layers), segments, input=x, preserve_rng_state=True)
        return y, found, gradients(y, *layers.parameters())

    assert_same(step)


def test_sequential_refuses_other_keywords():
    with pytest.raises(ValueError, match="Unexpected keyword arguments: scale"):
        checkpoint_sequential(model(), 2, lt.ones(1, 4), scale=1)


def test_names_are_where_pytorch_has_them():
    assert lt.utils.checkpoint.checkpoint is checkpoint
    names = list(inspect.signature(checkpoint).parameters)
    assert names[:2] == ["function", "args"]
    assert {"use_reentrant", "context_fn", "determinism_check", "debug", "early_stop"} <= set(names)
    assert list(inspect.signature(checkpoint_sequential).parameters) == [
        "functions",
        "segments",
        "input",
        "use_reentrant",
        "preserve_rng_state",
        "kwargs",
    ]


def test_an_unknown_determinism_check_is_refused():
    with pytest.raises(ValueError, match="one of .*'none'.*'shapes'"):
        checkpoint(lt.exp, lt.ones(2), use_reentrant=False, determinism_check="shapes")
