"""The backend of GPUs: what it says where there is none, and what it does where there is one.

That ops compute on a GPU what they compute on the CPU is ``test_twins.py``.
"""

import subprocess
import sys

import numpy as np
import pytest

import lowtide as lt
from lowtide.framework.devices import backend, cuda

NO_GPU = cuda.device_count() == 0
without_gpu = pytest.mark.skipif(not NO_GPU, reason="there is a GPU")


@pytest.fixture
def gpu():
    try:
        return backend(lt.device("cuda"))
    except RuntimeError as error:
        pytest.skip(f"no cuda device: {error}")


@without_gpu
def test_asking_for_a_gpu_says_what_is_missing():
    with pytest.raises(RuntimeError, match=r"pip install 'lowtide\[cuda\]'|NVIDIA driver"):
        lt.tensor([1.0], device="cuda")


def test_without_cupy_the_message_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)  # what an import then raises: ImportError
    with pytest.raises(RuntimeError, match=r"cuda:3 needs CuPy.*pip install 'lowtide\[cuda\]'"):
        cuda.cuda_backend(lt.device("cuda:3"))
    assert cuda.device_count() == 0
    assert not lt.cuda.is_available()


def test_without_a_driver_the_message_names_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", FakeCupy(None))
    with pytest.raises(RuntimeError, match=r"Found no NVIDIA driver.*insufficient.*version 580"):
        cuda.cuda_backend(lt.device("cuda:0"))
    assert not lt.cuda.is_available()


def test_a_gpu_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", FakeCupy(2))
    with pytest.raises(RuntimeError, match=r"cuda:2 is not there.*cuda:0 to cuda:1"):
        cuda.cuda_backend(lt.device("cuda:2"))
    monkeypatch.setitem(sys.modules, "cupy", FakeCupy(0))
    with pytest.raises(RuntimeError, match="no CUDA GPUs are available"):
        cuda.cuda_backend(lt.device("cuda:0"))


@without_gpu
def test_questions_about_gpus_have_answers_without_one():
    assert lt.cuda.device_count() == 0
    assert not lt.cuda.is_initialized()
    assert lt.cuda.memory_allocated() == 0
    assert lt.cuda.max_memory_allocated("cuda:0") == 0
    assert lt.cuda.memory_stats() == {}
    assert "was not used" in lt.cuda.memory_summary()
    lt.cuda.empty_cache()
    lt.cuda.reset_peak_memory_stats()
    lt.cuda.manual_seed(3)
    lt.cuda.manual_seed_all(3)
    with pytest.raises(RuntimeError):
        lt.cuda.current_device()


def test_another_kind_of_device_is_refused():
    with pytest.raises(ValueError, match="Expected a cuda device, but got: cpu"):
        lt.cuda.memory_allocated("cpu")


