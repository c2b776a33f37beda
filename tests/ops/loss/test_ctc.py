"""CTC and bags: against all alignments written out, edges, and the messages."""

import itertools

import numpy as np
import pytest

import lowtide as lt
from lowtide.framework import testing
from lowtide.framework.kernels.runtime import thresholds
from lowtide.nn import functional as F


def collapsed(path):
    return tuple(k for k, _ in itertools.groupby(path) if k != 0)


@pytest.mark.parametrize("target", [(), (1,), (1, 1), (1, 2), (2, 1)])
def test_the_loss_sums_over_every_alignment(target):
    log_p = np.log(np.random.default_rng(0).dirichlet(np.ones(3), 4))
    total = sum(
        np.exp(sum(log_p[t, k] for t, k in enumerate(path)))
        for path in itertools.product(range(3), repeat=4)
        if collapsed(path) == target
    )
    targets = lt.tensor(list(target), dtype=lt.int64).reshape(1, len(target))
    loss = F.ctc_loss(lt.tensor(log_p[:, None]), targets, [4], [len(target)], reduction="sum")
    assert loss.item() == pytest.approx(-np.log(total), rel=1e-12)


def test_a_target_that_does_not_fit_is_infinite_or_zero():
    x = lt.zeros(1, 1, 3, requires_grad=True)
    targets = lt.tensor([[1, 1]])
    assert F.ctc_loss(x, targets, [1], [2]).item() == float("inf")
    loss = F.ctc_loss(x, targets, [1], [2], zero_infinity=True)
    loss.backward()
    assert loss.item() == 0
    assert x.grad.abs().max().item() == 0


def test_one_sequence_needs_no_batch():
    x = lt.rand(5, 3).log_softmax(-1)
    alone = F.ctc_loss(x, lt.tensor([1, 2]), (5,), (2,), reduction="none")
    batched = F.ctc_loss(x.unsqueeze(1), lt.tensor([[1, 2]]), (5,), (2,), reduction="none")
    assert alone.shape == ()
    assert alone.item() == batched[0].item()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"input_lengths": (6,)}, "at most 5"),
        ({"input_lengths": (5, 5)}, "batch_size"),
        ({"target_lengths": (3,)}, "ctc_loss"),
        ({"targets": lt.tensor([[1.0, 2.0]])}, "integral"),
        ({"blank": 3}, "label range"),
    ],
)
def test_mistakes_are_named(change, message):
    given = {
        "log_probs": lt.zeros(5, 1, 3),
        "targets": lt.tensor([[1, 2]]),
        "input_lengths": (5,),
        "target_lengths": (2,),
    }
    with pytest.raises(RuntimeError, match=message):
        F.ctc_loss(**(given | change))


def test_an_empty_bag_is_zero():
    table = lt.rand(4, 2)
    for mode in ("sum", "mean", "max"):
        bags = F.embedding_bag(lt.tensor([1, 2]), table, lt.tensor([0, 2]), mode=mode)
        assert bags[1].tolist() == [0.0, 0.0]


def test_a_bag_keeps_what_was_given_but_no_rows():
    table = lt.rand(50, 8, requires_grad=True)
    bags = F.embedding_bag(lt.tensor([1, 2, 3]), table, lt.tensor([0, 1]), mode="sum")
    kept = {label: shape for label, _, shape, _ in testing.saved_of([bags])}
    assert sorted(kept.values()) == [(2,), (3,)]  # offsets, numbers of rows


def test_scaling_by_frequency_is_that_of_embedding():
    table = lt.rand(5, 3, dtype=lt.float64)
    index = lt.tensor([1, 4, 4, 0, 1, 1])
    gradients = []
    for look_up in (
        lambda w: F.embedding(index, w, scale_grad_by_freq=True),
        lambda w: F.embedding_bag(index, w, lt.tensor([0, 2]), mode="sum", scale_grad_by_freq=True),
    ):
        w = table.clone().requires_grad_()
        look_up(w).sum().backward()
        gradients.append(w.grad.numpy())
    np.testing.assert_allclose(*gradients, rtol=1e-12)


def ragged(dtype):
    """Sequences of all kinds: repeated labels, no labels, no steps, too few steps, all steps."""
    rng = np.random.default_rng(3)
    x = lt.tensor(rng.standard_normal((60, 8, 9)), dtype=dtype).log_softmax(-1).requires_grad_()
    targets = lt.tensor(rng.integers(1, 4, (8, 25)))
    steps, labels = [60, 59, 41, 0, 3, 12, 60, 0], [25, 24, 7, 0, 25, 0, 1, 2]
    return x, F.ctc_loss(x, targets, steps, labels, reduction="none")


def test_the_compiled_recursion_equals_the_plain_one():
    from lowtide.framework.ops.loss.ctc import _compiles

    x, loss = ragged(lt.float32)
    wide, expected = ragged(lt.float64)  # which is not compiled
    assert _compiles(x._spec, lt.zeros(8, 51, dtype=lt.int64)._spec)
    assert not _compiles(wide._spec, lt.zeros(8, 51, dtype=lt.int64)._spec)
    infinite = [k for k, v in enumerate(expected.tolist()) if v == float("inf")]
    assert infinite == [4, 7]
    assert loss.tolist() == pytest.approx(expected.tolist(), rel=2e-6, abs=2e-6)
    for y in (loss, expected):
        y.backward(lt.arange(8).to(y.dtype))
    assert np.allclose(x.grad.numpy(), wide.grad.numpy(), rtol=2e-4, atol=2e-5, equal_nan=True)
    assert x.grad[:3, 4].isnan().all()  # no alignment, no gradient: as PyTorch 2.13 has it
    assert not x.grad[3:, 4].any()
    assert not x.grad[:, [3, 7]].any()
    assert not x.grad[12:, 5].any()


def test_threads_share_sequences_without_changing_a_bit(monkeypatch):
    from lowtide.framework.kernels.runtime import threads

    results = []
    for share, wanted in ((1 << 40, 1), (1, 3)):
        monkeypatch.setattr(thresholds, "THREAD", share)
        monkeypatch.setattr(threads, "_wanted", wanted)
        x, loss = ragged(lt.float32)
        loss.sum().backward()
        results.append((loss.detach().numpy(), x.grad.numpy()))
    np.testing.assert_array_equal(results[0][0], results[1][0])
    np.testing.assert_array_equal(results[0][1], results[1][1])


def test_nan_in_one_sequence_stays_there():
    x, _ = ragged(lt.float32)
    broken = x.detach().clone()
    broken[30, 1, 2] = float("nan")
    broken.requires_grad_()
    rng = np.random.default_rng(3)
    rng.standard_normal((60, 8, 9))
    targets = lt.tensor(rng.integers(1, 4, (8, 25)))
    loss = F.ctc_loss(broken, targets, [60] * 8, [25] * 8, reduction="none")
    loss.sum().backward()
    assert loss.isnan().tolist() == [k == 1 for k in range(8)]
    assert broken.grad.isnan().any(-1).any(0).tolist() == [k == 1 for k in range(8)]
