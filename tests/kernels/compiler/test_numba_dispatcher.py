"""Where libraries are not supported, what Numba keeps is checked as libraries are."""

from __future__ import annotations

import random
import sys
from types import ModuleType

import numpy as np
import pytest
from numba.core.registry import cpu_target
from numba.core.types import float64

from lowtide.framework.kernels.cpu.compiler import library
from lowtide.framework.kernels.cpu.compiler.numba_dispatcher import _words
from lowtide.framework.kernels.cpu.support.jit import compiled, part
from lowtide.framework.kernels.runtime import cache_folder
from tests.faults.kernel_cache import damaged

TEXT = """
def inner(x):
    return x {inner}

def scaled(x):
    return step(x) * BY * {times}
"""


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(cache_folder, "BASE", str(tmp_path / "cache"))
    monkeypatch.setattr(library, "supported", lambda: False)
    monkeypatch.setitem(sys.modules, "scaling", ModuleType("scaling"))  # code is loaded into it
    return tmp_path / "cache" / library.FOLDER


def _kernel(by=2.0, inner="+ 1.0", times="1"):
    names = {"BY": by, "__name__": "scaling"}
    exec(TEXT.format(inner=inner, times=times), names)
    names["step"] = part(names["inner"])
    return compiled(names["scaled"])


def _was_read(kernel):
    return sum(kernel._dispatcher.stats.cache_hits.values()) == 1


def test_a_second_kernel_of_the_same_code_is_read(own_folder):
    first = _kernel()
    assert first(1.0) == 4.0
    assert not _was_read(first)
    again = _kernel()
    assert again(1.0) == 4.0
    assert _was_read(again)
    assert {path.suffix for path in own_folder.iterdir()} == {library.NUMBA}
    assert library.inventory()[0] == library.clear() == 2  # the kernel, and the part it calls
    assert list(own_folder.iterdir()) == []


@pytest.mark.parametrize(
    ("changed", "right"),
    [
        ({"by": 3.0}, 6.0),
        ({"by": np.float32(2.5)}, 5.0),
        ({"inner": "- 1.0"}, 0.0),  # Numba's own cache would not see that one
        ({"times": "2"}, 8.0),
    ],
)
def test_code_that_changed_under_the_same_name_is_compiled(changed, right):
    assert _kernel()(1.0) == 4.0
    other = _kernel(**changed)
    assert other(1.0) == right
    assert not _was_read(other)
    again = _kernel()
    assert again(1.0) == 4.0
    assert _was_read(again)


def test_each_signature_and_setting_has_a_file_of_its_own(own_folder, monkeypatch):
    _kernel()(1.0)
    kernel = _kernel()
    assert kernel(1) == 4.0
    assert len(list(own_folder.glob("scaled-*"))) == 2
    monkeypatch.setenv("NUMBA_BOUNDSCHECK", "1")
    kernel = _kernel()
    kernel(1.0)
    assert not _was_read(kernel)


def test_damaged_files_are_not_read(own_folder):
    rng = random.Random(0)
    _kernel()(1.0)
    (path,) = own_folder.glob("scaled-*")
    data = path.read_bytes()
    kernel = _kernel()
    words = _words((float64,), cpu_target.target_context.codegen())
    for k in range(200):
        path.write_bytes(damaged(data, rng))
        assert library.load_data(kernel, words) is None
        if k % 50 == 0:
            again = _kernel()
            assert again(2.0) == 6.0
            assert not _was_read(again)
            assert path.read_bytes() == data or library.load_data(kernel, words) is not None
    path.write_bytes(data)
    assert library.load_data(kernel, words) is not None


def test_files_and_folders_that_others_may_write_are_not_read(own_folder):
    _kernel()(1.0)
    (path,) = own_folder.glob("scaled-*")
    path.chmod(0o666)
    kernel = _kernel()
    assert kernel(1.0) == 4.0
    assert not _was_read(kernel)


def test_without_a_folder_kernels_run_all_the_same(monkeypatch):
    monkeypatch.setattr(cache_folder, "BASE", "")
    for _ in range(2):
        kernel = _kernel()
        assert kernel(1.0) == 4.0
        assert not _was_read(kernel)