def test_importing_lowtide_imports_no_cupy():
    code = (
        "import sys, lowtide; lowtide.tensor([1.0]); lowtide.cuda.memory_allocated(); "
        "sys.exit('cupy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# The backend's bookkeeping, on a CuPy made of NumPy arrays


class FakeError(Exception):
    pass


class FakeMemory:
    def __init__(self, pool, nbytes):
        self.pool = pool
        self.block = -(-nbytes // 512) * 512
        self.bytes = np.zeros(max(self.block, 1), np.uint8)
        self.ptr = self.bytes.ctypes.data if nbytes else 0
        pool.used += self.block
        pool.total = max(pool.total, pool.used)

    def __del__(self):
        self.pool.used -= self.block


class FakePool:
    def __init__(self):
        self.used = self.total = 0

    def malloc(self, nbytes):
        if nbytes > 1 << 20:
            raise FakeError("full")
        return FakeMemory(self, nbytes)

    def used_bytes(self):
        return self.used

    def total_bytes(self):
        return self.total

    def free_bytes(self):
        return self.total - self.used

    def free_all_blocks(self):
        self.total = self.used


class FakeUnowned:
    def __init__(self, ptr, size, owner, device_id):
        self.owner, self.ptr, self.device_id = owner, ptr, device_id


class FakePointer:
    def __init__(self, mem, offset):
        self.mem, self.ptr = mem, mem.ptr + offset


class FakeArray:
    def __init__(self, shape, dtype, memptr):
        self.shape, self.dtype, self.data = shape, np.dtype(dtype), memptr
        n = int(np.prod(shape)) * self.dtype.itemsize
        self.host = memptr.mem.owner.memory.bytes[:n].view(dtype).reshape(shape)

    def set(self, array):
        assert (array.shape, array.dtype) == (self.host.shape, self.host.dtype)
        self.host[...] = array

    def get(self):
        return self.host.copy()


class FakeCupy:
    __version__ = "14.2.0"
    ndarray = FakeArray

    def __init__(self, count):
        def get_device_count():
            if count is None:
                raise FakeError("driver version is insufficient")
            return count

        self.waits = 0
        self.default = FakePool()
        self.get_default_memory_pool = lambda: self.default
        self.cuda = self
        self.runtime = self
        self.memory = self
        self.getDeviceCount = get_device_count
        self.memGetInfo = lambda: (1 << 20, 1 << 21)
        self.CUDARuntimeError = self.OutOfMemoryError = FakeError
        self.UnownedMemory, self.MemoryPointer = FakeUnowned, FakePointer

    def get_current_stream(self):
        return self

    def synchronize(self):
        self.waits += 1


@pytest.fixture
def fake(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", FakeCupy(1))
    return cuda.cuda_backend(lt.device("cuda:0"))


def spec(*shape, dtype=lt.float32):
    from lowtide.framework.spec import Spec

    return Spec(shape, dtype, lt.device("cuda:0"))


def test_an_array_keeps_its_storage_and_its_death_is_booked(fake):
    storage, array = fake.empty(spec(3, 5))
    assert (fake.ledger.live, fake.pool.used) == (60, 512)
    assert fake.address(array) == storage.address
    del storage
    assert fake.ledger.live == 60
    del array
    assert (fake.ledger.live, fake.pool.used) == (0, 0)
    assert fake.ledger.peak == 60


def test_values_go_in_and_come_out_converted(fake):
    values = np.arange(6, dtype=np.float64).reshape(2, 3).T
    _, array = fake.from_host(values, spec(3, 2), 6)
    np.testing.assert_array_equal(fake.to_host(array), values.astype(np.float32))
    assert fake.xp.waits == 1  # the caller may write its array now
    assert fake.ledger.by_role()["input"] == 24
    _, zero_d = fake.from_host(np.float64(2.5), spec(), 0)
    assert fake.item(zero_d) == 2.5


def test_roles_move_and_empty_tensors_take_nothing(fake):
    storage, _ = fake.empty(spec(0, 4))
    storage.set_role(2)
    assert (fake.ledger.live, storage.address) == (0, 0)
    storage, _array = fake.empty(spec(4))
    storage.set_role(2)
    assert fake.ledger.by_role()["parameter"] == 16


def test_a_full_gpu_raises_with_the_table(fake):
    _, _kept = fake.empty(spec(64), 6)
    with pytest.raises(lt.OutOfMemoryError, match=r"CUDA out of memory.*input 256 B") as caught:
        fake.empty(spec(1 << 20))
    assert caught.value.requested_bytes == 4 << 20
    assert "its free blocks have" in str(caught.value)
    assert fake.ledger.live == 256


def test_kernels_and_tensors_share_a_pool(fake):
    theirs = fake.xp.default.malloc(1000)  # what a function of CuPy takes while a kernel runs
    assert (fake.pool.used, fake.ledger.live) == (1024, 0)
    del theirs
    assert (fake.pool.used, fake.reserved_bytes()) == (0, 1024)
    fake.release_cached()
    assert fake.reserved_bytes() == 0


def test_a_limit_refuses_before_the_pool_is_asked(fake):
    fake.ledger.limit = 100
    with pytest.raises(lt.MemoryLimitError):
        fake.empty(spec(64))
    assert (fake.ledger.live, fake.pool.used) == (0, 0)


def test_emptying_the_cache_lowers_what_is_reserved_but_not_its_peak(fake):
    a = fake.empty(spec(1000))[1]
    del a
    assert fake.reserved_bytes() == 4096
    fake.release_cached()
    assert (fake.reserved_bytes(), fake.pool.peak) == (0, 4096)
    fake.pool.reset_peak()
    assert fake.pool.peak == 0


# On a GPU


@pytest.mark.gpu
def test_the_pool_holds_what_the_ledger_says(gpu):
    before = gpu.ledger.live, gpu.pool.used
    x = lt.tensor(np.ones((100, 100), np.float32), device="cuda")
    assert gpu.ledger.live - before[0] == 40000
    assert gpu.pool.used - before[1] == 40448
    view = x.view(-1)
    del x
    assert gpu.ledger.live - before[0] == 40000
    del view
    assert (gpu.ledger.live, gpu.pool.used) == before


@pytest.mark.gpu
def test_values_survive_the_way_there_and_back(gpu):
    values = np.random.default_rng(0).standard_normal((7, 5)).astype(np.float32)
    x = lt.tensor(values, device="cuda")
    np.testing.assert_array_equal(x.to("cpu").array, values)
    lt.synchronize("cuda")
    assert lt.cuda.is_initialized()
    assert "NVIDIA" in lt.cuda.get_device_name()
