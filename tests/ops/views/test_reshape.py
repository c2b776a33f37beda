"""Views: which functions copy, and what a write through a view does."""

import numpy as np
import pytest

import lowtide as lt

VIEW, COPY, SAME = "view", "copy", "itself"

# name: (what it is, shape of the input, the function)
TABLE = {
    "view": (VIEW, (3, 4), lambda x: x.view(2, 6)),
    "view of another dtype": (VIEW, (3, 4), lambda x: x.view(lt.int64)),
    "view_as": (VIEW, (3, 4), lambda x: x.view_as(lt.tensor(np.zeros(12)))),
    "reshape": (VIEW, (3, 4), lambda x: x.reshape(4, 3)),
    "reshape to the same": (VIEW, (3, 4), lambda x: x.reshape(3, 4)),
    "reshape of a transpose": (COPY, (3, 4), lambda x: x.t().reshape(-1)),
    "reshape of a permutation that merges": (
        VIEW,
        (2, 3, 4),
        lambda x: x.permute(1, 2, 0).reshape(12, 2),
    ),
    "reshape_as": (VIEW, (3, 4), lambda x: x.reshape_as(lt.tensor(np.zeros(12)))),
    "flatten": (VIEW, (3, 4), lambda x: x.flatten()),
    "flatten of a vector": (SAME, (3,), lambda x: x.flatten()),
    "flatten of a transpose": (COPY, (3, 4), lambda x: x.t().flatten()),
    "unflatten": (VIEW, (3, 4), lambda x: x.unflatten(1, (2, 2))),
    "ravel": (VIEW, (3, 4), lambda x: x.ravel()),
    "squeeze": (VIEW, (3, 1), lambda x: x.squeeze()),
    "squeeze of nothing": (VIEW, (3, 4), lambda x: x.squeeze(0)),
    "unsqueeze": (VIEW, (3, 4), lambda x: x.unsqueeze(1)),
    "transpose": (VIEW, (3, 4), lambda x: x.transpose(0, 1)),
    "swapaxes": (VIEW, (3, 4), lambda x: x.swapaxes(0, 1)),
    "swapdims": (VIEW, (3, 4), lambda x: x.swapdims(0, 1)),
    "t": (VIEW, (3, 4), lambda x: x.t()),
    "T": (VIEW, (3, 4), lambda x: x.T),
    "mT": (VIEW, (3, 4), lambda x: x.mT),
    "H": (VIEW, (3, 4), lambda x: x.H),
    "mH": (VIEW, (3, 4), lambda x: x.mH),
    "adjoint": (VIEW, (3, 4), lambda x: x.adjoint()),
    "permute": (VIEW, (2, 3, 4), lambda x: x.permute(2, 0, 1)),
    "movedim": (VIEW, (2, 3, 4), lambda x: x.movedim(0, 2)),
    "moveaxis": (VIEW, (2, 3, 4), lambda x: x.moveaxis((0, 1), (1, 2))),
    "expand": (VIEW, (3, 1), lambda x: x.expand(3, 1)),
    "expand_as": (VIEW, (3, 4), lambda x: x.expand_as(x.view(1, 3, 4))),
    "broadcast_to": (VIEW, (3, 4), lambda x: lt.broadcast_to(x, (1, 3, 4))),
    "narrow": (VIEW, (3, 4), lambda x: x.narrow(1, 1, 2)),
    "select": (VIEW, (3, 4), lambda x: x.select(1, -1)),
    "select of an element": (VIEW, (3,), lambda x: x[1]),
    "split": (VIEW, (3, 4), lambda x: x.split(2, 1)[1]),
    "split by sizes": (VIEW, (3, 4), lambda x: x.split([1, 3], 1)[1]),
    "chunk": (VIEW, (3, 4), lambda x: x.chunk(2, 1)[0]),
    "tensor_split": (VIEW, (3, 4), lambda x: x.tensor_split(3, 1)[2]),
    "hsplit": (VIEW, (3, 4), lambda x: x.hsplit(2)[1]),
    "unbind": (VIEW, (3, 4), lambda x: x.unbind(1)[2]),
    "diagonal": (VIEW, (3, 4), lambda x: x.diagonal(1)),
    "unfold": (VIEW, (3, 4), lambda x: x.unfold(1, 2, 2)),
    "as_strided": (VIEW, (3, 4), lambda x: x.as_strided((2, 2), (4, 1), 1)),
    "basic index": (VIEW, (3, 4), lambda x: x[1:, None, ::2]),
    "atleast_3d": (VIEW, (3, 4), lambda x: lt.atleast_3d(x)),
    "contiguous": (SAME, (3, 4), lambda x: x.contiguous()),
    "contiguous of a transpose": (COPY, (3, 4), lambda x: x.t().contiguous()),
    "diag": (COPY, (3, 4), lambda x: x.diag()),
    "diag_embed": (COPY, (3,), lambda x: x.diag_embed()),
    "index by a list": (COPY, (3, 4), lambda x: x[[0, 1]]),
    "repeat": (COPY, (3, 4), lambda x: x.repeat(1, 1)),
    "tile": (COPY, (3, 4), lambda x: x.tile(1)),
    "repeat_interleave": (COPY, (3, 4), lambda x: x.repeat_interleave(1, 0)),
    "roll": (COPY, (3, 4), lambda x: x.roll(0, 0)),
    "flip": (COPY, (3, 4), lambda x: x.flip(0)),
    "cat of one": (COPY, (3, 4), lambda x: lt.cat([x])),
    "pad by nothing": (COPY, (3, 4), lambda x: lt.pad(x, (0, 0))),
}


