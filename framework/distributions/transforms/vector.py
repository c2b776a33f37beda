"""Transforms of vectors and matrices: simplices, Cholesky factors, and several side by side."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

from ...ops.activation.gelu import logsigmoid, softplus
from ...ops.creation.fill import ones_like
from ...ops.creation.ranges import eye
from ...ops.indexing.where import tril
from ...ops.manipulation.cat import cat as concatenate
from ...ops.manipulation.cat import stack as pile
from ...ops.manipulation.pad import pad
from ...ops.views.as_strided import diag_embed
from ...spec import Size
from ...tensor import Tensor
from ..constraints import elementwise as constraints
from ..constraints import shaped as shaped_constraints
from ..parameters import (
    eps_of,
    logits_to_probs,
    tiny_of,
    tril_matrix_to_vec,
    vec_to_tril_matrix,
)
from .elementwise import clipped_sigmoid
from .transform import Transform, changed_last_axis, sum_rightmost


class SoftmaxTransform(Transform):
    """From vectors to probabilities: ``exp(x)``, normalized. Not bijective; ``inv`` is ``log``."""

    domain = constraints.real_vector
    codomain = shaped_constraints.simplex

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SoftmaxTransform)

    def _call(self, x: Tensor) -> Tensor:
        return logits_to_probs(x)

    def _inverse(self, y: Tensor) -> Tensor:
        return y.log()

    def forward_shape(self, shape: Sequence[int]) -> Size:
        return changed_last_axis("SoftmaxTransform", shape, 0)

    inverse_shape = forward_shape


def _left(x: Tensor, total: int) -> Tensor:
    # How many pieces are left as each is broken off: total - 1 and downwards.
    return cast(Tensor, total - ones_like(x).cumsum(-1))


class StickBreakingTransform(Transform):
    """From n numbers to n + 1 probabilities, bijectively.

    Of a stick of length 1 a fraction is broken off for each number, of what is left:
    ``z = sigmoid(x - log(pieces left))``, so that ``x = 0`` gives equal parts.

    Source:
        Stan Development Team: "Stan Reference Manual", unit simplex.
    """

    domain = constraints.real_vector
    codomain = shaped_constraints.simplex
    bijective = True

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StickBreakingTransform)

    def _call(self, x: Tensor) -> Tensor:
        z = clipped_sigmoid(x - _left(x, x.shape[-1] + 1).log())
        rest = (1 - z).cumprod(-1)
        return cast(Tensor, pad(z, (0, 1), value=1.0) * pad(rest, (1, 0), value=1.0))

    def _inverse(self, y: Tensor) -> Tensor:
        pieces = y[..., :-1]
        rest = (1 - pieces.cumsum(-1)).clamp(min=tiny_of(y))
        return pieces.log() - rest.log() + _left(pieces, y.shape[-1]).log()

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        shifted = x - _left(x, x.shape[-1] + 1).log()
        return cast(Tensor, (logsigmoid(shifted) - shifted + y[..., :-1].log()).sum(-1))

    def forward_shape(self, shape: Sequence[int]) -> Size:
        return changed_last_axis("StickBreakingTransform", shape, 1)

    def inverse_shape(self, shape: Sequence[int]) -> Size:
        return changed_last_axis("StickBreakingTransform", shape, -1)


class LowerCholeskyTransform(Transform):
    """From matrices to lower triangular ones with a positive diagonal, which is ``exp``'s."""

    domain = constraints.independent(constraints.real, 2)
    codomain = shaped_constraints.lower_cholesky

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LowerCholeskyTransform)

    def _call(self, x: Tensor) -> Tensor:
        return cast(Tensor, tril(x, -1) + diag_embed(x.diagonal(0, -2, -1).exp()))

    def _inverse(self, y: Tensor) -> Tensor:
        return cast(Tensor, tril(y, -1) + diag_embed(y.diagonal(0, -2, -1).log()))


