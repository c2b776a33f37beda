"""``sim`` refuses what CuPy refuses."""

import inspect

import ml_dtypes
import numpy as np
import pytest

import lowtide as lt
from lowtide.framework.devices import backend
from lowtide.framework.devices.sim import functions
from lowtide.framework.devices.sim.array import SimArray
from lowtide.framework.devices.sim.backend import SIM as xp
from lowtide.framework.kernels.common.scatter_add import scatter_add


@pytest.fixture
def a():
    return xp.asarray(np.arange(6, dtype=np.float32).reshape(2, 3))


def test_arrays_do_not_become_numpy_arrays_by_themselves(a):
    with pytest.raises(TypeError, match="Implicit conversion to a NumPy array is not allowed"):
        np.asarray(a)


@pytest.mark.parametrize(
    "mix",
    [
        lambda a: xp.add(a, np.ones(3, np.float32)),
        lambda a: np.add(a, 1),
        lambda a: a + np.ones(3, np.float32),
        lambda a: np.ones(3, np.float32) + a,
        lambda a: xp.sum(np.ones(3)),
        lambda a: xp.concatenate([a, np.ones((1, 3))]),
        lambda a: xp.copyto(a, np.ones((2, 3))),
        lambda a: xp.add(a, [1, 2, 3]),
        lambda a: a[np.array([0])],
        lambda a: a.__setitem__(0, np.ones(3)),
    ],
)
def test_arrays_do_not_mix_with_numpy_arrays_or_lists(a, mix):
    with pytest.raises(TypeError):
        mix(a)


def test_reductions_return_arrays_without_dimensions(a):
    for result in (xp.sum(a), a.max(), xp.argmin(a), a[1, 2], xp.add.reduce(a.reshape(-1))):
        assert isinstance(result, SimArray)
        assert result.shape == ()
    assert float(xp.sum(a)) == 15.0


@pytest.mark.parametrize("name", ["errstate", "add_at", "float128", "nditer", "core"])
def test_functions_that_cupy_lacks_do_not_exist(name):
    with pytest.raises(AttributeError, match="Use a function that NumPy and CuPy both have"):
        getattr(xp, name)


def test_arguments_that_cupy_lacks_are_refused(a):
    with pytest.raises(TypeError, match="unexpected keyword argument 'where'"):
        xp.sum(a, where=a > 1)
    with pytest.raises(TypeError, match="unexpected keyword argument 'mode'"):
        xp.take(a, xp.asarray([0]), mode="clip")


def test_methods_of_ufuncs_are_cupys(a):
    with pytest.raises(NotImplementedError, match=r"maximum\.reduce"):
        xp.maximum.reduce(a)
    with pytest.raises(NotImplementedError, match=r"maximum\.accumulate"):
        xp.maximum.accumulate(a)
    with pytest.raises(NotImplementedError, match=r"multiply\.at"):
        xp.multiply.at(a, xp.asarray([0]), 2)
    with pytest.raises(TypeError, match="no atomics"):
        xp.add.at(xp.zeros(3, bool), xp.asarray([0]), True)
    xp.add.at(a, (xp.asarray([0, 0]),), 1)
    assert a.get()[0].tolist() == [2.0, 3.0, 4.0]


def test_index_arrays_out_of_range_wrap_around_silently(a):
    index = xp.asarray([2, -1])
    assert a[index].get().tolist() == [[0, 1, 2], [3, 4, 5]]
    assert a[:, xp.asarray([3])].get().tolist() == [[0], [3]]
    assert a[..., None, xp.asarray([4])].shape == (2, 1, 1)
    assert xp.take(a, index, axis=0).get().tolist() == [[0, 1, 2], [3, 4, 5]]


def test_no_warning_comes_from_arithmetic(a):
    assert np.isinf(xp.divide(a, 0.0).get()).sum() == 5


def test_views_share_bytes_and_writes_show(a):
    view = a.reshape(-1)[2:4]
    view[...] = -1.0
    view += 1
    assert a.get().tolist() == [[0, 1, 0], [0, 4, 5]]
    assert xp.lib.stride_tricks.as_strided(a, (2, 2), (4, 4)).get().tolist() == [[0, 1], [1, 0]]


def test_flags_are_cupys(a):
    assert a.flags.c_contiguous
    assert a.T.flags.f_contiguous
    assert not hasattr(a.flags, "writeable")


