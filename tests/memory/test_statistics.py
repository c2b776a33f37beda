"""What users ask of a device's memory, and what a limit does."""

import gc
import re

import numpy as np
import pytest

import lowtide as lt
from lowtide.framework.devices import backend
from lowtide.framework.memory.ledger import ROLES


@pytest.fixture(params=["cpu", "meta", "sim"])
def where(request):
    gc.collect()
    found = lt.device(request.param)
    yield found
    lt.set_memory_limit(None, found)


def make(where, *shape, requires_grad=False):
    values = np.arange(np.prod(shape), dtype=np.float32).reshape(shape) + 1
    return lt.tensor(values, device=where, requires_grad=requires_grad)


def host(t):
    return np.array(backend(t.device).to_host(t.detach().array), copy=True)


def test_allocated_and_peak_rise_and_fall_to_the_byte(where):
    start = lt.memory_allocated(where)
    lt.reset_peak_memory_stats(where)
    x = make(where, 10, 10)
    y = x * 2.0
    assert lt.memory_allocated(where) - start == 800
    del y
    assert lt.memory_allocated(where) - start == 400
    assert lt.max_memory_allocated(where) - start == 800
    lt.reset_peak_memory_stats(where)
    assert lt.max_memory_allocated(where) - start == 400


def test_without_a_device_the_default_one_is_meant(where):
    x = make(where, 7)
    with where:
        assert lt.memory_allocated() == lt.memory_allocated(where) >= x.nbytes
        assert lt.memory_stats()["device"] == str(where)


def test_stats_add_up(where):
    x = make(where, 3, 5, requires_grad=True)
    y = (x * x) * x
    stats = lt.memory_stats(str(where))
    assert sum(stats["by_role"].values()) == stats["live_bytes"] == lt.memory_allocated(where)
    assert sum(stats["peak_by_role"].values()) == stats["peak_bytes"]
    assert stats["live_bytes"] + stats["rounding_bytes"] == stats["pool_used_bytes"]
    assert stats["pool_used_bytes"] + stats["pool_free_bytes"] == stats["reserved_bytes"]
    assert stats["reserved_bytes"] == lt.memory_reserved(where) <= lt.max_memory_reserved(where)
    assert stats["by_role"]["saved"] >= 60
    assert stats["limit_bytes"] is None
    assert all(isinstance(v, int | str | dict | type(None)) for v in stats.values())
    before = stats["allocations"]
    z = y * 2.0
    assert lt.memory_stats(where)["allocations"] == before + 1
    del z


def test_summary_names_every_role_and_the_sums(where):
    x = make(where, 256, 4)
    text = lt.memory_summary(where)
    for role in ROLES:
        assert re.search(rf"^{role} ", text, re.MULTILINE)
    assert f"Memory of {where}" in text
    assert "= reserved" in text
    assert "no limit" in text
    assert re.search(r"^input +\d", text, re.MULTILINE)
    lt.set_memory_limit(1 << 40, where)
    short = lt.memory_summary(where, abbreviated=True)
    assert "limit 1.00 TiB" in short
    assert "workspace" not in short or lt.memory_stats(where)["peak_by_role"]["workspace"]
    del x


def test_empty_cache_lowers_what_is_reserved_and_keeps_values(where):
    keep = make(where, 100)
    big = [make(where, 50_000) * 1.0 for _ in range(4)]
    after = make(where, 100)
    del big
    before = lt.memory_reserved(where)
    lt.empty_cache(where)
    assert lt.memory_reserved(where) <= before
    stats = lt.memory_stats(where)
    del after
    lt.empty_cache()
    assert lt.memory_reserved(where) < before
    assert stats["live_bytes"] - 400 == lt.memory_allocated(where)
    if where.type != "meta":
        np.testing.assert_array_equal(host(keep), np.arange(100, dtype=np.float32) + 1)
        again = make(where, 50_000)
        np.testing.assert_array_equal(host(again), np.arange(50_000, dtype=np.float32) + 1)


def test_the_pages_of_free_blocks_go_back_to_the_system():
    be = backend(lt.device("cpu"))
    x = lt.tensor(np.ones(1 << 20, np.float32))
    address, n = x.data_ptr(), x.nbytes
    del x
    lt.empty_cache("cpu")
    y = be.empty(lt.tensor(np.ones(1))._spec)  # a living block, wherever it lies
    page = np.ndarray((n - 8192,), np.uint8, be.arena, address - be_start(be) + 4096)
    assert not page.any()  # a page that was given back reads as zeros
    del y


