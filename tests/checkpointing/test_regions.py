"""Regions as programs write them: what flows in and out, and what is read from them afterwards."""

from __future__ import annotations

import copy
import gc

import pytest

import lowtide as lt
from lowtide import nn
from lowtide.checkpointing import checkpoint_sequential
from tests.checkpointing.twice import assert_same, gradients, live, outcome, plain

F = nn.functional
pytestmark = pytest.mark.usefixtures("leak_check")


def leaf(*shape, dtype=None):
    return lt.randn(*shape, dtype=dtype, requires_grad=True)


def curve(x, w):
    """Ops that save inputs, outputs, both and neither."""
    h = (x @ w).tanh()
    h = h * h.exp() + x
    return (h.sin() @ w).softmax(-1) * h


# What flows in and out


def test_a_function_of_tensors():
    def step(region):
        x, w = leaf(4, 5), leaf(5, 5)
        y = region(curve, x, w)
        return y, gradients(y, x, w)

    assert_same(step)


def test_a_chain_of_regions():
    def step(region):
        x, w = leaf(4, 5), leaf(5, 5)
        y = x
        for _ in range(4):
            y = region(curve, y, w)
        return y, gradients(y, x, w)

    assert_same(step)


def test_results_in_tuples_dicts_and_none():
    def f(x, w):
        a = curve(x, w)
        return {"a": a, "more": (a * w[0], None, [a.argmax(-1), 7]), "text": "t", "x": x}

    def step(region):
        x, w = leaf(4, 5), leaf(5, 5)
        out = region(f, x, w)
        assert out["x"] is x
        return out, gradients(out["a"] * out["more"][0], x, w)

    assert_same(step)
    assert lt.checkpoint(lambda x: None, lt.ones(2)) is None


def test_keyword_tensors_and_containers_as_arguments():
    def f(x, *, weights, scale=1.0):
        for w in weights["list"]:
            x = (x @ w).tanh() * scale
        return x

    def step(region):
        x, a, b = leaf(3, 4), leaf(4, 4), leaf(4, 4)
        y = region(f, x, weights={"list": [a, b, a]}, scale=0.5)
        return y, gradients(y, x, a, b)

    assert_same(step)


def test_inputs_without_gradient_do_not_cost_the_parameters_theirs():
    def step(region):
        x, layer = lt.randn(3, 4), nn.Linear(4, 4)
        y = region(lambda x: layer(layer(x).relu()).tanh(), x)
        return y, gradients(y, *layer.parameters())

    assert_same(step)


