"""Cholesky and QR decompositions.

Gradient rules, by source:

- Cholesky: Murray 2016, "Differentiation of the Cholesky decomposition".
- QR: Walter & Lehmann 2012 ("Algorithmic differentiation of linear algebra functions with
  application in optimum experimental design"); wide matrices: Roberts & Roberts 2020, "QR and LQ
  decomposition matrix backpropagation algorithms for square, wide, and deep matrices".

Every rule reads the results alone: the matrix itself is not kept. float16 and bfloat16 are computed
in float32.
"""

from __future__ import annotations

from ...dtypes import int32
from ...spec import Spec
from ..autocast_policy import WIDE_ON_CPU
from ..creation.ranges import arange
from ..manipulation.cat import cat
from ..registry import op
from ..views.as_strided import diag_embed
from . import checks
from .lapack import decomposition, linalg
from .matmul import adjoint, matmul
from .solve import _solve_triangular


def cube(A, *_, **__):
    """FLOPs of a matrix product."""
    return A.numel * min(A.shape[-2:], default=0)


def diagonal_of(x):
    """Return the diagonals of matrices."""
    return x.diagonal(0, -2, -1)


def _withdiagonal_of(x, diagonal):
    # The matrices x with another diagonal.

    return x.tril(-1) + x.triu(1) + diag_embed(diagonal)


def _mirrored(x, upper):
    # The hermitian matrices that have a triangle of x, and the real part of its diagonal.
    if x.is_complex():
        both = x + adjoint(x)
        return _withdiagonal_of(both, diagonal_of(both) * 0.5)
    return x + (x.triu(1) if upper else x.tril(-1)).mT


def total(*terms):
    """Sum the arguments that are not None."""
    found = None
    for t in terms:
        if t is not None:
            found = t if found is None else found + t
    return found


def hermitian(xp, A, part):
    """Build the hermitian matrix given by a triangle of A (in generated tests, by both)."""
    if part == "both":
        return (A + xp.conj(xp.swapaxes(A, -1, -2))) / 2
    if part == "upper":
        return xp.conj(xp.swapaxes(A, -1, -2))
    return A


def symmetric_samples(make):
    """Samples of ops on hermitian matrices."""
    for shape, part in (
        ((3, 3), "both"),
        ((2, 2, 2), "both"),
        ((1, 1), "lower"),
        ((1, 1), "upper"),
        ((0, 0), "both"),
        ((0, 2, 2), "lower"),
    ):
        m = make(*shape) * 0.3
        spread = arange(m.shape[-1]).to(m.dtype)
        yield (_withdiagonal_of(m, diagonal_of(m) + 2.0 + 3.0 * spread),), {"part": part}


# Cholesky


def _cholesky_infer(A, *, part, checked):
    checks.check_square("linalg.cholesky", A)
    return A, Spec(A.shape[:-2], int32)


def _cholesky_samples(make):
    for inputs, attributes in symmetric_samples(make):
        yield inputs, {**attributes, "checked": attributes["part"] == "both"}


def _leading_minor(xp, a):
    # The order of the first leading minor that is not positive.
    for k in range(1, a.shape[-1] + 1):
        try:
            with checks.strict(xp):
                linalg(xp, a).cholesky(a[:k, :k])
        except xp.linalg.LinAlgError:
            return k
    return a.shape[-1]


@op(
    adopt=True,
    returns=("out", "info"),
    infer=_cholesky_infer,
    samples=_cholesky_samples,
    flops=lambda A, **_: A.numel * A.shape[-1] // 3,
    autocast=WIDE_ON_CPU,
)
@decomposition(1 / 3)
def _cholesky(xp, A, *, part, checked):
    """Cholesky decomposition of hermitian positive-definite matrices, with failures."""
    A = hermitian(xp, A, part)
    return checks.attempted(
        xp,
        linalg(xp, A).cholesky,
        [A],
        _leading_minor,
        checked,
        "linalg.cholesky: {where}The factorization could not be completed because the input is not "
        "positive-definite (the leading minor of order {number} is not positive-definite). Add a "
        "multiple of the identity.",
    )


@_cholesky.vjp("A")
def _(g_out, out):
    h = adjoint(out)
    middle = _mirrored(matmul(h, g_out).tril(), False) * 0.5
    left = _solve_triangular(h, middle, upper=True, unitriangular=False)
    return adjoint(_solve_triangular(h, adjoint(left), upper=True, unitriangular=False))


CholeskyEx = checks.named("linalg_cholesky_ex", "L", "info")


def _checked_cholesky(A, upper, checked):
    out, info = _cholesky(A, part="upper" if upper else "lower", checked=checked)
    return adjoint(out) if upper else out, info


