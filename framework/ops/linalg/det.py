"""Determinants, log-determinants, and their derivatives.

The gradient of a determinant is its cofactors, which exist for singular matrices too. They come
from the inverse where that is accurate, and from singular values where it is not.
"""

from __future__ import annotations

from ..creation.fill import complex as complex_
from ..elementwise.arithmetic import conjugate
from ..registry import op
from .checks import check_square, conditioned, converging, linear_algebra, named
from .cholesky_qr import cube
from .lapack import decomposition, linalg
from .matmul import adjoint, matmul
from .solve import _inv, in_stacks, invert_small, small, stacked


def _det_samples(make):
    for shape in ((3, 3), (2, 2, 2), (1, 1), (0, 0), (0, 2, 2)):
        yield (conditioned(make, *shape),), {}


def _det_infer(A):
    check_square("linalg.det", A)
    return A.like(A.shape[:-2])


@op(
    adopt=True,
    infer=_det_infer,
    samples=_det_samples,
    flops=lambda A: 2 * cube(A) // 3,
)
@decomposition(2 / 3)
def _det(xp, A):
    """Compute determinants."""
    if not A.size:
        return xp.ones(A.shape[:-2], dtype=A.dtype)
    return xp.asarray(linalg(xp, A).det(A))


@_det.kernel("cpu", when=small)
def _(xp, A):
    return _determinants(xp, A)


def _determinants(xp, A):
    from ...kernels.cpu.linalg import small_lu

    out = xp.empty(A.shape[:-2], dtype=A.dtype)
    in_stacks(small_lu.determinants, out.reshape(-1), stacked(A))
    return out


@_det.vjp("A")
def _(g, A):
    return _as_matrix(g) * conjugate(_cofactors(A))


def _as_matrix(x):
    return x.unsqueeze(-1).unsqueeze(-1)


def _cofactors_infer(A):
    check_square("linalg.det", A)
    return A


@op(
    adopt=True,
    infer=_cofactors_infer,
    samples=_det_samples,
    flops=lambda A: 20 * cube(A),
)
@decomposition(3)
def _cofactors(xp, A):
    """Compute cofactor matrices: ``det(A) * inv(A).mT``, also for singular A."""
    if not A.size:
        return xp.zeros(A.shape, dtype=A.dtype)
    # By singular values: nothing is divided. Each is replaced by the product of the others.
    finite, u, s, vh = _svd_of_finite(xp, A)
    others = xp.ones(s.shape, dtype=s.dtype)
    for k in range(s.shape[-1]):
        others[..., :k] *= s[..., k : k + 1]
        others[..., k + 1 :] *= s[..., k : k + 1]
    sign = linalg(xp, u).det(u) * linalg(xp, vh).det(vh)
    left = xp.conj(u) * others[..., None, :]
    return xp.matmul(left, xp.conj(vh)) * xp.asarray(sign)[..., None, None] * finite


def _svd_of_finite(xp, A):
    # And 1 for each matrix, or NaN for one that is not finite: this has no singular values.
    finite = xp.isfinite(A).all(axis=(-2, -1), keepdims=True)
    if not finite.all():
        A = xp.where(finite, A, xp.zeros_like(A))
    factor = xp.where(finite, 1, xp.nan).astype(A.real.dtype)
    return factor, *converging(xp, "linalg.svd", linalg(xp, A).svd, A)


@_cofactors.kernel("cpu", when=small)
def _(xp, A):
    det = _determinants(xp, A)
    size, limits = xp.abs(det), xp.finfo(A.dtype)
    normal = (size >= limits.tiny) & (size <= limits.max)
    return _through_inverse(xp, A, invert_small(xp, A), normal, det)


@_cofactors.kernel("cpu")
@decomposition(3)
def _(xp, A):
    if not A.size:
        return xp.zeros(A.shape, dtype=A.dtype)
    sign, size = map(xp.asarray, linalg(xp, A).slogdet(A))
    regular = sign != 0
    if regular.all():
        inverse = linalg(xp, A).inv(A)
    else:
        inverse = xp.full(A.shape, xp.nan, dtype=A.dtype)
        inverse[regular] = linalg(xp, A).inv(A[regular])
    root = xp.exp(size / 2)  # of the determinant, which may be out of range where cofactors are not
    return _through_inverse(xp, A, inverse, regular, sign * root, root)


def _through_inverse(xp, A, inverse, regular, *factors):
    # The transposed inverses times the determinants, in a tenth of the time; by singular values
    # where one of them is not there. Both come from the same elimination: what a small last pivot
    # makes of rounding errors cancels in their product, if both are normal numbers.
    accurate = regular & xp.isfinite(inverse).all(axis=(-2, -1))
    out = xp.array(xp.swapaxes(inverse, -1, -2), order="C")
    for factor in factors:
        xp.multiply(out, factor[..., None, None], out=out)
    if not accurate.all():
        out[~accurate] = _cofactors.op.plain(xp, A[~accurate])
    return out


