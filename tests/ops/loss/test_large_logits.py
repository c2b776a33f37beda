"""Losses and gradients of large logits, beside float64.

At 1e8 neighbors in float32 are 8 apart: the logarithm of a sum of exponentials that is added to
such a logit is lost, and with it log 2 of the loss of two equal logits. The logits are exact in
both dtypes, so that float64, with the largest logit subtracted first, says what the loss is.
"""

import numpy as np
import pytest

import lowtide as lt
import lowtide.nn.functional as F

MAGNITUDES = [1.0, 1e3, 1e6, 1e8, 1e20]


def drawn(shape, magnitude, dim=1):
    """Return float32 logits near ``magnitude``, of which several are the largest."""
    rng = np.random.default_rng(3)
    step = np.spacing(np.float32(magnitude), dtype=np.float32)
    steps = rng.integers(-3, 3, shape).astype(np.float32)
    sign = np.where(rng.random(shape) < 0.2, -1, 1).astype(np.float32)
    return sign * (np.float32(magnitude) + steps * step)


def expected(x, target, smoothing=0.0, weight=None):
    """Return the loss of each row of (rows, classes), and its gradient, in float64."""
    x = x.astype(np.float64)
    w = np.ones(x.shape[1]) if weight is None else weight.astype(np.float64)
    shifted = x - x.max(1, keepdims=True)
    log_p = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    share = np.full(x.shape, smoothing / x.shape[1]) * w
    share[np.arange(len(x)), target] += (1 - smoothing) * w[target]
    return -(share * log_p).sum(1), np.exp(log_p) * share.sum(1, keepdims=True) - share


def near(ours, theirs, scale):
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=2e-6 * scale)


@pytest.mark.parametrize("magnitude", MAGNITUDES)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("shape", [(6, 5), (300, 200), (4, 2000)])  # the last two are compiled
def test_cross_entropy(shape, magnitude, smoothing, weighted):
    x = drawn(shape, magnitude)
    target = np.arange(shape[0]) % shape[1]
    weight = np.linspace(0.5, 2, shape[1], dtype=np.float32) if weighted else None
    losses, slopes = expected(x, target, smoothing, weight)
    t = lt.from_numpy(x).requires_grad_()
    given = None if weight is None else lt.from_numpy(weight)
    loss = F.cross_entropy(
        t, lt.from_numpy(target), given, reduction="none", label_smoothing=smoothing
    )
    loss.sum().backward()
    near(loss.detach().numpy(), losses, 1)
    near(t.grad.numpy(), slopes, 1)


@pytest.mark.parametrize("magnitude", MAGNITUDES)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("side", [2, 40])
def test_cross_entropy_of_planes(side, magnitude, smoothing):
    rows = drawn((3 * side * side, 21), magnitude)
    x = np.ascontiguousarray(rows.reshape(3, side, side, 21).transpose(0, 3, 1, 2))
    target = np.arange(len(rows)) % 21
    losses, slopes = expected(rows, target, smoothing)
    t = lt.from_numpy(x).requires_grad_()
    classes = lt.from_numpy(target.reshape(3, side, side))
    loss = F.cross_entropy(t, classes, reduction="none", label_smoothing=smoothing)
    loss.sum().backward()
    near(loss.detach().numpy().reshape(-1), losses, 1)
    near(t.grad.numpy().transpose(0, 2, 3, 1).reshape(-1, 21), slopes, 1)


@pytest.mark.parametrize("magnitude", MAGNITUDES)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("tokens", "classes"), [(5, 7), (300, 1300)])  # compiled
def test_linear_cross_entropy(tokens, classes, magnitude, smoothing, weighted):
    logits = drawn((tokens, classes), magnitude)
    target = np.arange(tokens) % classes
    weight = np.linspace(0.5, 2, classes, dtype=np.float32) if weighted else None
    losses, slopes = expected(logits, target, smoothing, weight)
    x = lt.eye(tokens).requires_grad_()  # so the logits are exactly those of the weight
    w = lt.from_numpy(np.ascontiguousarray(logits.T))
    loss = F.linear_cross_entropy(
        x,
        w,
        lt.from_numpy(target),
        reduction="none",
        label_smoothing=smoothing,
        weight=None if weight is None else lt.from_numpy(weight),
        options=lt.nn.LinearCrossEntropyOptions(batch_chunk_size=128) if tokens > 5 else None,
    )
    near(loss.detach().numpy(), losses, 1)
    if magnitude <= 1e3 or tokens > 5:
        return
    w = w.clone().requires_grad_()
    F.linear_cross_entropy(
        x,
        w,
        lt.from_numpy(target),
        reduction="sum",
        label_smoothing=smoothing,
        weight=None if weight is None else lt.from_numpy(weight),
    ).backward()
    near(w.grad.numpy(), slopes.T, 1)


@pytest.mark.parametrize("magnitude", MAGNITUDES)
@pytest.mark.parametrize("shape", [(6, 5), (300, 200), (4, 2000)])
def test_log_softmax_and_categories(shape, magnitude):
    x = drawn(shape, magnitude)
    classes = np.arange(shape[0]) % shape[1]
    losses, slopes = expected(x, classes)
    t = lt.from_numpy(x).requires_grad_()
    picked = -F.log_softmax(t, 1).gather(1, lt.from_numpy(classes)[:, None])[:, 0]
    picked.sum().backward()
    near(picked.detach().numpy(), losses, 1)
    near(t.grad.numpy(), slopes, 1)
    category = lt.distributions.Categorical(logits=lt.from_numpy(x))
    near(-category.log_prob(lt.from_numpy(classes)).numpy(), losses, 1)


@pytest.mark.parametrize("size", [12, 40000])
def test_binary_cross_entropy_keeps_small_losses_of_large_logits(size):
    x = np.resize(np.float32([-1e8, -50, -20, -8, 0.5, 8, 20, 50, 1e8]), size)
    for target in (0.0, 0.25, 1.0):
        y = x.astype(np.float64)
        losses = (1 - target) * y - np.minimum(y, 0) + np.log1p(np.exp(-abs(y)))
        t = lt.from_numpy(x)
        given = lt.full((size,), target)
        found = F.binary_cross_entropy_with_logits(t, given, reduction="none")
        np.testing.assert_allclose(found.numpy(), losses, rtol=1e-6)
        total = F.binary_cross_entropy_with_logits(t, given, reduction="sum")
        np.testing.assert_allclose(total.item(), losses.sum(), rtol=1e-6)
