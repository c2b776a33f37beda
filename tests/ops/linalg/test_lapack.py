"""Decompositions by LAPACK in the matrices' own dtype, beside ``numpy.linalg`` in float64.

Drawn: dtype, stack, size, and how the matrices lie in memory.
"""

from __future__ import annotations

import numpy as np
import pytest

import lowtide as lt
from lowtide.framework.kernels.cpu.linalg import lapack
from lowtide.framework.kernels.runtime import blas, threads
from lowtide.framework.ops.linalg.det import _cofactors
from lowtide.framework.ops.linalg.lapack import SMALL

pytestmark = pytest.mark.skipif(
    not lapack.available(), reason="NumPy's BLAS is not an OpenBLAS with LAPACK's C functions"
)
KINDS = "fdFD"


def _turned(x):
    return np.swapaxes(x, -1, -2)


def _draw(rng, shape, kind):
    x = rng.standard_normal(shape)
    if kind in "FD":
        x = x + 1j * rng.standard_normal(shape)
    return x.astype(kind)


def _laid(rng, shape, kind):
    # By rows, by columns, or with gaps.
    lies = rng.integers(3)
    if lies == 0:
        return _draw(rng, shape, kind)
    if lies == 1:
        return _turned(_draw(rng, (*shape[:-2], shape[-1], shape[-2]), kind))
    return _draw(rng, (*shape[:-2], 2 * shape[-2], 3 * shape[-1]), kind)[..., ::2, ::3]


def _wide(x):
    return x.astype("D" if x.dtype.kind == "c" else "d")


def _close(found, expected):
    assert found.shape == expected.shape
    bound = 3e-4 if found.dtype.char in "fF" else 1e-10
    scale = max(1.0, np.abs(expected).max(initial=0))
    assert np.abs(found - expected).max(initial=0) <= bound * scale


def _orthonormal(x):
    identity = np.broadcast_to(np.eye(x.shape[-1]), (*x.shape[:-2], x.shape[-1], x.shape[-1]))
    _close(_turned(x).conj() @ x, identity)


def _shapes(rng):
    batch = [(), (1,), (3,), (2, 3), (0,)][rng.integers(5)]
    sizes = [1, 2, 5, 17, 33, 40, 70]
    return batch, int(rng.choice(sizes)), int(rng.choice(sizes))


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("kind", KINDS)
def test_rectangular_matrices(kind, seed):
    rng = np.random.default_rng(seed)
    batch, m, n = _shapes(rng)
    few = min(m, n)
    a = _laid(rng, (*batch, m, n), kind)
    before = a.copy()
    for full in (False, True):
        u, s, vh = lapack.svd(a, full)
        assert u.shape == (*batch, m, m if full else few)
        assert vh.shape == (*batch, n if full else few, n)
        _close(u[..., :few] * s[..., None, :] @ vh[..., :few, :], _wide(a))
        _orthonormal(u)
        _orthonormal(_turned(vh).conj())
    _close(lapack.svd(a, compute_uv=False), np.linalg.svd(_wide(a), compute_uv=False))
    for mode in ("reduced", "complete"):
        q, r = lapack.qr(a, mode)
        _close(q @ r, _wide(a))
        _orthonormal(q)
        _close(r, np.linalg.qr(_wide(a), mode)[1])
    packed, pivots, info = lapack.lu(a)
    lower = np.tril(packed[..., :few], -1) + np.eye(m, few)
    product = _wide(lower @ np.triu(packed[..., :few, :]))
    for place in np.ndindex(*batch):
        assert not info[place]
        for row in range(few - 1, -1, -1):
            other = pivots[place][row] - 1
            product[place][[row, other]] = product[place][[other, row]]
    _close(product.astype(kind), _wide(a))
    assert np.array_equal(a, before)  # nothing is computed in the operand


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("kind", KINDS)
def test_square_matrices(kind, seed):
    rng = np.random.default_rng(100 + seed)
    batch, n, columns = _shapes(rng)
    a = _laid(rng, (*batch, n, n), kind) + 2 * n**0.5 * np.eye(n).astype(kind)
    exact = _wide(a)
    _close(lapack.inv(a), np.linalg.inv(exact))
    for stack in (batch, (2, *[1] * len(batch))):
        b = _laid(rng, (*stack, n, columns), kind)
        _close(lapack.solve(a, b), np.linalg.solve(exact, _wide(b)))
    b = _draw(rng, (5, n, columns), kind)
    beside = a[..., None, :, :]  # each matrix with each of five right sides
    _close(lapack.solve(beside, b), np.linalg.solve(_wide(beside), _wide(b)))
    sign, size = lapack.slogdet(a)
    signs, sizes = np.linalg.slogdet(exact)
    _close(sign, signs)
    _close(size, sizes)
    if n <= 17:
        _close((lapack.det(a) / np.linalg.det(exact)).astype(kind), np.ones(batch))
    definite = exact @ _turned(exact).conj()
    narrow = definite.astype(kind)
    _close(lapack.cholesky(narrow), np.linalg.cholesky(definite))
    for part in "LU":
        other = narrow.copy()  # the triangle that is not read
        rows, beside = np.triu_indices(n, 1) if part == "L" else np.tril_indices(n, -1)
        other[..., rows, beside] = np.nan
        values, vectors = lapack.eigh(other, part)
        _close(values, np.linalg.eigvalsh(definite))
        _close(narrow @ vectors, (values[..., None, :] * vectors).astype(kind))
        _orthonormal(vectors)
        _close(lapack.eigvalsh(other, part), values)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("kind", KINDS)
