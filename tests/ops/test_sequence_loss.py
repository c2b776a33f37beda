"""CTC and bags: against all alignments written out, edges, and the messages."""

import itertools

import numpy as np
import pytest

import lowtide as lt
from lowtide.framework import testing
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
        "log_probs": lt.zeros(5, 1, 3), "targets": lt.tensor([[1, 2]]), "input_lengths": (5,),
        "target_lengths": (2,),
    }  # fmt: skip
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
