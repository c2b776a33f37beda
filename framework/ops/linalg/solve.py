"""Linear systems: inverse, solve, triangular solve.

The array library allocates the results. A failing matrix raises :class:`~..errors.LinAlgError`; the
``_ex`` forms say which one failed instead. float16 and bfloat16 are computed in float32.

The gradients of inverse and solution are those of Giles 2008, "An extended collection of matrix
derivative results for forward and reverse mode algorithmic differentiation". A solution keeps the
matrix and itself, an inverse only itself.
"""

from __future__ import annotations

from ...dtypes import int32
from ...kernels.common.layout import worth_compiling
from ...kernels.cpu.linalg import lapack
from ...kernels.runtime import threads
from ...spec import Spec
from ...tensor import Tensor
from ..autocast_policy import WIDE_ON_CPU
from ..registry import op
from ..signatures import broadcast_shapes
from . import checks
from .lapack import decomposition, linalg, scipys
from .matmul import adjoint, matmul

_LARGEST = 8  # size of matrices up to which a loop of ours is faster than calls of LAPACK


def small(A, *others, **_):
    """True for large stacks of small real matrices with one batch shape."""
    alike = all(A.shape[:-2] == b.shape[:-2] for b in others)
    return alike and A.ndim > 2 and 0 < A.shape[-1] <= _LARGEST and worth_compiling(A)


def in_stacks(run, *arrays):
    """Call a compiled loop on stacks of numbers or matrices, reshaped to (n, k, count)."""
    count = arrays[0].shape[-1]
    threads.parallel_for(lambda first, last: run(*arrays, first, last), 64 * count, count)


def stacked(array):
    """Reshape a stack of matrices to (n, k, count)."""
    return array.reshape(-1, *array.shape[-2:]).transpose(1, 2, 0)


def _eliminated(xp, A, B, checked, message):
    # Solve for B, or invert without one; as ``attempted`` does.
    from ...kernels.cpu.linalg import small_lu

    out = xp.empty((A if B is None else B).shape, dtype=A.dtype)
    info = xp.empty(A.shape[:-2], dtype="int32")
    b = stacked(A if B is None else B)
    in_stacks(small_lu.solutions, info.reshape(-1), stacked(out), stacked(A), b, B is None)
    if checked and info.any():
        checks.raise_first(info, message)
    return out, info


# Inverse


def _inv_infer(A, *, checked):
    checks.check_square("linalg.inv", A)
    return A, Spec(A.shape[:-2], int32)


def _cube(A, *_, **__):
    return 2 * A.numel * A.shape[-1]


def _inv_samples(make):
    for shape in ((3, 3), (2, 2, 2), (1, 1), (0, 0), (0, 2, 2)):
        yield (checks.conditioned(make, *shape),), {"checked": len(shape) > 2}


_NO_INVERSE = (
    "linalg.inv: {where}The diagonal element {number} is zero, the inversion could not be "
    "completed because the input matrix is singular. Use linalg.pinv."
)


@op(
    adopt=True,
    returns=("out", "info"),
    infer=_inv_infer,
    flops=_cube,
    samples=_inv_samples,
    autocast=WIDE_ON_CPU,
)
@decomposition(2)
def _inv(xp, A, *, checked):
    """Invert matrices, and report singular ones."""
    return checks.attempted(xp, linalg(xp, A).inv, [A], checks.zero_pivot, checked, _NO_INVERSE)


@_inv.kernel("cpu", when=small)
def _(xp, A, *, checked):
    return _eliminated(xp, A, None, checked, _NO_INVERSE)


def invert_small(xp, A):
    """Invert a stack for which :func:`small` is true; NaN where a matrix is singular."""
    return _eliminated(xp, A, None, False, _NO_INVERSE)[0]


@_inv.vjp("A")
def _(g_out, out):
    h = adjoint(out)
    return -matmul(h, matmul(g_out, h))


Inverse = checks.named("linalg_inv_ex", "inverse", "info")


@checks.linear_algebra()
def inv(A):
    """Invert square matrices (*, n, n).

    Raises:
        LinAlgError: One is singular.

    Memory:
        Keeps the inverse.
    """
    return _inv(A, checked=True)[0]


@checks.linear_algebra()
def inv_ex(A, *, check_errors=False):
    """Invert square matrices; ``info`` is the first zero pivot (from 1) where one is singular.

    Returns:
        The named pair (inverse, info); the inverse of a singular matrix is NaN.
    """
    return Inverse(*_inv(A, checked=check_errors))


# Solution


def _solve_infer(A, B, *, checked):
    checks.check_square("linalg.solve", A)
    checks.check_matrices("linalg.solve", B, letters="B")
    m, k = B.shape[-2:]
    n = A.shape[-1]
    if n != m:
        raise RuntimeError(
            f"linalg.solve: Incompatible shapes of A and B for the equation AX = B ({n}x{n} and "
            f"{m}x{k}). Transpose or reshape B; for XA = B pass left=False."
        )
    batch = broadcast_shapes("linalg.solve", A.shape[:-2], B.shape[:-2])
    return Spec((*batch, m, k), A.dtype), Spec(batch, int32)


