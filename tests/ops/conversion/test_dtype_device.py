"""Conversions between dtypes and devices, copies, and questions about types."""

import numpy as np
import pytest

import lowtide as lt
from lowtide.framework.devices import backend
from lowtide.framework.dtypes import ALL


@pytest.mark.quick(300)
@pytest.mark.parametrize("wanted", ALL, ids=lambda d: d.name)
@pytest.mark.parametrize("source", ALL, ids=lambda d: d.name)
def test_every_dtype_converts_to_every_other(source, wanted, device):
    x = lt.tensor([0, 1, 1, 0]).to(source).to(device)
    y = x.to(wanted)
    assert (y.dtype, y.device, y.shape) == (wanted, device, (4,))
    assert (y is x) == (source is wanted)
    if backend(device).xp is not None:
        assert [complex(v) for v in y.tolist()] == [0, 1, 1, 0]


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("float", lt.float32),
        ("double", lt.float64),
        ("half", lt.float16),
        ("bfloat16", lt.bfloat16),
        ("int", lt.int32),
        ("long", lt.int64),
        ("short", lt.int16),
        ("char", lt.int8),
        ("byte", lt.uint8),
        ("bool", lt.bool),
        ("cfloat", lt.complex64),
        ("cdouble", lt.complex128),
    ],
)
def test_conversion_by_name(name, dtype):
    assert getattr(lt.ones(2), name)().dtype is dtype


def test_values_that_do_not_fit_convert_without_a_warning():
    x = lt.tensor([float("nan"), float("inf"), 1e30, -1.5])
    assert x.long().tolist()[3] == -1
    assert x.half().tolist()[2] == float("inf")
    assert lt.zeros(4, dtype=lt.int32).copy_(x).tolist()[3] == -1


def test_complex_becomes_its_real_part():
    c = lt.tensor([1 + 2j, -3j])
    assert c.float().tolist() == [1, 0]
    assert lt.zeros(2).copy_(c).tolist() == [1, 0]


def test_nothing_to_convert_returns_the_tensor_itself():
    x = lt.ones(2)
    assert x.to("cpu") is x.to(lt.float32) is x.float() is x.cpu() is x.type_as(lt.ones(3)) is x
    assert x.to(lt.float32, copy=True) is not x
    assert x.to("cpu", False, True) is not x


def test_to_takes_device_and_dtype_in_every_form():
    x, like = lt.ones(2), lt.ones(1, dtype=lt.float64, device="meta")
    forms = [
        x.to("meta", lt.float64),
        x.to(lt.float64).to("meta"),
        x.to(like),
        x.to(device="meta", dtype=lt.float64),
        x.to(lt.device("meta"), dtype=float).double(),
    ]
    assert {(str(t.device), t.dtype) for t in forms} == {("meta", lt.float64)}


def test_values_cannot_come_back_from_meta():
    with pytest.raises(NotImplementedError, match="no data"):
        lt.ones(2, device="meta").cpu()


def test_gradient_returns_through_dtype_and_device():
    x = lt.ones(3, requires_grad=True)
    y = x.to("sim", lt.float64)
    (y * 2).sum().backward()
    assert (x.grad.dtype, x.grad.tolist()) == (lt.float32, [2, 2, 2])


def test_gradient_of_copy_splits_between_target_and_source():
    x, y = lt.ones(2, 3, requires_grad=True), lt.ones(3, requires_grad=True)
    z = x * 1
    z[0].copy_(y)
    z.sum().backward()
    assert x.grad.tolist() == [[0, 0, 0], [1, 1, 1]]
    assert y.grad.tolist() == [1, 1, 1]


def test_copy_broadcasts_converts_and_crosses_devices(device):
    x = lt.zeros(2, 3, device=device)
    x.copy_(lt.tensor([1, 2, 3]))
    assert x._version == 1
    if backend(device).xp is not None:
        assert x.tolist() == [[1, 2, 3], [1, 2, 3]]


def test_copy_of_a_shape_that_does_not_broadcast_is_refused():
    with pytest.raises(RuntimeError, match="copy_"):
        lt.ones(2).copy_(lt.ones(3))


def test_fill_refuses_what_is_no_number_for_it():
    with pytest.raises(RuntimeError, match="without overflow"):
        lt.ones(2).fill_(1j)
    with pytest.raises(RuntimeError, match="0-dimension"):
        lt.ones(2).fill_(lt.ones(2))


def test_fill_gives_its_gradient_to_the_value():
    x, v = lt.ones(2, 3, requires_grad=True), lt.tensor(4.0, requires_grad=True)
    (x * 2).fill_(v).sum().backward()
    assert v.grad.item() == 6


def test_type_names_and_converts():
    x = lt.ones(2)
    assert x.type() == "lowtide.FloatTensor"
    assert x.bool().type() == "lowtide.BoolTensor"
    for wanted in ("lowtide.LongTensor", "torch.LongTensor", lt.LongTensor, lt.int64):
        assert x.type(wanted).dtype is lt.int64
    with pytest.raises(ValueError, match="invalid type"):
        x.type("LongTensor")


def test_resize_keeps_the_first_elements():
    x = lt.arange(6)
    place = x.data_ptr()
    assert x.resize_(2, 2).tolist() == [[0, 1], [2, 3]]
    assert x.data_ptr() == place
    assert x.resize_(6).tolist()[:4] == [0, 1, 2, 3]


def test_resize_refuses_a_tensor_that_requires_grad():
    with pytest.raises(RuntimeError, match="cannot resize variables that require grad"):
        lt.ones(2, requires_grad=True).resize_(3)


def test_detach_in_place_cuts_the_graph():
    x = lt.ones(2, requires_grad=True)
    y = x * 2
    y.detach_()
    assert (y.requires_grad, y.grad_fn, y.is_leaf) == (False, None, True)
    with pytest.raises(RuntimeError, match="views"):
        (x * 2)[:1].detach_()


def test_clone_has_memory_of_its_own_and_a_gradient():
    x = lt.ones(2, requires_grad=True)
    y = x.clone(memory_format=None)
    assert y.data_ptr() != x.data_ptr()
    (y * 3).sum().backward()
    assert x.grad.tolist() == [3, 3]


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (lt.ones(2, dtype=lt.int32), 1.0, lt.float32),
        (lt.ones(2, dtype=lt.uint8), lt.ones((), dtype=lt.int64), lt.uint8),
        (1, 2, lt.int64),
        (True, 1j, lt.complex64),
    ],
)
def test_result_type_follows_promotion(a, b, expected):
    assert lt.result_type(a, b) is expected


def test_questions_about_types():
    x, c = lt.ones(2), lt.ones(2, dtype=lt.complex64)
    assert lt.is_tensor(x)
    assert not lt.is_tensor(np.ones(2))
    assert lt.is_floating_point(x)
    assert lt.is_complex(c)
    assert not lt.is_signed(x.byte())
    assert lt.numel(x) == 2
    assert lt.is_nonzero(lt.tensor([0.5]))
    assert x.is_same_size(c)
    assert x.pin_memory() is x
    with pytest.raises(RuntimeError, match="ambiguous"):
        lt.is_nonzero(x)
