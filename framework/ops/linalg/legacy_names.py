"""Linear algebra under older names: ``lowtide.cholesky``, ``Tensor.det``, ``lowtide.svd``.

Most are ``linalg``'s functions; some return other things, as PyTorch's do.
"""

from __future__ import annotations

import warnings

from ...dtypes import int32
from ..autocast_policy import WIDE_ON_CPU
from ..creation.ranges import eye
from ..indexing.where import where
from ..reduction.sum import normalize_dims
from ..reduction.var_norm import _norm
from ..registry import function
from . import cholesky_qr, eig_svd, lstsq, matrix_functions, solve
from . import det as determinants
from . import lu as elimination
from .checks import check_matrices, check_square, linear_algebra, named
from .matmul import adjoint, matmul
from .norms import matrix_norm
from .solve import solve_triangular

# The same


def _also(f):
    # A function of linalg under the same name, as a method too; __name__ stays. Here the
    # matrix is called input.
    return function(method=True, names={"input": "A"})(f)


det = _also(determinants.det)
slogdet = _also(determinants.slogdet)
matrix_power = _also(matrix_functions.matrix_power)
matrix_exp = _also(matrix_functions.matrix_exp)


@linear_algebra(method=True, public=True)
def logdet(input):
    """Compute the logarithms of determinants; NaN where one is negative.

    Memory:
        Keeps ``input`` and the signs.
    """
    sign, log = determinants.slogdet(input)
    if input.is_complex():
        return sign.log() + log
    return where(sign < 0, float("nan"), log)


@linear_algebra(method=True, public=True)
def inverse(input):
    """Same as :func:`linalg.inv`."""
    return solve.inv(input)


@linear_algebra(method=True, public=True)
def pinverse(input, rcond=1e-15):
    """Compute pseudoinverses; singular values up to ``rcond`` times the largest are zero."""
    return lstsq.pinv(input, rtol=rcond)


# Their own


@linear_algebra(method=True, public=True)
def cholesky(input, upper=False):
    """Same as :func:`linalg.cholesky`."""
    return cholesky_qr.cholesky(input, upper=upper)


@linear_algebra(method=True, public=True, autocast=WIDE_ON_CPU)
def cholesky_solve(input, input2, upper=False):
    """Solve ``A @ X = input`` given the Cholesky factor of ``A``.

    Args:
        input: (*, n, k).
        input2: The factor, (*, n, n).
        upper: It is the upper one.
    """
    check_matrices("cholesky_solve", input, letters="B")
    check_square("cholesky_solve", input2)
    h = adjoint(input2)
    first, second = (h, input2) if upper else (input2, h)
    return solve_triangular(second, solve_triangular(first, input, upper=False), upper=True)


@linear_algebra(method=True, public=True, autocast=WIDE_ON_CPU)
def cholesky_inverse(input, upper=False):
    """Invert the matrices of which ``input`` is the Cholesky factor."""
    check_square("cholesky_inverse", input)
    one = eye(input.shape[-1], dtype=input.dtype, device=input.device)
    half = solve_triangular(input, one, upper=upper)
    return matmul(half, adjoint(half)) if upper else matmul(adjoint(half), half)


Qr = named("qr", "Q", "R")
Svd = named("svd", "U", "S", "V")
Triangular = named("triangular_solve", "solution", "cloned_coefficient")


@linear_algebra(method=True, public=True)
def qr(input, some=True):
    """QR decomposition: :func:`linalg.qr`, "reduced" with ``some``, else "complete"."""
    return Qr(*cholesky_qr.qr(input, "reduced" if some else "complete"))


@linear_algebra(method=True, public=True)
def svd(input, some=True, compute_uv=True):
    """Singular value decomposition: :func:`linalg.svd`, but with V in place of ``V.mH``.

    Args:
        input: (*, m, n).
        some: U and V have min(m, n) columns; else they are square.
        compute_uv: Else U and V are zero, and only S is computed.
    """
    if compute_uv:
        u, s, vh = eig_svd.svd(input, full_matrices=not some)
        return Svd(u, s, adjoint(vh))
    m, n = input.shape[-2:]
    source = input.detach()
    u, v = (source.new_zeros((*input.shape[:-2], k, k)) for k in (m, n))
    return Svd(u, eig_svd.svdvals(input), v)


