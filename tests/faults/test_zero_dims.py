"""Sizes of 0, in memory full of garbage, and other edges: nothing is left as the memory held it."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest

import lowtide as lt
from lowtide.framework import testing
from lowtide.framework.autograd.engine import grad
from lowtide.framework.ops.registry import OPS
from tests.modules.table import FAMILIES

from . import zero_dims
from .bombs import ours

F = lt.nn.functional
PARTS = 4  # of the ops
ATTENTION = [
    (0, 3, 5, 2, 4, 4),
    (2, 0, 5, 2, 4, 4),
    (2, 3, 0, 2, 4, 4),
    (2, 3, 5, 0, 4, 4),
    (2, 3, 5, 2, 0, 4),
    (2, 3, 5, 2, 4, 0),
    (2, 0, 0, 2, 0, 0),
]


def outcomes(calls):
    found = Counter()
    faults = []
    for what, call in calls:
        outcome = zero_dims.judged(what, call)
        found[outcome] += 1
        if outcome not in ("agree", "refused"):
            faults.append(f"{what}: {outcome}")
    assert not faults, "\n".join(faults)
    return found


@pytest.mark.quick(1)
@pytest.mark.parametrize("part", range(PARTS))
def test_no_result_or_gradient_of_an_op_is_what_the_memory_held(part):
    names = list(OPS)[part::PARTS]
    found = outcomes(c for n in names for c in zero_dims.of_op(OPS[n]))
    assert found["agree"] > 400


@pytest.mark.deep
@pytest.mark.parametrize("family", FAMILIES)
def test_no_result_or_gradient_of_a_layer_is_what_the_memory_held(family):
    found = outcomes(zero_dims.of_family(family))
    assert found["agree"] > 20


def test_a_projected_lstm_of_no_sequences_has_gradients_of_zeros():
    found = []
    for byte in zero_dims.GARBAGE:
        with testing.poisoned(byte=byte):
            layer = lt.nn.LSTM(3, 5, proj_size=2)
            layer(lt.ones(4, 0, 3))[0].sum().backward()
            found += [p.grad.abs().sum().item() for p in layer.parameters()]
    assert found == [0.0] * 5 * len(zero_dims.GARBAGE)


@pytest.mark.parametrize("sizes", ATTENTION)
@pytest.mark.parametrize("p", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("kind", ["plain", "causal", "mask", "bias"])
def test_attention_takes_sizes_of_zero(sizes, p, kind):
    b, t, s, h, d, e = sizes
    q, k, v = (
        testing.Make(lt.float32)(*shape).requires_grad_()
        for shape in ((b, h, t, d), (b, h, s, d), (b, h, s, e))
    )
    mask = {"mask": lt.ones(t, s, dtype=lt.bool), "bias": lt.zeros(t, s)}.get(kind)
    with testing.poisoned():
        out = F.scaled_dot_product_attention(q, k, v, mask, p, kind == "causal")
        found = grad(out.sum(), [q, k, v])
    assert tuple(out.shape) == (b, h, t, e)
    assert all(x.isfinite().all() for x in (out, *found))
    if not s:
        assert not out.any()
    assert [tuple(g.shape) for g in found] == [tuple(x.shape) for x in (q, k, v)]


@pytest.mark.parametrize("scores", [1.0, 5e4, 5e10])
@pytest.mark.parametrize("kind", ["plain", "causal", "mask"])
@pytest.mark.parametrize("rows", [4, 96])
def test_large_scores_leave_the_gradient_of_value_its_digits(scores, kind, rows):
    def gradient(dtype):
        make = testing.Make(lt.float32)
        q, k, v, w = (make(1, 2, rows, 16).to(dtype) for _ in range(4))
        mask = lt.ones(rows, rows, dtype=lt.bool) if kind == "mask" else None
        v.requires_grad_()
        out = F.scaled_dot_product_attention(q * scores, k, v, mask, is_causal=kind == "causal")
        return grad((out * w).sum(), [v])[0].numpy()

    exact = gradient(lt.float64)
    error = np.abs(gradient(lt.float32) - exact).max() / np.abs(exact).max()
    assert error < 2e-6


def test_a_table_without_rows_is_looked_up_by_no_index():
    none = lt.tensor([], dtype=lt.int64)
    table = lt.ones(0, 4, requires_grad=True)
    assert F.embedding(none, table, max_norm=1.0).shape == (0, 4)
    for mode in ("sum", "mean", "max"):
        bags = F.embedding_bag(none, table, lt.tensor([0]), mode=mode)
        assert bags.tolist() == [[0.0] * 4]
        assert grad(bags.sum(), [table])[0].shape == (0, 4)
    with pytest.raises(IndexError, match="embedding: index out of range"):
        F.embedding(lt.tensor([0]), table, max_norm=1.0)
    empty = lt.ones(6, 0, requires_grad=True)
    assert grad(F.embedding(lt.tensor([1, 2]), empty).sum(), [empty])[0].shape == (6, 0)


def test_group_norm_of_no_pixels():
    w, b = lt.ones(4, requires_grad=True), lt.ones(4, requires_grad=True)
    out = F.group_norm(lt.ones(2, 4, 0), 2, w, b)
    dw, db = grad(out.sum(), [w, b])
    assert out.shape == (2, 4, 0)
    assert dw.isnan().all()
    assert db.tolist() == [0.0] * 4


@pytest.mark.parametrize("dtype", [lt.float16, lt.bfloat16])
def test_dropout_of_halves_takes_no_more_than_the_tensor(dtype):
    x = testing.Make(lt.float32)(300_001).to(dtype)
    lt.manual_seed(3)
    single = lt.dropout(x.float(), 0.4).to(dtype)
    lt.manual_seed(3)
    before = lt.memory_allocated()
    lt.reset_peak_memory_stats()
    found = lt.dropout(x, 0.4)
    assert lt.max_memory_allocated() - before - found.nbytes <= x.nbytes
    assert lt.equal(found, single)


def test_strings_full_of_brackets_are_no_lists(tmp_path):
    words = '[{,\\"' * 800_000
    (tmp_path / "a").write_bytes(ours(json.dumps([words])))
    assert lt.load(tmp_path / "a") == [words]
