"""The multivariate normal distribution, and that of a low-rank covariance.

Products and solutions with a matrix go by its triangular factor. A factor without batch axes is
never copied for each draw or value: those become columns of one right-hand side.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, cast

from ...ops.creation.ranges import eye
from ...ops.linalg.cholesky_qr import cholesky
from ...ops.linalg.legacy_names import cholesky_inverse
from ...ops.linalg.solve import solve_triangular
from ...ops.manipulation.cat import broadcast_shapes
from ...ops.random.draw import randn
from ...ops.views.as_strided import diag_embed
from ...spec import Size
from ...tensor import Tensor
from ..constraints import elementwise as constraints
from ..constraints import shaped as shaped_constraints
from ..distribution import Distribution
from ..parameters import given_one, lazy_property, need_vector

_MATRIX = shaped_constraints


def times_vector(matrix: Tensor, vector: Tensor) -> Tensor:
    """Multiply matrices (..., n, m) by vectors (..., m), with broadcasting."""
    return (matrix @ vector.unsqueeze(-1)).squeeze(-1)


def mahalanobis(factor: Tensor, x: Tensor) -> Tensor:
    """Compute the squared Mahalanobis length ``x^T (L L^T)^-1 x``.

    Args:
        factor: L (batch, n, n), lower triangular.
        x: (..., batch, n); further axes in front are columns of one solution.

    Returns:
        (..., batch).
    """
    n, batch = factor.shape[-1], factor.shape[:-2]
    extra = x.dim() - 1 - len(batch)
    if extra <= 0:
        solved = solve_triangular(factor, x.unsqueeze(-1), upper=False)
        return cast(Tensor, solved.square().sum((-2, -1)))
    inner = x.shape[extra:-1]
    columns = x.reshape(-1, *inner, n).movedim(0, -1)  # (batch, n, everything in front)
    squares = solve_triangular(factor, columns, upper=False).square().sum(-2)
    return cast(Tensor, squares.movedim(-1, 0).reshape(x.shape[:-1]))


def log_diagonal(factor: Tensor) -> Tensor:
    """Sum the logarithms of a matrix's diagonal: half the log-determinant of ``L L^T``."""
    return factor.diagonal(0, -2, -1).log().sum(-1)


def factor_of_inverse(precision: Tensor) -> Tensor:
    """Compute the lower Cholesky factor of the inverse of a positive definite matrix.

    The factor of the matrix with rows and columns reversed gives, turned back, an upper factor of
    the matrix itself, of which the inverse is what is wanted: no matrix is inverted and squared.
    """
    turned = cholesky(precision.flip((-2, -1))).flip((-2, -1)).mT
    unit = eye(precision.shape[-1], dtype=precision.dtype, device=precision.device)
    return cast(Tensor, solve_triangular(turned, unit, upper=False))


class OfMatrix(Distribution):
    """Base of distributions of a positive definite matrix, given in one of three ways.

    Subclasses keep the factor without broadcast axes in ``_unbroadcasted_scale_tril``, and the
    shape of the matrix with batch axes is ``_matrix_shape``.
    """

    _unbroadcasted_scale_tril: Tensor

    @property
    def _matrix_shape(self) -> Size:
        return Size((*self._batch_shape, *self._event_shape, *self._event_shape[-1:]))

    def _take_matrix(self, batch: Size, **given: Tensor | None) -> None:
        # Sets the matrix that was given, with batch axes, and its factor without.
        ((name, matrix),) = [(n, m) for n, m in given.items() if m is not None]
        setattr(self, name, matrix.expand(Size((*batch, *matrix.shape[-2:]))))

    def _factor(self, **given: Tensor | None) -> Tensor:
        ((name, matrix),) = [(n, m) for n, m in given.items() if m is not None]
        if name == "scale_tril":
            return matrix
        return cholesky(matrix) if name == "covariance_matrix" else factor_of_inverse(matrix)

    @lazy_property
    def scale_tril(self) -> Any:
        """The lower Cholesky factor of the covariance."""
        return self._unbroadcasted_scale_tril.expand(self._matrix_shape)

    @lazy_property
    def covariance_matrix(self) -> Any:
        """The covariance."""
        factor = self._unbroadcasted_scale_tril
        return (factor @ factor.mT).expand(self._matrix_shape)

    @lazy_property
    def precision_matrix(self) -> Any:
        """The inverse of the covariance."""
        return cholesky_inverse(self._unbroadcasted_scale_tril).expand(self._matrix_shape)


