"""LDL factorization of symmetric and Hermitian matrices, definite or not, and solving with it.

``P A P^T = L D L^H``, D with blocks of one and two rows (Bunch & Kaufman 1977, "Some stable methods
for calculating inertia and solving symmetric linear systems"). The routines are LAPACK's, on the
host, so that all devices agree. float16 and bfloat16 are computed in float32.
"""

from __future__ import annotations

import numpy as np

from ...dtypes import INT, int32
from ...modes import is_grad_enabled
from ...spec import Spec
from ..creation.from_data import tensor
from ..elementwise.arithmetic import conjugate
from ..registry import op
from ..signatures import broadcast_shapes
from . import checks
from .cholesky_qr import cube
from .lapack import decomposition, scipys


def _on_host(xp, array):
    return array if xp is np else array.get()


def _routine(kind, array, hermitian):
    # sytrf, sytrs; of complex Hermitian matrices hetrf, hetrs
    return scipys(("he" if hermitian and array.dtype.kind == "c" else "sy") + kind, array)


def _factor_infer(A, *, hermitian):
    checks.check_square("linalg.ldl_factor_ex", A)
    return A, Spec(A.shape[:-1], int32), Spec(A.shape[:-2], int32)


def _factor_samples(make):
    for shape, hermitian in (((3, 3), False), ((2, 4, 4), True), ((1, 1), True), ((0, 2, 2), True)):
        yield (make(*shape),), {"hermitian": hermitian}


@op(
    adopt=True,
    returns=("ld", "pivots", "info"),
    infer=_factor_infer,
    samples=_factor_samples,
    flops=lambda A, **_: cube(A) // 3,
)
@decomposition()
def _ldl_factor(xp, A, *, hermitian):
    """LDL factorization of the lower triangles, packed in one matrix."""
    host = _on_host(xp, A)
    ld = np.zeros(host.shape, dtype=host.dtype)
    pivots = np.zeros(host.shape[:-1], dtype="int32")
    info = np.zeros(host.shape[:-2], dtype="int32")
    if host.size:
        sytrf, size = _routine("trf", host, hermitian), 64 * host.shape[-1]
        for place in np.ndindex(*info.shape):
            found, pivots[place], info[place] = sytrf(host[place], lower=1, lwork=size)
            ld[place] = np.tril(found)
    return xp.asarray(ld), xp.asarray(pivots), xp.asarray(info)


def _solve_infer(LD, pivots, B, *, hermitian):
    checks.check_square("linalg.ldl_solve", LD, "LD")
    checks.check_matrices("linalg.ldl_solve", B, letters="B")
    if LD.dtype is not B.dtype:
        raise RuntimeError(
            f"linalg.ldl_solve: Expected LD and B to have the same dtype; got {LD.dtype} and "
            f"{B.dtype}. Convert one with .to()."
        )
    if pivots.dtype.category != INT:
        raise RuntimeError(
            f"linalg.ldl_solve: Expected pivots to be integers. Got {pivots.dtype}. Pass those "
            "of linalg.ldl_factor."
        )
    if pivots.shape != LD.shape[:-1]:
        raise RuntimeError(
            f"linalg.ldl_solve: pivots must have the shape LD.shape[:-1], {tuple(LD.shape[:-1])}; "
            f"got {tuple(pivots.shape)}. Pass both results of linalg.ldl_factor."
        )
    if B.shape[-2] != LD.shape[-1]:
        raise RuntimeError(
            f"linalg.ldl_solve: Incompatible matrix sizes: LD is {LD.shape[-2]} by {LD.shape[-1]} "
            f"but each B matrix is {B.shape[-2]} by {B.shape[-1]}."
        )
    batch = broadcast_shapes("linalg.ldl_solve", LD.shape[:-2], B.shape[:-2])
    return B.like((*batch, *B.shape[-2:]))


def _solve_samples(make):
    for batch, k, hermitian in (((), 2, True), ((2,), 1, False), ((0,), 2, True)):
        # A factorization of a matrix near 2: D on the diagonal, L below it, nothing exchanged
        ld = (make(*batch, 3, 3) * 0.1).detach().tril(-1)
        ld.diagonal(dim1=-2, dim2=-1).fill_(2.0)
        rows = tensor([1, 2, 3], dtype=int32).expand((*batch, 3))
        yield (ld, rows, make(*batch, 3, k)), {"hermitian": hermitian}


