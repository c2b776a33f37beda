"""Edges of embedding: repeated rows, padding, messages."""

import numpy as np
import pytest

import lowtide as lt
from lowtide.framework.autograd.engine import grad
from lowtide.framework.ops.embedding import embedding
from lowtide.nn import functional as F


def table():
    return lt.tensor(np.arange(12.0).reshape(4, 3), requires_grad=True)


def test_gradients_of_a_repeated_row_add_up():
    w = table()
    (g,) = grad(F.embedding(lt.tensor([1, 1, 3]), w).sum(), [w])
    assert g.sum(1).tolist() == [0.0, 6.0, 0.0, 3.0]


def test_the_padding_row_gets_no_gradient():
    w = table()
    (g,) = grad(F.embedding(lt.tensor([1, 1, 3]), w, padding_idx=-3).sum(), [w])
    assert g.sum(1).tolist() == [0.0, 0.0, 0.0, 3.0]


def test_repeated_gradients_are_the_same_bits():
    random = np.random.default_rng(0)
    w = lt.tensor(random.standard_normal((50, 16)).astype(np.float32), requires_grad=True)
    index, u = (
        lt.tensor(random.integers(0, 50, 4000)),
        lt.tensor(random.standard_normal((4000, 16)).astype(np.float32)),
    )
    first, second = (grad(F.embedding(index, w), [w], [u])[0].numpy() for _ in range(2))
    np.testing.assert_array_equal(first, second)


def test_only_the_numbers_are_kept():
    (kept,) = F.embedding(lt.tensor([1, 2]), table()).grad_fn.saved
    assert kept.label == "_embedding.index"


def test_no_numbers_give_no_rows():
    assert F.embedding(lt.tensor(np.zeros((0, 2), dtype=np.int64)), table()).shape == (0, 2, 3)


@pytest.mark.parametrize("bad", [4, -1])
def test_a_number_outside_the_table_is_an_index_error(bad):
    with pytest.raises(IndexError, match="index out of range in self"):
        F.embedding(lt.tensor([0, bad]), table())


def test_mistakes_are_named():
    with pytest.raises(RuntimeError, match="integer dtype"):
        F.embedding(lt.tensor([0.0]), table())
    with pytest.raises(RuntimeError, match="must be 2-D"):
        F.embedding(lt.tensor([0]), table()[0])
    with pytest.raises(AssertionError, match="Padding_idx must be within"):
        F.embedding(lt.tensor([0]), table(), padding_idx=4)
    with pytest.raises(ValueError, match="if input is 2D, then offsets has to be None"):
        F.embedding_bag(lt.tensor([[0, 1]]), table(), lt.tensor([0]))


def test_the_compiled_kernel_equals_the_plain_one():
    random = np.random.default_rng(0)
    g, index = random.standard_normal((2000, 16)), random.integers(0, 50, 2000)
    fast = embedding._embedding_grad(lt.tensor(g), lt.tensor(index), 50, 7).numpy()
    plain = np.empty((50, 16))
    embedding._embedding_grad.op.plain(np, plain, g, index, rows=50, padding=7)
    np.testing.assert_allclose(fast, plain, rtol=1e-10, atol=1e-12)


def test_rows_named_in_several_tiles_are_shrunk_once():
    w = lt.full((3, 4), 2.0, dtype=lt.float64)
    index = lt.arange(600) % 2
    F.embedding(index, w, max_norm=1.0)
    np.testing.assert_allclose(w.norm(dim=1).numpy(), [1, 1, 4], rtol=1e-6)
    F.embedding(lt.tensor([2]), w, max_norm=0.5, norm_type=float("inf"))
    np.testing.assert_allclose(w[2].numpy(), 0.5, rtol=1e-6)
    with pytest.raises(RuntimeError, match="2-D"):
        F.embedding(index, lt.tensor(1.0))
