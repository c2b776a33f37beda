"""Decompositions of stacks of matrices by the LAPACK in NumPy's BLAS, in the matrices' own dtype.

``numpy.linalg`` computes in float64 whatever it gets, and copies each matrix there and back: for
float32 that takes two to six times as long. These functions call the same library's routines for
the dtype. They mean what NumPy's functions of the same name mean, with real and complex matrices
(*, m, n) in float32 or float64; :func:`available` says whether there is such a library.

A routine takes a matrix by columns: to it, a matrix in C order is the transpose. So what is alike
for a matrix and its transpose (determinants, inverses, singular values, Cholesky factors) is
computed in place, and only the others move elements. In a call the interpreter's lock is released.

Source of the routines' arguments: https://www.netlib.org/lapack/lapacke.html (the functions that
end in ``_work``, which do not search their operands for NaN).
"""

from __future__ import annotations

import ctypes
from functools import cache, lru_cache
from math import prod
from typing import Any

import numpy as np

from ...common.copy import copy
from ...runtime import blas, mkl

_BY_ROWS, _BY_COLUMNS = 101, 102  # how matrices lie
_LEFT, _UPPER, _LOWER, _PLAIN, _TRANSPOSED, _GENERAL, _UNIT = (
    141, 121, 122, 111, 112, 131, 132
)  # fmt: skip
_WORDS: dict[str, Any] = {"c": ctypes.c_char, "n": ctypes.c_int64, "p": ctypes.c_void_p}
_ARGUMENTS = {  # of each routine, after the order: letters, numbers, addresses
    "potrf": "cnpn",
    "getrf": "nnpnp",
    "getri": "npnppn",
    "getrs": "cnnpnppn",
    "geqrf": "nnpnppn",
    "orgqr": "nnnpnppn",
    "syevd": "ccnpnppnpn",
    "heevd": "ccnpnppnpnpn",
    "gesdd": "cnnpnppnpnpnp",
}
_LETTERS = {"f": "s", "d": "d", "F": "c", "D": "z"}
_COMPLEX_NAMES = {"orgqr": "ungqr", "syevd": "heevd"}
LinAlgError = np.linalg.LinAlgError


@cache
def available() -> bool:
    """Whether NumPy's BLAS has the routines, under the names of its OpenBLAS."""
    return _address("potrf", "f") != 0


def _address(name: str, kind: str) -> int:
    routine = f"LAPACKE_{_LETTERS[kind]}{name}_work"
    return mkl.symbol(f"{routine}_64") or blas.symbol(f"scipy_{routine}64_")


@cache
def _routine(name: str, kind: str) -> Any:
    # A routine for arrays of a kind; it takes all but the order and returns LAPACK's ``info``.
    arguments = _ARGUMENTS[name]
    if kind in "FD":
        name = _COMPLEX_NAMES.get(name, name)
        arguments = _ARGUMENTS.get(name, arguments)
        if name == "gesdd":
            arguments = arguments[:-1] + "pp"  # numbers for which the real form has no use
    form = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int, *(_WORDS[a] for a in arguments))
    call = form(_address(name, kind))
    return lambda *words: call(_BY_COLUMNS, *words)


@lru_cache(maxsize=256)
def _workspace(name: str, kind: str, *sizes: Any) -> int:
    # Elements of workspace that a routine asks for: it says so in the first if told of -1.
    asked, others = np.zeros(1, kind), np.zeros((2, 1), np.int64)  # a routine answers in all three
    call, at, numbers = _routine(name, kind), asked.ctypes.data, sizes
    integers, reals = (x.ctypes.data for x in others)
    if name == "getri":
        call(numbers[0], at, numbers[0], at, at, -1)
    elif name == "geqrf":
        m, n = numbers
        call(m, n, at, m, at, at, -1)
    elif name == "orgqr":
        m, n, k = numbers
        call(m, n, k, at, m, at, at, -1)
    elif name == "syevd":
        job, n = numbers
        more = [reals, -1, integers, -1] if kind in "FD" else [integers, -1]
        call(job, b"U", n, at, n, at, at, -1, *more)
    else:
        job, m, n, ldu, ldv = numbers
        more = [reals, integers] if kind in "FD" else [integers]
        call(job, m, n, at, m, at, at, ldu, at, ldv, at, -1, *more)
    return int(asked[0].real * (1 + 1e-6)) + 1  # which may have been rounded down