def _solve_flops(A, B, **_):
    n = A.shape[-1]
    return A.numel * n * 2 // 3 + 2 * B.numel * n


def _solve_samples(make):
    for a, b in (
        ((3, 3), (3, 2)),
        ((2, 3, 3), (2, 3, 1)),
        ((2, 2), (4, 2, 3)),
        ((2, 1, 2, 2), (3, 2, 1)),
        ((0, 0), (0, 2)),
        ((3, 3), (3, 0)),
    ):
        yield (checks.conditioned(make, *a), make(*b)), {"checked": len(a) > 2}


def aligned(xp, a, b):
    """Expand two stacks of matrices to one batch shape, for CuPy."""
    if a.shape[:-2] == b.shape[:-2]:
        return a, b
    batch = broadcast_shapes("linalg", a.shape[:-2], b.shape[:-2])
    return (
        xp.broadcast_to(a, (*batch, *a.shape[-2:])),
        xp.broadcast_to(b, (*batch, *b.shape[-2:])),
    )


_NO_SOLUTION = (
    "linalg.solve: {where}The solver failed because the input matrix is singular (pivot "
    "{number} is zero). Use linalg.lstsq."
)


@op(
    adopt=True,
    returns=("out", "info"),
    promote="same",
    infer=_solve_infer,
    flops=_solve_flops,
    samples=_solve_samples,
    autocast=WIDE_ON_CPU,
)
@decomposition(1)
def _solve(xp, A, B, *, checked):
    """Solve ``A @ X = B`` for matrices, and report singular ones."""
    a, b = aligned(xp, A, B)
    if not b.size:
        return xp.zeros(b.shape, dtype=b.dtype), checks.no_failure(xp, b.shape[:-2])
    solver = linalg(xp, A).solve
    return checks.attempted(xp, solver, [a, b], checks.zero_pivot, checked, _NO_SOLUTION)


@_solve.kernel("cpu", when=lambda A, B, **_: B.shape[-1] > 0 and small(A, B))
def _(xp, A, B, *, checked):
    return _eliminated(xp, A, B, checked, _NO_SOLUTION)


@_solve.vjp("A", "B")
def _(g_out, needs, A, out):
    gB = _solve(adjoint(A), g_out, checked=False)[0]
    return matmul(-gB, adjoint(out)) if needs[0] else None, gB if needs[1] else None


Solution = checks.named("linalg_solve_ex", "result", "info")


def _is_vector(A, B):
    return B.ndim == 1 or (A.ndim - 1 == B.ndim and tuple(B.shape) == tuple(A.shape[:-1]))


def _checked_solve(A, B, left, checked):
    checks.check_square("linalg.solve", A)
    if not isinstance(B, Tensor):
        checks.check_matrices("linalg.solve", B, letters="B")
    if _is_vector(A, B):
        if not left:
            raise RuntimeError(
                "linalg.solve: Vector broadcasting of the right hand side is not supported for "
                "left=False. Use linalg.solve(A.mT, B)."
            )
        result, info = _solve(A, B.unsqueeze(-1), checked=checked)
        return result.squeeze(-1), info
    if left:
        return _solve(A, B, checked=checked)
    result, info = _solve(A.mT, B.mT, checked=checked)
    return result.mT, info


@checks.linear_algebra()
def solve(A, B, *, left=True):
    """Solve ``A @ X = B``, or ``X @ A = B`` with ``left=False``.

    Args:
        A: (*, n, n).
        B: (*, n, k), batch dimensions broadcasting; or (*, n) or (n,), a vector for each matrix.
        left: On which side of X the matrix stands.

    Raises:
        LinAlgError: A matrix is singular.
        RuntimeError: The shapes do not fit.

    Memory:
        Keeps ``A`` and the solution.
    """
    return _checked_solve(A, B, left, True)[0]


@checks.linear_algebra()
def solve_ex(A, B, *, left=True, check_errors=False):
    """Do what :func:`solve` does; ``info`` counts the first zero pivot instead of an error.

    Returns:
        The named pair (result, info); NaN where a matrix is singular.
    """
    return Solution(*_checked_solve(A, B, left, check_errors))


# Triangular systems


def _triangular_infer(A, B, *, upper, unitriangular):
    checks.check_square("linalg.solve_triangular", A)
    checks.check_matrices("linalg.solve_triangular", B, letters="B")
    m, k = B.shape[-2:]
    n = A.shape[-1]
    if n != m:
        raise RuntimeError(
            f"linalg.solve_triangular: Incompatible shapes of A and B for the equation AX = B "
            f"({n}x{n} and {m}x{k}). Transpose B, or pass left=False for XA = B."
        )
    batch = broadcast_shapes("linalg.solve_triangular", A.shape[:-2], B.shape[:-2])
    return Spec((*batch, m, k), A.dtype)


