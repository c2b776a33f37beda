"""Products cut among our own threads: the numbers of their chunks, whoever computes them."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest

import lowtide as lt
from lowtide.framework.kernels.common import matmul
from lowtide.framework.kernels.runtime import blas, mkl, threads, thresholds

pytestmark = pytest.mark.skipif(threads.LIMIT < 2, reason="one thread shares nothing out")

SHAPES = [
    (128, 784, 256),
    (129, 77, 500),
    (17, 4000, 33),
    (1000, 64, 3),
    (3, 64, 1000),
    (1, 512, 4096),
    (4096, 512, 1),
    (15, 2000, 15),
]


def operands(shape: tuple[int, int, int], dtype: str, stack: tuple[int, ...] = ()) -> list[Any]:
    m, k, n = shape
    rng = np.random.default_rng(0)
    made = [rng.standard_normal((*stack, *s)) for s in ((m, k), (k, n), (n,))]
    if dtype in "FD":
        return [(a + 1j * a[::-1]).astype(dtype) for a in made]
    return [(4 * a if dtype in "il" else a).astype(dtype) for a in made]


def shape_of(a: Any, b: Any) -> tuple[int, ...]:
    return (*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1])


def alone(a: Any, b: Any, bias: Any) -> Any:
    """The chunks, computed one after another by NumPy."""
    out = np.empty(shape_of(a, b), a.dtype)
    work = 2 * out.size * a.shape[-1]
    cuts = matmul._cuts(out.shape, threads.get_num_threads() * (2 if work > matmul.FINE else 1))
    for one in matmul._chunks(a, b, out, None, cuts):
        blas.alone(np.matmul, *one[:3])
    return out if bias is None else out + bias


def divided(a: Any, b: Any, bias: Any) -> Any:
    out = np.full(shape_of(a, b), 77, a.dtype)
    matmul.multiply(a, b, out, bias)
    return out


def close(a: Any, b: Any) -> bool:
    return np.allclose(
        a, b, 1e-3 if a.dtype.char in "fF" else 1e-10, 1e-2 if a.dtype.char in "fF" else 1e-9
    )


def as_numpy(a: Any, b: Any) -> bool:
    """The same bits as NumPy's products, unless MKL computes ours."""
    return close(a, b) if mkl.used() else np.array_equal(a, b)


@pytest.fixture(autouse=True)
def _cut_everything(monkeypatch):
    for name in ("PRODUCT", "PRODUCT_THREAD"):
        monkeypatch.setattr(thresholds, name, 1 << 12)


@pytest.fixture(params=["compiled", "python"])
def way(request, monkeypatch):
    if request.param == "python":
        monkeypatch.setattr(matmul, "_compiled", lambda *_: False)
    return request.param


@pytest.mark.quick(32)
@pytest.mark.parametrize("fine", [False, True])
@pytest.mark.parametrize("layout", ["rows", "columns", "both"])
@pytest.mark.parametrize("dtype", list("fdFDi"))
@pytest.mark.parametrize("shape", SHAPES)
def test_a_product_is_that_of_its_chunks(way, monkeypatch, shape, dtype, layout, fine):
    monkeypatch.setattr(matmul, "FINE", 1 if fine else 1 << 60)
    a, b, bias = operands(shape, dtype)
    if layout != "rows":
        b = np.ascontiguousarray(b.T).T
    if layout == "both":
        a = np.ascontiguousarray(a.T).T
    for added in (None, bias, bias[:1]):
        found = divided(a, b, added)
        assert close(found, a @ b if added is None else a @ b + added)
        if min(found.shape) >= 64 or way == "python":  # NumPy has another call for vectors
            assert as_numpy(found, alone(a, b, added))
        for _ in range(3):
            assert np.array_equal(divided(a, b, added), found)


STACKS = "5,5 5, ,3 1,4 2x3,2x3 2x1,2x3 2x3,3".split(" ")


@pytest.mark.parametrize("stacks", STACKS)
def test_stacks_are_cut_too(way, stacks):
    left, right = (tuple(map(int, filter(None, part.split("x")))) for part in stacks.split(","))
    a, _, bias = operands((40, 60, 50), "f", left)
    _, b, _ = operands((40, 60, 50), "f", right)
    bias = bias.reshape(-1)[:50]
    assert as_numpy(divided(a, b, bias), alone(a, b, bias))
    assert as_numpy(divided(a[..., ::-1, :], b, None), alone(a[..., ::-1, :], b, None))


