"""Singular value and eigenvalue decompositions.

Gradient rules, by source:

- Singular values: Townsend 2016, "Differentiating the singular value decomposition".
- Eigenvalues: Giles 2008, "An extended collection of matrix derivative results"; Seeger et al.
  2017, "Auto-differentiating linear algebra".
- The phases of complex vectors: Wan & Zhang 2019, "Automatic differentiation for complex valued
  SVD".

The gradients of vectors are finite only if the singular values or eigenvalues differ, and mean
something only for functions that no sign or phase of a vector changes. Every rule reads the results
alone: the matrix itself is not kept. float16 and bfloat16 are computed in float32.
"""

from __future__ import annotations

from ..autocast_policy import WIDE_ON_CPU
from ..creation.ranges import eye
from ..functions import recorded
from ..registry import op
from ..views.as_strided import diag_embed
from .checks import check_matrices, check_square, converging, linear_algebra, named
from .cholesky_qr import cube, diagonal_of, hermitian, symmetric_samples, total
from .lapack import decomposition, linalg
from .matmul import adjoint, matmul
from .solve import _solve

# Singular values


def _svd_infer(A, *, full_matrices):
    check_matrices("linalg.svd", A)
    m, n = A.shape[-2:]
    k = min(m, n)
    real = A.dtype.to_real()
    u = A.like((*A.shape[:-1], m if full_matrices else k))
    v = A.like((*A.shape[:-2], n if full_matrices else k, n))
    return u, A.like((*A.shape[:-2], k), real), v


def _svd_samples(make):
    for shape, full in (
        ((3, 3), False),
        ((3, 2), False),
        ((2, 2, 3), False),
        ((2, 2), True),
        ((1, 3), False),
        ((0, 2), False),
        ((0, 2, 2), False),
    ):
        m = make(*shape)
        rows, columns = m.shape[-2:]
        stretch = eye(rows, columns, dtype=m.dtype).cumsum(-1).tril().triu()
        for j in range(min(rows, columns)):
            stretch[j, j] = 1.5 * j + 1.0
        yield (m * 0.3 + 2.0 * stretch,), {"full_matrices": full}


@op(
    adopt=True,
    returns=("u", "s", "vh"),
    infer=_svd_infer,
    samples=_svd_samples,
    flops=lambda A, **_: 14 * cube(A),
    autocast=WIDE_ON_CPU,
)
@decomposition(20)
def _svd(xp, A, *, full_matrices):
    """Singular value decomposition, with singular values in descending order."""
    if A.size:
        return tuple(
            converging(xp, "linalg.svd", linalg(xp, A).svd, A, full_matrices=full_matrices)
        )
    m, n = A.shape[-2:]
    k, batch = min(m, n), A.shape[:-2]
    u = xp.zeros((*batch, m, m if full_matrices else k), dtype=A.dtype)
    v = xp.zeros((*batch, n if full_matrices else k, n), dtype=A.dtype)
    for x in (u, v):
        if x.size:
            xp.add(x, xp.eye(*x.shape[-2:], dtype=A.dtype), out=x)
    return u, xp.zeros((*batch, k), dtype=xp.real(A).dtype), v


def _skew(x):
    return x - adjoint(x)


def _gaps(values, diagonal):
    # values_j - values_i at (i, j), and something harmless on the diagonal.

    e = values.unsqueeze(-2) - values.unsqueeze(-1)
    return e + diag_embed(values.detach() * 0 + diagonal)


