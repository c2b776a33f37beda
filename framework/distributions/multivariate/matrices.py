"""Distributions of matrices: Wishart's, and LKJ's of correlation matrices' Cholesky factors."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable
from numbers import Number
from typing import Any, cast

from ...modes import no_grad
from ...ops.creation.from_data import tensor
from ...ops.creation.ranges import arange
from ...ops.elementwise.special import mvlgamma
from ...ops.indexing.where import tril
from ...ops.linalg.det import slogdet
from ...ops.linalg.legacy_names import cholesky_solve
from ...ops.manipulation.cat import broadcast_shapes
from ...ops.manipulation.pad import pad
from ...ops.random.draw import randn
from ...ops.views.as_strided import diag_embed
from ...spec import Size
from ...tensor import Tensor
from ..constraints import elementwise as constraints
from ..constraints import shaped as shaped_constraints
from ..continuous.beta import Beta
from ..continuous.gamma import Chi2
from ..derived.transformed_distribution import nan_like
from ..distribution import Distribution, ExponentialFamily
from ..parameters import broadcast_all, decided, tiny_of
from .multivariate_normal import OfMatrix, log_diagonal, need_matrix

_TRIES = 10  # draws again of singular matrices


def mvdigamma(x: Tensor, p: int) -> Tensor:
    """Compute the derivative of the multivariate log-gamma function of dimension ``p``."""
    shifts = arange(p, dtype=x.dtype, device=x.device) / 2
    return cast(Tensor, (x.unsqueeze(-1) - shifts).digamma().sum(-1))


class Wishart(OfMatrix, ExponentialFamily):
    """Wishart distribution of positive definite matrices: of ``sum x x^T`` over ``df`` normal x.

    Args:
        df: Degrees of freedom (...), a number or a tensor, above n - 1.
        covariance_matrix: Of x (..., n, n), positive definite.
        precision_matrix: Its inverse.
        scale_tril: Its lower Cholesky factor; exactly one of the three is given.
        validate_args: Whether parameters and values are checked.

    Source:
        Bartlett: "On the theory of statistical regression", Proc. R. Soc. Edinburgh 53, 1933, for
        the draws. Bishop: "Pattern Recognition and Machine Learning", appendix B.
    """

    support = shaped_constraints.positive_definite
    has_rsample = True
    _mean_carrier_measure = 0

    def __init__(
        self,
        df: Any,
        covariance_matrix: Tensor | None = None,
        precision_matrix: Tensor | None = None,
        scale_tril: Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:
        given = {
            "covariance_matrix": covariance_matrix,
            "precision_matrix": precision_matrix,
            "scale_tril": scale_tril,
        }
        matrix = need_matrix("Wishart", **given)
        if isinstance(df, Number):
            df = tensor(df, dtype=matrix.dtype, device=matrix.device)
        batch = Size(broadcast_shapes(matrix.shape[:-2], df.shape))
        self.df = df.expand(batch)
        n = matrix.shape[-1]
        least = df.min()
        if decided(least <= n - 1, False):
            raise ValueError(
                f"Wishart: value of df={float(least):g} expected to be greater than ndim - 1 = "
                f"{n - 1}. With less, draws are singular."
            )
        if decided(least < n, False):
            warnings.warn(
                "Low df values detected. Singular samples are highly likely to occur for "
                "ndim - 1 < df < ndim.",
                stacklevel=2,
            )
        self._take_matrix(batch, **given)
        super().__init__(batch, matrix.shape[-2:], validate_args=validate_args)
        self._unbroadcasted_scale_tril = self._factor(**given)
        self._chi2 = self._diagonals()

    def _diagonals(self) -> Chi2:
        # Of the squared diagonal of Bartlett's factor: df, df - 1, ...
        steps = arange(self._event_shape[-1], dtype=self.df.dtype, device=self.df.device)
        return Chi2(self.df.unsqueeze(-1) - steps, validate_args=False)

    @property
    def _matrix_shape(self) -> Size:
        return Size((*self._batch_shape, *self._event_shape))

    @property
    def arg_constraints(self) -> dict[str, constraints.Constraint]:
        least = self._event_shape[-1] - 1
        return {
            "covariance_matrix": shaped_constraints.positive_definite,
            "precision_matrix": shaped_constraints.positive_definite,
            "scale_tril": shaped_constraints.lower_cholesky,
            "df": constraints.greater_than(least),
        }

    def expand(self, batch_shape: Iterable[int], _instance: Any = None) -> Any:
        new = self._get_checked_instance(Wishart, _instance)
        batch = Size(batch_shape)
        new._unbroadcasted_scale_tril = self._unbroadcasted_scale_tril
        new.df = self.df.expand(batch)
        for name in ("covariance_matrix", "precision_matrix", "scale_tril"):
            if name in self.__dict__:
                shape = Size((*batch, *self._event_shape))
                setattr(new, name, self.__dict__[name].expand(shape))
        Distribution.__init__(new, batch, self._event_shape, validate_args=False)
        new._validate_args = self._validate_args
        new._chi2 = new._diagonals()
        return new

    @property
    def mean(self) -> Tensor:
        return self.df[..., None, None] * self.covariance_matrix

    @property
    def mode(self) -> Tensor:
        factor = self.df - self.covariance_matrix.shape[-1] - 1
        factor = nan_like(factor).where(factor <= 0, factor)
        return factor[..., None, None] * self.covariance_matrix

    @property
    def variance(self) -> Tensor:
        covariance = self.covariance_matrix
        diagonal = covariance.diagonal(0, -2, -1)
        outer = diagonal.unsqueeze(-1) * diagonal.unsqueeze(-2)
        return self.df[..., None, None] * (covariance.square() + outer)

    def _bartlett(self, sample_shape: Size) -> Tensor:
        diagonal = self._chi2.rsample(sample_shape).clamp(min=tiny_of(self.df)).sqrt()
        noise = randn(
            self._extended_shape(sample_shape), dtype=diagonal.dtype, device=diagonal.device
        )
        factor = self._unbroadcasted_scale_tril @ (tril(noise, -1) + diag_embed(diagonal))
        return cast(Tensor, factor @ factor.mT)

    def rsample(
        self, sample_shape: Iterable[int] = (), max_try_correction: int | None = None
    ) -> Tensor:
        """Draw with gradients by Bartlett's decomposition.

        Args:
            sample_shape: How many.
            max_try_correction: How often matrices are drawn anew that rounding made singular; 10
                by default.
        """
        sample_shape = Size(sample_shape)
        drawn = self._bartlett(sample_shape)
        for _ in range(_TRIES if max_try_correction is None else max_try_correction):
            with no_grad():
                singular = ~self.support.check(drawn.detach())
            if not decided(singular.any(), False):
                break
            warnings.warn("Singular sample detected.", stacklevel=2)
            drawn = self._bartlett(sample_shape).where(singular[..., None, None], drawn)
        return drawn

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        df, p = self.df, self._event_shape[-1]
        factor = self._unbroadcasted_scale_tril
        shape = Size((*value.shape[:-2], *factor.shape[-2:]))
        solved = cholesky_solve(value, factor.expand(Size(broadcast_shapes(shape, factor.shape))))
        trace = solved.diagonal(0, -2, -1).sum(-1)
        normalizer = df * (p * math.log(2) / 2 + log_diagonal(factor)) + mvlgamma(df / 2, p)
        return cast(Tensor, (df - p - 1) / 2 * slogdet(value)[1] - trace / 2 - normalizer)

    def entropy(self) -> Tensor:
        df, p = self.df, self._event_shape[-1]
        scale = (p + 1) * (p * math.log(2) / 2 + log_diagonal(self._unbroadcasted_scale_tril))
        return cast(
            Tensor,
            scale + mvlgamma(df / 2, p) - (df - p - 1) / 2 * mvdigamma(df / 2, p) + df * p / 2,
        )

    @property
    def _natural_params(self) -> tuple[Tensor, ...]:
        return -self.precision_matrix / 2, (self.df - self._event_shape[-1] - 1) / 2

    def _log_normalizer(self, *natural_params: Tensor) -> Tensor:
        x, y = natural_params
        p = self._event_shape[-1]
        half = y + (p + 1) / 2
        return cast(Tensor, half * (p * math.log(2) - slogdet(x * -2)[1]) + mvlgamma(half, p))


class LKJCholesky(Distribution):
    """LKJ distribution of lower Cholesky factors L of correlation matrices M = L L^T.

    The density of M is proportional to ``det(M)^(concentration - 1)``: uniform at 1, close to the
    identity above.

    Args:
        dim: Of the matrices, at least 2.
        concentration: Positive, a number or a tensor.
        validate_args: Whether parameters and values are checked.

    Source:
        Lewandowski, Kurowicka, Joe: "Generating random correlation matrices based on vines and
        extended onion method", J. Multivariate Analysis 100, 2009; draws by its onion method.
    """

    arg_constraints = {"concentration": constraints.positive}
    support = shaped_constraints.corr_cholesky

    def __init__(
        self, dim: int, concentration: Any = 1.0, validate_args: bool | None = None
    ) -> None:
        if dim < 2:
            raise ValueError(
                "LKJCholesky: expected dim to be an integer greater than or equal to 2. Found "
                f"dim={dim}."
            )
        self.dim = dim
        (self.concentration,) = broadcast_all(concentration)
        steps = arange(dim - 1, dtype=self.concentration.dtype, device=self.concentration.device)
        rows = pad(steps, (1, 0)) * 0.5  # 0, 0, 1, 2, ...: of the first row nothing is drawn
        b = self.concentration.unsqueeze(-1) + 0.5 * (dim - 2) - rows
        # the squared length of each row left of the diagonal, of k elements: beta of k / 2
        self._beta = Beta(rows + 0.5, b, validate_args=False)
        super().__init__(self.concentration.shape, (dim, dim), validate_args=validate_args)

    def expand(self, batch_shape: Iterable[int], _instance: Any = None) -> Any:
        new = self._get_checked_instance(LKJCholesky, _instance)
        batch = Size(batch_shape)
        new.dim = self.dim
        new.concentration = self.concentration.expand(batch)
        new._beta = self._beta.expand(Size((*batch, self.dim)))
        Distribution.__init__(new, batch, self._event_shape, validate_args=False)
        new._validate_args = self._validate_args
        return new

    def sample(self, sample_shape: Iterable[int] = ()) -> Tensor:
        with no_grad():
            squared = self._beta.sample(sample_shape).unsqueeze(-1)
            shape = self._extended_shape(sample_shape)
            noise = tril(randn(shape, dtype=squared.dtype, device=squared.device), -1)
            length = noise.square().sum(-1, True).sqrt()
            direction = noise / length.clamp(min=tiny_of(noise))  # the first row stays 0
            below = squared.sqrt() * direction
            left = (1 - below.square().sum(-1)).clamp(min=tiny_of(below))
            return cast(Tensor, below + diag_embed(left.sqrt()))

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        rows = value.diagonal(0, -2, -1)[..., 1:]
        dim, c = self.dim, self.concentration
        order = arange(2, dim + 1, dtype=c.dtype, device=c.device)
        powers = ((c - 1) * 2).unsqueeze(-1) + (dim - order)
        unnormalized = (powers * rows.log()).sum(-1)
        # of the joint density by the rows: section 3.2 of the source, with the Jacobian of L
        n = dim - 1
        alpha = c + 0.5 * n
        norm = mvlgamma(alpha - 0.5, n) - alpha.lgamma() * n + 0.5 * n * math.log(math.pi)
        return cast(Tensor, unnormalized - norm)
