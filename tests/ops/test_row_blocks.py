"""Halves of which a block of rows is converted at a time: numbers, and the workspace they take."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import lowtide as lt
import lowtide.nn.functional as F
from lowtide.framework.devices import backend
from lowtide.framework.kernels.common import row_blocks
from lowtide.framework.kernels.runtime import threads, thresholds
from lowtide.framework.ops.activation import softmax
from lowtide.framework.ops.attention import sdpa, sdpa_backward
from lowtide.framework.ops.loss import cross_entropy_blocks
from lowtide.framework.ops.normalization import half_blocks
from lowtide.framework.ops.pooling import half_blocks as pooling_blocks
from lowtide.framework.ops.registry import OPS

MODULES = [softmax, sdpa, sdpa_backward, cross_entropy_blocks, half_blocks, pooling_blocks]
HALVES = [lt.float16, lt.bfloat16]
NAMES = ["float16", "bfloat16"]


@pytest.fixture(autouse=True)
def _fresh_plans(monkeypatch):
    for op in OPS.values():
        monkeypatch.setattr(op, "plans", {})


def numbers(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def leaf(dtype: Any, *shape: int, seed: int = 0) -> Any:
    return lt.tensor(numbers(*shape, seed=seed)).to(dtype).requires_grad_()


def masked(q: Any, k: Any, v: Any, *, causal: bool = False) -> Any:
    seen = (
        None if causal else lt.tensor(numbers(q.shape[0], 1, q.shape[2], k.shape[2], seed=7) > -1)
    )
    return F.scaled_dot_product_attention(q, k, v, seen, is_causal=causal)


def gaps(q: Any, k: Any, v: Any) -> Any:
    seen = lt.tensor(numbers(q.shape[0], q.shape[2], 1, 2 * k.shape[2], seed=7) > -1)
    return F.scaled_dot_product_attention(q, k, v, seen.transpose(1, 2)[..., ::2])


def merged(q: Any, k: Any, v: Any) -> Any:
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))  # heads that were split off a product's result
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


CLASSES = [k * 7 % 130 for k in range(260)]
ATTENTION = (11, 4, 40, 24), (11, 4, 56, 24), (11, 4, 56, 16)
CASES: dict[str, tuple[Any, Any]] = {
    "softmax": (lambda x: F.softmax(x, -1), [(260, 130)]),
    "softmax of stacks": (lambda x: F.softmax(x, -1), [(13, 20, 130)]),
    "log_softmax": (lambda x: F.log_softmax(x, 1), [(260, 130)]),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (130,), w, b), [(260, 130), (130,), (130,)]),
    "layer_norm of two dims": (
        lambda x, w: F.layer_norm(x, (10, 13), w),
        [(13, 20, 10, 13), (10, 13)],
    ),
    "layer_norm alone": (lambda x: F.layer_norm(x, (130,)), [(260, 130)]),
    "rms_norm": (lambda x, w: F.rms_norm(x, (130,), w), [(260, 130), (130,)]),
    "rms_norm alone": (lambda x: F.rms_norm(x, (130,)), [(260, 130)]),
    "cross_entropy": (lambda x: F.cross_entropy(x, lt.tensor(CLASSES)), [(260, 130)]),
    "cross_entropy of each": (
        lambda x: F.cross_entropy(x, lt.tensor(CLASSES), reduction="none", label_smoothing=0.1),
        [(260, 130)],
    ),
    "cross_entropy, weights": (
        lambda x: F.cross_entropy(
            x, lt.tensor(CLASSES), lt.arange(130).to(x.dtype), ignore_index=7, label_smoothing=0.2
        ),
        [(260, 130)],
    ),
    "group_norm": (lambda x, w, b: F.group_norm(x, 5, w, b), [(26, 20, 7, 11), (20,), (20,)]),
    "group_norm alone": (lambda x: F.group_norm(x, 5), [(26, 20, 7, 11)]),
    "instance_norm": (
        lambda x, w, b: F.instance_norm(x, weight=w, bias=b),
        [(26, 20, 77), (20,), (20,)],
    ),
    "batch_norm": (
        lambda x, w, b: F.batch_norm(x, None, None, w, b, True),
        [(26, 20, 7, 11), (20,), (20,)],
    ),
    "batch_norm alone": (lambda x: F.batch_norm(x, None, None, training=True), [(26, 20, 77)]),
    "max_pool": (lambda x: F.max_pool2d(x, 3, 2, 1), [(26, 20, 17, 11)]),
    "max_pool of one dim": (lambda x: F.max_pool1d(x, 2), [(26, 20, 70)]),
    "avg_pool": (
        lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
        [(26, 20, 17, 11)],
    ),
    "avg_pool of three dims": (lambda x: F.avg_pool3d(x, 2), [(13, 10, 8, 8, 6)]),
    "attention": (F.scaled_dot_product_attention, ATTENTION),
    "attention, masked": (masked, ATTENTION),
    "attention, a mask with gaps": (gaps, ATTENTION),
    "attention, causal": (lambda q, k, v: masked(q, k, v, causal=True), ATTENTION),
    "attention, rows first": (merged, [(11, 40, 4, 24), (11, 56, 4, 24), (11, 56, 4, 16)]),
    "attention, shared heads": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True),
        [(11, 4, 40, 24), (11, 2, 56, 24), (11, 2, 56, 16)],
    ),
}


@pytest.fixture(autouse=True)
def plans_of_the_test(monkeypatch):
    """Plans know the size of a block: those made here are for no other test, nor others' for it."""
    for op in OPS.values():
        monkeypatch.setattr(op, "plans", {})