@checks.linear_algebra()
def cholesky(A, *, upper=False):
    """Cholesky decomposition: ``A = L @ L.mH`` with lower triangular L.

    Args:
        A: (*, n, n); only one triangle is read.
        upper: Return ``L.mH``, from the upper triangle.

    Raises:
        LinAlgError: A matrix is not positive-definite.

    Memory:
        Keeps the factor. The gradient is hermitian.
    """
    return _checked_cholesky(A, upper, True)[0]


@checks.linear_algebra()
def cholesky_ex(A, *, upper=False, check_errors=False):
    """Like :func:`cholesky`, but ``info`` is the order of the failing minor, not an error.

    Returns:
        The named pair (L, info); NaN where there is no factor.
    """
    return CholeskyEx(*_checked_cholesky(A, upper, check_errors))


# QR


def _qr_infer(A, *, mode):
    checks.check_matrices("linalg.qr", A)
    m, n = A.shape[-2:]
    k = m if mode == "complete" else min(m, n)
    return A.like((*A.shape[:-1], k)), A.like((*A.shape[:-2], k, n))


def _qr_samples(make):
    for shape, mode in (
        ((3, 3), "reduced"),
        ((4, 2), "reduced"),
        ((2, 2, 3), "reduced"),
        ((2, 4), "complete"),
        ((3, 0), "reduced"),
        ((0, 2, 2), "reduced"),
        ((3, 1), "reduced"),
    ):
        yield (make(*shape),), {"mode": mode}


@op(
    adopt=True,
    returns=("q", "r"),
    infer=_qr_infer,
    samples=_qr_samples,
    flops=lambda A, **_: 4 * cube(A),
    autocast=WIDE_ON_CPU,
)
@decomposition(3)
def _qr(xp, A, *, mode):
    """QR decomposition into orthonormal columns and an upper triangle."""
    m, n = A.shape[-2:]
    k = m if mode == "complete" else min(m, n)
    if not A.size:
        q = xp.zeros((*A.shape[:-1], k), dtype=A.dtype)
        if k and q.size:
            xp.add(q, xp.eye(m, k, dtype=A.dtype), out=q)
        return q, xp.zeros((*A.shape[:-2], k, n), dtype=A.dtype)
    return tuple(linalg(xp, A).qr(A, mode=mode))


def _qr_tall(gq, gr, q, r):
    # For r square: gA = (gQ + Q H(gR R^H - Q^H gQ)) R^-H, H(x) = triu(x) + triu(x)^H, its diagonal
    # once.
    middle = total(
        None if gr is None else matmul(gr, adjoint(r)),
        None if gq is None else -matmul(adjoint(q), gq),
    ).triu()
    middle = _mirrored(middle, True)
    inside = total(matmul(q, middle), gq)
    # X R^H = inside, from the other side: R X^H = inside^H.
    return adjoint(_solve_triangular(r, adjoint(inside), upper=True, unitriangular=False))


@_qr.vjp("A")
def _(g_q, g_r, q, r, mode):
    m, n = q.shape[-2], r.shape[-1]
    if m >= n:
        if mode == "complete" and m > n:
            raise RuntimeError(
                "The QR decomposition is not differentiable when mode='complete' and nrows > ncols"
                f"; got {m} by {n}. Use mode='reduced'."
            )
        return _qr_tall(g_q, g_r, q, r)
    # A = [X, Y] with X square: X = Q U, Y = Q V.
    if g_r is None:
        g_left, g_right = None, None
        g_total = g_q
    else:
        g_left, g_right = g_r.narrow(-1, 0, m), g_r.narrow(-1, m, n - m)
        y = matmul(q, r.narrow(-1, m, n - m))
        g_total = total(g_q, matmul(y, adjoint(g_right)))
    left = _qr_tall(g_total, g_left, q, r.narrow(-1, 0, m))
    right = left.new_zeros((*left.shape[:-1], n - m)) if g_right is None else matmul(q, g_right)
    return cat([left, right], -1)


QR = checks.named("linalg_qr", "Q", "R")


@checks.linear_algebra()
def qr(A, mode="reduced"):
    """QR decomposition: ``A = Q @ R``, orthonormal columns in Q and R upper triangular.

    Args:
        A: (*, m, n).
        mode: "reduced": Q is (*, m, k) and R (*, k, n), k = min(m, n). "complete": Q is square.
            "r": only R; Q is empty.

    Returns:
        The named pair (Q, R). Differentiable if the first k columns are independent, and not for
        "complete" with m > n.

    Memory:
        Keeps Q and R.
    """
    if mode not in ("reduced", "complete", "r"):
        raise RuntimeError(
            f"qr received unrecognized mode '{mode}' but expected one of 'reduced' (default), "
            "'r', or 'complete'"
        )
    q, r = _qr(A, mode="reduced" if mode == "r" else mode)
    return QR(q.detach().new_empty((0,)) if mode == "r" else q, r)
