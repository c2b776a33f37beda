"""CuPy has what the package asks of it: names, arguments, and what can be tried without a driver.

Installing CuPy needs no GPU: ``pip install cupy-cuda13x nvidia-ml-py``.
"""

import gc
import inspect
import re
import weakref

import ml_dtypes
import numpy as np
import pytest

import lowtide as lt
from lowtide.framework.devices.cuda import CudaBackend, cuda_backend, device_count
from lowtide.framework.devices.sim import functions
from lowtide.framework.devices.sim.array import SimArray
from lowtide.framework.spec import Spec
from tests.samples import over_samples

cupy = pytest.importorskip("cupy")  # installing it needs no GPU


def parameters_of(function):
    """Names of the parameters; of what is compiled, by the first line of its docstring."""
    try:
        return list(inspect.signature(function).parameters)
    except ValueError:
        pass
    first = (function.__doc__ or "").strip().splitlines()[0]
    found = re.match(r"[\w.]+\((.*?)\)( ->.*)?$", first)
    if found is None:
        return None
    words = [p.split("=")[0].split() for p in found[1].split(",")]
    return [w[-1] for w in words if w and w[-1] != "*"]


# Every call of framework/devices/cuda.py, framework/checkpointing/offload.py and disk.py,
# lowtide/cuda and profiling/record/system_memory.py: how many are passed by position, and which by
# name.
CALLS = {
    "ndarray.get": (1, ["out"]),
    "ndarray.set": (2, []),
    "ndarray.fill": (2, []),
    "copyto": (2, ["casting"]),
    "from_dlpack": (1, []),
    "get_default_memory_pool": (0, []),
    "cuda.Device": (1, []),
    "cuda.Device.use": (1, []),
    "cuda.Device.synchronize": (1, []),
    "cuda.Event": (0, ["disable_timing"]),
    "cuda.Event.record": (2, []),
    "cuda.Stream": (0, ["non_blocking"]),
    "cuda.Stream.wait_event": (2, []),
    "cuda.Stream.synchronize": (1, []),
    "cuda.get_current_stream": (0, []),
    "cuda.get_elapsed_time": (2, []),
    "cuda.PinnedMemory": (1, []),
    "cuda.MemoryPool.malloc": (2, []),
    "cuda.MemoryPool.used_bytes": (1, []),
    "cuda.MemoryPool.total_bytes": (1, []),
    "cuda.MemoryPool.free_bytes": (1, []),
    "cuda.MemoryPool.free_all_blocks": (1, []),
    "cuda.UnownedMemory": (4, []),
    "cuda.MemoryPointer": (2, []),
    "cuda.runtime.memcpyAsync": (5, []),
    "cuda.runtime.memGetInfo": (0, []),
    "cuda.runtime.getDeviceCount": (0, []),
    "cuda.runtime.getDeviceProperties": (1, []),
    "cuda.runtime.deviceGetPCIBusId": (1, []),
}


@pytest.mark.parametrize("name", CALLS)
def test_calls_have_the_arguments_that_we_pass(name):
    function = cupy
    for part in name.split("."):
        function = getattr(function, part)
    by_position, by_name = CALLS[name]
    parameters = parameters_of(function)
    assert parameters is not None, "it tells nothing of its parameters"
    assert len(parameters) >= by_position, parameters
    assert set(by_name) <= set(parameters), parameters


def test_kinds_of_copies_and_errors_are_those_we_mean():
    assert (cupy.cuda.runtime.memcpyHostToDevice, cupy.cuda.runtime.memcpyDeviceToHost) == (1, 2)
    assert issubclass(cupy.cuda.memory.OutOfMemoryError, MemoryError)
    assert issubclass(cupy.cuda.runtime.CUDARuntimeError, RuntimeError)
    null = cupy.cuda.Stream.null
    assert null.ptr == 0
    assert null == cupy.cuda.Stream(null=True)  # streams are compared by their pointer
    assert cupy.__name__ == "cupy"


@pytest.mark.skipif(device_count() > 0, reason="there is a GPU")
def test_without_a_driver_we_say_so():
    with pytest.raises(RuntimeError, match=r"Found no NVIDIA driver.*CuPy 1[4-9].*version 580"):
        cuda_backend(lt.device("cuda:0"))


class HostPool:
    """Blocks of host memory in the place of a pool: arrays on it can be made, not computed with."""

    def __init__(self):
        self.used = 0

    def malloc(self, nbytes):
        block = np.zeros(max(nbytes, 1), np.uint8)
        owned = cupy.cuda.UnownedMemory(block.ctypes.data, nbytes, block, 0)
        return cupy.cuda.MemoryPointer(owned, 0)


