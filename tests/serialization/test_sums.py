"""The sum of a file's bytes: its definition, both implementations, and what it always finds."""

from __future__ import annotations

import io
import signal
import subprocess
import sys
import threading
import time
from functools import cache

import numpy as np
import pytest

import lowtide as lt
from lowtide.framework.serialization import multilinear_hash
from lowtide.framework.serialization.atomic_files import Source
from lowtide.framework.serialization.multilinear_hash import BLOCK, COMPILED, ROW, WORDS, M

BORDERS = (ROW, 2 * ROW, BLOCK - ROW, BLOCK, BLOCK + ROW, 3 * BLOCK)
LENGTHS = sorted({*range(70), *(b + d for b in BORDERS for d in (-9, -8, -5, -4, -1, 0, 1, 4, 7))})


@cache
def plain_keys() -> list[int]:
    mask, found = (1 << 64) - 1, []
    for i in range(1, WORDS + 1):
        x = i * 0x9E3779B97F4A7C15 & mask
        x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & mask
        x = (x ^ x >> 27) * 0x94D049BB133111EB & mask
        found.append((x ^ x >> 31) >> 32 | 1)
    return found


def defined(data: bytes) -> int:
    """The definition, word by word."""
    t, keys = len(data), plain_keys()
    for row in (data[start : start + ROW] for start in range(0, len(data), ROW)):
        words = [int.from_bytes(row[k : k + 4], "little") for k in range(0, len(row), 4)]
        t = (t * M + sum(w * k for w, k in zip(words, keys, strict=False))) % (1 << 64)
    return t


@pytest.fixture(params=["numpy", "compiled"])
def summer(request):
    if request.param == "numpy":
        return multilinear_hash.with_numpy
    return multilinear_hash.summer_for(COMPILED)


def bytes_of(count: int, seed: int = 0) -> bytes:
    return np.random.default_rng(seed).bytes(count)


def test_the_keys_are_odd_distinct_and_as_defined() -> None:
    keys = multilinear_hash.keys().tolist()
    assert keys == plain_keys()
    assert len({*keys}) == WORDS
    assert all(k & 1 for k in keys)
    assert M % 8 == 5  # so M**n is 1 modulo 4 * n at most


@pytest.mark.parametrize("count", [0, 1, 3, 4, 5, 8, 100, ROW - 1, ROW, ROW + 1, 3 * ROW + 6])
def test_the_sum_is_the_defined_one(count) -> None:
    data = bytes_of(count)
    assert multilinear_hash.sum_of(memoryview(data)) == defined(data)


def test_both_implementations_agree_at_every_length_around_borders() -> None:
    compiled = multilinear_hash.summer_for(COMPILED)
    assert compiled is not multilinear_hash.with_numpy
    data = memoryview(bytes_of(max(LENGTHS) + 1))
    for count in LENGTHS:
        for start in (0, 1):  # wherever the bytes lie in memory
            block = data[start : start + count]
            assert compiled(block) == multilinear_hash.with_numpy(block), (count, start)


