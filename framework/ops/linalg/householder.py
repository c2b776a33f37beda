"""Householder reflections: packed QR (geqrf), and products with Q.

A product of reflections ``I - t v v^H`` is one matrix ``I - V T V^H`` with a triangular T
(Schreiber & Van Loan 1989, "A storage-efficient WY representation for products of Householder
transformations"): ``T = (I + D S)^-1 D``, D the factors t and S what of ``V^H V`` lies above the
diagonal. So all here but the factorization is a composition of products and one triangular system,
and its gradients are theirs.
"""

from __future__ import annotations

from math import prod

from ..autocast_policy import WIDE_ON_CPU
from ..creation.ranges import eye
from ..random.draw import randn
from ..registry import op
from ..views.as_strided import diag_embed
from .checks import check_matrices, linear_algebra
from .cholesky_qr import cube, qr
from .eig_svd import svd
from .lapack import decomposition, linalg
from .matmul import adjoint, matmul
from .solve import _solve_triangular


def _geqrf_infer(input):
    check_matrices("geqrf", input)
    return input, input.like((*input.shape[:-2], min(input.shape[-2:])))


def _geqrf_samples(make):
    for shape in ((3, 3), (2, 4, 2), (2, 3), (0, 2), (0, 2, 2)):
        yield (make(*shape),), {}


@op(
    returns=("a", "tau"),
    adopt=True,
    infer=_geqrf_infer,
    samples=_geqrf_samples,
    flops=lambda input: 2 * cube(input),
    autocast=WIDE_ON_CPU,
)
@decomposition()
def geqrf(xp, input):
    """Compute the packed QR decomposition: R on and above the diagonal, reflections below.

    Returns:
        The pair (a, tau), as LAPACK packs them; :func:`linalg.householder_product` makes Q of it.
        Not differentiable: :func:`linalg.qr` is.
    """
    m, n = input.shape[-2:]
    count = prod(input.shape[:-2])
    out = xp.empty((count, m, n), dtype=input.dtype)
    tau = xp.empty((count, min(m, n)), dtype=input.dtype)
    if input.size:
        for k, matrix in enumerate(input.reshape(count, m, n)):
            packed, tau[k] = linalg(xp, matrix).qr(matrix, mode="raw")
            out[k] = packed.T
    return out.reshape(input.shape), tau.reshape(*input.shape[:-2], min(m, n))


def _vectors(A, tau):
    # V with ones on its diagonal, and T.

    m, k = A.shape[-2], tau.shape[-1]
    one = eye(m, k, dtype=A.dtype, device=A.device)
    v = A.narrow(-1, 0, k).tril(-1) + one
    above = matmul(adjoint(v), v).triu(1)
    system = tau.unsqueeze(-1) * above
    return v, _solve_triangular(system, diag_embed(tau), upper=True, unitriangular=True)


def _check(name, A, tau):
    check_matrices(name, A)
    m, n = A.shape[-2:]
    k = tau.shape[-1] if tau.ndim else -1
    if not n >= k >= 0 or tuple(tau.shape[:-1]) != tuple(A.shape[:-2]):
        raise RuntimeError(
            f"{name}: tau holds at most one factor for each column of the matrices; got tau "
            f"{tuple(tau.shape)} for {tuple(A.shape)}. Pass both results of geqrf."
        )
    if tau.dtype is not A.dtype:
        raise RuntimeError(
            f"{name}: tau must have the dtype of the matrices; got {tau.dtype} and {A.dtype}."
        )
    return m, n


@linear_algebra(autocast=WIDE_ON_CPU)
def householder_product(A, tau):
    """Multiply reflections: the first n columns of ``(I - tau[0] v0 v0^H) (I - tau[1] ...) ...``.

    Args:
        A: (*, m, n), m >= n; below the diagonal of column i lies what of v_i follows its leading 1.
        tau: (*, k), k <= n.

    Returns:
        Tensor (*, m, n) with orthonormal columns, if ``A`` and ``tau`` are of :func:`geqrf`.

    Memory:
        Keeps V, T and their product.
    """
    m, n = _check("linalg.householder_product", A, tau)
    if m < n:
        raise RuntimeError(
            "linalg.householder_product: input.shape[-2] must be greater than or equal to "
            f"input.shape[-1]; got {tuple(A.shape)}. Slice its columns."
        )
    one = eye(m, n, dtype=A.dtype, device=A.device)
    if not tau.shape[-1]:
        return A * 0 + one
    v, t = _vectors(A, tau)
    return one - matmul(matmul(v, t), adjoint(v.narrow(-2, 0, n)))


