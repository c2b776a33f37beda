"""Joins, repeats, turns and padding: edges and messages."""

import numpy as np
import pytest

import lowtide as lt


def counted(*shape):
    return lt.tensor(np.arange(1.0, 1.0 + np.prod(shape)).reshape(shape))


def test_cat_promotes():
    assert lt.cat([lt.tensor([1, 2]), lt.tensor([0.5])]).tolist() == [1.0, 2.0, 0.5]


def test_an_empty_vector_joins_anything():
    assert lt.cat([lt.tensor([]), counted(2, 2)], 1).tolist() == [[1.0, 2.0], [3.0, 4.0]]


def test_the_gradient_of_cat_is_a_view_of_what_arrives():
    a, b = counted(2).requires_grad_(), counted(3).requires_grad_()
    (lt.cat([a, b]) * counted(5)).sum().backward()
    assert (a.grad.tolist(), b.grad.tolist()) == ([1.0, 2.0], [3.0, 4.0, 5.0])


def test_cat_keeps_nothing_for_backward():
    out = lt.cat([counted(2).requires_grad_(), counted(3)])
    assert out.grad_fn.rules.saves == ()


def test_cat_names_the_tensor_that_does_not_fit():
    with pytest.raises(RuntimeError, match=r"got \(2, 2\) and \(2, 3\) for tensor number 1"):
        lt.cat([counted(2, 2), counted(2, 3)])


def test_cat_of_scalars_says_stack():
    with pytest.raises(RuntimeError, match=r"zero-dimensional tensor.*Use stack"):
        lt.cat([lt.tensor(1.0), lt.tensor(2.0)])


def test_stack_names_the_entry_that_does_not_fit():
    with pytest.raises(RuntimeError, match=r"\(2,\) at entry 0 and \(3,\) at entry 1"):
        lt.stack([counted(2), counted(3)])


def test_meshgrid_of_xy_exchanges_the_first_two():
    x, y = lt.meshgrid(lt.tensor([1, 2, 3]), lt.tensor([4, 5]), indexing="xy")
    assert (x.tolist(), y.tolist()) == ([[1, 2, 3], [1, 2, 3]], [[4, 4, 4], [5, 5, 5]])


def test_block_diag_takes_vectors_as_rows():
    assert lt.block_diag(lt.tensor([[1], [2]]), lt.tensor([3, 4])).tolist() == [
        [1, 0, 0],
        [2, 0, 0],
        [0, 3, 4],
    ]


def test_roll_of_several_dims_moves_each():
    assert counted(2, 3).roll((1, 1), (0, 1)).tolist() == [[6.0, 4.0, 5.0], [3.0, 1.0, 2.0]]


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("constant", [0, 0, 1, 2, 3, 0]),
        ("reflect", [3, 2, 1, 2, 3, 2]),
        ("replicate", [1, 1, 1, 2, 3, 3]),
        ("circular", [2, 3, 1, 2, 3, 1]),
    ],
)
def test_each_mode_of_pad(mode, expected):
    assert lt.pad(lt.tensor([[1, 2, 3]]), (2, 1), mode=mode).tolist() == [expected]


def test_negative_padding_crops():
    assert lt.pad(counted(4), (-1, -1)).tolist() == [2.0, 3.0]


def test_padding_takes_the_last_dim_first():
    assert lt.pad(counted(1, 2), (1, 0, 0, 1), value=9.0).tolist() == [
        [9.0, 1.0, 2.0],
        [9.0, 9.0, 9.0],
    ]


def test_cropping_away_more_than_there_is_raises():
    with pytest.raises(RuntimeError, match="negative output size"):
        lt.pad(counted(2), (-2, -1))


def test_reflecting_more_than_there_is_raises():
    with pytest.raises(RuntimeError, match="less than the corresponding input dimension"):
        lt.pad(counted(1, 3), (3, 0), mode="reflect")


def test_an_unknown_padding_mode_raises():
    with pytest.raises(NotImplementedError, match="Unrecognised padding mode nearest"):
        lt.pad(counted(2), (1, 1), mode="nearest")