def test_words_of_ones_do_not_overflow(summer) -> None:
    data = b"\xff" * (2 * ROW + 5)
    expected = (defined(data) - len(data) * pow(M, 3, 1 << 64)) % (1 << 64)
    assert summer(memoryview(data)) == expected


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_the_sum_is_the_same_however_the_bytes_come(workers, monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(multilinear_hash.threads, "get_num_threads", lambda: workers)
    data = memoryview(bytes_of((17 << 20) + 3))
    expected = multilinear_hash.sum_while(len(data), lambda start, stop: data[start:stop], 0, False)
    assert (
        multilinear_hash.sum_while(len(data), lambda start, stop: data[start:stop], 0, True)
        == expected
    )
    for size in (5 * BLOCK - 3, 999_999, BLOCK):
        pieces = [data[k : k + size] for k in range(0, len(data), size)]
        assert multilinear_hash.sum_of_pieces(len(data), pieces, 0) == expected
    assert multilinear_hash.sum_of_pieces(5, [data[k : k + 1] for k in range(5)], 0) == defined(
        bytes(data[:5])
    )


def test_every_flipped_bit_of_a_block_is_found(summer) -> None:
    # A flipped bit of word i changes the sum by +-2**a * k[i] * M**n: all of them are tried by
    # this arithmetic, and for a sample the arithmetic is compared with the sum.
    block = bytearray(bytes_of(BLOCK))
    keys = plain_keys()
    changes = np.array([[k << a for a in range(32)] for k in keys], np.uint64)
    for _ in range(BLOCK // ROW):
        assert np.count_nonzero(changes) == 32 * WORDS
        changes *= np.uint64(M)
    before = summer(memoryview(block))
    for bit in np.random.default_rng(1).integers(0, 8 * BLOCK, 50).tolist():
        block[bit // 8] ^= 1 << bit % 8
        sign = 1 if block[bit // 8] >> bit % 8 & 1 else -1
        row, column = divmod(bit // 32, WORDS)
        after = before + sign * (keys[column] << bit % 32) * pow(M, BLOCK // ROW - 1 - row)
        assert summer(memoryview(block)) == after % (1 << 64) != before
        block[bit // 8] ^= 1 << bit % 8


def test_every_flipped_bit_of_a_row_and_its_neighbour_is_found(summer) -> None:
    data = bytearray(bytes_of(300))
    before = summer(memoryview(data))
    for bit in range(8 * len(data)):
        data[bit // 8] ^= 1 << bit % 8
        assert summer(memoryview(data)) != before
        data[bit // 8] ^= 1 << bit % 8


def test_flips_of_the_same_bit_in_two_words_are_found(summer) -> None:
    # The signs of two numbers: where a multiplication keeps no bit above the highest, they cancel.
    data = bytearray(bytes_of(4 * ROW))
    before = summer(memoryview(data))
    places = [3, 7, 11, 4095, ROW - 1, ROW + 3, 2 * ROW + 3, 4 * ROW - 1]
    for a in places:
        for b in places:
            if a != b:
                changed = bytearray(data)
                changed[a] ^= 0x80
                changed[b] ^= 0x80
                assert summer(memoryview(changed)) != before, (a, b)


@pytest.mark.parametrize("size", [4, 8, 64, 1000, ROW, 4 * ROW])
def test_bytes_that_changed_places_are_found(size, summer) -> None:
    data = bytearray(bytes_of(16 * ROW))
    before = summer(memoryview(data))
    places = range(0, len(data) - size, size)
    for k in range(40):
        a, b = places[k * 7 % len(places)], places[(k * 13 + 5) % len(places)]
        if abs(a - b) >= size:
            changed = bytearray(data)
            changed[a : a + size], changed[b : b + size] = data[b : b + size], data[a : a + size]
            assert summer(memoryview(changed)) != before, (a, b)


def test_every_burst_of_32_bits_is_found(summer) -> None:
    rng = np.random.default_rng(3)
    number = int.from_bytes(bytes_of(ROW + 100), "little")
    before = summer(memoryview(number.to_bytes(ROW + 100, "little")))
    for place in [*range(200), *range(8 * ROW - 60, 8 * ROW + 60)]:
        burst = int(rng.integers(1, 1 << 32)) | 1 | 1 << 31
        changed = (number ^ burst << place).to_bytes(ROW + 100, "little")
        assert summer(memoryview(changed)) != before, place


def test_zeros_at_either_end_change_the_sum() -> None:
    data = bytes_of(100)
    whole = {
        multilinear_hash.sum_of(memoryview(b"\0" * a + data + b"\0" * b))
        for a in range(5)
        for b in range(5)
    }
    assert len(whole) == 25


def test_no_thread_is_at_work_after_a_failed_read(monkeypatch) -> None:
    monkeypatch.setattr(multilinear_hash.threads, "get_num_threads", lambda: 2)
    inside, lock = [0], threading.Lock()

    def move(start, stop):
        with lock:
            inside[0] += 1
        try:
            if start == 3 * BLOCK:
                raise OSError("no such block")
            return memoryview(bytes(stop - start))
        finally:
            with lock:
                inside[0] -= 1

    with pytest.raises(OSError, match="no such block"):
        multilinear_hash.sum_while(40 * BLOCK, move, 0, True)
    assert inside == [0]


@pytest.mark.parametrize("workers", [1, 2])
def test_ctrl_c_ends_a_sum_and_leaves_no_thread_at_work(workers, monkeypatch) -> None:
    monkeypatch.setattr(multilinear_hash.threads, "get_num_threads", lambda: workers)
    begun, ended = [], []

    def move(start, stop):
        begun.append(start)
        if start == 3 * BLOCK:
            signal.raise_signal(signal.SIGINT)  # the main thread gets it
        ended.append(start)
        return memoryview(bytes(stop - start))

    with pytest.raises(KeyboardInterrupt):
        multilinear_hash.sum_while(100 * BLOCK, move, 0, True)
    assert len(begun) <= multilinear_hash.GROUP
    moved = [len(begun), len(ended)]
    time.sleep(0.05)
    assert [len(begun), len(ended)] == moved
    if workers > 1:  # a group is whole
        assert moved == [multilinear_hash.GROUP, multilinear_hash.GROUP]


def test_a_file_cut_off_while_it_is_read_is_refused(tmp_path) -> None:
    path = tmp_path / "x"
    lt.save([lt.zeros(3 << 20)], path)
    with Source(path) as source:
        with open(path, "r+b") as file:
            file.truncate(source.size // 2)
        memory = memoryview(bytearray(8 << 20))
        with pytest.raises(lt.SerializationError, match="are not there. It was cut off"):
            source.read_beside(source.size - memory.nbytes, memory)


def test_a_large_entry_is_written_and_read_by_threads(tmp_path, monkeypatch) -> None:
    at_work = set()
    parallel_calls = multilinear_hash.threads.parallel_calls

    def noted(run, calls, workers):
        at_work.add(workers)
        parallel_calls(run, calls, workers)

    monkeypatch.setattr(multilinear_hash.threads, "get_num_threads", lambda: 2)
    monkeypatch.setattr(multilinear_hash.threads, "parallel_calls", noted)
    value = lt.rand((5 << 20) + 1)
    lt.save([value, lt.ones(3)], tmp_path / "x")
    assert at_work == {2}
    at_work.clear()
    loaded = lt.load(tmp_path / "x")
    assert at_work == {2}
    assert lt.equal(loaded[0], value)
    assert lt.equal(lt.load(tmp_path / "x", mmap=True)[0], value)
    stream = io.BytesIO()
    lt.save([value, lt.ones(3)], stream)
    assert stream.getvalue() == (tmp_path / "x").read_bytes()


def test_saving_and_loading_small_files_imports_no_numba() -> None:
    program = (
        "import io, sys, lowtide as lt; f = io.BytesIO(); lt.save(lt.zeros(300_000), f); "
        "f.seek(0); lt.load(f); sys.exit('numba' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_the_compiled_sum_is_for_large_files_only() -> None:
    assert multilinear_hash.summer_for(COMPILED - 1) is multilinear_hash.with_numpy
    assert multilinear_hash.summer_for(COMPILED) is not multilinear_hash.with_numpy