@_svd.vjp("A")
def _(g_u, g_s, g_vh, u, s, vh):
    m, n, k = u.shape[-2], vh.shape[-1], s.shape[-1]
    # Of the complete bases only the first k vectors are functions of A.
    u, vh = u.narrow(-1, 0, k), vh.narrow(-2, 0, k)
    g_u = None if g_u is None else g_u.narrow(-1, 0, k)
    g_vh = None if g_vh is None else g_vh.narrow(-2, 0, k)
    inner = None if g_s is None else diag_embed(g_s.to(u.dtype))
    if g_u is not None or g_vh is not None:
        gaps = _gaps(s * s, 1.0)
        row, column = s.unsqueeze(-2), s.unsqueeze(-1)
        from_u = None if g_u is None else matmul(adjoint(u), g_u)
        from_v = None if g_vh is None else matmul(vh, adjoint(g_vh))
        left = None if from_u is None else _skew(from_u) / gaps * row
        right = None if from_v is None else column * (_skew(from_v) / gaps)
        inner = total(inner, _hollow(left), _hollow(right))
        if u.is_complex() and from_u is not None:  # the phase that u and v share
            inner = inner + diag_embed(_skew_diagonal(from_u) / (2 * s))
    out = matmul(u, inner)
    if m > k and g_u is not None:
        out = out + (g_u - matmul(u, matmul(adjoint(u), g_u))) / s.unsqueeze(-2)
    out = matmul(out, vh)
    if n > k and g_vh is not None:
        beside = g_vh - matmul(matmul(g_vh, adjoint(vh)), vh)
        out = out + matmul(u, beside / s.unsqueeze(-1))
    return out


def _hollow(x):
    return None if x is None else x.tril(-1) + x.triu(1)


def _skew_diagonal(x):
    d = diagonal_of(x)
    return d - d.conj()


@op(
    adopt=True,
    infer=lambda A: _svd_infer(A, full_matrices=False)[1],
    samples=lambda make: ((inputs, {}) for inputs, _ in _svd_samples(make)),
    flops=lambda A: 3 * cube(A),
    autocast=WIDE_ON_CPU,
)
@decomposition(4)
def _svdvals(xp, A):
    """Compute singular values in descending order, without gradient."""
    if not A.size:
        shape = (*A.shape[:-2], min(A.shape[-2:]))
        return xp.zeros(shape, dtype=xp.real(A).dtype)
    return converging(xp, "linalg.svd", linalg(xp, A).svd, A, compute_uv=False)


SVD = named("linalg_svd", "U", "S", "Vh")


@linear_algebra()
def svd(A, full_matrices=True, *, driver=None):
    """Singular value decomposition: ``A = U @ diag(S) @ Vh``.

    Args:
        A: (*, m, n).
        full_matrices: U and Vh are square; else U is (*, m, k) and Vh (*, k, n), k = min(m, n).
        driver: Accepted for PyTorch's sake.

    Returns:
        The named tuple (U, S, Vh); S in falling order.

    Memory:
        Keeps all three.
    """
    return SVD(*_svd(A, full_matrices=bool(full_matrices)))


@linear_algebra()
def svdvals(A, *, driver=None):
    """Compute singular values in descending order.

    Memory:
        Keeps singular vectors if a gradient is wanted, else none are computed.
    """
    return _svd(A, full_matrices=False)[1] if recorded(A) else _svdvals(A)


# Eigenvalues of hermitian matrices


def _eigh_infer(A, *, part):
    check_square("linalg.eigh", A)
    return A.like(A.shape[:-1], A.dtype.to_real()), A


@op(
    adopt=True,
    returns=("values", "vectors"),
    infer=_eigh_infer,
    samples=symmetric_samples,
    flops=lambda A, **_: 9 * cube(A),
    autocast=WIDE_ON_CPU,
)
@decomposition(9)
def _eigh(xp, A, *, part):
    """Eigenvalues, ascending, and orthonormal eigenvectors of hermitian matrices."""
    if not A.size:
        return xp.zeros(A.shape[:-1], dtype=xp.real(A).dtype), xp.zeros(A.shape, dtype=A.dtype)
    return tuple(
        converging(xp, "linalg.eigh", linalg(xp, A).eigh, hermitian(xp, A, part), UPLO="L")
    )


@_eigh.vjp("A")
def _(g_values, g_vectors, values, vectors):
    h = adjoint(vectors)
    inner = None if g_values is None else diag_embed(g_values.to(vectors.dtype))
    if g_vectors is not None:
        turned = matmul(h, g_vectors) / _gaps(values, 1.0)
        turned = _hollow(turned)
        inner = total(inner, (turned + adjoint(turned)) * 0.5)
    return matmul(matmul(vectors, inner), h)