def gradients(f: Any, leaves: list[Any]) -> list[Any]:
    made = f(*leaves)
    made.backward(lt.tensor(numbers(*made.shape, seed=9)).to(made.dtype))
    return [made.detach(), *[x.grad for x in leaves]]


@pytest.mark.quick(42)
@pytest.mark.parametrize("dtype", HALVES, ids=NAMES)
@pytest.mark.parametrize("block", [1, 1 << 12, 1 << 17])
@pytest.mark.parametrize("name", CASES)
def test_they_are_those_of_float32_rounded(name, block, dtype, monkeypatch):
    monkeypatch.setattr(thresholds, "HALF_BLOCK", block)
    monkeypatch.setattr(thresholds, "CHANNEL_BLOCK_THREADS", 99)
    f, shapes = CASES[name]
    halves = [leaf(dtype, *s, seed=k) for k, s in enumerate(shapes)]
    floats = [x.detach().float().requires_grad_() for x in halves]
    taken = []
    plain = row_blocks.in_blocks

    def counted(*args: Any, **named: Any) -> None:
        taken.append(args)
        plain(*args, **named)

    for module in MODULES:
        monkeypatch.setattr(module, "in_blocks", counted)
    made = gradients(f, halves)
    assert len(taken) == 2  # forward and backward
    for a, b in zip(made, gradients(f, floats), strict=True):
        assert a.dtype is dtype
        x, y = a.float().numpy(), b.numpy()
        # The kept result of a softmax is rounded, too: its gradient is a difference of such.
        assert np.abs(x - y).max() <= 2**-7 * max(1.0, np.abs(y).max())


@pytest.mark.quick(12)
@pytest.mark.parametrize("name", CASES)
def test_blocks_change_no_number_but_sums_over_rows(name, monkeypatch):
    f, shapes = CASES[name]
    halves = [leaf(lt.bfloat16, *s, seed=k) for k, s in enumerate(shapes)]
    monkeypatch.setattr(thresholds, "HALF_BLOCK", 1 << 30)
    whole = gradients(f, halves)
    monkeypatch.setattr(thresholds, "HALF_BLOCK", 1 << 12)
    for op in OPS.values():
        op.plans.clear()
    again = gradients(f, [x.detach().requires_grad_() for x in halves])
    for k, (a, b) in enumerate(zip(whole, again, strict=True)):
        if k < 2 or name.startswith("attention"):
            assert a.equal(b)
        else:  # of a weight or a bias
            assert np.allclose(a.float().numpy(), b.float().numpy(), 2**-7, 2**-7)


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("rows", [1024, 4096])
@pytest.mark.parametrize(("name", "arrays"), [("softmax", 2), ("log_softmax", 2), ("rms_norm", 2)])
def test_the_workspace_does_not_grow(name, arrays, rows, device):
    f = {"rms_norm": lambda x: F.rms_norm(x, (1024,))}.get(name, CASES[name][0])
    x = lt.zeros(rows, 1024, dtype=lt.bfloat16, device=device)
    ledger = backend(lt.device(device)).ledger
    start = ledger.live
    ledger.reset_peak()
    made = f(x)
    kept = rows * 4 if name == "rms_norm" else 0
    block = thresholds.HALF_BLOCK * min(4, threads.LIMIT)
    assert ledger.peak - start == made.nbytes + kept + arrays * 4 * block


def test_rows_of_integers_are_not_halves():
    assert not row_blocks.is_half(np.zeros(3, np.int16))
    assert row_blocks.is_half(lt.zeros(3, dtype=lt.bfloat16)._array)
    assert row_blocks.is_half(np.zeros(3, np.float16))


def test_wrong_classes_are_refused_in_any_block(monkeypatch):
    monkeypatch.setattr(thresholds, "HALF_BLOCK", 1 << 10)
    x, classes = leaf(lt.bfloat16, 260, 130), lt.zeros(260, dtype=lt.int64)
    classes[200] = 130
    with pytest.raises(IndexError, match="130"):
        F.cross_entropy(x, classes)
