"""Constraints on vectors and matrices, and those made of others along an axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from ...ops.creation.fill import full
from ...ops.indexing.where import tril
from ...ops.linalg.cholesky_qr import cholesky_ex
from ...ops.linalg.eig_svd import eigvalsh
from ...ops.manipulation.cat import cat as concatenate
from ...ops.manipulation.cat import stack as pile
from ...tensor import Tensor
from ..parameters import decided, eps_of
from .elementwise import Constraint, _Bounded

_SUM_TOLERANCE = 1e-6  # PyTorch's, for probabilities and symmetric matrices


class _Simplex(Constraint):
    # Probabilities along the last axis: none below 0, of sum 1.
    event_dim = 1

    def check(self, value: Tensor) -> Tensor:
        return (value >= 0).all(-1) & ((value.sum(-1) - 1).abs() < _SUM_TOLERANCE)


class _OneHot(Constraint):
    # One 1 along the last axis, else 0.
    is_discrete = True
    event_dim = 1

    def check(self, value: Tensor) -> Tensor:
        return ((value == 0) | (value == 1)).all(-1) & (value.sum(-1) == 1)


class _Multinomial(_Bounded):
    """Counts along the last axis whose sum is at most ``upper_bound``."""

    is_discrete = True
    event_dim = 1
    bounds = ("upper_bound",)

    def check(self, value: Tensor) -> Tensor:
        return (value >= 0).all(-1) & (value.sum(-1) <= self.upper_bound)


class _Square(Constraint):
    event_dim = 2

    def check(self, value: Tensor) -> Tensor:
        square = value.shape[-2] == value.shape[-1]
        return cast(Tensor, full(value.shape[:-2], square, device=value.device))


class _LowerTriangular(Constraint):
    event_dim = 2

    def check(self, value: Tensor) -> Tensor:
        return _everywhere(tril(value) == value)


class _LowerCholesky(Constraint):
    # Lower triangular, with a positive diagonal.
    event_dim = 2

    def check(self, value: Tensor) -> Tensor:
        return _everywhere(tril(value) == value) & (value.diagonal(0, -2, -1) > 0).all(-1)


class _CorrCholesky(_LowerCholesky):
    # The Cholesky factor of a correlation matrix: rows of length 1.

    def check(self, value: Tensor) -> Tensor:
        tolerance = eps_of(value) * value.shape[-1] * 10  # the error of a row's sum
        length = (value * value).sum(-1).sqrt()
        return ((length - 1).abs() <= tolerance).all(-1) & super().check(value)


class _Symmetric(_Square):
    def check(self, value: Tensor) -> Tensor:
        if value.shape[-2] != value.shape[-1]:
            return super().check(value)
        return _everywhere(value.isclose(value.mT, atol=_SUM_TOLERANCE))


class _PositiveSemidefinite(_Symmetric):
    def check(self, value: Tensor) -> Tensor:
        symmetric = super().check(value)
        if not _worth_a_decomposition(symmetric):
            return symmetric
        return symmetric & (eigvalsh(value) >= 0).all(-1)


class _PositiveDefinite(_Symmetric):
    def check(self, value: Tensor) -> Tensor:
        symmetric = super().check(value)
        if not _worth_a_decomposition(symmetric):
            return symmetric
        return symmetric & (cholesky_ex(value)[1] == 0)


def _worth_a_decomposition(symmetric: Tensor) -> bool:
    # One that is not square has none.
    return decided(symmetric.all(), True)


def _everywhere(places: Tensor) -> Tensor:
    return places.all(-1).all(-1)


class _Parts(Constraint):
    # Constraints along an axis; the axis counts from the right, since what stands before it is
    # batch.

    def __init__(self, cseq: Sequence[Constraint], dim: int = 0) -> None:
        self.cseq = list(cseq)
        if not self.cseq or not all(isinstance(c, Constraint) for c in self.cseq):
            raise TypeError(f"{type(self).__name__[1:]} takes one or more Constraints; got {cseq}.")
        self.dim = dim
        super().__init__()

    @property
    def is_discrete(self) -> bool:
        return any(c.is_discrete for c in self.cseq)

    @property
    def event_dim(self) -> int:
        return max(int(c.event_dim) for c in self.cseq)

    def _axis(self, value: Tensor) -> None:
        if not -value.dim() <= self.dim < value.dim():
            raise ValueError(
                f"{type(self).__name__[1:]}: dim {self.dim} is no axis of a value of shape "
                f"{tuple(value.shape)}."
            )


class _Cat(_Parts):
    """Constraints on stretches of an axis.

    Args:
        cseq: One for each stretch.
        dim: The axis.
        lengths: Of the stretches; 1 each by default.
    """

    def __init__(
        self, cseq: Sequence[Constraint], dim: int = 0, lengths: Sequence[int] | None = None
    ) -> None:
        super().__init__(cseq, dim)
        self.lengths = [1] * len(self.cseq) if lengths is None else list(lengths)
        if len(self.lengths) != len(self.cseq):
            raise ValueError(
                f"cat: one length for each of {len(self.cseq)} constraints; got {self.lengths}."
            )

    def check(self, value: Tensor) -> Tensor:
        self._axis(value)
        checks, start = [], 0
        for constraint, length in zip(self.cseq, self.lengths, strict=True):
            checks.append(constraint.check(value.narrow(self.dim, start, length)))
            start += length
        return cast(Tensor, concatenate(checks, self.dim))


class _Stack(_Parts):
    """A constraint for each index of an axis.

    Args:
        cseq: The constraints.
        dim: The axis.
    """

    def check(self, value: Tensor) -> Tensor:
        self._axis(value)
        if value.shape[self.dim] != len(self.cseq):
            raise ValueError(
                f"stack of {len(self.cseq)} constraints takes as many along dim {self.dim}; got "
                f"shape {tuple(value.shape)}."
            )
        checks: list[Any] = [c.check(value.select(self.dim, k)) for k, c in enumerate(self.cseq)]
        return cast(Tensor, pile(checks, self.dim))


simplex = _Simplex()
one_hot = _OneHot()
multinomial = _Multinomial
square = _Square()
lower_triangular = _LowerTriangular()
lower_cholesky = _LowerCholesky()
corr_cholesky = _CorrCholesky()
symmetric = _Symmetric()
positive_semidefinite = _PositiveSemidefinite()
positive_definite = _PositiveDefinite()
cat = _Cat
stack = _Stack