class PositiveDefiniteTransform(Transform):
    """From matrices to positive definite ones: ``L L^T`` of :class:`LowerCholeskyTransform`'s L."""

    domain = constraints.independent(constraints.real, 2)
    codomain = shaped_constraints.positive_definite

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PositiveDefiniteTransform)

    def _call(self, x: Tensor) -> Tensor:
        factor = LowerCholeskyTransform()(x)
        return factor @ factor.mT

    def _inverse(self, y: Tensor) -> Tensor:
        return LowerCholeskyTransform().inv(y.cholesky())


class CorrCholeskyTransform(Transform):
    """From n (n - 1) / 2 numbers to the Cholesky factor of an n x n correlation matrix.

    ``tanh`` makes partial correlations of them; each row is then a stick of squared length 1, of
    which a fraction is broken off for each place.

    Source:
        Lewandowski, Kurowicka, Joe: "Generating random correlation matrices based on vines and
        extended onion method", J. Multivariate Analysis 100, 2009.
    """

    domain = constraints.real_vector
    codomain = shaped_constraints.corr_cholesky
    bijective = True

    def _call(self, x: Tensor) -> Tensor:
        eps = eps_of(x)
        r = vec_to_tril_matrix(x.tanh().clamp(-1 + eps, 1 - eps), diag=-1)
        left = (1 - r * r).sqrt().cumprod(-1)  # square roots of what is left of each row
        unit = r + eye(r.shape[-1], dtype=r.dtype, device=r.device)
        return cast(Tensor, unit * pad(left[..., :-1], (1, 0), value=1.0))

    def _inverse(self, y: Tensor) -> Tensor:
        left = pad((1 - (y * y).cumsum(-1))[..., :-1], (1, 0), value=1.0)
        t = tril_matrix_to_vec(y, diag=-1) / tril_matrix_to_vec(left, diag=-1).sqrt()
        return (t.log1p() - (-t).log1p()) / 2

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        left = 1 - (y * y).cumsum(-1)
        # what is left before each place, but for the first of a row, where it is 1
        sticks = 0.5 * tril_matrix_to_vec(left, diag=-2).log().sum(-1)
        tanhs = -2 * (x + softplus(x * -2) - math.log(2.0)).sum(-1)
        return cast(Tensor, sticks + tanhs)

    def forward_shape(self, shape: Sequence[int]) -> Size:
        changed_last_axis("CorrCholeskyTransform", shape, 0)
        count = shape[-1]
        n = round((0.25 + 2 * count) ** 0.5 + 0.5)
        if n * (n - 1) // 2 != count:
            raise ValueError(
                "CorrCholeskyTransform: input is not a flattened lower-diagonal: there is no n with"
                f" n (n - 1) / 2 = {count}."
            )
        return Size((*shape[:-1], n, n))

    def inverse_shape(self, shape: Sequence[int]) -> Size:
        changed_last_axis("CorrCholeskyTransform", shape, 0, axes=2)
        if shape[-2] != shape[-1]:
            raise ValueError(f"CorrCholeskyTransform: input is not square: {tuple(shape)}.")
        n = shape[-1]
        return Size((*shape[:-2], n * (n - 1) // 2))


class _Parts(Transform):
    # Several transforms along an axis.

    def __init__(self, tseq: Sequence[Transform], dim: int = 0, cache_size: int = 0) -> None:
        if not all(isinstance(t, Transform) for t in tseq):
            raise TypeError(f"{type(self).__name__} takes Transforms; got {list(tseq)}.")
        super().__init__(cache_size=cache_size)
        self.transforms = [t.with_cache(cache_size) for t in tseq] if cache_size else list(tseq)
        self.dim = dim

    @property
    def bijective(self) -> Any:
        return all(t.bijective for t in self.transforms)

    def _axis(self, x: Tensor, size: int) -> None:
        if not -x.dim() <= self.dim < x.dim() or x.shape[self.dim] != size:
            raise ValueError(
                f"{type(self).__name__} takes {size} along dim {self.dim}; got shape "
                f"{tuple(x.shape)}."
            )


class CatTransform(_Parts):
    """A transform for each stretch of an axis.

    Args:
        tseq: The transforms.
        dim: The axis.
        lengths: Of the stretches; 1 each by default.
        cache_size: 1 to keep the last pair.
    """

    def __init__(
        self,
        tseq: Sequence[Transform],
        dim: int = 0,
        lengths: Sequence[int] | None = None,
        cache_size: int = 0,
    ) -> None:
        super().__init__(tseq, dim, cache_size)
        self.lengths = [1] * len(self.transforms) if lengths is None else list(lengths)
        if len(self.lengths) != len(self.transforms):
            raise ValueError(
                f"CatTransform: one length for each of {len(self.transforms)} transforms; got "
                f"{self.lengths}."
            )

    @property
    def event_dim(self) -> int:
        return max(t.event_dim for t in self.transforms)

    @property
    def length(self) -> int:
        """The length of the axis."""
        return sum(self.lengths)

    def with_cache(self, cache_size: int = 1) -> Transform:
        if self._cache_size == cache_size:
            return self
        return CatTransform(self.transforms, self.dim, self.lengths, cache_size)

    def _stretches(self, x: Tensor) -> list[Tensor]:
        self._axis(x, self.length)
        starts = [sum(self.lengths[:k]) for k in range(len(self.lengths))]
        return [x.narrow(self.dim, s, n) for s, n in zip(starts, self.lengths, strict=True)]

    def _call(self, x: Tensor) -> Tensor:
        pairs = zip(self.transforms, self._stretches(x), strict=True)
        return cast(Tensor, concatenate([t(part) for t, part in pairs], self.dim))

    def _inverse(self, y: Tensor) -> Tensor:
        pairs = zip(self.transforms, self._stretches(y), strict=True)
        return cast(Tensor, concatenate([t.inv(part) for t, part in pairs], self.dim))

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        changes = []
        stretches = zip(self.transforms, self._stretches(x), self._stretches(y), strict=True)
        for t, from_x, to_y in stretches:
            change = t.log_abs_det_jacobian(from_x, to_y)
            changes.append(sum_rightmost(change, self.event_dim - t.event_dim))
        dim = (self.dim - x.dim() if self.dim >= 0 else self.dim) + self.event_dim
        return cast(Tensor, concatenate(changes, dim) if dim < 0 else sum(changes))

    @constraints.dependent_property
    def domain(self) -> Any:
        return shaped_constraints.cat([t.domain for t in self.transforms], self.dim, self.lengths)

    @constraints.dependent_property
    def codomain(self) -> Any:
        return shaped_constraints.cat([t.codomain for t in self.transforms], self.dim, self.lengths)


class StackTransform(_Parts):
    """A transform for each index of an axis.

    Args:
        tseq: The transforms.
        dim: The axis.
        cache_size: 1 to keep the last pair.
    """

    def with_cache(self, cache_size: int = 1) -> Transform:
        if self._cache_size == cache_size:
            return self
        return StackTransform(self.transforms, self.dim, cache_size)

    def _slices(self, x: Tensor) -> list[Tensor]:
        self._axis(x, len(self.transforms))
        return [x.select(self.dim, k) for k in range(len(self.transforms))]

    def _call(self, x: Tensor) -> Tensor:
        pairs = zip(self.transforms, self._slices(x), strict=True)
        return cast(Tensor, pile([t(part) for t, part in pairs], self.dim))

    def _inverse(self, y: Tensor) -> Tensor:
        pairs = zip(self.transforms, self._slices(y), strict=True)
        return cast(Tensor, pile([t.inv(part) for t, part in pairs], self.dim))

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        slices = zip(self.transforms, self._slices(x), self._slices(y), strict=True)
        return cast(Tensor, pile([t.log_abs_det_jacobian(a, b) for t, a, b in slices], self.dim))

    @constraints.dependent_property
    def domain(self) -> Any:
        return shaped_constraints.stack([t.domain for t in self.transforms], self.dim)

    @constraints.dependent_property
    def codomain(self) -> Any:
        return shaped_constraints.stack([t.codomain for t in self.transforms], self.dim)