@linear_algebra(method=True, public=True, autocast=WIDE_ON_CPU)
def triangular_solve(input, A, upper=True, transpose=False, unitriangular=False):
    """Solve ``A @ X = input`` for a triangular ``A``.

    Returns:
        The named pair (solution, cloned_coefficient).
    """
    coefficient = A
    if transpose:
        A, upper = A.mT, not upper
    solution = solve_triangular(A, input, upper=upper, unitriangular=unitriangular)
    batch = solution.shape[:-2]
    return Triangular(solution, coefficient.expand(*batch, *coefficient.shape[-2:]).clone())


@linear_algebra(method=True, public=True)
def cross(input, other, dim=None):
    """Cross product of vectors; without ``dim`` along the first dim of size 3."""
    if dim is None:
        warnings.warn(
            "Using cross without specifying the dim arg is deprecated. Pass dim, or use "
            "linalg.cross.",
            UserWarning,
            stacklevel=3,
        )
        sizes = [max(a, b) for a, b in zip(input.shape, other.shape, strict=False)]
        if 3 not in sizes:
            raise RuntimeError("no dimension of size 3 in input")
        dim = sizes.index(3)
    return matrix_functions.cross(input, other, dim=dim)


@linear_algebra(method=True, public=True, autocast=WIDE_ON_CPU)
def lu_solve(input, LU_data, LU_pivots):
    """Solve ``A @ X = input`` given :func:`linalg.lu_factor` of ``A``."""
    return elimination.lu_solve(LU_data, LU_pivots, input)


@linear_algebra(method=True, public=True, autocast=WIDE_ON_CPU)
def lu(A, pivot=True, get_infos=False):
    """LU decomposition: :func:`linalg.lu_factor` under an older name.

    Returns:
        The tuple (LU, pivots), and with ``get_infos`` the number of the first zero pivot.
    """
    factored = elimination.lu_factor_ex(A, pivot=pivot)
    return tuple(factored) if get_infos else tuple(factored[:2])


Unpacked = named("lu_unpack", "P", "L", "U")


@linear_algebra(public=True)
def lu_unpack(LU_data, LU_pivots, unpack_data=True, unpack_pivots=True):
    """Unpack the result of :func:`linalg.lu_factor`: ``A = P @ L @ U``.

    Args:
        LU_data: (*, m, n).
        LU_pivots: (*, min(m, n)), int32.
        unpack_data: Else L and U are empty.
        unpack_pivots: Else P is empty.

    Returns:
        The named tuple (P, L, U).
    """
    check_matrices("lu_unpack", LU_data, letters=("LU_data",))
    if unpack_pivots and LU_pivots.dtype is not int32:
        raise RuntimeError(
            "torch.lu_unpack: LU_pivots is expected to be a contiguous tensor of torch.int32 "
            f"dtype; got {LU_pivots.dtype}. Pass what lu_factor returns."
        )
    nothing = LU_data.detach().new_empty((0,))
    rows = LU_data.shape[-2]
    return Unpacked(
        elimination.permutation_matrix(LU_pivots, rows, LU_data.dtype)
        if unpack_pivots
        else nothing,
        *(elimination.triangles(LU_data) if unpack_data else (nothing, nothing)),
    )


@function(method=True)
def norm(input, p="fro", dim=None, keepdim=False, out=None, dtype=None):
    """Compute the p-norm over ``dim``: the p-th root of the sum of p-th powers of magnitudes.

    Args:
        input: Floating point or complex, any shape.
        p: A number, inf, -inf, 0 (counts nonzeros), ``"fro"``, which is 2, or ``"nuc"``: the sum
            of a matrix's singular values.
        dim: An int, several, or None for all.
        keepdim: Leave the reduced dims, with size 1.
        out: Where to write the result.
        dtype: Convert to this dtype first.

    Memory:
        Keeps ``input`` and the result. The gradient at 0 is 0.
    """
    if p is None or p == "fro":
        p = 2.0
    if dtype is not None:
        input = input.to(dtype)
    if p == "nuc":
        return matrix_norm(input, "nuc", (-2, -1) if dim is None else dim, keepdim, out=out)
    if isinstance(p, str):
        raise RuntimeError(f"norm() takes a number, 'fro' or 'nuc' for p; got {p!r}.")
    dims = normalize_dims("norm", dim, input.ndim)
    return _norm(input, p=float(p), dim=dims, keepdim=keepdim, out=out)
