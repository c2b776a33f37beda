"""Compiled normalization: what the definition gives in float64, and the same bits on threads."""

from __future__ import annotations

import numpy as np
import pytest

import lowtide as lt
from lowtide.framework.kernels.cpu.support import work_pool
from lowtide.framework.kernels.runtime import threads, thresholds
from lowtide.nn import functional as F


def numbers(*shape, seed=0, dtype=np.float32):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype) * 2 + 0.5


def defined(x, weight, bias, axes, affine, centered=True, eps=1e-5):
    """Normalization from its definition, and its gradients for an arriving ``cos(out's place)``."""
    x, weight, bias = (None if a is None else a.astype(np.float64) for a in (x, weight, bias))
    mean = x.mean(axes, keepdims=True) if centered else 0.0
    r = 1 / np.sqrt(((x - mean) ** 2).mean(axes, keepdims=True) + eps)
    hat = (x - mean) * r
    w = 1.0 if weight is None else weight.reshape(affine)
    out = hat * w + (0.0 if bias is None else bias.reshape(affine))
    g = np.cos(np.arange(x.size)).reshape(x.shape)
    over = tuple(d for d, n in enumerate(affine) if n == 1)
    v = g * w
    dx = v - hat * (v * hat).mean(axes, keepdims=True)
    if centered:
        dx -= v.mean(axes, keepdims=True)
    dw = None if weight is None else (g * hat).sum(over).reshape(-1)
    db = None if bias is None else g.sum(over).reshape(-1)
    return [out, dx * r, *(d for d in (dw, db) if d is not None)]


def ours(norm, x, weight, bias):
    inputs = [None if a is None else lt.tensor(a, requires_grad=True) for a in (x, weight, bias)]
    out = norm(*inputs)
    g = np.cos(np.arange(x.size)).reshape(x.shape).astype(x.dtype)
    out.backward(lt.tensor(g))
    return [out.detach().numpy(), *(t.grad.numpy() for t in inputs if t is not None)]


def layer(x, w, b):
    return F.layer_norm(x, x.shape[1:], w, b)


def rms(x, w, b):
    return F.rms_norm(x, x.shape[1:], w, eps=1e-5)


def batch(x, w, b):
    return F.batch_norm(x, None, None, w, b, training=True)


# name: (function, shape, elements of a weight, axes of a mean, shape of the weight, centered)
CASES = {
    "layer": (layer, (611, 67), 67, (1,), (1, 67), True),
    "layer, one row": (layer, (1, 20011), 20011, (1,), (1, 20011), True),
    "rms": (rms, (611, 67), 67, (1,), (1, 67), False),
    "batch, features": (batch, (301, 131), 131, (0,), (1, 131), True),
    "batch, many features": (batch, (33, 777), 777, (0,), (1, 777), True),
    "batch, planes of one": (batch, (301, 131, 1), 131, (0, 2), (1, 131, 1), True),
    "batch, lines": (batch, (31, 13, 57), 13, (0, 2), (1, 13, 1), True),
    "instance": (
        lambda x, w, b: F.instance_norm(x, weight=w, bias=b),
        (31, 13, 57),
        13,
        (2,),
        (1, 13, 1),
        True,
    ),
}


@pytest.mark.parametrize("affine", ["both", "weight", "none"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.compiled
def test_it_is_what_the_definition_says(name, dtype, affine):
    norm, shape, count, axes, expanded, centered = CASES[name]
    weight = None if affine == "none" else numbers(count, seed=1, dtype=dtype)
    bias = numbers(count, seed=2, dtype=dtype) if affine == "both" and centered else None
    x = numbers(*shape, dtype=dtype)
    found = ours(norm, x, weight, bias)
    expected = defined(x, weight, bias, axes, expanded, centered)
    close = 3e-5 if dtype == np.float32 else 1e-12
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == dtype
        np.testing.assert_allclose(a, b, rtol=close, atol=close * max(1.0, np.abs(b).max()))


LARGE = {
    "layer": (layer, (2053, 517), 517),
    "layer, few columns": (layer, (40009, 21), 21),
    "rms": (rms, (2053, 517), 517),
    "batch, features": (batch, (2053, 517), 517),
    "batch, planes": (batch, (16, 67, 31, 33), 67),
    "group": (lambda x, w, b: F.group_norm(x, 5, w, b), (17, 65, 31, 33), 65),
    "instance": (lambda x, w, b: F.instance_norm(x, weight=w, bias=b), (17, 65, 31, 33), 65),
}


@pytest.mark.skipif(not work_pool.available(), reason="threads in compiled code: Linux, 2 cores")
@pytest.mark.parametrize("name", [name for name in LARGE if name != "batch, features"])
def test_threads_in_compiled_code_change_no_bit(name, monkeypatch):
    norm, shape, count = LARGE[name]
    bias = None if norm is rms else numbers(count, seed=2)
    share, shared, results = work_pool.share, [], []
    monkeypatch.setattr(work_pool, "share", lambda *args: shared.append(share(*args)) or shared[-1])
    for wanted in (1, 2, 2):
        monkeypatch.setattr(threads, "_wanted", wanted)
        results.append(ours(norm, numbers(*shape), numbers(count, seed=1), bias))
        assert (True in shared) == (wanted > 1)
    for a, *others in zip(*results, strict=True):
        assert [a.tobytes() == b.tobytes() for b in others] == [True, True]


@pytest.mark.parametrize("name", LARGE)
def test_threads_change_no_bit(name, monkeypatch):
    monkeypatch.setattr(thresholds, "SHARED", 1 << 60)
    monkeypatch.setattr(threads, "LIMIT", 3)
    monkeypatch.setattr(threads, "_pool", None)
    monkeypatch.setattr(thresholds, "THREAD", 1 << 17)
    norm, shape, count = LARGE[name]
    bias = None if norm is rms else numbers(count, seed=2)
    results = []
    for wanted in (1, 3):
        monkeypatch.setattr(threads, "_wanted", wanted)
        results.append(ours(norm, numbers(*shape), numbers(count, seed=1), bias))
    assert threads._pool is not None
    for a, b in zip(*results, strict=True):
        assert a.tobytes() == b.tobytes()


@pytest.mark.parametrize("name", LARGE)
def test_backward_takes_no_workspace(name):
    norm, shape, count = LARGE[name]
    x = lt.tensor(numbers(*shape), requires_grad=True)
    w = lt.tensor(numbers(count), requires_grad=True)
    out = norm(x, w, None)
    g = lt.ones_like(out)
    before = lt.memory_allocated()
    lt.reset_peak_memory_stats()
    gx, gw = lt.autograd.grad(out, [x, w], g)
    # The gradients, and that of a bias, which is not wanted.
    assert lt.max_memory_allocated() - before == gx.nbytes + 2 * gw.nbytes


def test_a_row_with_nan_or_infinity_spoils_itself_alone():
    x = numbers(300, 70)
    x[3, 5], x[7, 0] = np.nan, np.inf
    w = lt.tensor(numbers(70), requires_grad=True)
    for norm in (layer, rms):
        t = lt.tensor(x, requires_grad=True)
        out = norm(t, w, None)
        (dx,) = lt.autograd.grad(out, [t], lt.ones_like(out))
        for rows in (out.detach().numpy(), dx.numpy()):
            bad = np.isnan(rows).any(1)
            assert bad[[3, 7]].all()
            assert bad.sum() == 2
