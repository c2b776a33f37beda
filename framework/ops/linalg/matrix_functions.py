"""Matrix powers, exponential, products of several matrices, tensor equations.

The gradient of the exponential is a block of the exponential of a larger matrix (Van Loan 1978,
"Computing integrals involving the matrix exponential").
"""

from __future__ import annotations

from math import ceil, log2, prod

from ...dtypes import INT
from ...spec import Spec
from ..creation.fill import ones, zeros_like
from ..creation.ranges import eye
from ..elementwise.arithmetic import conjugate
from ..manipulation.cat import cat
from ..registry import op
from ..signatures import broadcast_shapes
from ..views.reshape import normal_dim
from .checks import check_square, linear_algebra, strict
from .cholesky_qr import cube
from .lapack import decomposition, linalg
from .matmul import adjoint, matmul
from .products import chain_matmul
from .solve import inv, solve

# Powers and the exponential


@linear_algebra()
def matrix_power(A, n):
    """Raise square matrices to the power ``n``; for negative ``n`` their inverses."""
    if not isinstance(n, int):
        raise TypeError(f"linalg.matrix_power: n must be int, not {type(n).__name__}.")
    if A.ndim < 2 or A.shape[-1] != A.shape[-2]:
        check_square("linalg.matrix_power", A)
    if n < 0:
        return matrix_power(inv(A), -n)
    if n == 0:
        # A constant that, as PyTorch's, hangs on A with a gradient of 0.
        return A.clone().copy_(eye(A.shape[-1], dtype=A.dtype, device=A.device))
    found, power = None, A
    while True:
        if n & 1:
            found = power if found is None else matmul(found, power)
        n >>= 1
        if not n:
            return found.clone() if found is A else found
        power = matmul(power, power)


def _exp_infer(A):
    check_square("linalg.matrix_exp", A)
    return A


def _exp_samples(make):
    for shape in ((3, 3), (2, 2, 2), (1, 1), (0, 0), (0, 2, 2)):
        yield (make(*shape),), {}


# The [13/13] Pade approximant of exp, good to double precision up to this norm (Higham 2005, "The
# scaling and squaring method for the matrix exponential revisited").
_PADE = (
    64764752532480000, 32382376266240000, 7771770303897600, 1187353796428800, 129060195264000,
    10559470521600, 670442572800, 33522128640, 1323241920, 40840800, 960960, 16380, 182, 1,
)  # fmt: skip
_REACH = 5.371920351148152


@op(
    adopt=True,
    infer=_exp_infer,
    samples=_exp_samples,
    flops=lambda A: 16 * cube(A),
)
@decomposition()
def _matrix_exp(xp, A):
    """Compute matrix exponentials by scaling and squaring."""
    if not A.size:
        return xp.zeros(A.shape, dtype=A.dtype)
    size = float(xp.max(xp.sum(xp.absolute(A), axis=-2)))
    if not size < 1e300:
        return xp.full(A.shape, xp.nan, dtype=A.dtype)
    squarings = max(0, ceil(log2(size / _REACH))) if size else 0
    a = A * 0.5**squarings
    one = xp.eye(A.shape[-1], dtype=A.dtype)
    b = [c / _PADE[0] for c in _PADE]
    a2 = xp.matmul(a, a)
    a4 = xp.matmul(a2, a2)
    a6 = xp.matmul(a2, a4)
    high = a6 * b[13] + a4 * b[11] + a2 * b[9]
    odd = xp.matmul(a, xp.matmul(a6, high) + a6 * b[7] + a4 * b[5] + a2 * b[3] + one * b[1])
    high = a6 * b[12] + a4 * b[10] + a2 * b[8]
    even = xp.matmul(a6, high) + a6 * b[6] + a4 * b[4] + a2 * b[2] + one * b[0]
    with strict(xp):
        out = linalg(xp, even).solve(even - odd, even + odd)
    for _ in range(squarings):
        out = xp.matmul(out, out)
    return out


@_matrix_exp.vjp("A")
def _(g, A):
    h = adjoint(A)
    n = A.shape[-1]
    above = cat([h, g], -1)
    below = cat([zeros_like(h), h], -1)
    return _matrix_exp(cat([above, below], -2)).narrow(-2, 0, n).narrow(-1, n, n)


@linear_algebra()
def matrix_exp(A):
    """Compute the exponentials of square matrices.

    Memory:
        Keeps ``A``. Its gradient is computed from matrices of twice the size.
    """
    return _matrix_exp(A)


# Products


@linear_algebra()
def multi_dot(tensors):
    """Multiply matrices in the order that takes the fewest operations.

    Args:
        tensors: Two or more; the first and the last may be vectors, the others are matrices.
    """
    if len(tensors) < 2:
        raise RuntimeError(f"multi_dot(): expected at least 2 tensors but got {len(tensors)}")
    first, last = tensors[0], tensors[-1]
    for k, x in enumerate(tensors):
        ends = k in (0, len(tensors) - 1)
        if x.ndim != 2 and not (ends and x.ndim == 1):
            raise RuntimeError(
                f"multi_dot(): tensor {k} must be 2D{' or 1D' if ends else ''} but got {x.ndim}D. "
                "Use matmul for stacks."
            )
    chain = [*tensors]
    if first.ndim == 1:
        chain[0] = first.unsqueeze(0)
    if last.ndim == 1:
        chain[-1] = last.unsqueeze(-1)
    out = chain_matmul(*chain)
    if last.ndim == 1:
        out = out.squeeze(-1)
    return out.squeeze(0) if first.ndim == 1 else out