def test_a_view_with_gaps_is_written_and_read_as_it_lies(way):
    a, b, _ = operands((96, 130, 200), "f")
    room = np.full((96, 300), 5, np.float32)
    matmul.multiply(a[:, 1:129], b[1:129], room[:, 40:240])
    assert as_numpy(room[:, 40:240], alone(a[:, 1:129].copy(), b[1:129], None))
    assert (room[:, :40] == 5).all()
    assert (room[:, 240:] == 5).all()


LIES = {
    "gaps": lambda bias: np.repeat(bias, 3)[::3],
    "reversed": lambda bias: bias[::-1].copy()[::-1],
    "repeated": lambda bias: np.broadcast_to(bias[:1], bias.shape),
    "one": lambda bias: bias[:1],
    "one of many": lambda bias: np.repeat(bias, 3)[1:2],
    "no dims": lambda bias: bias[0].reshape(()),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", list("fd"))
@pytest.mark.parametrize("lies", LIES)
def test_a_bias_is_read_as_it_lies(way, dtype, shape, lies):
    a, b, bias = operands(shape, dtype)
    bias = LIES[lies](bias)
    assert close(divided(a, b, bias), alone(a, b, bias.copy()))


def test_blas_has_its_threads_back(way):
    if not blas.controllable():
        pytest.skip("NumPy's BLAS is none whose threads can be set")
    get, put = blas.NUMPY.controls()
    before = get()
    put(2)
    try:
        divided(*operands((128, 128, 128), "f"))
        assert get() == 2
        with pytest.raises(ValueError, match="mismatch"):
            blas.alone(np.matmul, np.ones((64, 64)), np.ones((65, 64)))
        assert get() == 2
    finally:
        put(before)


def test_several_threads_of_python_compute_at_a_time(way):
    a, b, bias = operands((200, 300, 250), "f")
    right = divided(a, b, bias)
    wrong = []

    def work():
        for _ in range(50):
            if not np.array_equal(divided(a, b, bias), right):
                wrong.append(threading.get_ident())

    those = [threading.Thread(target=work) for _ in range(4)]
    for t in those:
        t.start()
    for t in those:
        t.join()
    assert wrong == []


def test_a_matrix_times_its_transpose_is_symmetric():
    a, _, _ = operands((300, 200, 1), "f")
    found = divided(a, a.T, None)
    assert np.array_equal(found, found.T)
    # BLAS may add up a product with its own transpose in another order (syrk in the place of gemm).
    np.testing.assert_allclose(found, a @ a.T, rtol=1e-5, atol=1e-4)


def test_a_layer_and_its_gradients_are_the_same_numbers_each_time():
    lt.manual_seed(0)
    x, w, b = lt.randn(300, 200), lt.randn(100, 200), lt.randn(100)
    found = []
    for _ in range(5):
        leaves = [t.clone().requires_grad_() for t in (x, w, b)]
        lt.nn.functional.linear(*leaves).square().sum().backward()
        found.append([t.grad.numpy() for t in leaves])
    for other in found[1:]:
        assert all(np.array_equal(a, b) for a, b in zip(found[0], other, strict=True))


def test_a_fork_makes_threads_of_its_own(way):
    a, b, bias = operands((128, 200, 160), "f")
    right = divided(a, b, bias)
    child = os.fork()
    if child == 0:
        same = False
        try:
            same = all(np.array_equal(divided(a, b, bias), right) for _ in range(5))
        finally:
            os._exit(0 if same else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert np.array_equal(divided(a, b, bias), right)


def test_a_process_ends_while_helpers_look_for_work():
    code = (
        "import numpy as np; from lowtide.framework.kernels.common import matmul\n"
        "a = np.ones((700, 700), 'f'); out = a.copy()\n"
        "for _ in range(20): matmul.multiply(a, a, out)\n"
        "assert (out == 700).all()"
    )
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=600
        )
        assert (done.returncode, done.stderr) == (0, "")