def _rows(a: Any) -> Any:
    # A copy in C order, (count, m, n).
    out = np.empty(a.shape, a.dtype)
    copy(out, a)
    return out.reshape(prod(a.shape[:-2]), *a.shape[-2:])


def _turned(a: Any) -> Any:
    # The transposes in C order: the matrices by columns.
    return _rows(np.swapaxes(a, -1, -2))


def _check(failed: Any, problem: str) -> None:
    if failed:
        raise LinAlgError(problem)


def _eliminate(by_columns: Any) -> tuple[Any, Any]:
    # LU of matrices (count, n, m) that lie by columns, in place; (rows exchanged, first zero pivot)
    count, n, m = by_columns.shape
    pivots = np.empty((count, min(m, n)), np.int64)
    info = np.empty(count, np.int32)
    getrf = _routine("getrf", by_columns.dtype.char)
    at, step = by_columns.ctypes.data, by_columns.strides[0]
    order, each = pivots.ctypes.data, pivots.strides[0]
    for k in range(count):
        info[k] = getrf(m, n, at + k * step, m, order + k * each)
    return pivots, info


def lu(a: Any) -> tuple[Any, Any, Any]:
    """Eliminate with row exchanges.

    Returns:
        (packed, pivots, info): the triangles (*, m, n), the rows exchanged from 1 (*, min(m, n)),
        and the first zero pivot from 1, or 0, of each.
    """
    by_columns = _turned(a)
    pivots, info = _eliminate(by_columns)
    batch, few = a.shape[:-2], min(a.shape[-2:])
    packed = np.swapaxes(by_columns, -1, -2).reshape(a.shape)
    return packed, pivots.reshape(*batch, few).astype(np.int32), info.reshape(batch)


def _diagonals(a: Any) -> tuple[Any, Any]:
    # The pivots of each matrix in double precision, and whether its determinant has their sign.
    triangles = _rows(a)  # of the transposes, whose determinants are the same
    pivots, _ = _eliminate(triangles)
    exchanged = pivots != np.arange(1, a.shape[-1] + 1)
    wide = np.complex128 if a.dtype.kind == "c" else np.float64
    found = np.diagonal(triangles, 0, -2, -1).astype(wide)
    return found, 1 - 2 * (exchanged.sum(-1) % 2)


def det(a: Any) -> Any:
    """Compute determinants."""
    found, signs = _diagonals(a)
    return (found.prod(-1) * signs).astype(a.dtype).reshape(a.shape[:-2])


def slogdet(a: Any) -> tuple[Any, Any]:
    """Compute the signs of determinants, and the logarithms of their magnitudes."""
    found, signs = _diagonals(a)
    sizes = np.abs(found)
    singular = (sizes == 0).any(-1)
    signs = (found / np.where(sizes == 0, 1, sizes)).prod(-1) * signs
    logs = np.log(np.where(sizes == 0, 1, sizes)).sum(-1)
    signs[singular], logs[singular] = 0, -np.inf
    batch, real = a.shape[:-2], a.real.dtype
    return signs.astype(a.dtype).reshape(batch), logs.astype(real).reshape(batch)


def _overflowed(triangles: Any) -> Any:
    # Which matrices have an infinite pivot: what is divided by it is 0, and looks like a result.
    return ~np.isfinite(np.diagonal(triangles, 0, -2, -1)).all(-1)


def inv(a: Any) -> Any:
    """Invert matrices."""
    out = _rows(a)
    kind, n = a.dtype.char, a.shape[-1]
    pivots, info = _eliminate(out)
    _check(info.any(), "Singular matrix")
    overflowed = _overflowed(out)
    size = _workspace("getri", kind, n)
    work = np.empty(size, kind)
    getri = _routine("getri", kind)
    at, step, order, each = out.ctypes.data, out.strides[0], pivots.ctypes.data, pivots.strides[0]
    for k in range(len(out)):
        getri(n, at + k * step, n, order + k * each, work.ctypes.data, size)
    out[overflowed] = np.nan
    return out.reshape(a.shape)