@_cofactors.vjp("A")
def _(g, A):
    return conjugate(_cofactors_slope(A, conjugate(g)))


def _slope_samples(make):
    for inputs, _ in _det_samples(make):
        yield (*inputs, make(*inputs[0].shape)), {}


@op(
    adopt=True,
    infer=lambda A, P: A,
    promote="same",
    samples=_slope_samples,
    flops=lambda A, P: 24 * cube(A),
)
@decomposition(24)
def _cofactors_slope(xp, A, P):
    """Derivative of the cofactors in direction P: a form in second minors of A.

    It is ``det(A) (tr(X P) X.mT - X.mT @ P.mT @ X.mT)``, X the inverse, also where that is not.
    """
    if not A.size:
        return xp.zeros(A.shape, dtype=A.dtype)
    finite, u, s, vh = _svd_of_finite(xp, A)
    n = s.shape[-1]
    # The product of all singular values but two, which are different ones.
    others = xp.ones(A.shape, dtype=s.dtype)
    for k in range(n):
        for rows in (slice(0, k), slice(k + 1, n)):
            for columns in (slice(0, k), slice(k + 1, n)):
                others[..., rows, columns] *= s[..., k, None, None]
        others[..., k, k] = 0
    sign = linalg(xp, u).det(u) * linalg(xp, vh).det(vh)
    v = xp.conj(xp.swapaxes(vh, -1, -2))
    inner = xp.matmul(xp.matmul(xp.conj(xp.swapaxes(u, -1, -2)), P), v)
    along = xp.diagonal(inner, 0, -2, -1)
    middle = -others * xp.swapaxes(inner, -1, -2)
    total = xp.matmul(others.astype(A.dtype), along[..., None])[..., 0]
    for k in range(n):
        middle[..., k, k] += total[..., k]
    slope = xp.matmul(xp.matmul(xp.conj(u), middle), xp.conj(vh))
    return slope * xp.asarray(sign)[..., None, None] * finite


@_cofactors_slope.vjp("P")
def _(g, A):
    return conjugate(_cofactors_slope(A, conjugate(g)))


@_cofactors_slope.vjp("A")
def _(g, A, P):
    # The third derivative of the determinant goes through the inverse.
    h, x = conjugate(g), _inv(A, checked=False)[0]
    xp_, xh = matmul(x, P), matmul(x, h)
    a, b = (_as_matrix(m.diagonal(0, -2, -1).sum(-1)) for m in (xp_, xh))
    both = matmul(xp_, xh)
    c = _as_matrix(both.diagonal(0, -2, -1).sum(-1))
    inner = (a * b - c) * x - b * matmul(xp_, x) - a * matmul(xh, x)
    inner = inner + matmul(both, x) + matmul(matmul(xh, xp_), x)
    return conjugate(_as_matrix(_det(A)) * inner.mT)


@linear_algebra()
def det(A):
    """Compute the determinants of square matrices (*, n, n).

    Memory:
        Keeps ``A``. Two orders of gradient exist for singular matrices too.
    """
    return _det(A)


def _slogdet_infer(A):
    check_square("linalg.slogdet", A)
    return A.like(A.shape[:-2]), A.like(A.shape[:-2], A.dtype.to_real())


@op(
    adopt=True,
    returns=("sign", "logabsdet"),
    infer=_slogdet_infer,
    samples=_det_samples,
    flops=lambda A: 2 * cube(A) // 3,
)
@decomposition(2 / 3)
def _slogdet(xp, A):
    """Compute the signs of determinants and the logarithms of their magnitudes."""
    if not A.size:
        real = xp.real(A).dtype
        return xp.ones(A.shape[:-2], dtype=A.dtype), xp.zeros(A.shape[:-2], dtype=real)
    return tuple(map(xp.asarray, linalg(xp, A).slogdet(A)))


@_slogdet.vjp("A")
def _(g_sign, g_logabsdet, A, sign):
    total = g_logabsdet
    if A.is_complex() and g_sign is not None:
        turn = -(g_sign.conj() * sign).imag
        total = complex_(turn * 0 if total is None else total, turn)
    if total is None:
        return None
    return _as_matrix(total.to(A.dtype)) * adjoint(_inv(A, checked=False)[0])


SLogDet = named("linalg_slogdet", "sign", "logabsdet")


@linear_algebra()
def slogdet(A):
    """Compute the signs of determinants and the logarithms of their magnitudes.

    Returns:
        The named pair (sign, logabsdet); 0 and -inf for a singular matrix.

    Memory:
        Keeps ``A`` and the sign.
    """
    return SLogDet(*_slogdet(A))
