"""Least squares, pseudoinverses, matrix rank.

The gradients are those of Golub & Pereyra 1973, "The differentiation of pseudo-inverses and
nonlinear least squares problems whose variables separate": right wherever the rank is constant.
"""

from __future__ import annotations

import ml_dtypes

from ...dtypes import int64
from ...spec import Spec
from ...tensor import Tensor
from ..autocast_policy import WIDE_ON_CPU
from ..creation.from_data import tensor
from ..indexing.where import where
from ..registry import op
from ..signatures import broadcast_shapes
from .checks import check_matrices, check_square, converging, linear_algebra, named
from .cholesky_qr import cube, hermitian, symmetric_samples
from .eig_svd import eigvalsh, svdvals
from .lapack import decomposition, linalg
from .matmul import adjoint, matmul
from .solve import aligned

# Pseudoinverse


def _pinv_infer(A, atol, rtol, *, part):
    if part is None:
        check_matrices("linalg.pinv", A)
    else:
        check_square("linalg.pinv", A)
    return A.like((*A.shape[:-2], A.shape[-1], A.shape[-2]))


def _pinv_samples(make):
    for shape in ((3, 3), (4, 2), (2, 2, 3), (0, 3), (0, 2, 2)):
        yield (make(*shape), 0.0, 1e-5), {"part": None}
    for (m,), attributes in list(symmetric_samples(make))[:2]:
        yield (m, tensor(0.1), 0.0), attributes


@op(
    adopt=True,
    infer=_pinv_infer,
    samples=_pinv_samples,
    flops=lambda A, *_, **__: 20 * cube(A),
    autocast=WIDE_ON_CPU,
)
@decomposition(20)
def _pinv(xp, A, atol, rtol, *, part):
    """Compute the pseudoinverse from singular values above the tolerance."""
    m, n = A.shape[-2:]
    if not A.size:
        return xp.zeros((*A.shape[:-2], n, m), dtype=A.dtype)
    if part is None:
        u, s, vh = converging(xp, "linalg.svd", linalg(xp, A).svd, A, full_matrices=False)
        size = s
    else:
        s, u = converging(xp, "linalg.eigh", linalg(xp, A).eigh, hermitian(xp, A, part), UPLO="L")
        vh = xp.conj(xp.swapaxes(u, -1, -2))
        size = xp.absolute(s)
    limit = _column(xp, rtol) * xp.max(size, axis=-1, keepdims=True)
    least = xp.maximum(_column(xp, atol) + limit * 0, limit)
    kept = size > least
    weight = xp.where(kept, 1 / xp.where(kept, s, 1), 0).astype(s.dtype)
    v = xp.conj(xp.swapaxes(vh, -1, -2))
    return xp.matmul(v * weight[..., None, :], xp.conj(xp.swapaxes(u, -1, -2)))


def _column(xp, tolerance):
    return tolerance if isinstance(tolerance, int | float) else tolerance[..., None]


@_pinv.vjp("A")
def _(g, A, out, part):
    if part == "both":
        A = (A + adjoint(A)) * 0.5
    elif part is not None:
        A = A.tril() + adjoint(A.tril(-1))
    h, gh = adjoint(out), adjoint(g)
    first = _triple(gh, out, h)  # what leaves the column space
    second = _triple(h, out, gh)  # and the row space
    grad = first - _triple(A, out, first) - _triple(h, g, h)
    grad = grad + second - _triple(second, out, A)
    return grad if part is None else (grad + adjoint(grad)) * 0.5


def _triple(a, b, c):
    # a @ b @ c, where b has the transposed shape of a and c: what is between is as small as can be.
    if a.shape[-2] <= a.shape[-1]:
        return matmul(matmul(a, b), c)
    return matmul(a, matmul(b, c))


def default_rtol(A):
    """Return the default relative tolerance: max(m, n) times machine epsilon."""
    return max(A.shape[-2:]) * float(ml_dtypes.finfo(A.dtype.to_real().np).eps)


def _tolerances(A, atol, rtol):
    # rtol's default is 0 where atol is given and positive.
    if rtol is None:
        rtol = default_rtol(A) if atol is None else _unless_positive(A, atol)
    return 0.0 if atol is None else atol, rtol


def _unless_positive(A, atol):
    if isinstance(atol, Tensor):
        return where(atol > 0, 0.0, default_rtol(A))
    return 0.0 if atol > 0 else default_rtol(A)


@linear_algebra()
def pinv(A, rcond=None, hermitian=False, *, atol=None, rtol=None):
    """Compute the Moore-Penrose pseudoinverse of matrices.

    Args:
        A: (*, m, n).
        rcond: Older name of ``rtol``.
        hermitian: A is; only the lower triangle is read, and eigenvalues take the place of
            singular values.
        atol: Singular values up to this count as zero; a number or a tensor.
        rtol: The same, relative to the largest one; max(m, n) units in the last place if neither
            is given.

    Returns:
        Tensor (*, n, m). Differentiable where the rank is constant.

    Memory:
        Keeps ``A`` and the result.
    """
    check_matrices("linalg.pinv", A)
    atol, rtol = _tolerances(A, atol, rcond if rtol is None else rtol)
    return _pinv(A, atol, rtol, part="lower" if hermitian else None)


