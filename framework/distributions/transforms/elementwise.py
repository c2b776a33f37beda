"""Transforms of each number by itself: exp, power, sigmoid, tanh, softplus, affine, a cdf."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Number
from typing import Any, cast

from ...ops.activation.gelu import softplus
from ...ops.creation.fill import full_like
from ...ops.manipulation.cat import broadcast_shapes
from ...spec import Size
from ...tensor import Tensor
from ..constraints import elementwise as constraints
from ..parameters import broadcast_all, decided, eps_of, lazy_property, tiny_of
from .transform import Transform, sum_rightmost


class ExpTransform(Transform):
    r"""``y = exp(x)``."""

    domain = constraints.real
    codomain = constraints.positive
    bijective = True
    sign = 1

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ExpTransform)

    def _call(self, x: Tensor) -> Tensor:
        return x.exp()

    def _inverse(self, y: Tensor) -> Tensor:
        return y.log()

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return x


class PowerTransform(Transform):
    """``y = x ** exponent`` of positive numbers.

    Args:
        exponent: A number or a tensor; not 0.
        cache_size: 1 to keep the last pair.
    """

    domain = constraints.positive
    codomain = constraints.positive
    bijective = True

    def __init__(self, exponent: Any, cache_size: int = 0) -> None:
        super().__init__(cache_size=cache_size)
        (self.exponent,) = broadcast_all(exponent)

    def with_cache(self, cache_size: int = 1) -> Transform:
        if self._cache_size == cache_size:
            return self
        return PowerTransform(self.exponent, cache_size=cache_size)

    @lazy_property
    def sign(self) -> Any:
        return self.exponent.sign()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PowerTransform) and _same(self.exponent, other.exponent)

    def _call(self, x: Tensor) -> Tensor:
        return x**self.exponent

    def _inverse(self, y: Tensor) -> Tensor:
        return y ** (1 / self.exponent)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return (self.exponent * y / x).abs().log()

    def forward_shape(self, shape: Sequence[int]) -> Size:
        return cast(Size, broadcast_shapes(tuple(shape), self.exponent.shape))

    inverse_shape = forward_shape


def clipped_sigmoid(x: Tensor) -> Tensor:
    """Apply the logistic function, kept from 0 and 1 by the dtype's least steps."""
    return x.sigmoid().clamp(tiny_of(x), 1 - eps_of(x))


class SigmoidTransform(Transform):
    """``y = 1 / (1 + exp(-x))``, kept from 0 and 1."""

    domain = constraints.real
    codomain = constraints.unit_interval
    bijective = True
    sign = 1

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SigmoidTransform)

    def _call(self, x: Tensor) -> Tensor:
        return clipped_sigmoid(x)

    def _inverse(self, y: Tensor) -> Tensor:
        inside = y.clamp(tiny_of(y), 1 - eps_of(y))
        return inside.log() - (-inside).log1p()

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return -softplus(-x) - softplus(x)


class SoftplusTransform(Transform):
    """``y = log(1 + exp(x))``."""

    domain = constraints.real
    codomain = constraints.positive
    bijective = True
    sign = 1

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SoftplusTransform)

    def _call(self, x: Tensor) -> Tensor:
        return softplus(x)

    def _inverse(self, y: Tensor) -> Tensor:
        return (-(-y).expm1()).log() + y

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return -softplus(-x)


class TanhTransform(Transform):
    """``y = tanh(x)``. Where ``tanh`` rounds to 1 there is no way back: use ``cache_size=1``."""

    domain = constraints.real
    codomain = constraints.interval(-1.0, 1.0)
    bijective = True
    sign = 1

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TanhTransform)

    def _call(self, x: Tensor) -> Tensor:
        return x.tanh()

    def _inverse(self, y: Tensor) -> Tensor:
        return y.atanh()

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        # log(1 - tanh(x) ** 2), of which nothing cancels for large x
        return cast(Tensor, (math.log(2.0) - x - softplus(x * -2)) * 2)


class AbsTransform(Transform):
    """``y = |x|``. Not bijective: the inverse gives the positive one."""

    domain = constraints.real
    codomain = constraints.positive

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AbsTransform)

    def _call(self, x: Tensor) -> Tensor:
        return x.abs()

    def _inverse(self, y: Tensor) -> Tensor:
        return y


class AffineTransform(Transform):
    """``y = loc + scale * x``.

    Args:
        loc: A number or a tensor.
        scale: A number or a tensor; not 0.
        event_dim: 0 for numbers, 1 for vectors, 2 for matrices, and so on.
        cache_size: 1 to keep the last pair.
    """

    bijective = True

    def __init__(self, loc: Any, scale: Any, event_dim: int = 0, cache_size: int = 0) -> None:
        super().__init__(cache_size=cache_size)
        self.loc, self.scale = loc, scale
        self._event_dim = event_dim

    @property
    def event_dim(self) -> int:
        return self._event_dim

    @constraints.dependent_property(is_discrete=False)
    def domain(self) -> Any:
        if self.event_dim == 0:
            return constraints.real
        return constraints.independent(constraints.real, self.event_dim)

    codomain = domain

    def with_cache(self, cache_size: int = 1) -> Transform:
        if self._cache_size == cache_size:
            return self
        return AffineTransform(self.loc, self.scale, self.event_dim, cache_size=cache_size)

    def __eq__(self, other: object) -> bool:
        same = isinstance(other, AffineTransform)
        return same and _same(self.loc, other.loc) and _same(self.scale, other.scale)  # type: ignore[attr-defined]

    @property
    def sign(self) -> Any:
        if isinstance(self.scale, Tensor):
            return self.scale.sign()
        return (self.scale > 0) - (self.scale < 0)

    def _call(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.loc + self.scale * x)

    def _inverse(self, y: Tensor) -> Tensor:
        return cast(Tensor, (y - self.loc) / self.scale)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        if isinstance(self.scale, Tensor):
            each = self.scale.abs().log().expand(x.shape)
        else:
            each = full_like(x, math.log(abs(self.scale)))
        return cast(Tensor, sum_rightmost(each, self.event_dim))

    def forward_shape(self, shape: Sequence[int]) -> Size:
        parts = [v.shape for v in (self.loc, self.scale) if isinstance(v, Tensor)]
        return cast(Size, broadcast_shapes(tuple(shape), *parts))

    inverse_shape = forward_shape


class CumulativeDistributionTransform(Transform):
    """``y`` is the distribution function of ``x``: draws become uniform on [0, 1].

    Args:
        distribution: One that has ``cdf``, and for the inverse ``icdf``.
        cache_size: 1 to keep the last pair.
    """

    bijective = True
    codomain = constraints.unit_interval
    sign = +1

    def __init__(self, distribution: Any, cache_size: int = 0) -> None:
        super().__init__(cache_size=cache_size)
        self.distribution = distribution

    @property
    def domain(self) -> Any:
        return self.distribution.support

    def _call(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.distribution.cdf(x))

    def _inverse(self, y: Tensor) -> Tensor:
        return cast(Tensor, self.distribution.icdf(y))

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return cast(Tensor, self.distribution.log_prob(x))

    def with_cache(self, cache_size: int = 1) -> Transform:
        if self._cache_size == cache_size:
            return self
        return CumulativeDistributionTransform(self.distribution, cache_size=cache_size)


def _same(a: Any, b: Any) -> bool:
    # Equal numbers, or tensors whose elements are.
    if isinstance(a, Number) and isinstance(b, Number):
        return a == b
    if a is b:
        return True
    equal = a == b
    if not isinstance(equal, Tensor):
        return bool(equal)
    return decided(equal.all(), False)