@op(
    adopt=True,
    infer=_solve_infer,
    samples=_solve_samples,
    flops=lambda LD, pivots, B, **_: 2 * B.numel * LD.shape[-1],
)
@decomposition()
def _ldl_solve(xp, LD, pivots, B, *, hermitian):
    """Solve ``A @ X = B`` by the packed factorization of A."""
    ld, rows, b = _on_host(xp, LD), _on_host(xp, pivots), _on_host(xp, B)
    n, k = b.shape[-2:]
    batch = np.broadcast_shapes(ld.shape[:-2], b.shape[:-2])
    out = np.zeros((*batch, n, k), dtype=b.dtype)
    if out.size:
        least, most = np.abs(rows).min(), np.abs(rows).max()
        if least < 1 or most > n:
            raise RuntimeError(
                f"linalg.ldl_solve: pivots must satisfy 1 <= |pivot| <= {n}; got "
                f"{least if least < 1 else most}. Pass those of linalg.ldl_factor."
            )
        sytrs = _routine("trs", ld, hermitian)
        ld, b = np.broadcast_to(ld, (*batch, n, n)), np.broadcast_to(b, out.shape)
        rows = np.broadcast_to(rows, (*batch, n))
        for place in np.ndindex(*batch):
            out[place] = sytrs(ld[place], rows[place], b[place], lower=1)[0]
    return xp.asarray(out)


@_ldl_solve.vjp("B")
def _(g, LD, pivots, hermitian):  # A^H is A where it is Hermitian, else its conjugate
    if hermitian:
        return _ldl_solve(LD, pivots, g, hermitian=True)
    return _ldl_solve(conjugate(LD), pivots, g, hermitian=False)


LDLFactor = checks.named("linalg_ldl_factor", "LD", "pivots")
LDLFactorEx = checks.named("linalg_ldl_factor_ex", "LD", "pivots", "info")


def _refuse_gradient(name, letter, x):
    # A factor that came back as a constant would silently lose the gradient by the matrix.
    if getattr(x, "requires_grad", False) and is_grad_enabled():
        raise RuntimeError(
            f"{name} has no gradient by {letter}, and {letter} requires one. Pass "
            f"{letter}.detach(), or use linalg.solve, which has."
        )


@checks.linear_algebra()
def ldl_factor_ex(A, *, hermitian=False, check_errors=False):
    """Packed LDL factorization; ``info`` is the first zero on D's diagonal, counted from 1.

    Args:
        A: (*, n, n), floating or complex; the lower triangle is read.
        hermitian: A complex ``A`` is Hermitian; else symmetric.
        check_errors: Raise where ``info`` is not 0.

    Returns:
        The named tuple (LD, pivots, info) of shapes (*, n, n), (*, n) and (*).
    """
    _refuse_gradient("linalg.ldl_factor_ex", "A", A)
    ld, pivots, info = _ldl_factor(A, hermitian=bool(hermitian))
    if check_errors and A.device.type != "meta" and bool((info != 0).any()):
        checks.raise_first(
            info.cpu(),
            "linalg.ldl_factor: {where}D[{number},{number}] is zero, and linalg.ldl_solve would "
            "divide by it: the matrix is singular. Use linalg.lstsq, or linalg.ldl_factor_ex to "
            "have the factors.",
        )
    return LDLFactorEx(ld, pivots, info)


@checks.linear_algebra()
def ldl_factor(A, *, hermitian=False):
    """LDL factorization of a symmetric or Hermitian matrix, definite or not.

    Args:
        A: (*, n, n), floating or complex; the lower triangle is read.
        hermitian: A complex ``A`` is Hermitian; else symmetric.

    Returns:
        The named pair (LD, pivots), packed as LAPACK's ``sytrf`` does: D on the diagonal (and
        beside it in its blocks of two rows), L below; int32 row exchanges, counted from 1, those
        of a block of two negative.

    Raises:
        LinAlgError: D has a zero on its diagonal.
        RuntimeError: ``A`` requires a gradient; there is none.

    Memory:
        Keeps nothing.
    """
    return LDLFactor(*ldl_factor_ex(A, hermitian=hermitian, check_errors=True)[:2])


@checks.linear_algebra()
def ldl_solve(LD, pivots, B, *, hermitian=False):
    """Solve ``A @ X = B`` given :func:`ldl_factor` of ``A``.

    Args:
        LD: (*, n, n).
        pivots: (*, n), integers.
        B: (*, n, k); batch dimensions broadcast.
        hermitian: As it was given to :func:`ldl_factor`.

    Returns:
        X, in the broadcast shape (*, n, k).

    Raises:
        RuntimeError: Shapes or dtypes do not fit, a pivot is no row, or ``LD`` requires a gradient.

    Memory:
        Keeps ``LD`` and ``pivots`` if ``B`` needs a gradient.
    """
    _refuse_gradient("linalg.ldl_solve", "LD", LD)
    return _ldl_solve(LD, pivots, B, hermitian=bool(hermitian))
