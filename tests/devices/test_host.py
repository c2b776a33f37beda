"""The devices made of NumPy arrays: cpu and meta."""

import mmap

import numpy as np
import pytest

import lowtide as lt
from lowtide.framework.autograd.saved import Pin
from lowtide.framework.devices import backend, host, live_backends
from lowtide.framework.devices.host import HostBackend, reserve
from lowtide.framework.memory.ledger import INPUT
from lowtide.framework.spec import Spec

CPU, META = lt.device("cpu"), lt.device("meta")


def test_arrays_are_aligned_to_cache_lines():
    be = backend(CPU)
    for n in (1, 3, 17, 64, 1000):
        storage, array = be.empty(Spec((n,), lt.uint8, CPU))
        assert be.address(array) % 64 == 0
        assert storage.address == be.address(array)


def test_meta_arrays_have_strides_and_offsets_but_cannot_be_written():
    _, array = backend(META).empty(Spec((1 << 20, 1 << 10), lt.float64, META))
    assert array.T[3:].strides == (8, 8 << 10)
    with pytest.raises(ValueError, match="read-only"):
        array[0, 0] = 1.0


def test_meta_counts_bytes_that_no_machine_has():
    be = backend(META)
    before = be.ledger.live
    x = be.empty(Spec((1 << 40,), lt.float32, META))
    assert be.ledger.live - before == 4 << 40
    del x
    assert be.ledger.live == before


def test_bytes_of_someone_else_are_shared_and_not_counted():
    be = backend(CPU)
    before = be.ledger.live
    theirs = np.ones(100)
    storage, array = be.adopt(theirs, INPUT)
    assert array is theirs
    storage.set_role(0)
    pin = Pin(storage)
    assert storage.pins == 1
    del pin
    assert (storage.nbytes, storage.pins, be.ledger.live) == (800, 0, before)


def test_a_full_mapping_raises_with_the_table_and_stays_usable():
    be = HostBackend("cpu", 1 << 24, computes=True)
    kept = be.empty(Spec((1000,), lt.float32, CPU))
    with pytest.raises(lt.OutOfMemoryError, match=r"temporary 3\.91 KiB") as caught:
        be.empty(Spec((1 << 25,), lt.uint8, CPU))
    assert not isinstance(caught.value, lt.MemoryLimitError)
    assert caught.value.requested_bytes == 1 << 25
    assert (be.ledger.live, be.pool.used) == (4000, 4032)
    again = be.empty(Spec((1000,), lt.float32, CPU))
    assert be.ledger.live == 8000
    del kept, again
    assert be.ledger.live == 0


def test_a_system_that_gives_less_gets_asked_for_less(monkeypatch):
    asked = []
    real = mmap.mmap

    def stingy(fd, size, **options):
        asked.append(size)
        if size > 1 << 26:
            raise OSError("Cannot allocate memory")
        return real(fd, size, **options)

    monkeypatch.setattr(host.mmap, "mmap", stingy)
    mapping = reserve((1 << 28) + 5, writable=True)
    assert asked[0] % mmap.PAGESIZE == 0
    assert len(mapping) == asked[-1] <= 1 << 26 < asked[-2]


def test_a_system_that_gives_nothing_raises(monkeypatch):
    def broken(*_, **__):
        raise OSError("Cannot allocate memory")

    monkeypatch.setattr(host.mmap, "mmap", broken)
    with pytest.raises(OSError, match="Cannot allocate"):
        reserve(1 << 30, writable=True)


def test_backends_in_use_are_listed_once():
    backend(CPU)
    found = live_backends()
    assert [b.device for b in found].count(CPU) == 1
    assert backend(CPU) in found


def test_the_namespace_of_the_cpu_answers():
    x = lt.tensor([1.0, 2.0])
    assert lt.cpu.is_available()
    assert lt.cpu.device_count() == 1
    assert lt.cpu.memory_allocated() == lt.memory_allocated("cpu") >= x.nbytes
    assert lt.cpu.max_memory_allocated() >= lt.cpu.memory_allocated()
    assert "Memory of cpu" in lt.cpu.memory_summary()
    lt.cpu.synchronize()


def test_the_message_of_an_unknown_device_speaks_of_no_internal_one():
    with pytest.raises(RuntimeError, match="must be one of cpu, cuda, meta, with") as caught:
        lt.device("tpu")
    assert "sim" not in str(caught.value)