@linear_algebra(method=True, public=True, autocast=WIDE_ON_CPU)
def orgqr(input, input2):
    """Same as :func:`linalg.householder_product`, under LAPACK's name."""
    return householder_product(input, input2)


@linear_algebra(method=True, public=True, autocast=WIDE_ON_CPU)
def ormqr(input, input2, input3, left=True, transpose=False):
    """Multiply by the Q of Householder reflections without forming it.

    Args:
        input: (*, m, k), as in :func:`linalg.householder_product`.
        input2: The factors of the reflections, (*, min(m, k)).
        input3: The matrix, (*, m, n) with ``left``, else (*, n, m).
        left: ``Q @ input3``; else ``input3 @ Q``.
        transpose: Take the adjoint of Q.

    Returns:
        Tensor of the shape of ``input3``.
    """
    tau, other = input2, input3
    m, _ = _check("ormqr", input, tau)
    check_matrices("ormqr", other, letters="B")
    if other.shape[-2 if left else -1] != m or tuple(other.shape[:-2]) != tuple(input.shape[:-2]):
        raise RuntimeError(
            f"ormqr: input3.shape[{-2 if left else -1}] must be equal to input.shape[-2], and the "
            f"batch dimensions equal; got {tuple(other.shape)} and {tuple(input.shape)}."
        )
    v, t = _vectors(input, tau)
    t = adjoint(t) if transpose else t
    if left:
        return other - matmul(v, matmul(t, matmul(adjoint(v), other)))
    return other - matmul(matmul(matmul(other, v), t), adjoint(v))


# Few singular values, by random projection


@linear_algebra(public=True)
def svd_lowrank(A, q=6, niter=2, M=None):
    """Compute an approximate low-rank SVD by random projection.

    Args:
        A: (*, m, n).
        q: How many; a few more than wanted make them better.
        niter: Power iterations, each of which sharpens the subspace.
        M: Subtracted from ``A`` first, broadcasting.

    Returns:
        The tuple (U, S, V): (*, m, q), (*, q), (*, n, q).

    Source:
        Halko, Martinsson, Tropp: "Finding structure with randomness", 2009, algorithm 5.1.
    """
    check_matrices("svd_lowrank", A)
    A = A if M is None else A - M
    m, n = A.shape[-2:]
    wide = m < n
    if wide:
        A = adjoint(A)
    if not 0 <= q <= min(m, n):
        raise ValueError(f"svd_lowrank: q must be in [0, {min(m, n)}]; got {q}.")
    if niter < 0:
        raise ValueError(f"svd_lowrank: niter must be non-negative; got {niter}.")
    start = randn(A.shape[-1], q, dtype=A.dtype, device=A.device)
    basis = qr(matmul(A, start))[0]
    for _ in range(niter):
        basis = qr(matmul(adjoint(A), basis))[0]
        basis = qr(matmul(A, basis))[0]
    u, s, vh = svd(matmul(adjoint(basis), A), full_matrices=False)
    u, v = matmul(basis, u), adjoint(vh)
    return (v, s, u) if wide else (u, s, v)


@linear_algebra(public=True)
def pca_lowrank(A, q=None, center=True, niter=2):
    """Compute approximate principal components: :func:`svd_lowrank` of centered columns.

    Args:
        A: (*, m, n), m observations of n variables.
        q: How many components; by default min(6, m, n).
        center: Subtract the mean of each column first.
        niter: Power iterations.

    Returns:
        The tuple (U, S, V): V (*, n, q) has the components.
    """
    check_matrices("pca_lowrank", A)
    m, n = A.shape[-2:]
    q = min(6, m, n) if q is None else q
    if not 0 <= q <= min(m, n):
        raise ValueError(
            f"q(={q}) must be non-negative integer and not greater than min(m, n)={min(m, n)}"
        )
    if niter < 0:
        raise ValueError(f"niter(={niter}) must be non-negative integer")
    return svd_lowrank(A - A.mean(-2, keepdim=True) if center else A, q, niter)
