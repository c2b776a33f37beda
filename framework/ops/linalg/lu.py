"""LU decomposition, and solving with it.

The gradient rule is Giles' 2008, "An extended collection of matrix derivative results", applied to
both triangles; it reads the packed triangles alone. float16 and bfloat16 are computed in float32.
"""

from __future__ import annotations

from math import prod

from ...dtypes import int32, int64
from ...kernels.cpu.linalg import lapack
from ...spec import Spec
from ..creation.from_data import tensor
from ..creation.ranges import arange, eye
from ..manipulation.cat import cat
from ..registry import op
from ..signatures import broadcast_shapes
from . import checks
from .cholesky_qr import cube
from .lapack import decomposition, scipys
from .matmul import adjoint, matmul
from .matmul import adjoint as conjugate
from .solve import _solve_triangular


def eliminate(xp, lu, pivot):
    """Eliminate in place: L below the diagonal, U on and above it.

    Returns:
        (lu, pivots, info): the rows exchanged, counted from 1, and the first zero pivot.
    """
    m, n = lu.shape[-2:]
    batch, k = lu.shape[:-2], min(m, n)
    count = prod(batch)
    flat = lu.reshape(count, m, n)
    which = xp.arange(count)
    pivots = xp.zeros((count, k), dtype="int32")
    info = xp.zeros((count,), dtype="int32")
    for j in range(k if count else 0):
        best = xp.argmax(xp.absolute(flat[:, j:, j]), axis=1) + j if pivot else xp.full(count, j)
        pivots[:, j] = best + 1
        upper, lower = flat[:, j].copy(), flat[which, best]
        flat[which, best] = upper
        flat[:, j] = lower
        head = flat[:, j, j]
        zero = head == 0
        info[(info == 0) & zero] = j + 1
        flat[:, j + 1 :, j] /= xp.where(zero, 1, head)[:, None]
        flat[:, j + 1 :, j + 1 :] -= flat[:, j + 1 :, j : j + 1] * flat[:, j : j + 1, j + 1 :]
    return flat.reshape(lu.shape), pivots.reshape(*batch, k), info.reshape(batch)


def _lu_infer(A, *, pivot):
    checks.check_matrices("linalg.lu_factor", A)
    m, n = A.shape[-2:]
    return A, Spec((*A.shape[:-2], min(m, n)), int32), Spec(A.shape[:-2], int32)


def _lu_samples(make):
    for shape, pivot in (
        ((3, 3), True),
        ((4, 2), True),
        ((2, 2, 3), True),
        ((3, 3), False),
        ((0, 2), True),
    ):
        m = make(*shape)
        if not pivot:
            m = checks.conditioned(make, *shape)
        yield (m,), {"pivot": pivot}


@op(
    adopt=True,
    returns=("lu", "pivots", "info"),
    infer=_lu_infer,
    samples=_lu_samples,
    flops=lambda A, **_: 2 * cube(A) // 3,
)
def _lu_factor(xp, A, *, pivot):
    """LU decomposition with row exchanges, packed in one matrix."""
    return eliminate(xp, xp.array(A, order="C"), pivot)


@_lu_factor.kernel("cpu", when=lambda A, *, pivot: pivot and A.numel > 0)
@decomposition()
def _(xp, A, *, pivot):
    if lapack.available():
        return lapack.lu(A)
    getrf = scipys("getrf", A)
    m, n = A.shape[-2:]
    out = xp.empty(A.shape, dtype=A.dtype)
    pivots = xp.empty((*A.shape[:-2], min(m, n)), dtype="int32")
    info = xp.empty(A.shape[:-2], dtype="int32")
    for place in xp.ndindex(*A.shape[:-2]):
        out[place], rows, info[place] = getrf(A[place])
        xp.add(rows, 1, out=pivots[place])
    return out, pivots, info


@_lu_factor.vjp("A")
def _(g_lu, lu, pivots):
    m, n = lu.shape[-2:]
    k = min(m, n)
    square, g = lu.narrow(-2, 0, k).narrow(-1, 0, k), g_lu.narrow(-2, 0, k).narrow(-1, 0, k)
    lower_h = adjoint(square.tril(-1) + eye(k, dtype=lu.dtype, device=lu.device))
    upper = square.triu()

    def over_upper(x):  # x U^-H
        return adjoint(_solve_triangular(upper, adjoint(x), upper=True, unitriangular=False))

    def over_lower(x):  # L^-H x
        return _solve_triangular(lower_h, x, upper=True, unitriangular=True)

    g_lower, g_upper = g.tril(-1), g.triu()
    beside = None
    if m > k:  # the rows below: L2 = Y U^-1
        below = lu.narrow(-2, k, m - k)
        beside = over_upper(g_lu.narrow(-2, k, m - k))
        g_upper = (g_upper - matmul(adjoint(below), beside)).triu()
    elif n > k:  # the columns beside: U2 = L^-1 Y
        right = lu.narrow(-1, k, n - k)
        beside = over_lower(g_lu.narrow(-1, k, n - k))
        g_lower = (g_lower - matmul(beside, adjoint(right))).tril(-1)
    inner = matmul(lower_h, g_lower).tril(-1) + matmul(g_upper, adjoint(upper)).triu()
    out = over_upper(over_lower(inner))
    if beside is not None:
        out = cat([out, beside], -2 if m > k else -1)
    # Rows back to where they came from.
    order = _permutation(pivots, rows=m).argsort(-1)
    return out.gather(-2, order.unsqueeze(-1).expand(out.shape))


