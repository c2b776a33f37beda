"""Padding by what lies inside: values, the adjoint, and the bytes that both take."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

import lowtide as lt
import lowtide.nn.functional as F

NUMPYS = {"reflect": "reflect", "replicate": "edge", "circular": "wrap"}


def drawn(seed: int, mode: str) -> tuple[list[int], list[int]]:
    """A shape, and counts that the mode allows."""
    r = random.Random(seed)
    padded = r.choice([1, 2, 3])
    shape = [r.randint(1, 6) for _ in range(padded + r.choice([0, 1, 2]))]
    most = {"reflect": -1, "replicate": 5, "circular": 0}[mode]
    pad: list[int] = []
    for k in range(padded):
        pad += [r.randint(0, shape[-1 - k] + most) for _ in range(2)]
    return shape, pad


@pytest.mark.parametrize("mode", NUMPYS)
def test_drawn_sizes_are_numpys_and_the_gradient_is_the_adjoint(mode: str) -> None:
    for seed in range(150):
        shape, pad = drawn(seed, mode)
        draws = np.random.default_rng(seed)
        x = draws.standard_normal(shape)
        ends = [(0, 0)] * (len(shape) - len(pad) // 2) + [*zip(pad[-2::-2], pad[::-2], strict=True)]
        t = lt.tensor(x, requires_grad=True)
        out = F.pad(t, pad, mode)
        expected = np.pad(x, ends, mode=NUMPYS[mode])  # type: ignore[call-overload]
        np.testing.assert_array_equal(out.detach().numpy(), expected)
        g = draws.standard_normal(expected.shape)
        (found,) = lt.autograd.grad(out, [t], lt.tensor(g))
        # Which element each place repeats, from numbers in their place.
        origin = np.pad(np.arange(x.size).reshape(shape), ends, mode=NUMPYS[mode])  # type: ignore[call-overload]
        total = np.zeros(x.size)
        np.add.at(total, origin.reshape(-1), g.reshape(-1))
        np.testing.assert_allclose(found.numpy(), total.reshape(shape), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("mode", NUMPYS)
@pytest.mark.parametrize("dtype", [lt.float16, lt.bfloat16, lt.int64, lt.bool, lt.complex64])
def test_every_dtype(mode: str, dtype: Any) -> None:
    x = lt.arange(12).reshape(3, 4).to(dtype)
    out = F.pad(x, (1, 2, 2, 1), mode)
    assert out.dtype is dtype
    expected = np.pad(np.arange(12).reshape(3, 4), ((2, 1), (1, 2)), mode=NUMPYS[mode])  # type: ignore[call-overload]
    assert out.tolist() == lt.tensor(expected).to(dtype).tolist()


@pytest.mark.parametrize("mode", NUMPYS)
def test_a_call_takes_its_result_and_a_band(mode: str) -> None:
    x = lt.ones(2, 3, 40, 40, requires_grad=True)
    before = lt.memory_allocated()
    lt.reset_peak_memory_stats()
    out = F.pad(x, (1, 1, 1, 1), mode)
    assert lt.max_memory_allocated() - before == out.nbytes
    g = lt.ones_like(out)
    before = lt.memory_allocated()
    lt.reset_peak_memory_stats()
    (found,) = lt.autograd.grad(out, [x], g)
    band = out.nbytes // 42 if mode == "replicate" else 0
    assert lt.max_memory_allocated() - before == found.nbytes + band


def test_names_of_nodes() -> None:
    x = lt.ones(1, 2, 5, 5, requires_grad=True)
    names = [
        F.pad(x, p, m).grad_fn.name() for p, m in (((1, 1), "reflect"), ((1,) * 4, "replicate"))
    ]
    assert names == ["ReflectionPad1DBackward0", "ReplicationPad2DBackward0"]