@op(
    adopt=True,
    infer=lambda A, *, part: _eigh_infer(A, part=part)[0],
    samples=symmetric_samples,
    flops=lambda A, **_: 2 * cube(A),
    autocast=WIDE_ON_CPU,
)
@decomposition(2)
def _eigvalsh(xp, A, *, part):
    """Compute eigenvalues of hermitian matrices, ascending, without gradient."""
    if not A.size:
        return xp.zeros(A.shape[:-1], dtype=xp.real(A).dtype)
    return converging(xp, "linalg.eigh", linalg(xp, A).eigvalsh, hermitian(xp, A, part), UPLO="L")


Eigh = named("linalg_eigh", "eigenvalues", "eigenvectors")


def _part(UPLO):
    if UPLO not in ("L", "U", "l", "u"):
        raise RuntimeError(
            f"Expected UPLO argument to be 'L' or 'U', but got {UPLO}. It names the triangle."
        )
    return "lower" if UPLO in "Ll" else "upper"


@linear_algebra()
def eigh(A, UPLO="L"):
    """Eigenvalue decomposition of hermitian matrices: ``A = Q @ diag(L) @ Q.mH``.

    Args:
        A: (*, n, n); only one triangle is read.
        UPLO: Which: "L" or "U".

    Returns:
        The named pair (eigenvalues, eigenvectors): values rising, vectors in columns.

    Memory:
        Keeps both. The gradient is hermitian.
    """
    return Eigh(*_eigh(A, part=_part(UPLO)))


@linear_algebra()
def eigvalsh(A, UPLO="L"):
    """Compute the eigenvalues of hermitian matrices, ascending.

    Memory:
        Keeps eigenvectors if a gradient is wanted, else none are computed.
    """
    part = _part(UPLO)
    return _eigh(A, part=part)[0] if recorded(A) else _eigvalsh(A, part=part)


# Eigenvalues of any matrices


def _eig_infer(A):
    check_square("linalg.eig", A)
    wide = A.dtype.to_complex()
    return A.like(A.shape[:-1], wide), A.like(dtype=wide)


def _eig_samples(make):
    # Complex results belong to tests/parity: their phases are arbitrary.
    for shape in ((0, 0), (0, 2, 2)):
        yield (make(*shape),), {}


@op(
    adopt=True,
    returns=("values", "vectors"),
    infer=_eig_infer,
    samples=_eig_samples,
    flops=lambda A: 25 * cube(A),
    autocast=WIDE_ON_CPU,
)
@decomposition(25)
def _eig(xp, A):
    """Compute eigenvalues and eigenvectors, always complex."""
    if not A.size:
        wide = "complex64" if A.dtype.itemsize == 4 else "complex128"
        wide = A.dtype if A.dtype.kind == "c" else wide
        return xp.zeros(A.shape[:-1], dtype=wide), xp.zeros(A.shape, dtype=wide)
    return tuple(converging(xp, "linalg.eig", xp.linalg.eig, A))


@_eig.vjp("A")
def _(g_values, g_vectors, values, vectors, A_spec):
    h = adjoint(vectors)
    inner = None if g_values is None else diag_embed(g_values)
    if g_vectors is not None:
        turned = matmul(h, g_vectors)
        # Less what would change the norms, which are 1.
        turned = turned - matmul(h, vectors) * diagonal_of(turned).real.unsqueeze(-2)
        inner = total(inner, _hollow(turned / _gaps(values, 1.0).conj()))
    out = _solve(h, matmul(inner, h), checked=False)[0]
    return out if A_spec.dtype.is_complex else out.real


Eig = named("linalg_eig", "eigenvalues", "eigenvectors")


@linear_algebra()
def eig(A):
    """Eigenvalue decomposition of square matrices: ``A = V @ diag(L) @ inv(V)``, complex.

    Returns:
        The named pair (eigenvalues, eigenvectors): no order; vectors of norm 1 in columns.

    Memory:
        Keeps both.
    """
    return Eig(*_eig(A))


@linear_algebra()
def eigvals(A):
    """Compute the eigenvalues of square matrices, complex and unordered.

    Memory:
        Keeps them and the eigenvectors.
    """
    return _eig(A)[0]
