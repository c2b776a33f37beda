"""Orthogonal parametrization: the columns, or rows, of a weight stay orthonormal.

Three maps from any matrix to an orthogonal one: the exponential and the Cayley map of its
skew-symmetric part, and a product of Householder reflections. Q = H1 H2 ... Hk is computed in
closed form, ``I - V T V'`` with ``T^-1 = striu(V'V) + diag(V'V) / 2``, so it needs one triangular
solve and no loop.

Source:
    Lezcano-Casado 2019 for "dynamic trivialization" (a fixed base times a map); Puglisi 1992 and
    Joffrain et al. 2006 for the triangular factor.

Not optimal: inverting the Householder map, which happens only on assignment without
trivialization, loops over columns in Python.
"""

from __future__ import annotations

from typing import Any, TypeVar

from ...framework.dtypes import finfo
from ...framework.modes import no_grad
from ...framework.ops.creation.ranges import eye
from ...framework.ops.linalg.cholesky_qr import qr
from ...framework.ops.linalg.matrix_functions import matrix_exp
from ...framework.ops.linalg.solve import solve, solve_triangular
from ...framework.ops.manipulation.cat import cat
from ...framework.ops.random.draw import randn
from ...framework.tensor import Tensor
from ..module import Module
from .parametrize import register_parametrization

T = TypeVar("T", bound=Module)
MAPS = ("matrix_exp", "cayley", "householder")


class _Orthogonal(Module):
    base: Tensor | None

    def __init__(
        self, weight: Tensor, orthogonal_map: str, use_trivialization: bool = True
    ) -> None:
        super().__init__()
        if weight.is_complex() and orthogonal_map == "householder":
            raise ValueError("The householder parametrization does not support complex tensors.")
        self.shape = weight.shape
        self.orthogonal_map = orthogonal_map
        self.trivialized = use_trivialization
        if use_trivialization:
            self.register_buffer("base", None)

    def forward(self, X: Tensor) -> Tensor:
        wide = X.shape[-2] < X.shape[-1]
        if wide:
            X = X.mT
        n, k = X.shape[-2:]
        if self.orthogonal_map == "householder":
            Q = _reflections(X)
        else:
            X = X.tril()
            if n != k:  # into a square matrix, whose other columns are free
                X = cat([X, X.new_zeros(*X.shape[:-1], n - k)], dim=-1)
            A = X - X.mH
            if self.orthogonal_map == "matrix_exp":
                Q = matrix_exp(A)
            else:
                identity = eye(n, dtype=X.dtype, device=X.device)
                Q = solve(identity - 0.5 * A, identity + 0.5 * A)
            if n != k:
                Q = Q[..., :k]
        if self.trivialized and self.base is not None:
            Q = self.base @ Q
        return Q.mT if wide else Q

    @no_grad()
    def right_inverse(self, Q: Tensor) -> Tensor:
        if Q.shape != self.shape:
            raise ValueError(
                f"Expected a matrix or batch of matrices of shape {tuple(self.shape)}. "
                f"Got a tensor of shape {tuple(Q.shape)}."
            )
        wide = Q.shape[-2] < Q.shape[-1]
        tall = Q.mT if wide else Q
        n, k = tall.shape[-2:]
        if not self.trivialized:
            if self.orthogonal_map != "householder":
                raise NotImplementedError(
                    "It is not possible to assign to the matrix exponential or the Cayley "
                    "parametrizations when use_trivialization=False."
                )
            found = _reflectors(tall)
            return found.mT if wide else found
        if n != k:  # complete to a square matrix
            more = randn(*tall.shape[:-1], n - k, dtype=tall.dtype, device=tall.device)
            self.base = _nearby(cat([tall, more], dim=-1))
        else:
            self.base = tall.clone() if _is_orthogonal(tall) else _nearby(tall)
        start = Q.new_zeros(Q.shape)  # each map makes the identity of it
        start.diagonal(dim1=-2, dim2=-1).fill_(-1.0)
        return start