def _permutation_infer(pivots, *, rows):
    return Spec((*pivots.shape[:-1], rows), int64)


def _permutation_samples(make):
    yield (tensor([2, 3, 3]),), {"rows": 3}
    yield (tensor([[4, 2], [1, 3]]),), {"rows": 4}
    yield (tensor([[4, 2]])[:0],), {"rows": 4}


@op(
    adopt=True,
    infer=_permutation_infer,
    half="exact",
    samples=_permutation_samples,
)
def _permutation(xp, pivots, *, rows):
    """Convert row exchanges, counted from 1, to a permutation."""
    flat = pivots.reshape(prod(pivots.shape[:-1]), pivots.shape[-1])
    order = xp.zeros((flat.shape[0], rows), dtype="int64")
    xp.add(order, xp.arange(rows), out=order)
    which = xp.arange(flat.shape[0])
    for j in range(flat.shape[1]):
        other = flat[:, j] - 1
        here, there = order[:, j].copy(), order[which, other]
        order[which, other] = here
        order[:, j] = there
    return order.reshape(*pivots.shape[:-1], rows)


LUFactor = checks.named("linalg_lu_factor", "LU", "pivots")
LUFactorEx = checks.named("linalg_lu_factor_ex", "LU", "pivots", "info")
LU = checks.named("linalg_lu", "P", "L", "U")


@checks.linear_algebra()
def lu_factor_ex(A, *, pivot=True, check_errors=False):
    """Packed LU decomposition; ``info`` is the first zero pivot, counted from 1.

    Returns:
        The named tuple (LU, pivots, info).
    """
    lu, pivots, info = _lu_factor(A, pivot=bool(pivot))
    if check_errors and A.device.type != "meta" and bool((info != 0).any()):
        checks.raise_first(
            info.cpu(),
            "linalg.lu_factor: {where}U[{number},{number}] is zero and using it on lu_solve would "
            "result in a division by zero. If you still want to perform the factorization, "
            "consider calling linalg.lu(A, pivot) or linalg.lu_factor_ex(A, pivot)",
        )
    return LUFactorEx(lu, pivots, info)


@checks.linear_algebra()
def lu_factor(A, *, pivot=True):
    """Packed LU decomposition: L (with a unit diagonal) and U in one matrix.

    Args:
        A: (*, m, n).
        pivot: Exchange rows, for stability.

    Returns:
        The named pair (LU, pivots): row i was exchanged with row ``pivots[i] - 1``.

    Raises:
        LinAlgError: A pivot is zero.

    Memory:
        Keeps both.
    """
    return LUFactor(*lu_factor_ex(A, pivot=pivot, check_errors=True)[:2])


@checks.linear_algebra()
def lu(A, *, pivot=True):
    """LU decomposition: ``A = P @ L @ U``, a permutation, a unit lower and an upper triangle.

    Args:
        A: (*, m, n).
        pivot: Exchange rows; else P is empty.

    Returns:
        The named tuple (P, L, U): (*, m, m), (*, m, k), (*, k, n) with k = min(m, n).
    """
    packed, pivots, _ = _lu_factor(A, pivot=bool(pivot))
    lower, upper = triangles(packed)
    if not pivot:
        return LU(A.detach().new_empty((0,)), lower, upper)
    return LU(permutation_matrix(pivots, A.shape[-2], A.dtype), lower, upper)


def triangles(packed):
    """Return L and U of the packed form."""
    m, k = packed.shape[-2], min(packed.shape[-2:])
    one = eye(m, k, dtype=packed.dtype, device=packed.device)
    return packed.narrow(-1, 0, k).tril(-1) + one, packed.narrow(-2, 0, k).triu()


def permutation_matrix(pivots, rows, dtype):
    """Return the permutation matrix P of row exchanges."""
    order = _permutation(pivots, rows=rows)
    numbers = arange(rows, device=pivots.device).unsqueeze(-1)
    return (order.unsqueeze(-2) == numbers).to(dtype)


@checks.linear_algebra()
def lu_solve(LU, pivots, B, *, left=True, adjoint=False):
    """Solve ``A @ X = B`` given :func:`lu_factor` of ``A``.

    Args:
        LU: (*, n, n).
        pivots: (*, n).
        B: (*, n, k).
        left: Else ``X @ A = B``.
        adjoint: Solve with ``A.mH`` in place of ``A``.
    """
    checks.check_square("linalg.lu_solve", LU, "LU")
    checks.check_matrices("linalg.lu_solve", B, letters="B")
    if not left:  # X A = B is A^H X^H = B^H
        return conjugate(lu_solve(LU, pivots, conjugate(B), adjoint=not adjoint))
    order = _permutation(pivots, rows=LU.shape[-1])
    batch = broadcast_shapes("linalg.lu_solve", LU.shape[:-2], B.shape[:-2])
    if not adjoint:  # P L U X = B
        rows = _rows_in(B, order, batch)
        inner = _solve_triangular(LU, rows, upper=False, unitriangular=True)
        return _solve_triangular(LU, inner, upper=True, unitriangular=False)
    h = conjugate(LU)
    inner = _solve_triangular(h, B, upper=False, unitriangular=False)
    inner = _solve_triangular(h, inner, upper=True, unitriangular=True)
    return _rows_in(inner, order.argsort(-1), batch)


def _rows_in(x, order, batch):
    shape = (*batch, *x.shape[-2:])
    return x.expand(shape).gather(-2, order.unsqueeze(-1).expand(shape))
