"""Sums and means of 16-bit floats that are read as they are: values, dims, bytes, threads."""

import numpy as np
import pytest

import lowtide as lt
from lowtide.framework.devices import backend
from lowtide.framework.kernels.runtime import threads, thresholds

HALVES = [lt.bfloat16, lt.float16]
DIMS = [
    ((300, 300), None),
    ((300, 300), 0),
    ((300, 300), 1),
    ((7, 50, 60), 1),
    ((7, 50, 60), (0, 1)),
    ((7, 50, 60), (1, 2)),
    ((7, 50, 1, 60), (1, 2)),
    ((2, 3000, 70), 1),
    ((40001,), 0),
    ((3, 1, 20000), 2),
    ((1, 20000, 1), 1),
    ((5, 3, 2500), 1),
    ((7, 50, 60), (0, 2)),
]


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(("shape", "dim"), DIMS, ids=str)
def test_sums_are_rounded_once(shape, dim, dtype):
    x = (lt.randn(shape) + 0.1).to(dtype)
    for f in (lt.sum, lt.mean):
        exact = f(x.double(), dim)
        for out in (None, lt.float32, lt.float64):
            made = f(x, dim, dtype=out)
            assert made.shape == exact.shape
            assert made.dtype is (out or dtype)
            bound = {lt.bfloat16: 2**-8, lt.float16: 2**-10}.get(made.dtype, 2**-18)
            assert (made.double() - exact).abs().max() <= bound * exact.abs().max()
        assert f(x, dim, True).shape == f(x.float(), dim, True).shape


@pytest.mark.parametrize("dtype", HALVES)
def test_other_strides(dtype):
    x = lt.randn(200, 301).to(dtype)
    for view in (x.t(), x[:, 1:], x[::2], x[:1].expand(100, 301)):
        expected = view.double().sum(0)
        assert (view.sum(0).double() - expected).abs().max() <= expected.abs().max() * 2**-8


@pytest.mark.parametrize("dtype", HALVES)
def test_nan_and_infinity(dtype):
    x = lt.ones(200, 200, dtype=dtype)
    x[3, 4], x[5, 6], x[7, 8], x[7, 9] = (float(v) for v in ("nan", "inf", "inf", "-inf"))
    for dim in (0, 1):
        made, expected = x.sum(dim).float(), x.float().sum(dim)
        np.testing.assert_array_equal(made.numpy(), expected.numpy())


def test_many_numbers_do_not_lose_the_small_ones():
    x = lt.full((1 << 22,), 1.0, dtype=lt.bfloat16)
    assert x.sum(dtype=lt.float32).item() == 1 << 22
    assert x.reshape(-1, 4).sum(0, dtype=lt.float32).tolist() == [1 << 20] * 4
    y = lt.full((1 << 22,), 0.1, dtype=lt.bfloat16)
    exact = float(y[0]) * (1 << 22)
    assert abs(y.sum(dtype=lt.float32).item() - exact) < exact * 1e-6


def test_gradients():
    x = lt.randn(100, 200).to(lt.bfloat16).requires_grad_()
    x.sum(0).mean().backward()
    assert lt.equal(x.grad, lt.full((100, 200), 1 / 200).to(lt.bfloat16))


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_no_float32_copy_is_made(device):
    ledger = backend(lt.device(device)).ledger
    x = lt.zeros(512, 256, dtype=lt.bfloat16, device=device)
    start = ledger.live
    for dim, dtype, expected in ((0, None, 256 * 6), (1, None, 512 * 6), (0, lt.float32, 256 * 4)):
        ledger.reset_peak()
        made = x.sum(dim, dtype=dtype)
        assert ledger.peak - start == expected
        del made


@pytest.mark.parametrize("wanted", [1, 2, 3])
def test_threads_change_nothing(wanted, monkeypatch):
    x = lt.randn(9, 300, 70).to(lt.bfloat16)
    first = [x.sum(1), x.sum(2), x.sum()]
    monkeypatch.setattr(threads, "LIMIT", 3)
    monkeypatch.setattr(threads, "_wanted", wanted)
    monkeypatch.setattr(threads, "_pool", None)
    monkeypatch.setattr(thresholds, "THREAD", 1)
    monkeypatch.setattr(thresholds, "CHUNK", 1)
    for a, b in zip(first, [x.sum(1), x.sum(2), x.sum()], strict=True):
        assert lt.equal(a, b)


def test_small_sums_are_converted():
    ledger = backend(lt.device("cpu")).ledger
    x = lt.zeros(thresholds.COMPILED_MOVE // 2, dtype=lt.bfloat16)
    start = ledger.live
    ledger.reset_peak()
    x.sum()
    assert ledger.peak - start == 4 * x.numel() + 2 + 4
