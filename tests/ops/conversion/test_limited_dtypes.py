"""uint16, uint32, uint64 and the 8-bit floats: bytes, refusals, files, gradients."""

import copy
import pickle

import numpy as np
import pytest

import lowtide as lt

UNSIGNED = [lt.uint16, lt.uint32, lt.uint64]
EIGHT_BITS = [lt.float8_e4m3fn, lt.float8_e5m2]
LIMITED = UNSIGNED + EIGHT_BITS


def numbers(d):
    return lt.tensor([[1, 2, 3], [4, 5, 6]]).to(d)


@pytest.mark.parametrize("d", LIMITED, ids=lambda d: d.name)
def test_a_tensor_has_the_bytes_of_its_type(d):
    before = lt.memory_allocated()
    x = lt.zeros(64, dtype=d)
    assert lt.memory_allocated() - before == x.nbytes == 64 * d.itemsize
    assert lt.zeros(64, dtype=d, device="meta").nbytes == 64 * d.itemsize


@pytest.mark.parametrize("d", LIMITED, ids=lambda d: d.name)
def test_copies_and_files_keep_type_and_values(d, tmp_path):
    x = numbers(d)
    lt.save({"x": x, "d": d}, tmp_path / "x.safetensors")
    read = lt.load(tmp_path / "x.safetensors")
    assert read["d"] is d
    loader = lt.utils.data.DataLoader(list(x), batch_size=2, num_workers=1)
    for y in (
        read["x"],
        copy.deepcopy(x),
        pickle.loads(pickle.dumps(x)),
        next(iter(loader)),
        lt.from_numpy(x.numpy()),
        x.view(lt.uint8).view(d),
        lt.cat(x.split(1)),
    ):
        assert y.dtype is d
        assert y.tolist() == x.tolist()


@pytest.mark.parametrize("d", LIMITED, ids=lambda d: d.name)
def test_arithmetic_is_refused_and_says_what_to_convert_to(d):
    x = numbers(d)
    wide = "int64" if d in UNSIGNED else "float32"
    with pytest.raises(NotImplementedError, match=rf'"add" .* {d.name}, .*\.to\(lowtide\.{wide}\)'):
        x + x
    with pytest.raises(RuntimeError, match=f"attempted to promote (int32|{d.name}) and"):
        x + lt.ones(3, dtype=lt.int32)
    assert x.tolist() == [[1, 2, 3], [4, 5, 6]]


@pytest.mark.parametrize("d", LIMITED, ids=lambda d: d.name)
def test_a_refused_write_in_place_changes_nothing(d):
    x = numbers(d)
    version = x._version
    for write in (lambda: x.add_(1), lambda: x.clamp_(2, 3), lambda: x.normal_()):
        with pytest.raises(NotImplementedError, match=d.name):
            write()
    assert x.tolist() == [[1, 2, 3], [4, 5, 6]]
    assert x._version == version


def test_eight_bit_floats_saturate_or_overflow():
    x = lt.tensor([449.0, -1e9, float("inf"), float("nan")])
    assert x.to(lt.float8_e4m3fn).float().nan_to_num(0).tolist() == [448, -448, 448, 0]
    assert x.to(lt.float8_e5m2).float().nan_to_num(0, 1e9, -1e9).tolist() == [448, -1e9, 1e9, 0]
    large = lt.full((1 << 17,), 500.0).to(lt.float8_e4m3fn)
    assert bool((large.float() == 448).all())
    strided = lt.zeros(4, 6, dtype=lt.float8_e4m3fn)
    strided.t()[::2].copy_(lt.full((3, 4), 1e9))
    assert strided.float().sum(0).tolist() == [1792, 0, 1792, 0, 1792, 0]


def test_unsigned_integers_of_64_bits_keep_their_digits():
    most = 2**64 - 1
    for x in (lt.tensor([1, most], dtype=lt.uint64), lt.tensor([1, 0], dtype=lt.uint64)):
        x[1] = most
        assert x.tolist() == [1, most]
        assert (x == most).tolist() == [False, True]
    with pytest.raises(ValueError, match="beyond 64 bits"):
        lt.tensor([1, 2**64], dtype=lt.uint64)


def test_a_leaf_of_eight_bits_has_a_gradient_of_eight_bits():
    x = numbers(lt.float8_e5m2).requires_grad_()
    (x.float() * 3).sum().backward()
    assert x.grad.dtype is lt.float8_e5m2
    assert x.grad.tolist() == [[3.0] * 3] * 2
    with pytest.raises(RuntimeError, match="floating"):
        numbers(lt.uint16).requires_grad_()


def test_a_conversion_to_eight_bits_takes_no_other_memory():
    x = lt.ones(1 << 16)
    lt.reset_peak_memory_stats()
    before = lt.memory_allocated()
    y = x.to(lt.float8_e4m3fn)
    assert lt.max_memory_allocated() - before == y.nbytes == 1 << 16


def test_hash_tensor_is_the_exclusive_or_of_bits():
    x = np.random.default_rng(0).standard_normal((3, 4, 5))
    bits = x.view(np.uint64)
    expected = np.bitwise_xor.reduce(bits, axis=(0, 2))
    assert lt.hash_tensor(lt.tensor(x), (0, 2)).tolist() == expected.tolist()
    assert lt.tensor([3, 5], dtype=lt.int8).hash_tensor().item() == 6
    with pytest.raises(RuntimeError, match="dim"):
        lt.hash_tensor(lt.zeros(0))
    with pytest.raises(IndexError, match="non-zero"):
        lt.hash_tensor(lt.zeros(0, 3), 0)
    with pytest.raises(RuntimeError, match="mode: 1"):
        lt.hash_tensor(lt.zeros(3), mode=1)
