"""Losses at the edges of what they take. The numbers are those of PyTorch 2.13 on the CPU."""

from __future__ import annotations

import numpy as np
import pytest

import lowtide as lt
import lowtide.nn.functional as F

INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize("bad", [2.0, -0.1, NAN])
@pytest.mark.parametrize("which", ["input", "target"])
def test_binary_cross_entropy_refuses_what_is_no_probability(which, bad):
    pair = {"input": lt.tensor([0.5, 0.25]), "target": lt.tensor([0.5, 1.0])}
    pair[which] = lt.tensor([0.5, bad])
    with pytest.raises(RuntimeError, match=rf"all elements of {which} should be between 0 and 1"):
        F.binary_cross_entropy(**pair)


def test_binary_cross_entropy_at_its_ends():
    x = lt.tensor([0.0, 0.0, 1.0, 0.25], dtype=lt.float64, requires_grad=True)
    t = lt.tensor([0.0, 1.0, 1.0, 0.25], dtype=lt.float64, requires_grad=True)
    loss = F.binary_cross_entropy(x, t, reduction="none")
    np.testing.assert_allclose(loss.tolist(), [0, 100, 0, 0.5623351446188083])
    g, h = lt.autograd.grad(loss.sum(), [x, t], create_graph=True)
    np.testing.assert_allclose(g.tolist(), [0, -1e12, 0, 0])
    np.testing.assert_allclose(h.tolist(), [INF, INF, -INF, np.log(3)])
    (twice,) = lt.autograd.grad(g.sum(), [x])
    np.testing.assert_allclose(twice.tolist(), [0, 1e24, 0, 1 / (0.25 * 0.75)], rtol=1e-9)


@pytest.mark.parametrize("twice", [False, True])
@pytest.mark.parametrize(("steps", "dtype"), [(2, lt.float64), (2, lt.float32), (70, lt.float32)])
def test_a_target_without_an_alignment_has_no_gradient(steps, dtype, twice):
    x = lt.zeros(steps, 2, 3, dtype=dtype).log_softmax(2).requires_grad_()
    targets, lengths = lt.tensor([[1] * 20, [2] * 20]), [2, steps]
    for zero, expected in ((False, NAN), (True, 0.0)):
        loss = F.ctc_loss(x, targets, lengths, [3, 1], reduction="none", zero_infinity=zero)
        (g,) = lt.autograd.grad(loss.sum(), [x], create_graph=twice)
        np.testing.assert_array_equal(g.detach()[:2, 0].numpy(), np.full((2, 3), expected))
        assert not g.detach()[2:, 0].any()
        assert g.isfinite()[:, 1].all()
        assert g.detach()[:, 1].any()


def test_infinite_variances_and_log_targets():
    inf = lt.tensor([INF], requires_grad=True)
    loss = F.gaussian_nll_loss(lt.tensor([1.0]), lt.tensor([0.0]), inf)
    assert loss.item() == INF
    assert lt.autograd.grad(loss, [inf])[0].item() == 0
    value = F.kl_div(lt.tensor([0.0]), lt.tensor([INF]), reduction="sum", log_target=True)
    assert value.item() == INF


def test_a_margin_that_is_just_kept_costs_nothing():
    x = lt.tensor([[0.0, 1.0]], requires_grad=True)
    loss = F.multi_margin_loss(x, lt.tensor([1]))
    assert loss.item() == 0
    assert lt.autograd.grad(loss, [x])[0].tolist() == [[0, 0]]


@pytest.mark.parametrize("rows", [1, 4000])
def test_infinite_logits_and_margins_that_are_nan(rows):
    def row(*values):
        return lt.tensor([values] * rows)

    last = lt.ones(rows, dtype=lt.int64)
    for x, loss in (
        (row(INF, 0.0), NAN),
        (row(-INF, -INF), NAN),
        (row(-INF, 0.0), 0.0),
        (row(0.0, -INF), INF),
    ):
        found = F.cross_entropy(x, last, reduction="none").numpy()
        np.testing.assert_array_equal(found, np.full(rows, loss, np.float32))
    logits = F.binary_cross_entropy_with_logits
    found = logits(row(INF, -INF), row(0.0, 1.5), reduction="none").numpy()
    np.testing.assert_array_equal(found, np.full((rows, 2), INF, np.float32))
    x = row(0.0, 0.0, NAN)
    found = F.multilabel_margin_loss(x, row(1, 1, 1), reduction="none")
    np.testing.assert_array_equal(found.numpy(), np.full(rows, 1.0, np.float32))
