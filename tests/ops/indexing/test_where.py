"""where, masked_fill, tril and triu: what stays alive, edges, messages."""

import numpy as np
import pytest

import lowtide as lt

MASK = np.array([True, False, True])


def test_where_keeps_the_condition_only():
    x = lt.tensor([1.0, 2.0, 3.0], requires_grad=True)
    out = lt.where(lt.tensor(MASK), x, x * 2)
    assert out.grad_fn.rules.labels == ("_where.condition",)


def test_masked_fill_keeps_the_mask_only():
    x = lt.tensor([1.0, 2.0, 3.0], requires_grad=True)
    assert x.masked_fill(lt.tensor(MASK), 0).grad_fn.rules.labels == ("masked_fill.mask",)


def test_where_does_not_spread_nan_from_the_other_side():
    x = lt.tensor([1.0, np.nan, 3.0], requires_grad=True)
    out = lt.where(lt.tensor(MASK), x, 0.0)
    out.sum().backward()
    assert (out.tolist(), x.grad.tolist()) == ([1.0, 0.0, 3.0], [1.0, 0.0, 1.0])


def test_where_of_one_argument_finds_the_places():
    (rows,) = lt.where(lt.tensor(MASK))
    assert rows.tolist() == [0, 2]


def test_where_refuses_a_condition_of_floats():
    with pytest.raises(RuntimeError, match="where expected condition to be a boolean tensor"):
        lt.where(lt.tensor([1.0, 0.0]), 1.0, 2.0)


def test_masked_fill_refuses_a_mask_of_integers():
    with pytest.raises(RuntimeError, match="only supports boolean masks"):
        lt.tensor([1.0, 2.0]).masked_fill(lt.tensor([1, 0]), 0)


def test_masked_fill_refuses_several_values():
    with pytest.raises(RuntimeError, match="0-dimensional value tensor, but got tensor with 1"):
        lt.tensor([1.0, 2.0, 3.0]).masked_fill(lt.tensor(MASK), lt.tensor([1.0]))


def test_masked_fill_writes_in_place():
    x = lt.tensor([1.0, 2.0, 3.0])
    assert x.masked_fill_(lt.tensor(MASK), -1) is x
    assert x.tolist() == [-1.0, 2.0, -1.0]


@pytest.mark.parametrize("diagonal", range(-4, 5))
def test_triangles_equal_numpy(diagonal):
    array = np.arange(1.0, 25).reshape(2, 3, 4)
    x = lt.tensor(array)
    np.testing.assert_array_equal(x.tril(diagonal).numpy(), np.tril(array, diagonal))
    np.testing.assert_array_equal(x.triu(diagonal).numpy(), np.triu(array, diagonal))


@pytest.mark.parametrize("diagonal", [-70, -33, -1, 0, 5, 31, 64, 90])
@pytest.mark.parametrize("shape", [(2, 65, 40), (15, 64), (2, 33, 90), (16, 3)])
def test_triangles_in_blocks_of_rows_equal_numpy(shape, diagonal):
    array = np.random.default_rng(0).standard_normal(shape)
    array[..., ::5] = np.nan
    x = lt.tensor(array)
    for name in ("tril", "triu"):
        expected = getattr(np, name)(array, diagonal)
        np.testing.assert_array_equal(getattr(x, name)(diagonal).numpy(), expected)
        np.testing.assert_array_equal(getattr(x.clone(), f"{name}_")(diagonal).numpy(), expected)


def test_triangles_need_a_matrix():
    with pytest.raises(RuntimeError, match="must have at least 2 dimensions; got 1"):
        lt.tensor([1.0]).tril()


def test_triu_writes_in_place_into_a_transpose():
    x = lt.tensor([[1.0, 2.0], [3.0, 4.0]])
    x.t().triu_()
    assert x.tolist() == [[1.0, 0.0], [3.0, 4.0]]