def test_batched_products_of_bfloat16_are_refused():
    x = xp.zeros((2, 2, 2), dtype=ml_dtypes.bfloat16)
    with pytest.raises(TypeError, match="no batched product of bfloat16"):
        xp.matmul(x, x)


def test_linear_algebra_is_the_part_that_cupy_has(a):
    assert xp.linalg.norm(a).shape == ()
    with pytest.raises(AttributeError):
        xp.linalg.multi_dot  # noqa: B018


def test_a_tensor_goes_there_and_back():
    x = lt.tensor([[1.0, 2.0], [3.0, 4.0]], device="sim", requires_grad=True)
    (x * x).sum().backward()
    assert x.grad.device is lt.device("sim")
    assert x.grad.to("cpu").tolist() == [[2.0, 4.0], [6.0, 8.0]]
    assert (x.permute(1, 0).select(0, 0) * 2).tolist() == [2.0, 6.0]


def test_its_ledger_is_its_own(leak_check):
    cpu, sim = backend(lt.device("cpu")).ledger, backend(lt.device("sim")).ledger
    before = cpu.live, sim.live
    x = lt.tensor([1.0] * 100, device="sim")
    assert (cpu.live - before[0], sim.live - before[1]) == (0, 400)
    y = x.view(10, 10)
    del x
    assert sim.live - before[1] == 400
    del y
    assert sim.live == before[1]


def test_ops_of_two_devices_are_refused():
    with pytest.raises(RuntimeError, match="same device"):
        lt.tensor([1.0, 2.0]) * lt.tensor([1.0, 2.0], device="sim")


def test_scatter_add_counts_repeated_indices_in_every_type():
    for dtype in (np.float32, np.float64, np.int64, np.int8, np.uint8, ml_dtypes.bfloat16):
        out = np.zeros((3, 2), dtype)
        index = np.array([0, 2, 0, 0])
        there, index_there = xp.asarray(out), xp.asarray(index)
        scatter_add(np, out, index, np.ones((4, 2), dtype))
        scatter_add(xp, there, index_there, xp.ones((4, 2), dtype))
        np.testing.assert_array_equal(there.get(), out)
        assert out[:, 0].astype(int).tolist() == [3, 0, 1]
        scatter_add(xp, there, index_there, 1)
        assert there.get()[:, 0].astype(int).tolist() == [6, 0, 2]


def test_every_function_here_exists_in_cupy_with_these_arguments():
    cupy = pytest.importorskip("cupy")  # installing it needs no GPU
    for name, allowed in functions.FUNCTIONS.items():
        function = getattr(cupy, name)
        try:
            parameters = inspect.signature(function).parameters
        except ValueError:  # compiled, without a signature
            continue
        theirs = {stars + p for p in parameters for stars in ("", "*", "**")}
        if name == "matmul":
            theirs |= {"x1", "x2"}  # positional there
        assert allowed <= theirs, name
    for name in functions.UFUNCS:
        assert isinstance(getattr(cupy, name), cupy.ufunc)


@pytest.mark.parametrize("name", ["argsort", "sort", "unique"])
def test_no_bfloat16_is_sorted(name):
    x = lt.ones(3, dtype=lt.bfloat16, device="sim")
    with pytest.raises(NotImplementedError, match=f"{name}: Sorting arrays with dtype 'bfloat16'"):
        getattr(xp, name)(x.array)
    assert x.sort()[1].tolist() == [0, 1, 2]


def test_no_smallest_is_written_into_nothing():
    x = lt.ones(0, 3, device="sim").array
    with pytest.raises(TypeError, match="empty `out`"):
        xp.min(x, axis=1, out=xp.empty((0,), dtype="float32"))
    assert lt.ones(0, 3, device="sim").amin(1).shape == (0,)


@pytest.mark.parametrize("dtype", [lt.float8_e4m3fn, lt.float8_e5m2], ids=str)
def test_eight_bit_floats_are_moved_and_nothing_else(dtype):
    x = lt.tensor([0.5, 1.0]).to(dtype).to("sim")
    with pytest.raises(ValueError, match="Unsupported dtype float8"):
        xp.add(x.array, x.array)
    with pytest.raises(NotImplementedError, match=r"eq.*storage on sim.*float32"):
        x == x  # noqa: B015
    assert x.float().tolist() == x.clone().float().tolist() == [0.5, 1.0]