def test_triangular_systems_read_one_triangle(kind, seed):
    rng = np.random.default_rng(200 + seed)
    batch, n, columns = _shapes(rng)
    a = _laid(rng, (*batch, n, n), kind) + 2 * n**0.5 * np.eye(n).astype(kind)
    for upper in (False, True):
        for unit in (False, True):
            read = np.triu(a) if upper else np.tril(a)
            if unit:
                read = read * (1 - np.eye(n)) / (4 * n) + np.eye(n)
                read = read.astype(kind)
            unread = np.tril(np.full((n, n), np.nan), -1)
            given = read + (unread if upper else unread.T)
            if unit:
                given = given + np.eye(n).astype(kind)
            x = _draw(rng, (int(np.prod(batch)), n, columns), kind)
            expected = np.linalg.solve(_wide(read).reshape(-1, n, n), _wide(x))
            stack = given.reshape(-1, n, n).astype(kind)
            lapack.solve_triangular(stack, x, upper, unit)
            _close(x, expected)


def test_a_singular_matrix_is_an_error():
    a = np.zeros((2, 40, 40), "f")
    a[0] = np.eye(40)
    for function in (lapack.inv, lambda x: lapack.solve(x, x)):
        with pytest.raises(np.linalg.LinAlgError, match="Singular"):
            function(a)
    with pytest.raises(lt.linalg.LinAlgError, match="Batch element 1"):
        lt.linalg.inv(lt.tensor(a))
    assert lt.linalg.inv_ex(lt.tensor(a)).info.tolist() == [0, 1]


def test_what_is_definite_but_for_rounding_in_float32_has_a_factor():
    n = 100
    points = np.linspace(0, 1, n, dtype="f")
    kernel = np.exp(-((points[:, None] - points) ** 2) * 2).astype("f")
    rounded = kernel + np.float32(1e-6) * np.eye(n, dtype="f")
    once = rounded.copy()
    assert lapack._routine("potrf", "f")(b"U", n, once.ctypes.data, n) > 0  # it fails in float32
    factor = lt.linalg.cholesky(lt.tensor(rounded)).numpy()
    assert np.abs(factor @ factor.T - rounded).max() < 1e-5
    with pytest.raises(lt.linalg.LinAlgError, match="not positive-definite"):
        lt.linalg.cholesky(lt.tensor(kernel - np.float32(1e-3) * np.eye(n, dtype="f")))


@pytest.mark.parametrize("name", ["inv", "slogdet", "cholesky", "qr", "eigh", "svd", "eig"])
@pytest.mark.parametrize("shape", [(40, 40, 40), (3, 12, 130, 130), (900, 16, 16)])
def test_a_stack_is_computed_as_its_matrices_are(name, shape):
    rng = np.random.default_rng(7)
    a = _draw(rng, shape, "f")
    a = a @ _turned(a) + shape[-1] * np.eye(shape[-1], dtype="f")
    function = getattr(lt.linalg, name)
    stack = function(lt.tensor(a))
    stack = stack if isinstance(stack, tuple) else (stack,)
    for place in [(0,) * (len(shape) - 2), tuple(k - 1 for k in shape[:-2])]:
        one = function(lt.tensor(a[place]))
        one = one if isinstance(one, tuple) else (one,)
        for x, y in zip(stack, one, strict=True):
            assert np.array_equal(x[place].numpy(), y.numpy())