def test_a_closure_over_parameters_frozen_and_shared():
    def step(region):
        x, first, second = leaf(3, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        second.weight = first.weight
        first.bias.requires_grad_(False)

        def f():
            return second(first(x).tanh()).sigmoid()

        with lt.enable_grad():
            y = region(f) if region is plain else lt.checkpoint(f)()
        return y, gradients(y, x, first.weight, second.bias), first.bias.grad

    assert_same(step)


def test_values_of_the_region_used_outside_it_too():
    kept = []

    def f(x, w):
        h = (x @ w).tanh()
        kept.append(h)
        return (h * h).exp()

    def step(region):
        kept.clear()
        x, w = leaf(3, 4), leaf(4, 4)
        y = region(f, x, w)
        y = y + kept[0].sin() * kept[0]
        kept.clear()
        return y, gradients(y, x, w)

    assert_same(step)


def test_a_value_of_the_region_with_a_gradient_of_its_own():
    def step(region):
        x, w = leaf(3, 4), leaf(4, 4)
        inside = []

        def f(x):
            h = (x @ w).tanh()
            h.retain_grad()
            inside.append(h)
            return (h * h).exp()

        y = region(f, x)
        found = gradients(y, x, w)
        return found, inside.pop().grad

    assert_same(step)


def test_a_leaf_made_inside():
    def step(region):
        def f(x):
            w = lt.ones(4, 4, requires_grad=True)
            return (x @ w).exp(), w

        x = leaf(3, 4)
        y, w = region(f, x)
        return gradients(y, x, w)

    assert_same(step)


def test_branches_on_data_and_effects_happen_once():
    calls = []

    def f(x):
        calls.append(float(x.sum()))
        h = x.exp()
        return h.sin() if h.sum() > 0 else h.cos()

    def step(region):
        x = leaf(3, 4)
        return gradients(region(f, x), x)

    calls.clear()
    outcome(step, lt.checkpoint)
    assert len(calls) == 1
    assert_same(step)


@pytest.mark.parametrize("dtype", [lt.float64, lt.bfloat16, lt.complex64], ids=lambda d: d.name)
def test_other_dtypes(dtype):
    def step(region):
        x, w = leaf(3, 4, dtype=dtype), leaf(4, 4, dtype=dtype)
        y = region(lambda x: ((x @ w).tanh() * x).exp(), x)
        y = y.abs() if dtype.is_complex else y
        return y, gradients(y, x, w)

    assert_same(step)


def test_views_go_in_and_out():
    def f(x, column):
        rows = x.t()[1:].reshape(-1, 2)
        return (rows.exp() * column.sum()).expand(3, *rows.shape)[:, ::2], x[0].unflatten(0, (2, 2))

    def step(region):
        x = leaf(4, 4)
        y, z = region(f, x, (x * 2)[:, 1])
        return y, z, gradients(y * z.sum(), x)

    assert_same(step)


# Ways to open one


def test_decorator_context_and_generator():
    @lt.checkpoint
    def bare(x):
        return x.exp().sin()

    @lt.checkpoint(policy=None)
    def called(x):
        return x.exp().sin()

    @lt.checkpointing()
    def mode(x):
        return x.exp().sin()

    @lt.checkpointing()
    def pieces(x):
        for k in range(1, 3):
            x = x.exp().sin() * k
            yield x

    def step(region):
        x = leaf(5)
        if region is plain:
            a, b, c, d = [x.exp().sin() for _ in range(4)]
            last = list(pieces.__wrapped__(x))[-1]
        else:
            a, b, c = bare(x), called(x), mode(x)
            with lt.checkpointing():
                d = x.exp().sin()
            last = list(pieces(x))[-1]
        return [gradients(y, x) for y in (a * b, c * d, last)]

    assert_same(step)
    y = list(pieces(leaf(5)))[-1]
    assert [v.held_bytes for v in y.grad_fn.next_functions[0][0].saved] == [0]
    assert bare.__name__ == "bare"


def test_a_generator_left_halfway_closes_its_region():
    def pieces(x):
        with lt.checkpointing():
            yield x.exp().sin()
            yield x

    x = leaf(5)
    with lt.checkpointing():
        items = pieces(x)
        next(items)
    items.close()  # out of turn: the region around it was closed before
    y = x.exp().sin()
    assert [v.held_bytes for v in y.grad_fn.saved] == [20]


def test_sequential_in_segments():
    def step(region):
        x, layers = leaf(3, 4), [nn.Linear(4, 4) for _ in range(7)]
        model = nn.Sequential(*layers)
        for segments in (1, 3, 7):
            y = model(x) if region is plain else checkpoint_sequential(model, segments, x)
            gradients(y, x)
        if region is not plain:
            y = checkpoint_sequential(layers, 2, x)
        return y, x.grad, [p.grad for p in model.parameters()]

    assert_same(step)
    with pytest.raises(ValueError, match=r"segments must be in \[1, 2\].* got 3"):
        checkpoint_sequential([lt.exp, lt.sin], 3, lt.ones(1))


def test_without_a_graph_nothing_is_noted():
    x = leaf(100)
    with lt.no_grad():
        y = lt.checkpoint(curve, x.view(10, 10), x.view(10, 10))
    assert not y.requires_grad
    with lt.no_grad(), lt.checkpointing(), lt.enable_grad():
        y = x.exp()
    assert [v.held_bytes for v in y.grad_fn.saved] == [400]


def test_what_cannot_be_checkpointed_is_refused():
    with pytest.raises(TypeError, match="checkpoint calls a function or module; got int"):
        lt.checkpoint(3, lt.ones(1))
    with pytest.raises(TypeError, match=r"policy is called with each value; got str"):
        lt.checkpointing("save")


# Errors


def test_an_exception_in_the_middle_restores_everything():
    x, w = leaf(10, 10), leaf(10, 10)
    kept = live()

    def f(x):
        y = lt.checkpoint(curve, x, w)
        raise KeyError(y.shape)

    for _ in range(2):
        try:
            lt.checkpoint(f, x)
        except KeyError:
            pass
        else:
            raise AssertionError("the error was lost")
    assert live() == kept
    y = x.exp()
    assert [v.held_bytes for v in y.grad_fn.saved] == [400]
    del y
    y = lt.checkpoint(curve, x, w)
    y.sum().backward()


def test_an_error_in_backward_leaves_nothing():
    x = leaf(10, 10)
    before = live()

    def f(x):
        h = x.exp().sin()
        h.register_hook(lambda g: 1 / 0)
        return h.exp().sin()

    y = lt.checkpoint(f, x).sum()
    try:
        y.backward()
    except ZeroDivisionError:
        pass
    else:
        raise AssertionError("the hook did not run")
    assert live() - before == 4
    del y
    assert live() == before


# Copies, forgetting


def test_a_module_that_was_checkpointed_can_be_copied():
    def step(region):
        layer = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU())
        x = leaf(3, 4)
        first = gradients(region(layer, x), x)
        twin = copy.deepcopy(layer)
        twin.zero_grad()
        return first, gradients(region(twin, x), *twin.parameters()), dict(twin.named_buffers())

    assert_same(step)


def test_dropping_the_loss_frees_everything():
    x, w = leaf(10, 10), leaf(10, 10)
    before = live()
    loss = lt.checkpoint(curve, x, w).sum()
    assert live() - before > 0
    del loss
    assert live() == before


def test_very_long_chains_need_no_stack():
    x = leaf(2)
    count = 20_000

    def f(x):
        for _ in range(count):
            x = x.sin()
        return x

    def step(region):
        x.grad = None
        y = region(f, x)
        return y, gradients(y, x)

    assert_same(step)
    y = lt.checkpoint(f, x)
    gc.disable()
    before = live()
    del y
    assert live() < before