@linear_algebra()
def matrix_rank(A, tol=None, hermitian=False, *, atol=None, rtol=None):
    """Count the singular values above a tolerance: those of :func:`pinv`; ``tol`` is ``atol``.

    Returns:
        int64 Tensor (*).
    """
    check_matrices("linalg.matrix_rank", A)
    if tol is not None:
        atol, rtol = tol, 0.0
    atol, rtol = _tolerances(A, atol, rtol)
    A = A.detach()
    sizes = eigvalsh(A, UPLO="L").abs() if hermitian else svdvals(A)
    if not sizes.shape[-1]:
        return sizes.sum(-1).to(int64)
    limit = sizes.amax(-1) * rtol
    limit = limit.maximum(atol) if isinstance(atol, Tensor) else where(limit > atol, limit, atol)
    return (sizes > limit.unsqueeze(-1)).sum(-1)


# Solution


def _lstsq_infer(A, B, *, rcond):
    check_matrices("linalg.lstsq", A, B)
    if A.shape[-2] != B.shape[-2]:
        raise RuntimeError(
            f"linalg.lstsq: input.size(-2) should match other.size(-2); got A {tuple(A.shape)} "
            f"and B {tuple(B.shape)}. Transpose one."
        )
    batch = broadcast_shapes("linalg.lstsq", A.shape[:-2], B.shape[:-2])
    return A.like((*batch, A.shape[-1], B.shape[-1])), Spec(batch, int64)


def _lstsq_samples(make):
    for a, b, rcond in (
        ((4, 2), (4, 3), 1e-5),
        ((2, 3), (2, 1), 1e-4),
        ((2, 3, 3), (2, 3, 2), 1e-5),
        ((0, 2), (0, 1), 1e-5),
    ):
        yield (make(*a), make(*b)), {"rcond": rcond}


@op(
    adopt=True,
    promote="same",
    returns=("out", "rank"),
    infer=_lstsq_infer,
    samples=_lstsq_samples,
    flops=lambda A, *_, **__: 14 * cube(A),
)
@decomposition(20)
def _lstsq(xp, A, B, *, rcond):
    """Compute the minimum-norm least squares solution X, and the rank of A."""
    a, b = aligned(xp, A, B)
    batch, n, real = a.shape[:-2], a.shape[-1], xp.real(a).dtype
    if not a.size:
        out = xp.zeros((*batch, n, b.shape[-1]), dtype=a.dtype)
        return out, xp.zeros(batch, dtype="int64")
    u, s, vh = converging(xp, "linalg.svd", linalg(xp, a).svd, a, full_matrices=False)
    kept = s > rcond * xp.max(s, axis=-1, keepdims=True)
    weight = xp.where(kept, 1 / xp.where(kept, s, 1), 0).astype(real)
    inner = xp.matmul(xp.conj(xp.swapaxes(u, -1, -2)), b)
    inner = inner * weight[..., None]
    return xp.matmul(xp.conj(xp.swapaxes(vh, -1, -2)), inner), xp.sum(kept, axis=-1)


@_lstsq.vjp("A", "B")
def _(g_out, needs, A, B, out, rcond):
    inverse = _pinv(A, 0.0, rcond, part=None)
    h = adjoint(inverse)
    gB = matmul(h, g_out)
    if not needs[0]:
        return None, gB
    residual = B - matmul(A, out)
    gA = matmul(residual, adjoint(matmul(inverse, gB))) - matmul(gB, adjoint(out))
    beside = g_out - matmul(inverse, matmul(A, g_out))
    gA = gA + matmul(matmul(h, out), adjoint(beside))
    return gA, gB if needs[1] else None


LeastSquares = named("linalg_lstsq", "solution", "residuals", "rank", "singular_values")


@linear_algebra(autocast=WIDE_ON_CPU)
def lstsq(A, B, rcond=None, *, driver=None):
    """Solve ``A @ X = B`` in the least squares sense; the minimum-norm X if not unique.

    Args:
        A: (*, m, n).
        B: (*, m, k), or (*, m) for a batch of vectors.
        rcond: Singular values up to ``rcond`` times the largest count as zero; None: max(m, n)
            units in the last place.
        driver: "gels", "gelsy" (the default), "gelsd" or "gelss": which of the results PyTorch
            fills. The computation is the same, by singular values.

    Returns:
        The named tuple (solution, residuals, rank, singular_values). Residuals are empty for
        "gelsy", with m <= n, or if a matrix has not full rank; rank for "gels"; singular values
        but for "gelsd" and "gelss".

    Memory:
        Keeps ``A``, ``B`` and the solution.
    """
    if driver not in (None, "gels", "gelsy", "gelsd", "gelss"):
        raise RuntimeError(
            "linalg.lstsq: parameter `driver` should be one of (gels, gelsy, gelsd, gelss); got "
            f"{driver!r}."
        )
    check_matrices("linalg.lstsq", A)
    vector = A.ndim - 1 == B.ndim and tuple(A.shape[:-1]) == tuple(B.shape)
    matrix = B.unsqueeze(-1) if vector else B
    tolerance = default_rtol(A) if rcond is None else float(rcond)
    solution, rank = _lstsq(A, matrix, rcond=tolerance)
    m, n = A.shape[-2:]
    driver = driver or "gelsy"
    nothing = solution.reshape(-1).narrow(0, 0, 0)  # in the graph, as PyTorch's
    residuals = (nothing.real if A.is_complex() else nothing).clone()
    full = driver == "gels" or (m > n and A.device.type != "meta" and bool((rank == n).all()))
    if driver != "gelsy" and m > n and full:
        residuals = (matmul(A, solution) - matrix).abs().square().sum(-2)
    return LeastSquares(
        solution.squeeze(-1) if vector else solution,
        residuals,
        rank if driver != "gels" else rank.new_empty((0,)),
        svdvals(A.detach()) if driver in ("gelsd", "gelss") else residuals.detach().new_empty((0,)),
    )
