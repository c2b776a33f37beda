"""Peaks of chains of equal layers, to the byte: Chen et al. 2016, with the engine's own constants.

All bytes are counted in values of one layer's output, x itself (a leaf) aside. The two layers show
the two ways to save: ``tanh`` keeps its output, ``sin`` its input. What the engine adds to the
textbook figure is the same for every n and k:

- the gradient that is on its way, one value;
- what the rule of the layer needs: for ``tanh``, which is one kernel, the result; for ``sin``,
  ``g * x.cos()``, one temporary, too, but by then the value of the layer above is gone.

The output and the gradient arriving there stay with the caller: they are the other two values that
make k - 1 kept inputs of segments and n/k - 1 replayed values k + n/k.
"""

from __future__ import annotations

import math
from functools import partial

import pytest

import lowtide as lt
from lowtide.checkpointing import checkpoint_sequential
from lowtide.framework.autograd.remat import values
from tests.checkpointing.twice import live, peak_of

pytestmark = pytest.mark.usefixtures("leak_check")

SIZE = 1000  # elements of a value
BYTES = 4 * SIZE
CONSTANT = {"tanh": 2, "sin": 2}

each_layer = pytest.mark.parametrize("layer", [lt.tanh, lt.sin], ids=["tanh", "sin"])
each_device = pytest.mark.parametrize("where", ["cpu", "meta"])


def values_at_peak(forward, where):
    """The peak of forward and backward beside the leaf, and what is left after forward."""
    x = lt.ones(SIZE, device=where, requires_grad=True)
    before = live(where)
    kept = []

    def step():
        y = forward(x)
        kept.append(live(where) - before)
        g = lt.ones(SIZE, device=where)
        y.backward(g)

    peak = peak_of(step, where)
    assert peak % BYTES == kept[0] % BYTES == 0
    return peak // BYTES, kept[0] // BYTES


@each_device
@each_layer
def test_plain(layer, where):
    def chain(x):
        for _ in range(16):
            x = layer(x)
        return x

    assert values_at_peak(chain, where) == (16 + 1 + CONSTANT[layer.__name__], 16)


@each_device
@each_layer
def test_equal_segments(layer, where):
    for n, k in ((16, 1), (16, 2), (16, 4), (16, 8), (64, 4), (64, 8), (64, 16), (100, 10)):
        peak, kept = values_at_peak(partial(checkpoint_sequential, [layer] * n, k), where)
        assert kept == k  # the inputs of all segments but the first, and the output
        assert peak == n // k + k + CONSTANT[layer.__name__], (n, k)


@each_layer
def test_the_square_root_of_n_is_best(layer):
    def peak(n, k):
        return values_at_peak(partial(checkpoint_sequential, [layer] * n, k), "meta")[0]

    for n in (16, 36, 64, 144):
        root = math.isqrt(n)
        divisors = [k for k in range(1, n) if n % k == 0]
        assert min(divisors, key=lambda k: peak(n, k)) == root
        assert peak(n, root) == 2 * root + CONSTANT[layer.__name__]


def test_unequal_segments_cost_no_more_than_the_longest():
    for n, k in ((17, 4), (23, 5), (50, 7)):
        peak, kept = values_at_peak(partial(checkpoint_sequential, [lt.tanh] * n, k), "meta")
        assert kept == k
        assert peak <= -(-n // k) + k + CONSTANT["tanh"]


def recursive(n, k, x, layer):
    """k parts in regions and a rest, each of n / (k + 1) layers and divided likewise."""
    if n == 1:
        return layer(x)
    for _ in range(k):
        x = lt.checkpoint(recursive, n // (k + 1), k, x, layer)
    return recursive(n // (k + 1), k, x, layer)


@each_device
@each_layer
def test_recursive_nesting_is_logarithmic(layer, where):
    for depth, k in ((1, 1), (2, 1), (3, 1), (6, 1), (8, 1), (2, 2), (4, 2), (2, 3), (4, 3)):
        n = (k + 1) ** depth
        peak, kept = values_at_peak(lambda x: recursive(n, k, x, layer), where)
        # g(n) = k + g(n / (k + 1)), so k log_{k+1} n; and g(1) is one layer, whose output and
        # arriving gradient are the caller's, and 2 more values for sin, one for tanh. A tanh keeps
        # its output: one more, but that the innermost region lets go of its input before the rule
        # runs. With one level the last layer is in no region.
        assert peak == k * depth + 4 - (layer is lt.tanh and depth > 1), (n, k)
        assert kept == k * depth + (layer is lt.sin)


# What it costs


@pytest.fixture
def kernels(monkeypatch):
    """Counts the kernels that run again."""
    count = [0]
    run = values.OpCall.run

    def counted(maker, *args):
        count[0] += 1
        return run(maker, *args)

    monkeypatch.setattr(values.OpCall, "run", counted)
    return count


@pytest.mark.parametrize(("n", "k"), [(16, 1), (16, 4), (64, 8), (23, 5)])
def test_segments_cost_one_forward_less_what_is_alive(kernels, n, k):
    values_at_peak(partial(checkpoint_sequential, [lt.tanh] * n, k), "meta")
    assert kernels == [n - 1]  # the output is still there


@pytest.mark.parametrize(("depth", "k"), [(1, 1), (3, 1), (6, 1), (4, 2), (3, 3)])
def test_recursion_costs_n_log_n(kernels, depth, k):
    n = (k + 1) ** depth
    values_at_peak(lambda x: recursive(n, k, x, lt.tanh), "meta")
    assert n - 1 <= kernels[0] <= n * depth * k / (k + 1)
