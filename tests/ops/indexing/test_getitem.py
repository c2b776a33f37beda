"""Indexing: edges, messages, what stays alive, and meta."""

import numpy as np
import pytest

import lowtide as lt


def counted(*shape):
    return lt.tensor(np.arange(np.prod(shape)).reshape(shape) * 1.0)


def test_an_index_that_occurs_twice_gathers_two_gradients():
    x = counted(3).requires_grad_()
    x[[0, 0, 2]].sum().backward()
    assert x.grad.tolist() == [2.0, 0.0, 1.0]


def test_wide_rows_add_up_where_an_index_occurs_twice():
    x = counted(3, 100).requires_grad_()
    x[lt.tensor([[0, 2], [0, -1]])].sum().backward()
    assert x.grad[:, 99].tolist() == [2.0, 0.0, 2.0]


def test_indexing_keeps_the_indices_only():
    out = counted(3, 4).requires_grad_()[[0, 2]]
    assert out.grad_fn.rules.labels == ("_index.index",)


def test_a_write_by_mask_needs_no_indices_and_so_runs_on_meta():
    x = counted(3, 4).to("meta")
    x[lt.tensor(np.array([True, False, True])).to("meta")] = 0.0
    assert x._version == 1


def test_a_read_by_mask_on_meta_says_why_not():
    mask = lt.tensor(np.ones(3, bool)).to("meta")
    with pytest.raises(NotImplementedError, match="the shape of the result depends on values"):
        counted(3).to("meta")[mask]


def test_a_read_by_indices_on_meta_has_the_shape():
    index = lt.tensor([[0, 1], [5, 9]]).to("meta")
    assert counted(3, 4).to("meta")[:, index].shape == (3, 2, 2)


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (5, "index 5 is out of bounds for dimension 0 with size 3"),
        ((0, -5), "index -5 is out of bounds for dimension 1 with size 4"),
        ([0, 5], "index 5 is out of bounds for dimension 0 with size 3"),
        ((0, 0, 0), "too many indices for tensor of dimension 2"),
        ((..., ...), "single ellipsis"),
        (1.5, "only integers, slices"),
        ([0.5], "long, int, byte or bool"),
        (([0, 1], [0, 1, 2]), r"could not be broadcast together with shapes \[2\], \[3\]"),
        (np.ones(4, bool), r"mask \[4\] at index 0 does not match"),
    ],
)
def test_a_wrong_index_says_what_is_wrong(key, message):
    with pytest.raises(IndexError, match=message):
        counted(3, 4)[key]


def test_a_negative_step_says_flip():
    with pytest.raises(ValueError, match=r"step must be greater than zero.*flip"):
        counted(3)[::-1]


def test_a_value_that_does_not_fit_names_both_shapes():
    with pytest.raises(RuntimeError, match=r"shape \[3\] cannot be broadcast .* shape \[2, 4\]"):
        counted(3, 4)[[0, 1]] = counted(3)


def test_a_scalar_tensor_cannot_be_indexed():
    with pytest.raises(IndexError, match=r"invalid index of a 0-dim tensor. Use `tensor.item\(\)`"):
        lt.tensor(1.0)[0]


def test_a_scalar_tensor_cannot_be_iterated():
    with pytest.raises(TypeError, match="iteration over a 0-d tensor"):
        iter(lt.tensor(1.0))


def test_iteration_gives_views():
    x = counted(2, 2)
    for row in x:
        row.fill_(7)
    assert x.tolist() == [[7.0, 7.0], [7.0, 7.0]]


def test_a_failed_write_leaves_the_tensor():
    x = counted(3)
    with pytest.raises(IndexError):
        x[[0, 7]] = 5.0
    assert x.tolist() == [0.0, 1.0, 2.0]


@pytest.mark.parametrize("value", [lt.tensor([1, 2]), [1, 2], (1, 2), np.array([1, 2])])
def test_values_of_other_kinds_are_converted_by_a_basic_write(value):
    x = counted(3)
    x[1:] = value
    assert x.tolist() == [0.0, 1.0, 2.0]


def test_an_in_place_operator_on_a_part_writes_there():
    leaf = counted(3).requires_grad_()
    x = leaf * 1
    x[[0, 1]] += 5.0
    x[2] *= 3.0
    x.sum().backward()
    assert (x.tolist(), leaf.grad.tolist()) == ([5.0, 6.0, 6.0], [1.0, 1.0, 3.0])


def test_large_and_small_rows_are_read_alike():
    array = np.random.default_rng(0).standard_normal((50, 3, 700))
    x = lt.tensor(array)
    index = np.arange(200) * 7 % 50
    for key in (index, (slice(None), [2, 0, 1] * 9), (index, index % 3)):
        np.testing.assert_array_equal(x[key].numpy(), array[key])
        swapped = x.permute(0, 2, 1)[key[0] if isinstance(key, tuple) else key]
        np.testing.assert_array_equal(
            swapped.numpy(),
            array.transpose(0, 2, 1)[key[0] if isinstance(key, tuple) else key],
        )