def be_start(be):
    return np.ndarray((1,), np.uint8, be.arena).ctypes.data


# The limit


def test_the_old_limit_is_returned(where):
    assert lt.set_memory_limit(1 << 30, where) is None
    assert lt.get_memory_limit(where) == 1 << 30
    assert lt.set_memory_limit(None, where) == 1 << 30
    assert lt.get_memory_limit(where) is None


def test_a_limit_must_be_bytes(where):
    with pytest.raises(TypeError, match="takes bytes as an int"):
        lt.set_memory_limit(1.5, where)
    with pytest.raises(ValueError, match="is a size in bytes; got '2 pounds'"):
        lt.set_memory_limit("2 pounds", where)
    with pytest.raises(ValueError, match="non-negative"):
        lt.set_memory_limit(-1, where)


def snapshot(where):
    be = backend(where)
    return be.ledger.live, list(be.ledger.roles), be.pool.used, be.ledger.peak


def test_an_allocation_past_the_limit_is_refused_and_books_nothing(where):
    x = make(where, 100)
    before = snapshot(where)
    lt.set_memory_limit(before[0] + 399, where)
    with pytest.raises(lt.MemoryLimitError) as caught:
        x * 2.0
    error = caught.value
    assert isinstance(error, lt.OutOfMemoryError)
    assert isinstance(error, RuntimeError)
    assert isinstance(error, MemoryError)
    assert (error.requested_bytes, error.live_bytes) == (400, before[0])
    assert sum(error.by_role.values()) == before[0]
    message = str(error)
    assert f"Allocating 400 B on {where} would pass the limit" in message
    assert "input " in message
    assert "set_memory_limit" in message
    assert snapshot(where) == before
    lt.set_memory_limit(before[0] + 400, where)
    y = x * 2.0
    assert y.shape == (100,)


def test_a_limit_inside_backward_leaves_every_tensor_as_it_was(where):
    x = make(where, 64, requires_grad=True)
    w = make(where, 64, requires_grad=True)
    loss = ((x * w) * (x * w)).sum()
    values = [host(t) for t in (x, w, loss)] if where.type != "meta" else []
    live = lt.memory_allocated(where)
    refused = 0
    for room in range(0, 3000, 64):
        lt.set_memory_limit(live + room, where)
        try:
            loss.backward(retain_graph=True)
            break
        except lt.MemoryLimitError:
            refused += 1
        kept = sum(t.grad.nbytes for t in (x, w) if t.grad is not None)
        assert lt.memory_allocated(where) == live + kept  # the traceback is gone, and all with it
        x.grad = w.grad = None
    assert refused > 3
    lt.set_memory_limit(None, where)
    for t, v in zip((x, w, loss), values, strict=False):
        np.testing.assert_array_equal(host(t), v)
    assert x.grad is not None
    if where.type != "meta":
        np.testing.assert_allclose(host(x.grad), 2 * host(x) * host(w) ** 2)


def test_a_limit_inside_a_write_in_place_leaves_no_half_written_state(where):
    x = make(where, 64, requires_grad=True)
    y = x * 1.0
    view = y.view(8, 8)
    values = host(y) if where.type != "meta" else None
    before = (y._version, y.grad_fn, view.grad_fn, y._storage)
    other = lt.tensor(np.ones((8, 8), np.float64), device=where).to(lt.bfloat16)
    live = snapshot(where)
    lt.set_memory_limit(live[0] + 10, where)
    with pytest.raises(lt.MemoryLimitError):
        view.mul_(view)  # backward needs the old value: it must be copied first
    with pytest.raises(lt.MemoryLimitError):
        view.mul_(other)  # and this one converted
    assert (y._version, y.grad_fn, view.grad_fn, y._storage) == before
    assert snapshot(where)[:3] == live[:3]
    if values is not None:
        np.testing.assert_array_equal(host(y), values)
    lt.set_memory_limit(None, where)
    (y * y).sum().backward()
    assert x.grad.shape == (64,)


def test_a_limit_while_data_comes_in_books_nothing(where):
    before = snapshot(where)
    lt.set_memory_limit(before[0] + 1000, where)
    with pytest.raises(lt.MemoryLimitError):
        make(where, 1000)
    assert snapshot(where) == before


def test_a_request_beyond_any_machine_names_no_limit():
    with pytest.raises(lt.OutOfMemoryError, match="no machine has that much") as error:
        lt.empty(1 << 62, device="meta")
    assert not isinstance(error.value, lt.MemoryLimitError)