def solve(a: Any, b: Any) -> Any:
    """Solve ``a @ x = b`` for matrices b, with broadcasting stacks."""
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    n, columns = b.shape[-2:]
    triangles = _rows(a)
    pivots, info = _eliminate(triangles)
    _check(info.any(), "Singular matrix")
    out = _turned(np.broadcast_to(b, (*batch, n, columns)))
    of = np.broadcast_to(np.arange(len(triangles)).reshape(a.shape[:-2]), batch).ravel().tolist()
    getrs = _routine("getrs", a.dtype.char)
    at, step, order, each = (
        triangles.ctypes.data, triangles.strides[0], pivots.ctypes.data, pivots.strides[0]
    )  # fmt: skip
    place, wide = out.ctypes.data, out.strides[0]
    for k, i in enumerate(of):
        getrs(b"T", n, columns, at + i * step, n, order + i * each, place + k * wide, n)
    out[_overflowed(triangles)[of]] = np.nan
    return np.swapaxes(out, -1, -2).reshape(*batch, n, columns)


def cholesky(a: Any) -> Any:
    """Compute Cholesky factors from lower triangles.

    A matrix of float32 that fails is tried in float64: it may be positive-definite but for the
    rounding.
    """
    out = _rows(a)
    n = a.shape[-1]
    potrf = _routine("potrf", a.dtype.char)
    for k, matrix in enumerate(out):
        if potrf(b"U", n, matrix.ctypes.data, n):
            _check(a.dtype.char in "dD", "Matrix is not positive definite")
            source = a.reshape(out.shape)[k]
            copy(matrix, np.linalg.cholesky(source.astype("D" if a.dtype.char == "F" else "d")))
    np.copyto(out, 0, where=~np.tri(n, dtype=bool))
    return out.reshape(a.shape)


def _reflections(a: Any) -> tuple[Any, Any]:
    # Householder's form by columns, (count, n, m), and the factors (count, min(m, n)).
    m, n = a.shape[-2:]
    kind, out = a.dtype.char, _turned(a)
    factors = np.empty((len(out), min(m, n)), kind)
    size = _workspace("geqrf", kind, m, n)
    work = np.empty(size, kind)
    geqrf = _routine("geqrf", kind)
    for matrix, tau in zip(out, factors, strict=True):
        geqrf(m, n, matrix.ctypes.data, m, tau.ctypes.data, work.ctypes.data, size)
    return out, factors


def qr(a: Any, mode: str = "reduced") -> tuple[Any, Any]:
    """Decompose into orthonormal columns and an upper triangle.

    Args:
        a: (*, m, n).
        mode: "reduced" or "complete"; "raw" returns Householder's form, transposed, and factors.
    """
    m, n = a.shape[-2:]
    kind, batch = a.dtype.char, a.shape[:-2]
    found, factors = _reflections(a)
    few = min(m, n)
    if mode == "raw":
        return found.reshape(*batch, n, m), factors.reshape(*batch, few)
    k = m if mode == "complete" else few
    r = np.triu(np.swapaxes(found[:, :, :k], -1, -2)).reshape(*batch, k, n)
    q = np.zeros((len(found), k, m), kind)
    q[:, :few] = found[:, :few]
    size = _workspace("orgqr", kind, m, k, few)
    work = np.empty(size, kind)
    orgqr = _routine("orgqr", kind)
    for matrix, tau in zip(q, factors, strict=True):
        orgqr(m, k, few, matrix.ctypes.data, m, tau.ctypes.data, work.ctypes.data, size)
    return np.swapaxes(q, -1, -2).reshape(*batch, m, k), r


def eigh(a: Any, UPLO: str = "L", vectors: bool = True) -> Any:
    """Compute eigenvalues, ascending, and eigenvectors of hermitian matrices.

    Args:
        a: (*, n, n).
        UPLO: Which triangle is read, "L" or "U".
        vectors: Else only the eigenvalues are computed, and returned alone.
    """
    kind, n = a.dtype.char, a.shape[-1]
    out = _rows(a)
    real = a.real.dtype
    values = np.empty((len(out), n), real)
    job = b"V" if vectors else b"N"
    size = _workspace("syevd", kind, job, n)
    work, integers = np.empty(size, kind), np.empty(3 + 5 * n, np.int64)
    more: list[Any] = [integers.ctypes.data, integers.size]
    if kind in "FD":
        reals = np.empty(1 + 5 * n + 2 * n * n, real)
        more = [reals.ctypes.data, reals.size, *more]
    syevd, part = _routine("syevd", kind), b"U" if UPLO in "Ll" else b"L"
    for matrix, row in zip(out, values, strict=True):
        at, found = matrix.ctypes.data, row.ctypes.data
        _check(
            syevd(job, part, n, at, n, found, work.ctypes.data, size, *more),
            "Eigenvalues did not converge",
        )
    values = values.reshape(a.shape[:-1])
    if not vectors:
        return values
    columns = np.swapaxes(out, -1, -2).reshape(a.shape)
    return values, np.conj(columns) if kind in "FD" else columns


