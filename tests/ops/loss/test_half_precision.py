"""Similarities and norms of half precision, where squares are too large or too small for it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import lowtide as lt
import lowtide.nn.functional as F

SCALES = [1e-4, 1e-2, 1.0, 300.0, 2e4]
DTYPES = [lt.float16, lt.bfloat16]
Pair = tuple[Any, Any]


def drawn(scale: float, dtype: Any) -> tuple[Pair, Pair]:
    """Two tensors, in the dtype and the same numbers in float64."""
    draw = np.random.default_rng(0)
    low = [lt.tensor(draw.standard_normal((4, 6)) * scale).to(dtype) for _ in range(2)]
    wide = [x.double().requires_grad_() for x in low]
    return (low[0].requires_grad_(), low[1].requires_grad_()), (wide[0], wide[1])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize(
    "function",
    [
        F.cosine_similarity,
        lambda a, b: F.cosine_embedding_loss(a, b, lt.tensor([1, -1, 1, -1]), reduction="none"),
    ],
    ids=["similarity", "loss"],
)
def test_cosines(function: Any, scale: float, dtype: Any) -> None:
    low, wide = drawn(scale, dtype)
    found, expected = function(*low), function(*wide)
    assert found.dtype is dtype
    step = 2.0**-10 if dtype is lt.float16 else 2.0**-7
    np.testing.assert_allclose(
        found.detach().double().numpy(), expected.detach().numpy(), step, step
    )
    found.sum().backward()
    expected.sum().backward()
    for x, y in zip(low, wide, strict=True):
        largest = float(y.grad.abs().max())
        error = float((x.grad.double() - y.grad).abs().max())
        assert error <= 4 * step * largest + 2.0**-24  # the least that float16 holds


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("scale", [1e-3, 1e-2, 1.0, 300.0])
def test_the_gradient_of_normalize(scale: float, dtype: Any) -> None:
    (x, _), (wide, _) = drawn(scale, dtype)
    g = np.random.default_rng(1).standard_normal((4, 6)) * 4
    F.normalize(x, dim=1).backward(lt.tensor(g).to(dtype))
    F.normalize(wide, dim=1).backward(lt.tensor(g).to(dtype).double())
    assert x.grad.isfinite().all()
    largest = float(wide.grad.abs().max())
    step = 2.0**-10 if dtype is lt.float16 else 2.0**-7
    error = float((x.grad.double() - wide.grad).abs().max())
    assert error <= 8 * step * largest + 2.0**-24


def test_dtypes_that_differ() -> None:
    low = lt.randn(3, 4).to(lt.float16)
    assert F.cosine_similarity(low, low.bfloat16()).dtype is lt.float32
    found = F.cosine_similarity(low, low.double())
    assert found.dtype is lt.float64
    np.testing.assert_allclose(found.numpy(), np.ones(3), rtol=1e-7)


@pytest.mark.parametrize("dtype", [lt.float16, lt.float32, lt.float64], ids=str)
@pytest.mark.parametrize("beta", [0.0, 1e-320, 1e-310, 1e-46, 1e-40, 1e-38])
def test_smooth_l1_with_the_smallest_betas_is_l1(dtype, beta):
    x = lt.tensor([0.0, 2.0, -3.0]).to(dtype).requires_grad_()
    loss = lt.nn.functional.smooth_l1_loss(x, lt.zeros(3, dtype=dtype), beta=beta)
    assert loss.item() == pytest.approx(5 / 3, rel=1e-3)
    loss.backward()
    assert lt.allclose(x.grad.double(), lt.tensor([0.0, 1.0, -1.0]).double() / 3, rtol=1e-3)


def test_losses_of_integers_do_not_wrap():
    a, b = lt.tensor([250, 3], dtype=lt.uint8), lt.tensor([3, 250], dtype=lt.uint8)
    one = lt.tensor([1, 1], dtype=lt.uint8)
    losses = F.margin_ranking_loss(a, b, one, reduction="none")
    assert losses.dtype is lt.float32
    assert losses.tolist() == [0, 247]
    x = lt.tensor([1.0, 200.0])
    expected = F.soft_margin_loss(x, lt.ones(2), reduction="none")
    assert lt.equal(F.soft_margin_loss(x, one, reduction="none"), expected)


def test_a_bool_input_beside_floats():
    flags, target = lt.tensor([True, False]), lt.tensor([0.5, 3.0])
    assert F.mse_loss(flags, target, reduction="none").tolist() == [0.25, 9]
    assert F.smooth_l1_loss(flags, target, reduction="none").tolist() == [0.125, 2.5]


def test_cosine_similarity_takes_integers_beside_floats():
    found = F.cosine_similarity(lt.tensor([3, 4]), lt.tensor([4.0, 3.0]), dim=0)
    assert found.item() == pytest.approx(24 / 25)
    with pytest.raises(RuntimeError, match="floating dtype"):
        F.cosine_similarity(lt.tensor([3, 4]), lt.tensor([4, 3]), dim=0)