def counted(shape):
    return lt.tensor(np.arange(1.0, 1.0 + np.prod(shape)).reshape(shape))


@pytest.mark.parametrize("name", TABLE)
def test_a_write_shows_in_the_base_if_and_only_if_it_is_a_view(name):
    kind, shape, function = TABLE[name]
    x = counted(shape)
    y = function(x)
    assert (y is x) == (kind == SAME)
    assert (y._base is x) == (kind == VIEW)
    before = x.tolist()
    y.fill_(0)
    assert (x.tolist() != before) == (kind != COPY)
    assert x._version == (kind != COPY)


@pytest.mark.parametrize("name", TABLE)
def test_meta_has_the_same_shape_strides_and_view(name):
    kind, shape, function = TABLE[name]
    here = function(counted(shape))
    x = counted(shape).to("meta")
    if "index by a list" in name:
        pytest.skip("a list becomes a tensor: test_getitem.py")
    there = function(x)
    assert (there.shape, there.stride()) == (here.shape, here.stride())
    assert (there._storage is x._storage) == (kind != COPY)


@pytest.mark.parametrize("name", [n for n, (kind, *_) in TABLE.items() if kind == VIEW])
def test_a_view_keeps_the_memory_of_its_base(name, leak_check):
    _, shape, function = TABLE[name]
    x = counted(shape)
    array = function(x).array
    expected = array.copy()
    del x
    others = [lt.tensor(np.full(shape, -1.0)) for _ in range(3)]
    np.testing.assert_array_equal(array, expected)
    del array, others


@pytest.mark.parametrize(
    "name", [n for n, (kind, *_) in TABLE.items() if kind == VIEW and "dtype" not in n]
)
def test_a_write_through_a_view_rewrites_the_history_of_its_base(name):
    _, shape, function = TABLE[name]
    leaf = counted(shape).requires_grad_()
    base = leaf * 1
    function(base).mul_(3)
    base.sum().backward()
    expected = lt.tensor(np.ones(shape))
    function(expected).fill_(3)
    assert leaf.grad.tolist() == expected.tolist()


def test_the_gradient_of_a_write_need_not_be_contiguous():
    leaf = counted((2, 3)).requires_grad_()
    base = leaf * 1
    base.view(6).mul_(2)
    (base.t() * counted((3, 2))).sum().backward()
    assert leaf.grad.tolist() == [[2.0, 6.0, 10.0], [4.0, 8.0, 12.0]]


