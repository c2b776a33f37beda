"""Storages, and tensors that look at the same memory."""

import numpy as np
import pytest

import lowtide as lt


def test_a_storage_says_what_lies_under_all_views():
    x = lt.arange(6.0).reshape(2, 3)
    whole, part = x.untyped_storage(), x[1].untyped_storage()
    assert whole == part
    assert hash(whole) == hash(part)
    assert (whole.nbytes(), whole.size(), len(whole), whole.element_size()) == (24, 24, 24, 1)
    assert whole.data_ptr() == x.data_ptr() == x[1].data_ptr() - 12
    typed = x.t().storage()
    assert (typed.size(), typed.nbytes(), typed.dtype) == (6, 24, lt.float32)
    assert typed.untyped() == whole
    assert lt.is_storage(typed)
    assert not lt.is_storage(x)
    assert whole != lt.ones(6).untyped_storage()
    assert repr(typed) == "lowtide.TypedStorage(device=cpu) of size 6"


def test_a_storage_keeps_its_bytes_alive():
    before = lt.memory_allocated("cpu")
    kept = lt.ones(1024).untyped_storage()
    assert lt.memory_allocated("cpu") - before == 4096
    del kept
    assert lt.memory_allocated("cpu") == before


def test_memory_of_numpy_and_of_meta():
    array = np.arange(6.0)
    x = lt.from_numpy(array[2:])
    assert x.untyped_storage().nbytes() == 32
    assert x.untyped_storage().data_ptr() == array.ctypes.data + 16
    m = lt.empty(3, device="meta").untyped_storage()
    assert (m.nbytes(), m.data_ptr()) == (12, 0)


def test_the_offset_counts_from_the_storage_also_after_detach():
    x = lt.arange(12.0).reshape(3, 4)
    assert x[1].storage_offset() == 4
    assert x[1].detach().storage_offset() == 4
    assert x[1, 2:].detach().storage_offset() == 6


@pytest.mark.parametrize("kind", ["pool", "numpy", "bfloat16"])
def test_as_strided_of_a_view_sees_the_whole_storage(kind):
    x = lt.arange(6.0)
    if kind == "numpy":
        x = lt.from_numpy(np.arange(6.0))
    elif kind == "bfloat16":
        x = x.bfloat16()
    for view in (x[4:], x[4:].detach()):
        assert view.as_strided((2,), (2,), 1).tolist() == [1.0, 3.0]
        assert view.as_strided((2,), (1,)).tolist() == [4.0, 5.0]
        with pytest.raises(RuntimeError, match="out of bounds for storage of 6 elements"):
            view.as_strided((2,), (1,), 5)


def test_the_gradient_reaches_what_a_window_and_its_input_share():
    x = lt.arange(6.0)[2:5].detach().requires_grad_()  # elements 2, 3, 4
    y = x.as_strided((4,), (1,), 0)  # elements 0 to 3
    y.backward(lt.tensor([10.0, 20.0, 30.0, 40.0]))
    assert x.grad.tolist() == [30.0, 40.0, 0.0]


def test_as_strided_in_place():
    x = lt.arange(6.0)
    assert x.as_strided_((2, 2), (3, 1), 1) is x
    assert x.tolist() == [[1.0, 2.0], [4.0, 5.0]]
    assert x._version == 1


def test_is_set_to_means_the_same_elements_of_the_same_memory():
    x = lt.arange(6.0)
    assert x.is_set_to(x)
    assert x.view(2, 3).is_set_to(x.view(2, 3))
    assert not x.is_set_to(x[1:])
    assert not x.is_set_to(x.clone())


def test_set_makes_a_tensor_another():
    x, y = lt.zeros(2), lt.arange(6.0).view(2, 3)
    assert x.set_(y) is x
    assert x.is_set_to(y)
    x[0, 0] = 7.0
    assert y[0, 0].item() == 7.0
    assert x.set_().shape == (0,)
    assert y.shape == (2, 3)


def test_set_refuses_what_it_cannot_be():
    with pytest.raises(TypeError, match="must be Tensor or a storage, not int"):
        lt.ones(2).set_(3)
    with pytest.raises(
        RuntimeError, match="out of bounds for storage of 2 elements.*make a longer"
    ):
        lt.ones(2).set_(lt.ones(2).untyped_storage(), 1, (2,), (1,))
    with pytest.raises(TypeError, match="need a size"):
        lt.ones(2).set_(lt.ones(2).untyped_storage(), 1)
    with pytest.raises(RuntimeError, match="must lie on cpu.*on meta"):
        lt.ones(2).set_(lt.ones(2, device="meta").untyped_storage())
    with pytest.raises(RuntimeError, match="Expected a Storage of lowtide.float32.*untyped"):
        lt.ones(2).set_(lt.ones(2).double().storage())
    with pytest.raises(RuntimeError, match="dtype lowtide.float32 on cpu; got lowtide.float64"):
        lt.ones(2).set_(lt.ones(2, dtype=lt.float64))
    with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
        lt.ones(2, requires_grad=True).set_(lt.ones(2))
    with pytest.raises(RuntimeError, match="made by MulBackward0"):
        (lt.ones(2, requires_grad=True) * 2).set_(lt.ones(2))
