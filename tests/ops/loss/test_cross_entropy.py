"""Edges of losses: what cross entropy keeps, tiles, extreme numbers, messages."""

import numpy as np
import pytest

import lowtide as lt
from lowtide.framework.autograd.engine import grad
from lowtide.framework.ops.loss import class_targets, cross_entropy
from lowtide.nn import functional as F


def numbers(*shape):
    return lt.tensor(np.random.default_rng(len(shape)).standard_normal(shape), requires_grad=True)


def test_cross_entropy_keeps_logits_and_one_number_per_row():
    x, t = numbers(6, 50), lt.tensor([0, 1, 2, 3, 4, 5])
    saved = F.cross_entropy(x, t, reduction="none").grad_fn.saved
    sizes = {k.label.split(".")[1]: k.nbytes for k in saved}
    assert sizes == {"input": 6 * 50 * 8, "target": 6 * 8, "top": 6 * 8, "total": 6 * 8}


@pytest.mark.parametrize("shape", [(40, 7), (3, 7, 50), (2, 7, 6, 5)])
def test_results_do_not_depend_on_the_tile(shape, monkeypatch):
    x = numbers(*shape)
    t = lt.tensor(np.random.default_rng(0).integers(0, 7, (shape[0], *shape[2:])))
    found = []
    for size in (1, 1 << 30):
        monkeypatch.setattr(class_targets, "TILE_BYTES", size)
        for op in (
            cross_entropy._cross_entropy,
            cross_entropy._cross_entropy_grad,
            cross_entropy._nll,
            cross_entropy._nll_grad,
        ):
            op.op.plans.clear()
        for function in (F.cross_entropy, F.nll_loss):
            value = function(x, t)
            found.append((value.item(), grad(value, [x])[0].numpy()))
    for a, b in zip(found[:2], found[2:], strict=True):
        assert a[0] == pytest.approx(b[0], rel=1e-12)
        np.testing.assert_allclose(a[1], b[1], rtol=1e-12)


def test_large_logits_do_not_overflow():
    x = lt.tensor([[1e4, 0.0], [-1e4, 1e4]], requires_grad=True)
    value = F.cross_entropy(x, lt.tensor([0, 0]), reduction="none")
    assert value.tolist() == [0.0, 2e4]
    assert np.isfinite(grad(value.sum(), [x])[0].numpy()).all()


def test_rows_that_are_ignored_count_for_nothing():
    x, t = numbers(4, 3), lt.tensor([0, -100, 2, -100])
    some, rows = F.cross_entropy(x, t), F.cross_entropy(x[::2], t[::2])
    assert some.item() == pytest.approx(rows.item())
    assert not grad(some, [x])[0].numpy()[1::2].any()


def test_a_mean_over_nothing_is_nan():
    assert np.isnan(F.cross_entropy(numbers(2, 3), lt.tensor([-100, -100])).item())


@pytest.mark.parametrize("bad", [3, -1])
def test_a_class_out_of_range_is_an_index_error(bad):
    for function in (F.cross_entropy, F.nll_loss):
        with pytest.raises(IndexError, match="out of bounds"):
            function(numbers(2, 3), lt.tensor([0, bad]))


def test_certain_probabilities_cost_100_at_most():
    p = lt.tensor([0.0, 1.0, 0.0], requires_grad=True)
    value = F.binary_cross_entropy(p, lt.tensor([1.0, 0.0, 0.0]), reduction="none")
    assert value.tolist() == [100.0, 100.0, 0.0]


def test_binary_logits_may_be_large():
    x = lt.tensor([1e4, -1e4])
    value = F.binary_cross_entropy_with_logits(x, lt.tensor([0.0, 0.0]), reduction="none")
    assert value.tolist() == [1e4, 0.0]


def test_the_old_reduction_arguments_still_work():
    x, y = numbers(3), lt.zeros(3, dtype=lt.float64)
    with pytest.warns(UserWarning, match="please use reduction"):
        value = F.mse_loss(x, y, size_average=False)
    assert value.item() == pytest.approx(F.mse_loss(x, y, reduction="sum").item())


def test_broadcasting_a_target_warns():
    with pytest.warns(UserWarning, match="target size"):
        F.mse_loss(numbers(3, 1), numbers(3))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: F.cross_entropy(numbers(2, 3), lt.tensor([0])), ValueError, "batch_size"),
        (lambda: F.cross_entropy(numbers(2, 3), lt.tensor([0.0, 1.0])), RuntimeError, "Long"),
        (
            lambda: F.cross_entropy(numbers(2, 3), lt.tensor([0, 1]), numbers(2)),
            RuntimeError,
            "all 3 classes",
        ),
        (
            lambda: F.cross_entropy(numbers(2, 3), lt.tensor([0, 1]), label_smoothing=2.0),
            RuntimeError,
            "between 0.0 and 1.0",
        ),
        (lambda: F.mse_loss(numbers(2), numbers(2), reduction="max"), ValueError, "not a valid"),
        (lambda: F.binary_cross_entropy(numbers(2), numbers(3)), ValueError, "same size"),
        (lambda: F.binary_cross_entropy(numbers(2) - 9, numbers(2)), RuntimeError, "between 0"),
        (lambda: F.huber_loss(numbers(2), numbers(2), delta=0), RuntimeError, "non-positive"),
        (
            lambda: F.gaussian_nll_loss(numbers(2), numbers(2), numbers(2) - 9),
            ValueError,
            "negative",
        ),
        (
            lambda: F.triplet_margin_loss(numbers(2), numbers(2), numbers(2), margin=0),
            ValueError,
            "greater than 0",
        ),
    ],
)
def test_mistakes_are_named(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_the_cosine_of_a_vector_that_broadcasts_counts_its_element_as_often_as_the_others():
    a, b = numbers(1, 2, 3), numbers(2, 1, 3) + 0.5
    got = F.cosine_similarity(a, b, dim=-2)
    x, y = (np.broadcast_to(v.detach().numpy(), (2, 2, 3)) for v in (a, b))
    expected = (x * y).sum(1) / np.sqrt((x * x).sum(1) * (y * y).sum(1))
    np.testing.assert_allclose(got.detach().numpy(), expected)
    np.testing.assert_allclose(F.cosine_similarity(b, a, dim=1).detach().numpy(), expected)


def test_margin_losses_of_one_class():
    x, t = lt.tensor(0.3), lt.tensor(0)
    assert F.multi_margin_loss(x, t).item() == 0
    assert F.multilabel_margin_loss(x, t).item() == 0
    with pytest.raises(RuntimeError, match="inconsistent"):
        F.multilabel_margin_loss(lt.zeros(5, 4), lt.tensor(0))


def test_a_mean_of_float16_losses_may_sum_beyond_float16():
    x = lt.zeros(70000, 3, dtype=lt.float16)  # 70000 log(3) is 76903
    value = F.cross_entropy(x, lt.zeros(70000, dtype=lt.int64))
    assert value.dtype is lt.float16
    assert value.item() == pytest.approx(np.log(3), rel=1e-3)
