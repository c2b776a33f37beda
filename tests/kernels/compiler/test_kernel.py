"""Kernels in libraries: what they take, what they return, when they are made again."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from lowtide.framework.kernels.cpu.compiler import kernel as kernels
from lowtide.framework.kernels.cpu.compiler import library, signature
from lowtide.framework.kernels.cpu.support import work_pool
from lowtide.framework.kernels.cpu.support.jit import compiled
from lowtide.framework.kernels.runtime import cache_folder

pytestmark = pytest.mark.skipif(not library.supported(), reason="libraries: x86-64 Linux, CPython")


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(cache_folder, "BASE", str(tmp_path))
    return tmp_path / library.FOLDER


def total(x, times):
    s = 0.0
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            s += x[i, j] * times
    return s


def everything(a, b, c, d, e):
    return a + 1, b * 2.0, c, d.size, e


def with_workspace(x):
    kept = np.empty(x.size, np.float64)
    for i in range(x.size):
        kept[i] = x[x.size - 1 - i]
    for i in range(x.size):
        x[i] = kept[i]


@compiled(signature="i8,i8")
def distance(a, b):
    return b - a


def test_a_call_gives_what_the_function_gives():
    kernel = compiled(total)
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    for array in (x, x.T, x[:, ::2], x[::-1], x[:0], x.astype(np.float64)):
        assert kernel(array, 2.0) == total(array, 2.0)
    frozen = x.copy()
    frozen.flags.writeable = False
    assert kernel(frozen, 2.0) == 132.0
    assert kernel.__name__ == "total"
    assert kernel._dispatcher is None  # it was not called by Numba's way
    assert None not in kernel._made.values()


def test_every_layout_has_a_library_of_its_own(own_folder):
    kernel = compiled(total)
    x = np.ones((3, 4), np.float32)
    for array in (x, x.T, x[:, ::2], x + 1):
        kernel(array, 1.0)
    assert sorted(kernel._made) == ["f4:2A,f8", "f4:2C,f8", "f4:2F,f8"]
    assert len(list(own_folder.glob("total-*.so"))) == 3


def test_numbers_of_all_kinds_go_in_and_out():
    kernel = compiled(everything)
    x = np.zeros(3, np.int16)
    assert kernel(-7, 1.5, True, x, 2) == (-6, 3.0, True, 3, 2)
    assert kernel(2**62, float("inf"), False, x, -(2**63)) == (
        2**62 + 1,
        float("inf"),
        False,
        3,
        -(2**63),
    )
    assert kernel(1, np.float64(0.5), True, x, 0) == (2, 1.0, True, 3, 0)
    found = kernel(np.int32(5), np.float32(0.25), np.bool_(True), x, 0)
    assert found == (6, 0.5, True, 3, 0)
    with pytest.raises(OverflowError):
        kernel(2**63, 1.5, True, x, 2)


def reshaped(x, n, m):
    y = x.reshape(n, m)
    total = 0.0
    for i in range(n):
        for j in range(m):
            total += y[i, j] * (i + 1)
    return total + x.reshape(-1)[x.size - 1]


def test_a_reshape_inside_a_kernel():
    kernel = compiled(reshaped)
    x = np.arange(12, dtype=np.float32).reshape(2, 3, 2)
    assert kernel(x, 4, 3) == reshaped(x, 4, 3)
    assert kernel(x[:1], 2, 3) == reshaped(x[:1], 2, 3)
    assert None not in kernel._made.values()


def summed(sizes, x):
    total = 0
    for k in range(len(sizes)):
        total += sizes[k] * (k + 1)
    return total + x


def test_tuples_of_ints():
    kernel = compiled(summed)
    assert kernel((1, 2, -3), 5) == 1
    assert kernel((7,), 0) == 7
    assert kernel((np.int64(7), True), 0) == 9
    assert sorted(kernel._made) == ["i8x1,i8", "i8x2,i8", "i8x3,i8"]
    with pytest.raises(OverflowError):
        kernel((1, 2, 2**63), 5)


def test_memory_that_a_kernel_takes_is_given_back():
    kernel = compiled(with_workspace)
    x = np.arange(1 << 16, dtype=np.float64)
    before = 0
    for turn in range(300):
        kernel(x)
        if turn == 100:
            before = peak()
    assert peak() - before < 300 * x.nbytes // 4
    assert x[0] == 0.0


def peak():
    with open("/proc/self/status") as file:
        (line,) = [text for text in file if text.startswith("VmHWM")]
    return int(line.split()[1]) * 1024


def scaled(out, x, by, table):
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            out[i, j] = x[i, j] * by + table[j]


def scaled_rows(out, x, start, stop):
    kept = np.empty(x.shape[1], np.float64)
    for i in range(start, stop):
        for j in range(x.shape[1]):
            kept[j] = x[i, j] * 2.0
        for j in range(x.shape[1]):
            out[i, j] = kept[j]


@pytest.mark.quick(2)
@pytest.mark.skipif(not work_pool.available(), reason="threads in compiled code: Linux, 2 cores")
@pytest.mark.parametrize("chunks", [1, 2, 5, 7])
def test_a_call_is_shared_out(chunks):
    x = np.arange(21, dtype=np.float32).reshape(7, 3)
    table = np.arange(3, dtype=np.float32)
    kernel, by_rows = compiled(scaled), compiled(scaled_rows)
    for array in (x, x[:, ::-1], x[::-1]):
        out = np.zeros_like(x)
        args = (out, array, 3.0, table)
        first = work_pool.share(kernel, args, 7, 0b11, chunks, 2)
        if not first:  # it was not known yet for such arguments
            kernel(*args)
            out[:] = 0
            assert work_pool.share(kernel, args, 7, 0b11, chunks, 2)
        np.testing.assert_array_equal(out, array * 3 + table)
        out[:] = 0
        by_rows(out, array, 0, 0)
        assert not out.any()
        assert work_pool.share(by_rows, (out, array, 0, 7), 7, 0, chunks, 2)
        np.testing.assert_array_equal(out, array * 2)


def test_what_is_declared_takes_all_that_fits_and_nothing_else():
    kernel = compiled(total, signature="f4:2Ar,f8")
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    for array in (x, x.T, x[:, ::2]):
        assert kernel(array, 2) == total(array, 2)
    assert list(kernel._made) == ["f4:2Ar,f8"]
    with pytest.raises(TypeError, match=r"total takes \(f4:2Ar,f8\), and was called with \(f4:1C"):
        kernel(x[0], 2.0)
    with pytest.raises(TypeError, match="called with .f8:2C"):
        kernel(x.astype(np.float64), 2.0)


def test_an_address_of_words():
    import ctypes

    kind = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
    assert kind(distance.address)(30, 12) == -18
    assert distance(30, 12) == -18


PROGRAM = """
import sys
import numpy as np
from lowtide.framework.kernels.cpu.compiler import notices
from lowtide.framework.kernels.cpu.attention import softmax
out = np.zeros((1, 5), np.float32)
softmax(out, np.ones((1, 5), np.float32))
print(out[0, 0], "numba" in sys.modules, notices.count())
"""


def test_a_second_process_needs_no_numba(tmp_path):
    environment = os.environ | {"LOWTIDE_CACHE_DIR": str(tmp_path)}

    def run():
        found = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        return found.stdout.split(), found.stderr

    (first, imported, count), said = run()
    assert (imported, count) == ("True", "1")
    assert "compiling kernels for this processor" in said
    assert "compiled 1 kernel in" in said
    assert run() == ([first, "False", "0"], "")


def test_where_nothing_can_be_kept_a_kernel_is_compiled_for_the_process(monkeypatch):
    monkeypatch.setattr(cache_folder, "BASE", "")
    kernel = compiled(with_workspace)
    x = np.arange(3.0)
    kernel(x)
    np.testing.assert_array_equal(x, [2, 1, 0])
    other = compiled(total)
    assert other(np.ones((2, 2)), 2.0) == 8.0
    assert None not in (*kernel._made.values(), *other._made.values())


def test_where_libraries_are_not_supported_numba_calls(monkeypatch):
    monkeypatch.setattr(library, "supported", lambda: False)
    kernel = compiled(with_workspace)
    x = np.arange(3.0)
    kernel(x)
    np.testing.assert_array_equal(x, [2, 1, 0])
    assert list(kernel._made.values()) == [None]


def test_threads_that_meet_compile_once():
    kernel = compiled(total)
    x = np.ones((2, 2))
    made = []
    threads = [threading.Thread(target=lambda: made.append(kernel(x, 1.0))) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert made == [4.0] * 4
    assert len(kernel._entries) == 1


def test_a_profile_leaves_the_compilation_out_of_its_time():
    import lowtide as lt
    from lowtide.profiling import MemoryProfiler

    kernel = compiled(total)
    began = time.perf_counter()
    with MemoryProfiler("cpu") as prof:
        x = lt.ones(2, 2)
        kernel(x.numpy(), 1.0)
    elapsed = time.perf_counter() - began
    (found,) = [c for c in prof.recording.compilations if c.name != "cached kernels"]
    assert found.name == "compiling total"
    assert 0 < found.seconds <= elapsed - prof.recording.seconds
    assert kernels.watchers == []


def test_words_of_arguments():
    x = np.zeros((2, 3), np.uint16)
    given = (x, x.T, x[:, ::2], x[0], 1, 1.0, True, None, np.int8(1))
    assert signature.words(given) == "u2:2C,u2:2F,u2:2A,u2:1C,i8,f8,b1,-,i1s"
    assert signature.words((x, "a")) is None
    assert signature.words((x.astype(">u2"),)) is None
