"""Attention: blocks change nothing, dropout repeats, no matrix of scores is kept."""

import numpy as np
import pytest

import lowtide as lt
from lowtide.framework.autograd.engine import grad
from lowtide.framework.kernels.runtime import thresholds
from lowtide.framework.ops.attention.sdpa import _attention, plain
from lowtide.framework.ops.attention.sdpa_backward import _attention_grad
from lowtide.framework.random.philox import Rng
from lowtide.nn import functional as F


def numbers(*shape, seed=0):
    values = np.random.default_rng((*shape, seed)).standard_normal(shape)
    return lt.tensor(values, requires_grad=True)


def inputs(rows=37, columns=41, heads=(6, 3)):
    return (
        numbers(2, heads[0], rows, 4),
        numbers(2, heads[1], columns, 4, seed=1),
        numbers(2, heads[1], columns, 5, seed=2),
    )


@pytest.fixture(params=[1, 1 << 14, 1 << 20])
def tile(request, monkeypatch):
    monkeypatch.setattr(thresholds, "TILE_BYTES", request.param)
    for op in (_attention, _attention_grad):
        op.op.plans.clear()
    yield request.param
    for op in (_attention, _attention_grad):
        op.op.plans.clear()


@pytest.mark.parametrize("p", [0.0, 0.3])
@pytest.mark.parametrize("causal", [False, True])
def test_blocks_equal_the_plain_definition(tile, p, causal):
    q, k, v = inputs()
    mask = None if causal else numbers(2, 1, 1, 41, seed=3)
    rng = Rng(5, 9) if p else None
    sources = [q, k, v] if mask is None else [q, k, v, mask]
    out = _attention(q, k, v, mask, rng, p, causal, 0.4)
    expected = plain(q, k, v, mask, rng, p, causal, 0.4)
    np.testing.assert_allclose(
        out.detach().numpy(), expected.detach().numpy(), rtol=1e-9, atol=1e-12
    )
    u = numbers(*out.shape, seed=4).detach()
    for a, b in zip(grad(out, sources, [u]), grad(expected, sources, [u]), strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-8, atol=1e-11)


def test_no_matrix_of_scores_is_kept():
    q, k, v = (numbers(1, 2, 300, 8, seed=s) for s in range(3))
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    assert sum(s.nbytes for s in out.grad_fn.saved) == 4 * q.nbytes + 2 * 300 * 8


def test_rows_that_see_nothing_are_zero_and_have_zero_gradients():
    q, k, v = (numbers(1, 2, 4, seed=s) for s in range(3))
    seen = lt.tensor([[False, False], [True, False]])
    out = F.scaled_dot_product_attention(q, k, v, seen)
    assert out[0, 0].tolist() == [0.0] * 4
    g, _, _ = grad(out.sum(), [q, k, v])
    assert g[0, 0].tolist() == [0.0] * 4


def test_dropout_of_everything_is_zero():
    q, k, v = (numbers(1, 2, 4, seed=s) for s in range(3))
    assert not F.scaled_dot_product_attention(q, k, v, dropout_p=1.0).detach().numpy().any()


def test_no_keys_give_zero():
    out = F.scaled_dot_product_attention(lt.zeros(2, 3, 4), lt.zeros(2, 0, 4), lt.zeros(2, 0, 5))
    assert out.shape == (2, 3, 5)
    assert not out.numpy().any()


def test_leading_dimensions_broadcast():
    q, k, v = numbers(2, 3, 4, 5), numbers(1, 3, 6, 5), numbers(1, 1, 6, 5)
    out = F.scaled_dot_product_attention(q, k, v)
    expected = plain(q, k, v.expand(1, 3, 6, 5), None, None, 0.0, False, 5**-0.5)
    np.testing.assert_allclose(out.detach().numpy(), expected.detach().numpy(), rtol=1e-10)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"key": (2, 3, 6, 4)}, "share their last dimension"),
        ({"value": (2, 3, 5, 5)}, "share their last dimension"),
        ({"query": (5,)}, "at least 2 dimensional"),
        ({"is_causal": True, "attn_mask": lt.tensor([True])}, "should not be set"),
        ({"attn_mask": lt.tensor([1])}, "dtype to be bool"),
        ({"query": (2, 4, 4, 5), "enable_gqa": True}, "divisor of"),
    ],
)
def test_mistakes_are_named(change, message):
    arguments = {"query": (2, 3, 4, 5), "key": (2, 3, 6, 5), "value": (2, 3, 6, 5)} | change
    made = {n: numbers(*v) if isinstance(v, tuple) else v for n, v in arguments.items()}
    with pytest.raises(RuntimeError, match=message):
        F.scaled_dot_product_attention(**made)


def test_query_and_keys_may_have_other_numbers_of_dims():
    q, k, v = (lt.tensor(np.random.default_rng(n).standard_normal((2, 3, 5, 4))) for n in range(3))
    out = F.scaled_dot_product_attention(q[0], k, v)
    expected = F.scaled_dot_product_attention(q[:1].expand(2, 3, 5, 4), k, v)
    np.testing.assert_allclose(out.numpy(), expected.numpy())


def test_a_mask_that_does_not_broadcast_is_refused():
    q = lt.zeros(2, 3, 5, 4)
    for shape in ((4, 5), (3, 1, 5, 5), (1, 2, 3, 5, 5)):
        with pytest.raises(RuntimeError, match=r"scores \(2, 3, 5, 5\)"):
            F.scaled_dot_product_attention(q, q, q, lt.zeros(*shape))