def _reflections(X: Tensor) -> Tensor:
    # The first k columns of H1 ... Hk. Below its diagonal X holds the reflectors; the signs of its
    # diagonal are those of the columns.
    n, k = X.shape[-2:]
    identity = eye(n, k, dtype=X.dtype, device=X.device)
    V = X.tril(-1) + identity
    gram = V.mT @ V
    half = gram.diagonal(dim1=-2, dim2=-1).unsqueeze(-1) / 2
    inverse = gram.triu(1) + half * eye(k, dtype=X.dtype, device=X.device)
    Q = identity - V @ solve_triangular(inverse, V[..., :k, :].mT, upper=True)
    signs = X.diagonal(dim1=-2, dim2=-1).detach().trunc().unsqueeze(-2)
    return Q * signs


def _reflectors(Q: Tensor) -> Tensor:
    # The inverse of _reflections, for orthonormal columns: Householder's QR.
    R = Q.clone()
    out = Q.new_zeros(Q.shape)
    for c in range(Q.shape[-1]):
        x = R[..., c:, c]
        alpha = x[..., :1]
        below = x[..., 1:]
        norm = (x * x).sum(-1, keepdim=True).sqrt()
        none = (below * below).sum(-1, keepdim=True) == 0  # the reflection only turns the sign
        beta = (norm * (alpha < 0) - norm * (alpha >= 0)).where(~none, -alpha)
        scale = (alpha - beta).where(~none, alpha * 0 + 1)
        v = cat([alpha * 0 + 1, below / scale], dim=-1).unsqueeze(-1)
        rest = R[..., c:, c:]
        tau = 2 / (v * v).sum(-2, keepdim=True)
        rest.sub_(v @ (tau * (v.mT @ rest)))
        out[..., c:, c] = v.squeeze(-1)
        out[..., c, c] = beta.squeeze(-1).sign()
    return out


def _is_orthogonal(Q: Tensor) -> bool:
    n, k = Q.shape[-2:]
    identity = eye(k, dtype=Q.dtype, device=Q.device)
    error = (Q.mH @ Q - identity).abs().max()
    return n >= k and bool(error <= 10 * n * finfo(Q.dtype).eps)


def _nearby(A: Tensor) -> Tensor:
    # Q of the QR decomposition, with the signs that leave an orthogonal matrix as it is.
    q, r = qr(A)
    return q * r.diagonal(dim1=-2, dim2=-1).sgn().unsqueeze(-2)


def orthogonal(
    module: T,
    name: str = "weight",
    orthogonal_map: str | None = None,
    *,
    use_trivialization: bool = True,
) -> T:
    """Parametrize a matrix, or a batch of them, so that it stays orthogonal.

    Args:
        module: Whose weight.
        name: The weight's name. Its last two dimensions count; with more columns than rows the rows
            become orthonormal, else the columns.
        orthogonal_map: ``"matrix_exp"``, ``"cayley"`` or ``"householder"``; by default the first
            for square or complex matrices, else the last.
        use_trivialization: Multiply the map by a fixed base, which makes the weight assignable and
            training better conditioned, for n x n more values (a buffer).

    Returns:
        ``module``.

    Raises:
        ValueError: There is no such tensor, it is no matrix, or the map has another name.
    """
    weight: Any = getattr(module, name, None)
    if not isinstance(weight, Tensor):
        raise ValueError(f"Module '{module}' has no parameter or buffer with name '{name}'")
    if weight.ndim < 2:
        raise ValueError(
            f"Expected a matrix or batch of matrices. Got a tensor of {weight.ndim} dimensions."
        )
    if orthogonal_map is None:
        square = weight.shape[-2] == weight.shape[-1]
        orthogonal_map = "matrix_exp" if square or weight.is_complex() else "householder"
    if orthogonal_map not in MAPS:
        raise ValueError(
            f'orthogonal_map has to be one of "matrix_exp", "cayley", "householder". '
            f"Got: {orthogonal_map}"
        )
    made = _Orthogonal(weight, orthogonal_map, use_trivialization)
    register_parametrization(module, name, made, unsafe=True)
    return module


__all__ = ["orthogonal"]