@pytest.mark.parametrize(
    "dtype",
    [lt.float32, lt.float64, lt.float16, lt.bfloat16, lt.int64, lt.bool, lt.complex64],
    ids=str,
)
def test_arrays_lie_where_the_backend_says_and_keep_their_storage(dtype):
    be = CudaBackend(lt.device("cuda:0"), cupy, HostPool())
    spec = Spec((3, 4), dtype, lt.device("cuda:0"))
    storage, array = be.empty(spec)
    n = spec.dtype.itemsize
    assert (array.shape, array.strides, array.dtype) == ((3, 4), (4 * n, n), spec.np_dtype)
    assert array.flags.c_contiguous
    assert be.address(array) == storage.address
    assert be.ledger.live == spec.nbytes
    part = be.strided_view(storage, Spec((2, 2), dtype, lt.device("cuda:0")), (n, (4 * n, n)))
    assert (be.address(part) - storage.address, part.strides) == (n, (4 * n, n))
    assert not part.flags.c_contiguous
    view = array.T[1:].reshape(-1, 3)
    alive = weakref.ref(storage)
    del storage, array, part
    assert alive() is not None
    assert be.ledger.live == spec.nbytes
    del view
    gc.collect()
    assert (alive(), be.ledger.live) == (None, 0)


def test_an_empty_array_needs_no_memory():
    be = CudaBackend(lt.device("cuda:0"), cupy, HostPool())
    owned = cupy.cuda.UnownedMemory(0, 0, None, 0)  # what a pool's malloc(0) gives
    assert cupy.cuda.MemoryPointer(owned, 0).ptr == 0
    _, array = be.empty(Spec((0, 4), lt.float32, lt.device("cuda:0")))
    assert (array.shape, array.size, be.ledger.live) == ((0, 4), 0, 0)


def on_host(array):
    """An array of CuPy's on the bytes of a NumPy array: views of it can be made."""
    low, high = np.lib.array_utils.byte_bounds(array)
    owned = cupy.cuda.UnownedMemory(low, high - low, array, 0)
    start = array.__array_interface__["data"][0] - low
    return cupy.ndarray(
        array.shape,
        dtype=array.dtype,
        strides=array.strides,
        memptr=cupy.cuda.MemoryPointer(owned, start),
    )


@over_samples(of=lambda op: op.view)
@pytest.mark.parametrize("dtype", [lt.float32, lt.bfloat16], ids=str)
def test_views_are_those_of_numpy(op, inputs, attributes, dtype):
    given = [x._array if isinstance(x, lt.Tensor) else x for x in inputs]
    attributes = {**op.attributes, **attributes}
    expected = op.plain(np, *given, **attributes)
    there = [on_host(x) if isinstance(x, np.ndarray) else x for x in given]
    found = op.plain(cupy, *there, **attributes)
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    if expected.size:
        assert found.data.ptr == expected.__array_interface__["data"][0]
        steps = zip(found.strides, expected.strides, expected.shape, strict=True)
        assert all(a == b for a, b, n in steps if n > 1)


def test_overlaps_are_found():
    a = on_host(np.arange(10.0))
    assert np.may_share_memory(a[1:], a[:-1])
    assert not np.may_share_memory(a[1:4], a[6:])


def test_what_sim_has_cupy_has():
    import cupyx
    import cupyx.scipy.special

    for module, table in [
        (cupy, functions.FUNCTIONS),
        (cupy.linalg, functions.LINALG),
        (cupy.fft, functions.FFT),
    ]:
        for name, allowed in table.items():
            theirs = parameters_of(getattr(module, name))
            if theirs is not None:
                given = {stars + p.lstrip("*") for p in theirs for stars in ("", "*", "**")}
                given |= {"x1", "x2"} if name == "matmul" else set()  # by position there
                assert allowed <= given, (name, allowed - given)
    for name in functions.SPECIAL:
        assert hasattr(cupyx.scipy.special, name), name
    for name in functions.UFUNCS:
        assert isinstance(getattr(cupy, name), cupy.ufunc), name
    for name in functions.SCATTERS:
        assert hasattr(getattr(cupy, name), "at"), name
    assert callable(cupyx.errstate)
    for name in dir(SimArray):
        if not name.startswith("_"):
            assert hasattr(cupy.ndarray, name), name


def test_bfloat16_is_an_element_type():
    assert cupy.dtype(ml_dtypes.bfloat16).itemsize == 2


def test_nvml_has_what_the_probes_ask():
    pynvml = pytest.importorskip("pynvml")
    for name, count in {
        "nvmlInit": 0,
        "nvmlDeviceGetHandleByPciBusId": 1,
        "nvmlDeviceGetComputeRunningProcesses": 1,
        "nvmlDeviceGetMemoryInfo": 1,
    }.items():
        required = [
            p
            for p in inspect.signature(getattr(pynvml, name)).parameters.values()
            if p.default is p.empty
            and p.kind not in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        ]
        assert len(required) <= count, name
    assert "used" in dict(pynvml.c_nvmlMemory_t._fields_)
    fields = dict(pynvml.c_nvmlProcessInfo_v3_t._fields_)
    assert {"pid", "usedGpuMemory"} <= set(fields)