@linear_algebra(autocast="low")
def vecdot(x, y, *, dim=-1):
    """Compute the dot product of vectors along ``dim``: ``conj(x) * y``, summed."""
    return (conjugate(x) * y).sum(dim)


@linear_algebra()
def diagonal(A, *, offset=0, dim1=-2, dim2=-1):
    """View the diagonals of matrices."""
    return A.diagonal(offset, dim1, dim2)


@linear_algebra()
def vander(x, N=None):
    """Create Vandermonde matrices: the powers of ``x`` from 0 to ``N - 1`` as columns.

    Args:
        x: (*, n); a 0-d one counts as (1,).
        N: Number of columns; n if None.
    """
    if not x.ndim:
        x = x.reshape(1)
    N = x.shape[-1] if N is None else N
    if N <= 1 and x.shape[-1] != N:
        raise RuntimeError(f"N must be greater than 1; got {N}.")
    if x.dtype.category <= INT:
        x = x.long()
    one = ones(*x.shape, 1, dtype=x.dtype, device=x.device)
    if N <= 1:
        return one[..., :N]
    powers = x.unsqueeze(-1).expand(*x.shape, N - 1).cumprod(-1)
    return cat([one, powers], -1)


def _cross_infer(input, other, *, dim):
    shape = broadcast_shapes("linalg.cross", input.shape, other.shape)
    if input.ndim != other.ndim:
        raise RuntimeError(
            "linalg.cross: inputs must have the same number of dimensions; got "
            f"{input.ndim} and {other.ndim}. Unsqueeze one."
        )
    if not all(x.shape[dim] == 3 for x in (input, other)):
        raise RuntimeError(
            f"linalg.cross: inputs dimension {dim - input.ndim} must have length 3. Got "
            f"{input.shape[dim]} and {other.shape[dim]}. Name the dim of the components."
        )
    component = tuple(1 if k == dim else n for k, n in enumerate(shape))
    return Spec(shape, input.dtype), Spec(component, input.dtype)


def _cross_samples(make):
    def three(*shape):  # as many vectors as wanted, of three components each
        return cat([make(*shape, 1), make(*shape, 1), make(*shape, 1)], -1)

    yield (three(4), three(4)), {"dim": 1}
    yield (three(2, 1).mT, three(2, 4).mT), {"dim": 1}
    yield (three(0), three(0)), {"dim": 1}
    yield (three()[...], three()), {"dim": 0}


@op(
    scratch=("product",),
    promote="arith",
    infer=_cross_infer,
    samples=_cross_samples,
    flops=lambda input, other, *, dim: 9 * max(input.numel, other.numel) // 3,
)
def _cross(xp, out, product, input, other, *, dim):
    """Cross product of vectors of three components."""
    head = (slice(None),) * dim
    for i in range(3):
        j, k = [(*head, slice(n, n + 1)) for n in ((i + 1) % 3, (i + 2) % 3)]
        component = out[(*head, slice(i, i + 1))]
        xp.multiply(input[j], other[k], out=component)
        xp.multiply(input[k], other[j], out=product)
        xp.subtract(component, product, out=component)


@_cross.vjp("input")
def _(g, other, dim):
    return _cross(conjugate(other), g, dim=dim)


@_cross.vjp("other")
def _(g, input, dim):
    return _cross(g, conjugate(input), dim=dim)


@linear_algebra()
def cross(input, other, *, dim=-1):
    """Cross product of vectors along ``dim``; the other dims broadcast.

    Memory:
        Keeps each input while the other needs a gradient.
    """
    if input.ndim != other.ndim:
        raise RuntimeError(
            "linalg.cross: inputs must have the same number of dimensions; got "
            f"{input.ndim} and {other.ndim}. Unsqueeze one."
        )
    return _cross(input, other, dim=normal_dim("linalg.cross", dim, input.ndim))


# Inverses of linear maps between tensors


@linear_algebra()
def tensorinv(A, ind=2):
    """Invert a tensor as a linear map: the first ``ind`` dims of ``A`` against the others.

    Raises:
        RuntimeError: Their products differ, or ``ind`` is not positive.
    """
    if ind <= 0:
        raise RuntimeError(f"Expected a strictly positive integer for 'ind'; got {ind}.")
    left, right = tuple(A.shape[:ind]), tuple(A.shape[ind:])
    if prod(left) != prod(right):
        raise RuntimeError(
            "Expected self to satisfy the requirement prod(self.shape[ind:]) == "
            f"prod(self.shape[:ind]), but got {prod(right)} != {prod(left)}. Pass another ind."
        )
    return inv(A.reshape(prod(left), prod(right))).reshape(*right, *left)


@linear_algebra()
def tensorsolve(A, B, dims=None):
    """Solve ``tensordot(A, X, X.ndim) = B``.

    Args:
        A: Its first dims are those of ``B``.
        B: Any shape.
        dims: Dims of ``A`` to move to the end first.
    """
    if dims is not None:
        chosen = [d % A.ndim for d in dims]
        A = A.permute(*[d for d in range(A.ndim) if d not in chosen], *chosen)
    shape = tuple(A.shape[B.ndim :])
    if prod(shape) != prod(A.shape[: B.ndim]):
        raise RuntimeError(
            "Expected self to satisfy the requirement prod(self.shape[other.ndim:]) == "
            f"prod(self.shape[:other.ndim]), but got {prod(shape)} != "
            f"{prod(A.shape[: B.ndim])}. Pass dims."
        )
    n = prod(shape)
    return solve(A.reshape(n, n), B.reshape(n)).reshape(*shape)
