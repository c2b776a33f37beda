"""Sharing memory with NumPy and DLPack; pickle, copy and deepcopy."""

import copy
import pickle
import warnings

import numpy as np
import pytest

import lowtide as lt
from lowtide.framework.devices import backend
from lowtide.framework.dtypes import ALL


def test_numpy_shares_memory():
    x = lt.zeros(3)
    a = x.numpy()
    a[1] = 5
    x[2] = 7
    assert (x.tolist(), a.tolist()) == ([0, 5, 7], [0, 5, 7])


def test_numpy_array_outlives_its_tensor(leak_check):
    ledger = backend(lt.device("cpu")).ledger
    before = ledger.live
    x = lt.ones(1000)
    a = x.numpy()[10:]
    place = x.data_ptr()
    del x
    others = [lt.zeros(1000) for _ in range(4)]
    assert all(t.data_ptr() != place for t in others)
    assert (a == 1).all()
    assert ledger.live - before == 5 * 4000
    del a, others
    assert ledger.live == before


def test_block_is_reused_once_the_array_is_gone():
    x = lt.ones(1234)
    a, place = x.numpy(), x.data_ptr()
    del x, a
    assert lt.zeros(1234).data_ptr() == place


def test_reshaping_the_array_leaves_the_tensor_alone():
    x = lt.zeros(4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of NumPy 2.5
        x.numpy().shape = (2, 2)
    assert x.array.shape == (4,)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: lt.ones(2, requires_grad=True), RuntimeError, "requires grad. Use tensor.detach"),
        (lambda: lt.ones(2, device="meta"), TypeError, "can't convert meta device"),
        (lambda: lt.ones(2, device="sim"), TypeError, "can't convert sim device"),
    ],
)
def test_numpy_of_values_that_cannot_be_shared_is_refused(make, error, message):
    with pytest.raises(error, match=message):
        make().numpy()


def test_numpy_by_force_detaches_and_copies():
    x = lt.ones(2, requires_grad=True)
    assert (x * 2).numpy(force=True).tolist() == [2, 2]
    assert lt.ones(2, device="sim").numpy(force=True).tolist() == [1, 1]


def test_asarray_shares_converts_or_copies():
    x = lt.ones(2)
    assert np.shares_memory(np.asarray(x), x.array)
    assert not np.shares_memory(np.array(x), x.array)
    assert np.asarray(x, dtype=np.int64).dtype == np.int64
    with pytest.raises(ValueError, match="without a copy"):
        np.asarray(x, dtype=np.int64, copy=False)
    with pytest.raises(RuntimeError, match="requires grad"):
        np.asarray(lt.ones(2, requires_grad=True))


def test_operators_with_arrays_make_tensors():
    x, a = lt.ones(2), np.array([2.0, 3.0])
    for result in (x * a, a * x, x + a, a + x):
        assert isinstance(result, lt.Tensor)
        assert result.dtype is lt.float64
    assert (np.float64(2) * x).dtype is lt.float32


def test_dlpack_shares_memory_both_ways():
    x = lt.zeros(2, 3)
    a = np.from_dlpack(x)
    x.fill_(4)
    assert (a == 4).all()
    source = np.zeros(3)
    y = lt.from_dlpack(source)
    y.fill_(2)
    assert source.tolist() == [2, 2, 2]
    assert x.__dlpack_device__() == (1, 0)


def test_dlpack_refuses_what_it_cannot_describe():
    with pytest.raises(BufferError, match="require gradient"):
        lt.ones(2, requires_grad=True).__dlpack__()
    with pytest.raises(TypeError, match="__dlpack__"):
        lt.from_dlpack([1, 2])


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("dtype", ALL, ids=lambda d: d.name)
def test_pickle_keeps_values(dtype, protocol):
    x = lt.tensor([[0, 1], [1, 1]]).to(dtype).t()
    y = pickle.loads(pickle.dumps(x, protocol))
    assert (y.dtype, y.shape, y.tolist()) == (x.dtype, x.shape, x.tolist())


def test_pickle_keeps_requires_grad_device_and_attributes(device):
    x = lt.ones(2, device=device, requires_grad=True)
    x.note = "mine"
    y = pickle.loads(pickle.dumps(x))
    assert (y.requires_grad, y.device, y.note, y.is_leaf) == (True, device, "mine", True)


def test_deepcopy_copies_values_gradient_and_attributes():
    x = lt.ones(2, requires_grad=True)
    x.note = [1]
    (x * 3).sum().backward()
    y = copy.deepcopy({"a": x, "b": x})
    assert y["a"] is y["b"]
    assert (y["a"].tolist(), y["a"].grad.tolist(), y["a"].note) == ([1, 1], [3, 3], [1])
    assert y["a"].data_ptr() != x.data_ptr()
    assert y["a"].grad is not x.grad
    assert y["a"].note is not x.note


def test_deepcopy_refuses_a_tensor_with_history():
    x = lt.ones(2, requires_grad=True)
    with pytest.raises(RuntimeError, match="Only Tensors created explicitly by the user"):
        copy.deepcopy(x * 2)
    assert copy.deepcopy((x * 2).detach()).tolist() == [2, 2]


def test_copy_shares_memory():
    x = lt.ones(2)
    y = copy.copy(x)
    y.fill_(3)
    assert (x.tolist(), y is x, x._version) == ([3, 3], False, 1)


def test_subclasses_stay_what_they_are():
    from lowtide.modules.parameter import Parameter

    p = Parameter(lt.ones(2))
    for q in (copy.deepcopy(p), pickle.loads(pickle.dumps(p)), copy.copy(p)):
        assert type(q) is Parameter
        assert q.requires_grad
        assert q._storage.role == p._storage.role


def test_deepcopy_on_meta_counts_bytes():
    ledger = backend(lt.device("meta")).ledger
    x = lt.ones(1000, device="meta")
    before = ledger.live
    y = copy.deepcopy(x)
    assert ledger.live - before == y.nbytes == 4000