def test_views_of_a_tensor_survive_its_transposition_in_place():
    leaf = counted((2, 3)).requires_grad_()
    base = leaf * 1
    row = base[0]
    assert base.t_() is base
    base[2].mul_(10)
    (row * counted((3,))).sum().backward()
    assert leaf.grad.tolist() == [[1.0, 2.0, 30.0], [0.0, 0.0, 0.0]]


def test_a_leaf_that_requires_grad_cannot_be_transposed_in_place():
    with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
        counted((2, 3)).requires_grad_().t_()


def test_a_view_that_strides_forbid_says_what_to_use():
    with pytest.raises(RuntimeError, match=r"view size is not compatible.*Use .reshape"):
        counted((3, 4)).t().view(12)


def test_a_shape_of_another_size_names_both():
    with pytest.raises(RuntimeError, match=r"shape '\[5\]' is invalid for input of size 12"):
        counted((3, 4)).view(5)


def test_a_dim_out_of_range_names_the_range():
    with pytest.raises(IndexError, match=r"expected to be in range of \[-2, 1\], but got 2"):
        counted((3, 4)).transpose(0, 2)


def test_a_view_outside_the_storage_is_refused():
    with pytest.raises(RuntimeError, match="out of bounds for storage of 12 elements"):
        counted((3, 4)).as_strided((4, 4), (4, 1))


def test_selecting_in_a_loop_makes_one_plan():
    from lowtide.framework.ops.registry import OPS

    x = counted((20, 2))
    x[0]
    plans = len(OPS["_select"].plans)
    assert [x[k].tolist() for k in range(20)] == x.tolist()
    assert len(OPS["_select"].plans) == plans


def test_the_gradient_of_windows_adds_up_where_they_overlap():
    x = counted((5,)).requires_grad_()
    x.unfold(0, 3, 1).sum().backward()
    assert x.grad.tolist() == [1.0, 2.0, 3.0, 2.0, 1.0]


def test_the_gradient_of_overlapping_strides_adds_up():
    x = counted((4,)).requires_grad_()
    x.as_strided((3, 2), (1, 1)).sum().backward()
    assert x.grad.tolist() == [1.0, 2.0, 2.0, 1.0]


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.squeeze_(),
        lambda x: x.unsqueeze_(0),
        lambda x: x.transpose_(0, 1),
        lambda x: x.swapaxes_(0, 1),
        lambda x: x.swapdims_(0, 1),
        lambda x: x.t_(),
    ],
)
def test_reshaping_in_place_is_a_write_that_saved_values_notice(change):
    x = lt.ones(3, 2, requires_grad=True).clone()
    y = x * x
    assert change(x) is x
    assert x._version == 1
    with pytest.raises(RuntimeError, match="inplace operation after it was kept"):
        y.sum().backward()


def test_a_tensor_reshaped_in_place_keeps_its_history():
    w = lt.arange(6.0).reshape(2, 3).requires_grad_()
    x = w * 2
    x.t_()
    x[0].mul_(3)
    x.sum().backward()
    assert w.grad.tolist() == [[6.0, 2.0, 2.0], [6.0, 2.0, 2.0]]


def test_sizes_by_keyword():
    x = lt.reshape(lt.arange(6.0), shape=(2, 3))
    assert lt.permute(x, dims=(1, 0)).shape == (3, 2)
    assert lt.flip(x, dims=(1,)).tolist() == [[2.0, 1.0, 0.0], [5.0, 4.0, 3.0]]
    assert lt.tile(x, dims=(2,)).shape == (2, 6)
    assert x.repeat(repeats=(2, 1)).shape == (4, 3)
    assert x.view(size=(3, 2)).shape == (3, 2)
    assert x.expand(size=(2, 2, 3)).shape == (2, 2, 3)


@pytest.mark.parametrize("device", ["cpu", "sim", "meta"])
def test_a_number_is_viewed_as_another_of_its_size(device):
    x = lt.tensor(1.0, dtype=lt.bfloat16, device=device)
    assert x.view(lt.int16).shape == ()
    assert lt.empty(0, 4, device=device).view(lt.float64).shape == (0, 2)
    if device != "meta":
        assert x.view(lt.int16).item() == 0x3F80