def _triangular_samples(make):
    for a, b, upper, unit in (
        ((3, 3), (3, 2), True, False),
        ((3, 3), (2, 3, 2), False, False),
        ((2, 3, 3), (2, 3, 1), True, True),
        ((2, 2), (2, 2), False, True),
        ((0, 0), (0, 2), True, False),
    ):
        yield (checks.conditioned(make, *a), make(*b)), {"upper": upper, "unitriangular": unit}


@op(
    adopt=True,
    promote="same",
    infer=_triangular_infer,
    samples=_triangular_samples,
    flops=lambda A, B, **_: B.numel * A.shape[-1],
)
def _solve_triangular(xp, A, B, *, upper, unitriangular):
    """Solve ``A @ X = B`` for triangular matrices; the other triangle is not read."""
    a, b = aligned(xp, A, B)
    if not b.size:
        return xp.zeros(b.shape, dtype=b.dtype)
    a = (xp.triu if upper else xp.tril)(a, (1 if upper else -1) if unitriangular else 0)
    if unitriangular:
        xp.add(a, xp.eye(a.shape[-1], dtype=a.dtype), out=a)
    return linalg(xp, a).solve(a, b)


@_solve_triangular.kernel("cpu")
@decomposition()
def _(xp, A, B, *, upper, unitriangular):
    a, b = aligned(xp, A, B)
    out = xp.array(b, order="C")
    if not b.size:
        return out
    n, k = b.shape[-2:]
    flat = out.reshape(-1, n, k)
    triangles = a if a.ndim == 2 else a.reshape(-1, n, n)
    if a.ndim > 2 and n <= _SMALL and len(flat) >= _MANY:
        step = max(_MANY, _TILE // (n * max(n, k)))
        for start in range(0, len(flat), step):
            stop = start + step
            _substitute(xp, triangles[start:stop], flat[start:stop], upper, unitriangular)
        return out
    if lapack.available():
        lapack.solve_triangular(triangles, flat, upper, unitriangular)
        return out
    trsm = scipys("trsm", b)
    for i, rhs in enumerate(flat):
        # BLAS reads columns first: A X = B is X^T A^T = B^T, which it writes where B was.
        t = triangles if triangles.ndim == 2 else triangles[i]
        trsm(1.0, t.T, rhs.T, side=1, lower=upper, diag=unitriangular, overwrite_b=1)
    return out


_SMALL, _MANY = 10, 16  # sizes up to which, and counts from which, a stack is solved in step
_TILE = 1 << 13  # elements of it at a time: what it is moved into stays in the first caches


def _substitute(xp, a, x, upper, unit):
    # All matrices of a stack at once, an unknown after the other; in place. A call of BLAS for each
    # takes longer than its work.
    count, n, k = x.shape
    t, y, tmp = (xp.empty((n, m, count), dtype=x.dtype) for m in (n, k, k))
    xp.copyto(t, a.transpose(1, 2, 0))
    xp.copyto(y, x.transpose(1, 2, 0))
    for i in range(n - 1, -1, -1) if upper else range(n):
        if not unit:
            xp.divide(y[i], t[i, i], out=y[i])
        rest = slice(0, i) if upper else slice(i + 1, n)
        xp.multiply(t[rest, i, None], y[i], out=tmp[rest])
        xp.subtract(y[rest], tmp[rest], out=y[rest])
    xp.copyto(x, y.transpose(2, 0, 1))


def _triangle(x, upper, unit):
    return x.triu(1 if unit else 0) if upper else x.tril(-1 if unit else 0)


@_solve_triangular.vjp("A", "B")
def _(g, needs, A, out, upper, unitriangular):
    gB = _solve_triangular(adjoint(A), g, upper=not upper, unitriangular=unitriangular)
    gA = _triangle(matmul(-gB, adjoint(out)), upper, unitriangular) if needs[0] else None
    return gA, gB if needs[1] else None


@checks.linear_algebra()
def solve_triangular(A, B, *, upper, left=True, unitriangular=False):
    """Solve ``A @ X = B``, or ``X @ A = B`` with ``left=False``, for triangular ``A``.

    Args:
        A: (*, n, n); only the triangle in question is read.
        B: (*, n, k), or (*, k, n) with ``left=False``; batch dimensions broadcast.
        upper: Which triangle.
        left: On which side of X the matrix stands.
        unitriangular: The diagonal is taken to be 1, and not read.

    Returns:
        X, in the broadcast shape. A zero on the diagonal gives inf or NaN.

    Memory:
        Keeps ``A`` and the solution.
    """
    if left:
        return _solve_triangular(A, B, upper=upper, unitriangular=unitriangular)
    checks.check_square("linalg.solve_triangular", A)
    checks.check_matrices("linalg.solve_triangular", B, letters="B")
    return _solve_triangular(A.mT, B.mT, upper=not upper, unitriangular=unitriangular).mT