def test_blas_has_its_threads_back_after_a_decomposition():
    controls = blas.NUMPY.controls()
    before = controls[0]()
    lt.linalg.inv(lt.eye(64))
    with pytest.raises(lt.linalg.LinAlgError):
        lt.linalg.inv(lt.zeros(8, 64, 64))
    assert controls[0]() == before == threads.get_num_threads()


def test_scipys_blas_has_as_many_threads():
    before = lt.get_num_threads()
    lt.set_num_threads(1)
    try:
        lt.linalg.ldl_factor(lt.eye(3))  # SciPy may be imported only here
        get, put = blas.SCIPY.controls()
        assert get() == 1
        lt.set_num_threads(before)
        assert get() == before
        put(before + 1)
        assert blas.SCIPY.alone(get) == 1
        assert get() == before + 1
    finally:
        lt.set_num_threads(before)


@pytest.mark.parametrize("routes", ["numpy", "scipy"])
def test_builds_of_numpy_without_the_routines(routes, monkeypatch):
    monkeypatch.setattr(lapack, "available", lambda: False)
    rng = np.random.default_rng(3)
    a = lt.tensor(rng.standard_normal((3, 40, 40)) + 9 * np.eye(40))
    b = lt.tensor(rng.standard_normal((3, 40, 2)))
    if routes == "numpy":
        for name in ("inv", "qr", "svd", "det", "slogdet"):
            found = getattr(lt.linalg, name)(a)
            found = found[1] if isinstance(found, tuple) else found
            expected = getattr(np.linalg, name)(a.numpy())
            expected = expected[1] if isinstance(expected, tuple) else expected
            np.testing.assert_allclose(found.numpy(), expected)
    else:
        solved = lt.linalg.lu_solve(*lt.linalg.lu_factor(a), b)
        np.testing.assert_allclose((a @ solved).numpy(), b.numpy(), atol=1e-12)


@pytest.mark.parametrize("kind", ["last", "geometric", "half", "rows", "large", "small"])
@pytest.mark.parametrize("n", [3, 8, SMALL - 1, SMALL + 1, 48])
def test_cofactors_are_as_exact_as_by_singular_values(n, kind):
    rng = np.random.default_rng(n)
    for condition in (1e0, 1e2, 1e4, 1e6, 1e10, 1e14):
        left, right = (np.linalg.qr(rng.standard_normal((n, n)))[0] for _ in range(2))
        steps = np.linspace(0, 1, n)
        s = np.ones(n)
        if kind == "last":
            s[-1] = 1 / condition
        elif kind == "geometric":
            s = condition**-steps
        elif kind == "half":
            s[n // 2 :] = 1 / condition
        a = (left * s) @ right
        if kind == "rows":
            a *= condition ** -rng.permutation(steps)[:, None]
        elif kind in ("large", "small"):
            a *= condition ** (2 / n if kind == "large" else -2 / n)
        a = np.broadcast_to(a.astype("f"), (300, n, n))  # enough for the loops of small matrices
        exact = _by_singular_values(a[0].astype("d"))
        size = np.linalg.norm(exact)
        if not 1e-30 < size < 1e30:
            continue
        found = _cofactors(lt.tensor(a.copy())).numpy()[0]
        rough = _by_singular_values(a[0])
        bound = max(1e-5, 10 * np.linalg.norm(rough - exact) / size)
        # What any method may be off by: the last place of the second smallest singular value.
        bound = max(bound, 1e-6 * s.max() / np.sort(s)[min(1, n - 1)])
        assert np.linalg.norm(found - exact) <= bound * size, (condition, bound)


def _by_singular_values(a):
    u, s, vh = np.linalg.svd(a)
    others = np.array([np.prod(np.delete(s, k)) for k in range(len(s))])
    return (u * others) @ vh * np.linalg.det(u) * np.linalg.det(vh)