def need_matrix(name: str, **given: Tensor | None) -> Tensor:
    """Return the matrix that was given, after a check of its axes.

    Raises:
        ValueError: None or several were given, or it has less than two axes.
    """
    given_one(name, **given)
    ((parameter, matrix),) = [(n, m) for n, m in given.items() if m is not None]
    if matrix.dim() < 2:
        raise ValueError(
            f"{name}: {parameter} must be at least two-dimensional, with optional leading batch "
            f"dimensions; got shape {tuple(matrix.shape)}."
        )
    return matrix


class MultivariateNormal(OfMatrix):
    """Multivariate normal distribution of n numbers.

    Args:
        loc: The mean (..., n).
        covariance_matrix: (..., n, n), positive definite.
        precision_matrix: Its inverse.
        scale_tril: Its lower Cholesky factor; exactly one of the three is given. This one is the
            quickest, since the others are factorized.
        validate_args: Whether parameters and values are checked.
    """

    arg_constraints = {
        "loc": constraints.real_vector,
        "covariance_matrix": _MATRIX.positive_definite,
        "precision_matrix": _MATRIX.positive_definite,
        "scale_tril": _MATRIX.lower_cholesky,
    }
    support = constraints.real_vector
    has_rsample = True

    def __init__(
        self,
        loc: Tensor,
        covariance_matrix: Tensor | None = None,
        precision_matrix: Tensor | None = None,
        scale_tril: Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:
        need_vector("MultivariateNormal", "loc", loc)
        given = {
            "covariance_matrix": covariance_matrix,
            "scale_tril": scale_tril,
            "precision_matrix": precision_matrix,
        }
        matrix = need_matrix("MultivariateNormal", **given)
        batch = Size(broadcast_shapes(matrix.shape[:-2], loc.shape[:-1]))
        self._take_matrix(batch, **given)
        self.loc = loc.expand(Size((*batch, loc.shape[-1])))
        super().__init__(batch, self.loc.shape[-1:], validate_args=validate_args)
        self._unbroadcasted_scale_tril = self._factor(**given)

    def expand(self, batch_shape: Iterable[int], _instance: Any = None) -> Any:
        new = self._get_checked_instance(MultivariateNormal, _instance)
        batch = Size(batch_shape)
        new.loc = self.loc.expand(Size((*batch, *self._event_shape)))
        new._unbroadcasted_scale_tril = self._unbroadcasted_scale_tril
        for name in ("covariance_matrix", "scale_tril", "precision_matrix"):
            if name in self.__dict__:
                shape = Size((*batch, *self._event_shape, *self._event_shape))
                setattr(new, name, self.__dict__[name].expand(shape))
        Distribution.__init__(new, batch, self._event_shape, validate_args=False)
        new._validate_args = self._validate_args
        return new

    @property
    def mean(self) -> Tensor:
        return self.loc

    @property
    def mode(self) -> Tensor:
        return self.loc

    @property
    def variance(self) -> Tensor:
        squares = self._unbroadcasted_scale_tril.square().sum(-1)
        return squares.expand(Size((*self._batch_shape, *self._event_shape)))

    def rsample(self, sample_shape: Iterable[int] = ()) -> Tensor:
        shape = self._extended_shape(sample_shape)
        noise = randn(shape, dtype=self.loc.dtype, device=self.loc.device)
        return self.loc + times_vector(self._unbroadcasted_scale_tril, noise)

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        factor = self._unbroadcasted_scale_tril
        squared = mahalanobis(factor, value - self.loc)
        n = self._event_shape[0]
        return (squared + n * math.log(2 * math.pi)) * -0.5 - log_diagonal(factor)

    def entropy(self) -> Tensor:
        half = log_diagonal(self._unbroadcasted_scale_tril)
        found = half + 0.5 * self._event_shape[0] * (1.0 + math.log(2 * math.pi))
        return found.expand(self._batch_shape)


class LowRankMultivariateNormal(Distribution):
    """Multivariate normal distribution of covariance ``W W^T + diag(D)``, W of few columns.

    Densities and determinants go by the Woodbury identity and the matrix determinant lemma: by
    the factor of the r x r capacitance ``I + W^T D^-1 W``, never by an n x n one.

    Args:
        loc: The mean (..., n).
        cov_factor: W (..., n, r).
        cov_diag: D (..., n), positive.
        validate_args: Whether parameters and values are checked.
    """

    arg_constraints = {
        "loc": constraints.real_vector,
        "cov_factor": constraints.independent(constraints.real, 2),
        "cov_diag": constraints.independent(constraints.positive, 1),
    }
    support = constraints.real_vector
    has_rsample = True

    def __init__(
        self, loc: Tensor, cov_factor: Tensor, cov_diag: Tensor, validate_args: bool | None = None
    ) -> None:
        name = "LowRankMultivariateNormal"
        need_vector(name, "loc", loc)
        n = loc.shape[-1]
        need_matrix(name, cov_factor=cov_factor)
        if cov_factor.shape[-2] != n:
            raise ValueError(
                f"{name}: cov_factor must be a batch of matrices with shape {n} x m; got "
                f"{tuple(cov_factor.shape)}."
            )
        if cov_diag.shape[-1:] != (n,):
            raise ValueError(
                f"{name}: cov_diag must be a batch of vectors with shape ({n},); got "
                f"{tuple(cov_diag.shape)}."
            )
        try:
            batch = Size(
                broadcast_shapes(loc.shape[:-1], cov_factor.shape[:-2], cov_diag.shape[:-1])
            )
        except RuntimeError as error:
            raise ValueError(
                f"{name}: incompatible batch shapes: loc {tuple(loc.shape)}, cov_factor "
                f"{tuple(cov_factor.shape)}, cov_diag {tuple(cov_diag.shape)}."
            ) from error
        self.loc = loc.expand(Size((*batch, n)))
        self.cov_factor = cov_factor.expand(Size((*batch, *cov_factor.shape[-2:])))
        self.cov_diag = cov_diag.expand(Size((*batch, n)))
        self._unbroadcasted_cov_factor, self._unbroadcasted_cov_diag = cov_factor, cov_diag
        super().__init__(batch, (n,), validate_args=validate_args)
        self._capacitance_tril = cholesky(_capacitance(cov_factor, cov_diag))

    def expand(self, batch_shape: Iterable[int], _instance: Any = None) -> Any:
        new = self._get_checked_instance(LowRankMultivariateNormal, _instance)
        batch = Size(batch_shape)
        for name, events in (("loc", 1), ("cov_factor", 2), ("cov_diag", 1)):
            value = getattr(self, name)
            setattr(new, name, value.expand(Size((*batch, *value.shape[-events:]))))
        for name in ("scale_tril", "covariance_matrix", "precision_matrix"):
            if name in self.__dict__:
                value = self.__dict__[name]
                setattr(new, name, value.expand(Size((*batch, *value.shape[-2:]))))
        new._unbroadcasted_cov_factor = self._unbroadcasted_cov_factor
        new._unbroadcasted_cov_diag = self._unbroadcasted_cov_diag
        new._capacitance_tril = self._capacitance_tril
        Distribution.__init__(new, batch, self._event_shape, validate_args=False)
        new._validate_args = self._validate_args
        return new

    @property
    def mean(self) -> Tensor:
        return self.loc

    @property
    def mode(self) -> Tensor:
        return self.loc

    @lazy_property
    def variance(self) -> Any:
        found = self._unbroadcasted_cov_factor.square().sum(-1) + self._unbroadcasted_cov_diag
        return found.expand(Size((*self._batch_shape, *self._event_shape)))

    def _square(self) -> Size:
        return Size((*self._batch_shape, *self._event_shape, *self._event_shape))

    @lazy_property
    def scale_tril(self) -> Any:
        """The lower Cholesky factor of the covariance, (..., n, n)."""
        # of D^-1/2 (...) D^-1/2, whose eigenvalues are 1 and more
        root = self._unbroadcasted_cov_diag.sqrt().unsqueeze(-1)
        scaled = self._unbroadcasted_cov_factor / root
        unit = eye(self._event_shape[0], dtype=scaled.dtype, device=scaled.device)
        return (root * cholesky(scaled @ scaled.mT + unit)).expand(self._square())

    @lazy_property
    def covariance_matrix(self) -> Any:
        """The covariance, (..., n, n)."""
        factor = self._unbroadcasted_cov_factor
        found = factor @ factor.mT + diag_embed(self._unbroadcasted_cov_diag)
        return found.expand(self._square())

    @lazy_property
    def precision_matrix(self) -> Any:
        """The inverse of the covariance, (..., n, n), by the Woodbury identity."""
        scaled = _over_diag(self._unbroadcasted_cov_factor, self._unbroadcasted_cov_diag)
        solved = solve_triangular(self._capacitance_tril, scaled, upper=False)
        inverse = diag_embed(self._unbroadcasted_cov_diag.reciprocal())
        return (inverse - solved.mT @ solved).expand(self._square())

    def rsample(self, sample_shape: Iterable[int] = ()) -> Tensor:
        shape = self._extended_shape(sample_shape)
        like = {"dtype": self.loc.dtype, "device": self.loc.device}
        few = randn((*shape[:-1], self.cov_factor.shape[-1]), **like)
        each = randn(shape, **like)
        along = times_vector(self._unbroadcasted_cov_factor, few)
        return self.loc + along + self._unbroadcasted_cov_diag.sqrt() * each

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        squared = low_rank_mahalanobis(
            self._unbroadcasted_cov_factor,
            self._unbroadcasted_cov_diag,
            value - self.loc,
            self._capacitance_tril,
        )
        n = self._event_shape[0]
        return (squared + n * math.log(2 * math.pi)) * -0.5 - self._half_log_det()

    def _half_log_det(self) -> Tensor:
        diagonal = self._unbroadcasted_cov_diag.log().sum(-1)
        return log_diagonal(self._capacitance_tril) + 0.5 * diagonal

    def entropy(self) -> Tensor:
        found = self._half_log_det() + 0.5 * self._event_shape[0] * (1.0 + math.log(2 * math.pi))
        return found.expand(self._batch_shape)


def _over_diag(factor: Tensor, diagonal: Tensor) -> Tensor:
    return factor.mT / diagonal.unsqueeze(-2)  # W^T D^-1


def _capacitance(factor: Tensor, diagonal: Tensor) -> Tensor:
    unit = eye(factor.shape[-1], dtype=factor.dtype, device=factor.device)
    return cast(Tensor, _over_diag(factor, diagonal) @ factor + unit)


def low_rank_mahalanobis(
    factor: Tensor, diagonal: Tensor, x: Tensor, capacitance_tril: Tensor
) -> Tensor:
    """Compute ``x^T (W W^T + D)^-1 x`` as ``x^T D^-1 x - |C^-1/2 W^T D^-1 x|^2`` (Woodbury)."""
    few = times_vector(_over_diag(factor, diagonal), x)
    return (x.square() / diagonal).sum(-1) - mahalanobis(capacitance_tril, few)
