"""Gather, scatter and their relatives: edges and messages."""

import numpy as np
import pytest

import lowtide as lt


def counted(*shape):
    return lt.tensor(np.arange(np.prod(shape)).reshape(shape) * 1.0)


def test_gather_keeps_the_index_only():
    out = counted(3, 4).requires_grad_().gather(1, lt.tensor([[0], [1]]))
    assert out.grad_fn.rules.labels == ("_gather.index",)


def test_gather_in_pieces_equals_numpy():
    rng = np.random.default_rng(0)
    x, index = rng.standard_normal((300, 50)), rng.integers(0, 50, (300, 40))
    found = lt.tensor(x).gather(1, lt.tensor(index))
    np.testing.assert_array_equal(found.numpy(), np.take_along_axis(x, index, 1))


def test_scatter_into_a_transposed_tensor():
    x = lt.tensor(np.zeros((2, 3)))
    x.t().scatter_add_(0, lt.tensor([[0, 2], [0, 0]]), lt.tensor(np.ones((2, 2))))
    assert x.tolist() == [[2.0, 0.0, 0.0], [1.0, 0.0, 1.0]]


def test_the_gradient_of_a_larger_source_is_zero_outside_the_index():
    src = counted(2, 3).requires_grad_()
    lt.tensor(np.zeros((2, 3))).scatter(1, lt.tensor([[2]]), src).sum().backward()
    assert src.grad.tolist() == [[1.0, 0.0, 0.0], [0.0, 0.0, 0.0]]


@pytest.mark.parametrize("name", ["gather", "scatter"])
def test_an_index_of_another_dtype_is_refused(name):
    args = () if name == "gather" else (1.0,)
    index = lt.tensor(np.array([[0]], np.int16))
    with pytest.raises(RuntimeError, match=rf"{name}\(\): Expected dtype int32/int64 for index"):
        getattr(counted(2, 2), name)(0, index, *args)


@pytest.mark.parametrize("name", ["gather", "scatter"])
def test_an_index_out_of_range_is_refused(name):
    args = () if name == "gather" else (1.0,)
    with pytest.raises(RuntimeError, match="index 2 is out of bounds for dimension 0 with size 2"):
        getattr(counted(2, 2), name)(0, lt.tensor([[2]]), *args)


def test_an_index_of_other_dims_is_refused():
    with pytest.raises(RuntimeError, match="same number of dimensions"):
        counted(2, 2).gather(0, lt.tensor([0]))


def test_scatter_reduce_without_self_leaves_the_untouched():
    x, index = lt.tensor([5.0, 6.0, 7.0]), lt.tensor([0, 0, 2])
    src = lt.tensor([1.0, 3.0, -2.0])
    found = {
        r: x.scatter_reduce(0, index, src, r, include_self=False).tolist()
        for r in ("sum", "prod", "mean", "amax", "amin")
    }
    assert found == {
        "sum": [4.0, 6.0, -2.0],
        "prod": [3.0, 6.0, -2.0],
        "mean": [2.0, 6.0, -2.0],
        "amax": [3.0, 6.0, -2.0],
        "amin": [1.0, 6.0, -2.0],
    }


def test_one_hot_counts_the_classes():
    assert lt.one_hot(lt.tensor([0, 2])).tolist() == [[1, 0, 0], [0, 0, 1]]


def test_one_hot_refuses_a_class_too_large():
    with pytest.raises(RuntimeError, match="Class values must be smaller than num_classes"):
        lt.one_hot(lt.tensor([3]), 3)


def test_masked_scatter_refuses_a_source_too_small():
    with pytest.raises(RuntimeError, match="the mask is True 3 times, but source has 2 elements"):
        counted(3).masked_scatter(lt.tensor(np.ones(3, bool)), counted(2))


def test_nonzero_of_a_scalar_has_no_coordinates():
    assert lt.tensor(3.0).nonzero().shape == (1, 0)


def test_nonzero_on_meta_says_why_not():
    with pytest.raises(NotImplementedError, match="the shape of its result depends on values"):
        counted(3).to("meta").nonzero()


def test_index_add_adds_up():
    x = lt.tensor([0.0, 0.0])
    assert x.index_add_(0, lt.tensor([1, 1]), lt.tensor([2.0, 3.0])) is x
    assert x.tolist() == [0.0, 5.0]


def test_bucketize_counts_the_boundaries_below():
    edges = lt.tensor([1.0, 3.0])
    assert lt.bucketize(lt.tensor([0.0, 1.0, 2.0, 9.0]), edges).tolist() == [0, 0, 1, 2]


def test_int32_indices_are_taken():
    x = counted(2, 3)
    index = lt.tensor([[1, 0, 1]], dtype=lt.int32)
    assert x.gather(0, index).tolist() == x.gather(0, index.long()).tolist()
    for name in ("scatter", "scatter_add"):
        f = getattr(x, name)
        assert f(0, index, x).tolist() == f(0, index.long(), x).tolist()
    assert x.scatter_reduce(0, index, x, "amax").shape == (2, 3)


def test_out_must_be_separate_memory_of_the_same_dtype():
    x = counted(3)
    index = lt.tensor([0, 1, 2])
    with pytest.raises(RuntimeError, match="cannot refer to any of the output memory"):
        lt.gather(x, 0, index, out=x)
    with pytest.raises(RuntimeError, match="to have dtype lowtide.float64, but got"):
        lt.gather(x, 0, index, out=lt.empty(3))


@pytest.mark.parametrize("zeros", [0, 1, 2, 3])
def test_second_gradient_of_a_product_with_zeros(zeros):
    values = [0.0] * zeros + [2.0, -3.0, 0.5][zeros:]
    index = lt.tensor([0, 0, 0])
    src = lt.tensor(np.array(values)).requires_grad_()
    x = lt.tensor(np.array([1.5])).requires_grad_()
    out = x.scatter_reduce(0, index, src, "prod")
    plain = x * src[0] * src[1] * src[2]
    weight = lt.tensor([0.3, -0.7, 1.1], dtype=lt.float64)
    found = []
    for y in (out, plain):
        g_x, g_src = lt.autograd.grad(y.sum(), [x, src], create_graph=True)
        again = lt.autograd.grad(g_x.sum() + (g_src * weight).sum(), [x, src])
        found.append([t.tolist() for t in (g_x, g_src, *again)])
    for ours, expected in zip(*found, strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-12)


def test_index_fill_counts_an_index_that_occurs_twice_once():
    value = lt.tensor(1.0, requires_grad=True)
    lt.zeros(3).index_fill(0, lt.tensor([1, 1, -2]), value).sum().backward()
    assert value.grad.item() == 1.0