def eigvalsh(a: Any, UPLO: str = "L") -> Any:
    """Compute the eigenvalues of hermitian matrices, ascending."""
    return eigh(a, UPLO, vectors=False)


def svd(a: Any, full_matrices: bool = True, compute_uv: bool = True) -> Any:
    """Decompose by singular values: (u, s, vh), or s alone without ``compute_uv``."""
    m, n = a.shape[-2:]
    kind, few, batch = a.dtype.char, min(m, n), a.shape[:-2]
    _check(not np.isfinite(a).all(), "SVD did not converge")  # LAPACK reports NaN, not infinity
    source = _rows(a)
    real = a.real.dtype
    wide, high = (n, m) if full_matrices else (few, few)
    job = (b"A" if full_matrices else b"S") if compute_uv else b"N"
    shapes = ((m, high), (wide, n)) if compute_uv else ((1, 1), (1, 1))
    u, vh = (np.empty((len(source), *shape), kind) for shape in shapes)
    s = np.empty((len(source), few), real)
    size = _workspace("gesdd", kind, job, n, m, n, high)
    work, integers = np.empty(size, kind), np.empty(8 * few, np.int64)
    more = [integers.ctypes.data]
    if kind in "FD":
        reals = np.empty(5 * few * few + 7 * few + 2 * max(m, n) * few + few * few, real)
        more = [reals.ctypes.data, *more]
    gesdd = _routine("gesdd", kind)
    # The routine's u are the rows of vh here, as its matrix is the transpose.
    for matrix, row, left, right in zip(source, s, u, vh, strict=True):
        x, values = matrix.ctypes.data, row.ctypes.data
        first, second = right.ctypes.data, left.ctypes.data
        _check(
            gesdd(
                job, n, m, x, n, values, first, n, second, high, work.ctypes.data, size, *more
            ),
            "SVD did not converge",
        )  # fmt: skip
    s = s.reshape(*batch, few)
    if not compute_uv:
        return s
    return u.reshape(*batch, m, high), s, vh.reshape(*batch, wide, n)


@cache
def _trsm(kind: str) -> Any:
    # BLAS's triangular systems: order, side, triangle, transposed, diagonal; m, n, factor, a, lda,
    # b, ldb
    number: Any = {"f": ctypes.c_float, "d": ctypes.c_double}.get(kind, ctypes.c_void_p)
    words = [ctypes.c_int] * 5 + [ctypes.c_int64] * 2 + [number]
    words += [ctypes.c_void_p, ctypes.c_int64] * 2
    name = f"cblas_{_LETTERS[kind]}trsm"
    address = mkl.symbol(f"{name}_64") or blas.symbol(f"scipy_{name}64_")
    return ctypes.CFUNCTYPE(None, *words)(address)


def solve_triangular(a: Any, x: Any, upper: bool, unit: bool) -> None:
    """Solve triangular systems in place.

    Args:
        a: (count, n, n) or (n, n); only one triangle is read.
        x: (count, n, k) in C order: the right sides, and then the solutions.
        upper: Which triangle.
        unit: The diagonal is taken to be 1, and not read.
    """
    n, k = x.shape[-2:]
    size = a.itemsize
    turned = a.strides[-2] == size and a.strides[-1] >= n * size  # by columns: nothing is moved
    if not turned and not (a.strides[-1] == size and a.strides[-2] >= n * size):
        a = np.ascontiguousarray(a)
    lead = a.strides[-1 if turned else -2] // size
    one = np.ones(1, a.dtype)
    call = _trsm(a.dtype.char)
    factor = 1.0 if a.dtype.kind == "f" else one.ctypes.data
    triangle = _UPPER if upper != turned else _LOWER
    form = (
        _BY_ROWS,
        _LEFT,
        triangle,
        _TRANSPOSED if turned else _PLAIN,
        _UNIT if unit else _GENERAL,
    )
    at, step = a.ctypes.data, a.strides[0] if a.ndim > 2 else 0
    place, each = x.ctypes.data, x.strides[0]
    for i in range(len(x)):
        call(*form, n, k, factor, at + i * step, lead, place + i * each, k)
