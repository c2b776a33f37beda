"""MKL in the place of OpenBLAS: which library is used, and that its products are as exact.

The products are tested where MKL is in use: with package ``mkl`` in the environment, or with
``LOWTIDE_MKL`` naming its library.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import lowtide as lt
import lowtide.nn.functional as F
from lowtide.framework.kernels.common import matmul
from lowtide.framework.kernels.cpu.linalg import gemm
from lowtide.framework.kernels.runtime import blas, mkl, threads, thresholds


def test_without_a_package_no_library_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(mkl.site, "USER_BASE", None)
    monkeypatch.delenv(mkl.VARIABLE, raising=False)
    assert mkl.path() is None
    (tmp_path / "lib").mkdir()
    for version in (2, 3):
        (tmp_path / "lib" / f"libmkl_rt.so.{version}").touch()
    assert mkl.path() == str(tmp_path / "lib" / "libmkl_rt.so.3")


def test_the_variable_names_a_library_or_none(monkeypatch, tmp_path):
    monkeypatch.setenv(mkl.VARIABLE, "0")
    assert mkl.path() is None
    monkeypatch.setenv(mkl.VARIABLE, str(tmp_path / "nothing.so"))
    with pytest.raises(OSError, match=r"LOWTIDE_MKL=.*nothing\.so: there is no such file"):
        mkl.path()
    there = tmp_path / "libmkl_rt.so"
    there.touch()
    monkeypatch.setenv(mkl.VARIABLE, str(there))
    assert mkl.path() == str(there)


def test_other_dtypes_have_no_function():
    assert mkl.gemm("F") == mkl.gemm("i") == 0 == blas.gemm("i")


used = pytest.mark.skipif(not mkl.used(), reason="MKL is not installed: pip install 'lowtide[mkl]'")


def operand(rng: Any, rows: int, columns: int, kind: str, shift: int = 0, turned: int = 0) -> Any:
    """Random numbers, ``shift`` elements behind a cache line, in rows or in columns."""
    m, n = (columns, rows) if turned else (rows, columns)
    room = np.empty(m * n + 64, kind)
    start = -room.ctypes.data % 64 // room.itemsize + shift
    made = room[start : start + m * n].reshape(m, n)
    made[...] = rng.standard_normal((m, n))
    return made.T if turned else made


def drawn(seed: int) -> tuple[Any, tuple[int, int, int], str]:
    rng = np.random.default_rng(seed)
    shape: Any = tuple(int(2 ** rng.uniform(4, 9)) for _ in range(3))
    return rng, shape, "fd"[seed % 2]


@used
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("seed", range(40))
def test_products_are_as_exact_and_do_not_depend_on_where_operands_lie(seed, workers, monkeypatch):
    if workers > threads.LIMIT:
        pytest.skip("one thread shares nothing out")
    monkeypatch.setattr(thresholds, "PRODUCT", 1)
    lt.set_num_threads(workers)
    rng, (m, k, n), kind = drawn(seed)
    ta, tb = rng.integers(2, size=2)
    a, b = operand(rng, m, k, kind, 0, ta), operand(rng, k, n, kind, 0, tb)
    bias = rng.standard_normal(n).astype(kind)
    out = np.full((m, n), np.nan, kind)
    matmul.multiply(a, b, out, bias)
    exact = a.astype(np.longdouble) @ b.astype(np.longdouble) + bias
    most = np.abs(a).astype("d") @ np.abs(b) + np.abs(bias)
    assert (np.abs(out - exact) <= most * np.finfo(kind).eps * (4 + k**0.5)).all()
    for shift in (1, 3, 7):
        x, y = (operand(rng, *z.shape, kind, shift, t) for z, t in ((a, ta), (b, tb)))
        x[...], y[...] = a, b
        again = np.full((m, n), np.nan, kind)
        matmul.multiply(x, y, again, bias)
        assert np.array_equal(out, again)


@pytest.fixture(autouse=True)
def _threads():
    before = lt.get_num_threads()
    yield
    lt.set_num_threads(before)


@used
def test_one_thread_calls_mkl_from_a_size_on(monkeypatch):
    lt.set_num_threads(1)
    planned: list[Any] = []
    plain = gemm.plan

    def plan(*args: Any) -> Any:
        planned.append(args)
        return plain(*args)

    monkeypatch.setattr(gemm, "plan", plan)
    lt.ones(64, 64) @ lt.ones(64, 64)
    assert not planned
    lt.ones(128, 128) @ lt.ones(128, 128)
    F.linear(lt.ones(128, 128), lt.ones(128, 128), lt.ones(128))
    assert len(planned) == 2


@used
def test_not_finite_numbers_go_through(monkeypatch):
    a = lt.ones(128, 128)
    a[3, 5] = float("nan")
    a[7, 9] = float("inf")
    made = a @ lt.ones(128, 128)
    assert made[3].isnan().all()
    assert (made[7] == float("inf")).all()
    assert (lt.cat([made[:3], made[4:7], made[8:]]) == 128).all()


@used
def test_recomputation_and_a_compiled_step_have_the_same_bits():
    def gradients(run: Any) -> list[Any]:
        lt.manual_seed(0)
        net = lt.nn.Sequential(lt.nn.Linear(160, 160), lt.nn.GELU(), lt.nn.Linear(160, 160))
        x = lt.randn(96, 160)
        for _ in range(5):
            net.zero_grad()
            run(net, x).square().mean().backward()
        return [p.grad for p in net.parameters()]

    plain = gradients(lambda net, x: net(x))
    again = gradients(lambda net, x: lt.checkpoint(net, x))
    compiled: dict[Any, Any] = {}
    third = gradients(lambda net, x: compiled.setdefault(net, lt.compile(net))(x))
    for p, q, r in zip(plain, again, third, strict=True):
        assert p.equal(q)
        assert p.equal(r)


@used
@pytest.mark.parametrize("first", [False, True])
def test_a_library_that_another_package_has_loaded_is_left_alone(first):
    where = mkl.path()
    code = f"import ctypes\nctypes.CDLL({where!r})\n" if first else ""
    code += "from lowtide.framework.kernels.runtime import mkl\nprint(mkl.used())"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True,
        env=os.environ | {mkl.VARIABLE: str(where)},
    )  # fmt: skip
    assert done.stdout.strip() == str(not first)
