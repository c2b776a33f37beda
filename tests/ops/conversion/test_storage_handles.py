"""Handles of storages: their bytes, slices, files, and what the ledger counts of them."""

import gc
import random

import numpy as np
import pytest

import lowtide as lt

DTYPES = [
    lt.float64, lt.float32, lt.float16, lt.bfloat16, lt.int64, lt.int32, lt.int16, lt.int8,
    lt.uint8, lt.uint16, lt.uint32, lt.uint64, lt.bool, lt.float8_e4m3fn, lt.float8_e5m2,
    lt.complex64, lt.complex128,
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_mapped_file_is_copied_when_it_is_written(dtype, tmp_path):
    """All dtypes, drawn places: tensors see the file, the file never sees the tensors."""
    rng = random.Random(str(dtype))
    for _ in range(15):
        size = dtype.itemsize
        raw = bytes(rng.randrange(2) for _ in range(size * rng.randrange(1, 9)))
        path = tmp_path / "file"
        path.write_bytes(raw)
        before = lt.memory_allocated("cpu")
        storage = lt.UntypedStorage.from_file(str(path), shared=False, nbytes=len(raw))
        a, b = sorted(rng.randrange(len(raw) // size + 1) for _ in range(2))
        part = storage[a * size : b * size]
        x = lt.asarray(part, dtype=lt.uint8).view(dtype)
        assert lt.memory_allocated("cpu") == before
        assert x.view(lt.uint8).tolist() == list(raw[a * size : b * size])
        x.copy_(lt.zeros(b - a))
        storage[0] = 9
        assert path.read_bytes() == raw
        assert storage.tolist()[a * size : b * size] == part.tolist()
        again = lt.from_file(str(path), size=len(raw) // size, dtype=dtype)
        assert again.view(lt.uint8).tolist() == list(raw)


def test_a_shared_file_is_written_and_made(tmp_path):
    path = tmp_path / "new"
    x = lt.from_file(str(path), shared=True, size=3)
    x.copy_(lt.arange(3.0))
    assert np.fromfile(path, "f4").tolist() == [0.0, 1.0, 2.0]
    storage = lt.UntypedStorage.from_file(path, shared=True, nbytes=4)
    assert (storage.filename, storage.is_shared()) == (str(path), True)
    assert storage.share_memory_() is storage
    assert lt.UntypedStorage.from_file(path, nbytes=4).filename is None
    assert lt.UntypedStorage.from_file(path).nbytes() == 0


def test_a_slice_keeps_the_bytes_alive_and_writes_them():
    x = lt.arange(4.0)
    part = x.untyped_storage()[4:12]
    lent = lt.tensor([]).set_(part)
    assert lent.tolist() == [1.0, 2.0]
    lent.fill_(7)
    assert x.tolist() == [0.0, 7.0, 7.0, 3.0]
    assert (x._version, lent._version) == (0, 2)
    before = lt.memory_allocated("cpu")
    del x, part
    gc.collect()
    assert lt.memory_allocated("cpu") == before
    assert lent.tolist() == [7.0, 7.0]
    del lent
    assert lt.memory_allocated("cpu") == before - 16


def test_a_tensor_on_a_storage_trains():
    kept = lt.arange(6.0)
    w = lt.nn.Parameter(lt.tensor([]).set_(kept.untyped_storage(), 1, (2, 2), (2, 1)))
    (w**2).sum().backward()
    assert w.grad.tolist() == [[2.0, 4.0], [6.0, 8.0]]
    with lt.no_grad():
        w.sub_(w.grad)
    assert kept.tolist() == [0.0, -1.0, -2.0, -3.0, -4.0, 5.0]


def test_what_a_storage_cannot_do_says_what_to_do_instead():
    x = lt.arange(4.0)
    with pytest.raises(
        RuntimeError, match=r"resize_\(0\): a storage keeps its size, here 16.*set_"
    ):
        x.untyped_storage().resize_(0)
    assert x.untyped_storage().resize_(16).nbytes() == 16
    for holder in (x, x.untyped_storage(), x.storage()):
        assert not holder.is_shared()
        with pytest.raises(RuntimeError, match="processes get copies.*shared=True"):
            holder.share_memory_()
    with pytest.raises(NotImplementedError, match=r"tolist: a storage on meta.*empty_like"):
        lt.empty(3, device="meta").untyped_storage().tolist()
    with pytest.raises(RuntimeError, match="Take them of untyped"):
        x.storage()[1:]
    with pytest.raises(RuntimeError, match="lowtide.FloatStorage"):
        lt.TypedStorage.from_file("nowhere")
    with pytest.raises(TypeError, match=r"tensor\.untyped_storage"):
        lt.UntypedStorage(x)
    with pytest.raises(ValueError, match="'native', 'little' or 'big'; got 'up'"):
        lt.UntypedStorage.from_buffer(b"abc", "up")
    with pytest.raises(ValueError, match="2 elements of lowtide.int16 from byte 1 are not there"):
        lt.UntypedStorage.from_buffer(b"abcd", "native", 2, 1, dtype=lt.int16)


def test_weak_references_as_numbers():
    storage = lt.ones(3).untyped_storage()
    number = storage._weak_ref()
    assert not lt.UntypedStorage._expired(number)
    del storage
    gc.collect()
    assert lt.UntypedStorage._expired(number)
    lt.UntypedStorage._free_weak_ref(number)


def test_conversions_and_copies():
    x = lt.tensor([1.5, 2.0])
    typed = x.storage()
    assert typed.int().tolist() == [1, 2]
    assert typed.type() == "lowtide.FloatStorage"
    assert typed.type("lowtide.DoubleStorage").dtype is lt.float64
    assert list(x.untyped_storage()) == x.untyped_storage().byte().tolist()
    copied = typed.clone()
    typed.fill_(3)
    typed[0] = 4
    assert (x.tolist(), copied.tolist()) == ([4.0, 3.0], [1.5, 2.0])
    assert typed.to(device="cpu") is typed
    assert typed.cpu()._untyped_storage == x.untyped_storage()
