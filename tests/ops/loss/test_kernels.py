"""Compiled losses beside formulas in float64, where gradients are full or one number."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.special

import lowtide as lt
import lowtide.nn.functional as F
from lowtide.framework.kernels.runtime import threads, thresholds

N = (1 << 14) + 13  # a little more than where compiled kernels begin
INF, NAN = float("inf"), float("nan")
SPECIAL = (NAN, INF, -INF, 0.0, -0.0, 100.0, -100.0, 1e-30, 3e38, -3e38)


def numbers(*shape, seed=0, dtype=np.float32):
    return (np.random.default_rng(seed).standard_normal(shape) * 2).astype(dtype)


def sigmoid(x):
    return scipy.special.expit(x)


def bent(d, bend, slope):
    a = np.abs(d)
    return np.where(a < bend, a * a * (0.5 * slope / bend), slope * (a - 0.5 * bend))


# name: (the function, its values, its slope in the first operand), of x and y in float64
PAIRS = {
    "mse": (F.mse_loss, lambda x, y: (x - y) ** 2, lambda x, y: 2 * (x - y)),
    "l1": (F.l1_loss, lambda x, y: np.abs(x - y), lambda x, y: np.sign(x - y)),
    "smooth l1": (
        F.smooth_l1_loss,
        lambda x, y: bent(x - y, 1.0, 1.0),
        lambda x, y: np.clip(x - y, -1, 1),
    ),
    "smooth l1 of 0.3": (
        lambda x, y, **k: F.smooth_l1_loss(x, y, beta=0.3, **k),
        lambda x, y: bent(x - y, 0.3, 1.0),
        lambda x, y: np.clip((x - y) / 0.3, -1, 1),
    ),
    "huber": (
        lambda x, y, **k: F.huber_loss(x, y, delta=0.7, **k),
        lambda x, y: bent(x - y, 0.7, 0.7),
        lambda x, y: np.clip(x - y, -0.7, 0.7),
    ),
    "bce of logits": (
        F.binary_cross_entropy_with_logits,
        lambda x, y: np.logaddexp(x, 0) - x * y,
        lambda x, y: sigmoid(x) - y,
    ),
}


def close(found, expected, dtype=np.float32):
    assert found.dtype == dtype
    tight = 2e-6 if dtype == np.float32 else 1e-14
    np.testing.assert_allclose(found, expected, rtol=tight, atol=tight)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", PAIRS)
def test_a_loss_and_its_gradients_are_those_of_the_formula(name, dtype):
    function, values, slope = PAIRS[name]
    a, b, g = (numbers(N, seed=k, dtype=dtype) for k in range(3))
    x, y = lt.tensor(a).requires_grad_(), lt.tensor(b).requires_grad_()
    out = function(x, y, reduction="none")
    out.backward(lt.tensor(g))
    wide = a.astype(np.float64), b.astype(np.float64)
    close(out.detach().numpy(), values(*wide), dtype)
    close(x.grad.numpy(), g * slope(*wide), dtype)
    other = -wide[0] if name == "bce of logits" else -slope(*wide)
    close(y.grad.numpy(), g * other, dtype)


@pytest.mark.parametrize("name", PAIRS)
def test_the_gradient_of_a_mean_is_one_number_and_takes_no_array(name):
    function, _, slope = PAIRS[name]
    a, b = numbers(128, 129), numbers(128, 129, seed=1)
    x, y = lt.tensor(a).requires_grad_(), lt.tensor(b)
    loss = function(x, y, reduction="mean")
    before = lt.memory_allocated("cpu")
    lt.reset_peak_memory_stats("cpu")
    loss.backward()
    small = 1024  # the number itself, and what it is made of
    assert lt.max_memory_allocated("cpu") - before <= x.nbytes + small
    expected = slope(a.astype(np.float64), b.astype(np.float64)) / a.size
    np.testing.assert_allclose(x.grad.numpy(), expected, rtol=2e-5, atol=1e-11)


@pytest.mark.parametrize("name", PAIRS)
def test_special_numbers_are_those_of_small_tensors(name):
    function = PAIRS[name][0]
    a, b = numbers(N), numbers(N, seed=1)
    pairs = np.array([(u, v) for u in SPECIAL for v in SPECIAL], np.float32)
    if name == "l1":  # where bits are kept, the slope of what is not a number is 1
        with np.errstate(all="ignore"):
            pairs = pairs[~np.isnan(pairs[:, 0] - pairs[:, 1])]
    a[: len(pairs)], b[: len(pairs)] = pairs.T
    for weights in (None, numbers(N, seed=2)):
        found = []
        for n in (N, len(pairs)):
            x, y = (lt.tensor(v[:n].copy()).requires_grad_() for v in (a, b))
            out = function(x, y, reduction="none")
            out.backward(lt.ones(()).expand(n) if weights is None else lt.tensor(weights[:n]))
            found.append([v.numpy()[: len(pairs)] for v in (out.detach(), x.grad, y.grad)])
        for large, small in zip(*found, strict=True):
            np.testing.assert_allclose(large, small, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("name", PAIRS)
def test_operands_may_be_transposed_or_one_number_repeated(name):
    function, values, slope = PAIRS[name]
    a = numbers(131, 129)
    x = lt.tensor(a).requires_grad_()
    for y, b in (
        (lt.tensor(numbers(131, 129, seed=1)).t(), numbers(131, 129, seed=1).T),
        (lt.tensor(0.25).expand(129, 131), np.float64(0.25)),
    ):
        x.grad = None
        out = function(x.t(), y, reduction="none")
        out.sum().backward()
        close(out.detach().numpy(), values(a.T.astype(np.float64), b))
        close(x.grad.numpy().T, slope(a.T.astype(np.float64), b))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("name", [n for n in PAIRS if n != "l1"])
def test_a_reduced_loss_is_summed_without_an_array_of_losses(name, reduction, dtype):
    function, values, slope = PAIRS[name]
    a, b = numbers(5 * 4096 + 7, dtype=dtype), numbers(5 * 4096 + 7, seed=1, dtype=dtype)
    x, y = lt.tensor(a).requires_grad_(), lt.tensor(b).requires_grad_()
    before = lt.memory_allocated("cpu")
    lt.reset_peak_memory_stats("cpu")
    loss = function(x, y, reduction=reduction)
    if dtype == np.float32:  # binary cross entropy of float64 has a tile of them
        assert lt.max_memory_allocated("cpu") - before == loss.nbytes
    wide = a.astype(np.float64), b.astype(np.float64)
    expected = values(*wide)
    exact = expected.mean() if reduction == "mean" else expected.sum()
    assert loss.item() == pytest.approx(exact, rel=1e-6 if dtype == np.float32 else 1e-14)
    (loss * 3).backward()
    share = 3 / a.size if reduction == "mean" else 3
    other = -wide[0] if name == "bce of logits" else -slope(*wide)
    for found, wanted in ((x, slope(*wide)), (y, other)):
        tight = 3e-6 if dtype == np.float32 else 1e-13
        np.testing.assert_allclose(
            found.grad.numpy(), wanted * share, rtol=tight, atol=tight * share
        )


@pytest.mark.parametrize("name", [n for n in PAIRS if n != "l1"])
def test_a_reduced_loss_has_the_second_gradients_of_its_losses(name):
    function = PAIRS[name][0]
    found = []
    for whole in (True, False):
        x = lt.tensor(numbers(N)).requires_grad_()
        y = lt.tensor(numbers(N, seed=1)).requires_grad_()
        loss = function(x, y) if whole else function(x, y, reduction="none").mean()
        first = lt.autograd.grad(loss, (x, y), create_graph=True)
        second = lt.autograd.grad((first[0] * x * N).sum() + (first[1] * y * N).sum(), (x, y))
        found.append([v.numpy() for v in second])
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_shares_of_two_threads_are_the_whole(monkeypatch):
    a, b = numbers(4 * N), numbers(4 * N, seed=1)
    logits, target = numbers(256, 256), np.arange(256) * 7 % 256
    weight = lt.tensor(np.linspace(0.5, 2, 256, dtype=np.float32))  # as many as there are rows

    def run():
        x, y, z = lt.tensor(a).requires_grad_(), lt.tensor(b), lt.tensor(logits).requires_grad_()
        u = z.detach().reshape(16, 16, 256).clone().requires_grad_()
        slopes = weight[:16].clone().requires_grad_()
        F.binary_cross_entropy_with_logits(x, y).backward()
        F.huber_loss(x, y).backward()
        F.cross_entropy(z, lt.tensor(target), weight).backward()
        F.cross_entropy(u, lt.tensor(target[None] % 16).repeat(16, 1), weight[:16]).backward()
        F.prelu(u, slopes).square().sum().backward()
        return [v.grad.numpy() for v in (x, z, u, slopes)]

    alone = run()
    monkeypatch.setattr(thresholds, "THREAD", 1 << 13)
    monkeypatch.setattr(thresholds, "CHUNK", 1 << 12)
    monkeypatch.setattr(threads, "_wanted", 2)
    for one, two in zip(alone, run(), strict=True):
        np.testing.assert_array_equal(one, two)


# Cross entropy


def class_losses(x, target, weight, ignored, smoothing):
    """Losses and gradients (of their sum) of float64 logits (count, classes, positions)."""
    c = x.shape[1]
    log_p = scipy.special.log_softmax(x, axis=1)
    w = np.ones(c) if weight is None else weight.astype(np.float64)
    counts = target != ignored
    safe = np.where(counts, target, 0)
    wanted = np.moveaxis(np.eye(c)[safe] * w[safe][..., None], -1, 1) * (1 - smoothing)
    wanted = (wanted + w[:, None] * (smoothing / c)) * counts[:, None]
    losses = -(wanted * log_p).sum(1)
    return losses, np.exp(log_p) * wanted.sum(1, keepdims=True) - wanted


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("shape", [(512, 37, 1), (7, 1025, 3), (3, 5, 1100), (2, 9, 1024)])
def test_cross_entropy_is_that_of_the_formula(shape, weighted, smoothing):
    n, c, length = shape
    x = lt.tensor(numbers(*shape)).requires_grad_()
    target = np.random.default_rng(3).integers(0, c, (n, length))
    target[0, 0], target[-1, -1] = 2, c - 1
    weight = np.linspace(0.3, 2, c, dtype=np.float32) if weighted else None
    g = numbers(n, length, seed=5)
    last = () if length == 1 else (length,)
    out = F.cross_entropy(
        x.reshape(n, c, *last),
        lt.tensor(target.reshape(n, *last)),
        None if weight is None else lt.tensor(weight),
        ignore_index=2,
        label_smoothing=smoothing,
        reduction="none",
    )
    out.backward(lt.tensor(g.reshape(n, *last)))
    losses, slopes = class_losses(
        x.detach().numpy().astype(np.float64), target, weight, 2, smoothing
    )
    np.testing.assert_allclose(
        out.detach().numpy().reshape(n, length), losses, rtol=3e-6, atol=3e-6
    )
    np.testing.assert_allclose(x.grad.numpy(), slopes * g[:, None], rtol=1e-5, atol=1e-6)


def test_planes_of_logits_keep_infinity_in_their_positions():
    x = numbers(2, 8, 1100)
    x[0, :, 3], x[0, 2, 5], x[1, 4, 7], x[1, 1, 9] = -INF, INF, NAN, -INF
    found = []
    for cut in (slice(None), slice(0, 16)):  # compiled and plain
        logits = lt.tensor(x[:, :, cut].copy()).requires_grad_()
        target = lt.tensor(np.full((2, logits.shape[2]), 1))
        out = F.cross_entropy(logits, target, reduction="none")
        out.sum().backward()
        found.append([out.detach().numpy()[:, :16], logits.grad.numpy()[:, :, :16]])
    for large, small in zip(*found, strict=True):
        np.testing.assert_allclose(large, small, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("dtype", [lt.int64, lt.uint8])
def test_class_numbers_of_both_dtypes(dtype):
    x, target = lt.randn(512, 40), lt.arange(512).remainder(40)
    expected = -F.log_softmax(x, 1)[lt.arange(512), target]
    found = F.cross_entropy(x, target.to(dtype), reduction="none")
    np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("bad", [21, -1])
def test_a_class_of_a_plane_out_of_range_is_refused_in_both_directions(bad):
    x = lt.randn(2, 21, 40, 40).requires_grad_()
    target = lt.zeros(2, 40, 40, dtype=lt.int64)
    loss = F.cross_entropy(x, target)
    target.numpy()[1, 39, 39] = bad  # behind the back of the version counter
    for call in (lambda: F.cross_entropy(x, target), loss.backward):
        with pytest.raises(IndexError, match=rf"Target {bad} is out of bounds"):
            call()


def test_cross_entropy_takes_no_workspace():
    x = lt.randn(4, 21, 64, 64).requires_grad_()
    target = lt.zeros(4, 64, 64, dtype=lt.int64)
    before = lt.memory_allocated("cpu")
    lt.reset_peak_memory_stats("cpu")
    loss = F.cross_entropy(x, target, reduction="none")
    assert lt.max_memory_allocated("cpu") - before == 3 * loss.nbytes  # and two numbers per loss


# Likelihoods and probabilities


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("shape", [(512, 37, 1), (3, 5, 1101)])
@pytest.mark.compiled
def test_nll_picks_what_the_classes_name(shape, weighted, dtype):
    n, c, length = shape
    last = () if length == 1 else (length,)
    a, g = numbers(*shape, dtype=dtype), numbers(n, length, seed=1, dtype=dtype)
    target = np.random.default_rng(3).integers(0, c, (n, length))
    weight = np.linspace(0.3, 2, c).astype(dtype)
    x = lt.tensor(a.reshape(n, c, *last)).requires_grad_()
    out = F.nll_loss(
        x,
        lt.tensor(target.reshape(n, *last)),
        lt.tensor(weight) if weighted else None,
        ignore_index=2,
        reduction="none",
    )
    out.backward(lt.tensor(g.reshape(n, *last)))
    share = (weight if weighted else np.ones(c, dtype))[target] * (target != 2)
    i, j = np.ogrid[:n, :length]
    np.testing.assert_array_equal(out.detach().numpy().reshape(n, length), -a[i, target, j] * share)
    expected = np.zeros_like(a)
    expected[i, target, j] = -g * share
    np.testing.assert_array_equal(x.grad.numpy().reshape(shape), expected)


def test_compiled_nll_refuses_a_class_out_of_range():
    x = lt.randn(1024, 20).requires_grad_()
    with pytest.raises(IndexError, match="Target 20 is out of bounds"):
        F.nll_loss(x, lt.full((1024,), 20))


def test_binary_cross_entropy_is_that_of_the_formula():
    p = np.concatenate([np.linspace(0, 1, N), np.geomspace(1e-40, 0.1, 999), [0, 1, 0.5]])
    a = p.astype(np.float32)
    t, g = np.random.default_rng(1).random(a.shape).astype(np.float32), numbers(*a.shape, seed=2)
    x, y = lt.tensor(a).requires_grad_(), lt.tensor(t).requires_grad_()
    out = F.binary_cross_entropy(x, y, reduction="none")
    p, q = a.astype(np.float64), t.astype(np.float64)
    with np.errstate(divide="ignore"):
        high, low = np.maximum(np.log(p), -100), np.maximum(np.log1p(-p), -100)
    close(out.detach().numpy(), (q - 1) * low - q * high)
    slope = (p - q) / np.maximum((1 - p) * p, 1e-12)
    for arriving in (lt.tensor(g), lt.ones(()).expand(*a.shape)):
        x.grad = y.grad = None
        out.backward(arriving, retain_graph=True)
        expected = arriving.numpy() * slope
        near = np.abs(expected) < 1e6  # there 1 - x has lost nothing
        np.testing.assert_allclose(x.grad.numpy()[near], expected[near], rtol=2e-5, atol=1e-6)
        with np.errstate(divide="ignore"):  # of the targets the logarithms have no bound
            exact = np.log1p(-p) - np.log(p)
        np.testing.assert_allclose(y.grad.numpy(), arriving.numpy() * exact, rtol=1e-5, atol=1e-5)


@pytest.mark.quick(1)
@pytest.mark.parametrize("weight_shape", [(1,), (), (131,), (3, 1), (1, 3, 1), (7, 1, 1), (3, 131)])
def test_logits_with_weights_of_the_positive_part(weight_shape):
    a, t, g = (numbers(7, 3, 131, 7)[..., k].copy() for k in range(3))
    a, t, g = (np.concatenate([v] * 7) for v in (a, t, g))  # (49, 3, 131)
    if weight_shape == (7, 1, 1):
        a, t, g = (v.reshape(7, 7, 3, 131) for v in (a, t, g))
    t = sigmoid(t)
    w = np.exp(numbers(*weight_shape, seed=4))
    w = np.asarray(w, np.float32)
    x = lt.tensor(a).requires_grad_()
    out = F.binary_cross_entropy_with_logits(
        x, lt.tensor(t), pos_weight=lt.tensor(w), reduction="none"
    )
    p, q, v = (z.astype(np.float64) for z in (a, t, w))
    share = 1 + (v - 1) * q
    expected = (1 - q) * p + share * np.logaddexp(-p, 0)
    np.testing.assert_allclose(out.detach().numpy(), expected, rtol=3e-6, atol=3e-6)
    slope = 1 - q - share * sigmoid(-p)
    for arriving in (lt.tensor(g), lt.ones(()).expand(*a.shape)):
        x.grad = None
        out.backward(arriving, retain_graph=True)
        np.testing.assert_allclose(x.grad.numpy(), arriving.numpy() * slope, rtol=1e-5, atol=1e-5)
