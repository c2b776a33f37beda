"""Functions with bends keep one bit an element, and their gradients are what they were."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import lowtide as lt
import lowtide.nn.functional as F
from lowtide.framework import testing
from lowtide.framework.kernels.runtime import thresholds
from lowtide.framework.kernels.runtime.thresholds import COMPILED_MOVE

INF = float("inf")
# name: (function, low and high end of the piece of slope `inside`, ends belong to it, other slope)
BENT = {
    "relu": (F.relu, 0.0, INF, False, 1.0, 0.0),
    "method": (lambda x: x.relu(), 0.0, INF, False, 1.0, 0.0),
    "relu6": (F.relu6, 0.0, 6.0, False, 1.0, 0.0),
    "hardtanh": (lambda x: F.hardtanh(x, -0.7, 1.1), -0.7, 1.1, False, 1.0, 0.0),
    "leaky": (lambda x: F.leaky_relu(x, 0.1), 0.0, INF, False, 1.0, 0.1),
    "leaky, slope 0": (lambda x: F.leaky_relu(x, 0.0), 0.0, INF, False, 1.0, 0.0),
    "threshold": (lambda x: F.threshold(x, 0.3, -7.0), 0.3, INF, False, 1.0, 0.0),
    "hardsigmoid": (F.hardsigmoid, -3.0, 3.0, False, 1 / 6, 0.0),
    "clamp": (lambda x: x.clamp(-0.7, 1.1), -0.7, 1.1, True, 1.0, 0.0),
    "clamp low": (lambda x: x.clamp(min=-0.7), -0.7, INF, True, 1.0, 0.0),
    "clamp_max": (lambda x: lt.clamp_max(x, 1), -INF, 1.0, True, 1.0, 0.0),
    "clip": (lambda x: lt.clip(x, -1, INF), -1.0, INF, True, 1.0, 0.0),
}
# Whole tiles, one element more, all but one.
SIZES = (COMPILED_MOVE, COMPILED_MOVE + 1, 5 * 4096 + 4095)


def given(n, dtype=np.float32):
    x = (np.random.default_rng(0).standard_normal(n) * 4).astype(dtype)
    ends = [0.0, -0.0, 0.3, -0.7, 1.1, 6.0, -3.0, 3.0, 1.0, -1.0, np.nan, INF, -INF]
    x[: len(ends)] = ends
    return x


def kept(y):
    return [(s.label.rpartition(".")[2], s.nbytes) for s in y.grad_fn.saved]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", BENT)
@pytest.mark.compiled
def test_one_bit_an_element_and_the_gradient_by_the_definition(name, dtype):
    function, low, high, closed, inside, outside = BENT[name]
    for n in SIZES:
        values = given(n, dtype)
        x, g = lt.tensor(values).requires_grad_(), np.random.default_rng(1).random(n).astype(dtype)
        y = function(x)
        assert kept(y) == [("bitmask", -(-n // 8))]
        y.backward(lt.tensor(g))
        low, high = dtype(low), dtype(high)
        within = (values >= low) & (values <= high) if closed else (values > low) & (values < high)
        if not np.isfinite(high):
            within |= values == INF
        if not np.isfinite(low):
            within |= values == -INF
        if name in ("relu", "method", "threshold"):  # of the others NaN is on no piece
            within |= np.isnan(values)
        expected = np.where(within, g * dtype(inside), g * dtype(outside))
        np.testing.assert_array_equal(x.grad.numpy(), expected)


@pytest.mark.parametrize("dtype", [lt.float32, lt.float64, lt.bfloat16, lt.float16])
@pytest.mark.parametrize("name", BENT)
@pytest.mark.compiled
def test_values_and_gradients_are_those_of_small_tensors_bit_for_bit(name, dtype):
    function, n = BENT[name][0], COMPILED_MOVE + 1001
    values, g = lt.tensor(given(n)).to(dtype), lt.randn(n).to(dtype)
    if name == "leaky, slope 0":  # 0 * infinity: a result that is NaN tells no side
        values = lt.where(values == -INF, -1.0, values)
    whole = values.clone().requires_grad_()
    y = function(whole)
    y.backward(g)
    for first in range(0, n, 4096):
        part = values[first : first + 4096].clone().requires_grad_()
        z = function(part)
        assert [label for label, _ in kept(z)] != ["bitmask"]
        z.backward(g[first : first + 4096])
        for a, b in ((y[first : first + 4096], z), (whole.grad[first : first + 4096], part.grad)):
            same = (a == b) | ((a != a) & (b != b))
            assert bool(same.all())


@pytest.mark.parametrize("name", ["relu", "leaky"])
def test_half_precision_keeps_bits_where_ends_are_exact(name):
    y = BENT[name][0](lt.zeros(COMPILED_MOVE, dtype=lt.bfloat16, requires_grad=True))
    assert kept(y) == [("bitmask", COMPILED_MOVE // 8)]


def test_the_result_may_be_written_because_nobody_needs_it():
    x = lt.randn(COMPILED_MOVE).requires_grad_()
    y = F.relu(x)
    y.add_(1.0)
    y.sum().backward()
    assert bool((x.grad == (x > 0)).all())


def test_in_place_the_result_is_kept_and_shared_with_what_follows():
    x = lt.randn(COMPILED_MOVE).requires_grad_()

    def run():
        return F.relu(x * 2, inplace=True).reshape(-1, 64) @ w

    w = lt.ones(64, 64).requires_grad_()
    saved = lt.profiling.saved_tensors(run)
    assert saved.total_bytes == 4 * COMPILED_MOVE  # once, for relu and the product
    assert [s.label for s in saved if s.kept_bytes] == ["relu.out"]


def test_nothing_is_packed_where_nothing_is_recorded():
    x = lt.randn(COMPILED_MOVE).requires_grad_()
    with lt.no_grad():
        before = lt.memory_allocated("cpu")
        y = F.relu(x)
        assert lt.memory_allocated("cpu") - before == 4 * COMPILED_MOVE
        assert not y.requires_grad
    assert F.relu(lt.randn(COMPILED_MOVE)).grad_fn is None


def test_other_strides_and_shapes_and_no_elements():
    base = lt.tensor(given(2 * COMPILED_MOVE)).reshape(256, -1).requires_grad_()
    y = F.relu(base.t())
    g = lt.randn(*y.shape)
    y.backward(g)
    keep = ~(base.detach() <= 0)
    assert bool((base.grad == g.t() * keep).all())
    y = F.relu(base)
    y.backward(lt.ones(1, 1).expand(y.shape))
    assert y.shape == base.shape


@pytest.mark.parametrize("name", ["relu", "leaky", "hardsigmoid", "clamp"])
def test_second_gradients(name):
    x = (lt.randn(COMPILED_MOVE, dtype=lt.float64)).requires_grad_()
    y = BENT[name][0](x * x)
    (first,) = lt.autograd.grad(y.sum(), x, create_graph=True)
    (second,) = lt.autograd.grad(first.sum(), x)
    slope = lt.autograd.grad(BENT[name][0](v := (x * x).detach().requires_grad_()).sum(), v)[0]
    np.testing.assert_array_equal(second.numpy(), (slope * 2).numpy())


def test_ends_that_are_tensors_or_nothing_keep_what_they_need():
    x = lt.randn(COMPILED_MOVE).requires_grad_()
    low = lt.tensor(-0.5).requires_grad_()
    assert {label for label, _ in kept(lt.clamp(x, low, 1.0))} == {"input", "min"}
    assert "bitmask" not in dict(kept(lt.clamp(x, float("nan"), 1.0)))
    with pytest.raises(RuntimeError, match="At least one"):
        lt.clamp(x)


def test_on_meta_the_bytes_are_the_same():
    for (function, *_), n in itertools.product(BENT.values(), SIZES[:2]):
        x = lt.empty(n, device="meta", requires_grad=True)
        assert kept(function(x)) == [("bitmask", -(-n // 8))]


def test_gradients_agree_with_finite_differences(monkeypatch):
    monkeypatch.setattr(thresholds, "COMPILED_MOVE", 8)
    x = lt.tensor(np.linspace(-4, 7.3, 24)).requires_grad_()
    for function, *_ in BENT.values():
        assert kept(function(x)) == [("bitmask", 3)]
        testing.check_gradient(lambda xs, f=function: f(xs[0]), [x])
