"""Distributions made of others: of transformed draws, and with more axes to an event."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

from ...modes import no_grad
from ...ops.creation.fill import full
from ...spec import Size
from ...tensor import Tensor
from ..constraints import elementwise as constraints
from ..distribution import Distribution
from ..transforms.composed import ComposeTransform
from ..transforms.transform import Transform, sum_rightmost, with_events


class Independent(Distribution):
    """A distribution whose last batch axes belong to the event: their log densities are summed.

    Args:
        base_distribution: With at least so many batch axes.
        reinterpreted_batch_ndims: How many of the last ones.
        validate_args: Whether values are checked.
    """

    arg_constraints = {}

    def __init__(
        self,
        base_distribution: Distribution,
        reinterpreted_batch_ndims: int,
        validate_args: bool | None = None,
    ) -> None:
        batch = base_distribution.batch_shape
        if reinterpreted_batch_ndims > len(batch):
            raise ValueError(
                "Independent: expected reinterpreted_batch_ndims <= "
                f"len(base_distribution.batch_shape), actual {reinterpreted_batch_ndims} vs "
                f"{len(batch)}. Give the base distribution more batch axes with expand()."
            )
        shape = (*batch, *base_distribution.event_shape)
        cut = len(batch) - reinterpreted_batch_ndims
        self.base_dist = base_distribution
        self.reinterpreted_batch_ndims = reinterpreted_batch_ndims
        super().__init__(shape[:cut], shape[cut:], validate_args=validate_args)

    def expand(self, batch_shape: Iterable[int], _instance: Any = None) -> Any:
        new = self._get_checked_instance(Independent, _instance)
        batch = Size(batch_shape)
        inner = self._event_shape[: self.reinterpreted_batch_ndims]
        new.base_dist = self.base_dist.expand(Size((*batch, *inner)))
        new.reinterpreted_batch_ndims = self.reinterpreted_batch_ndims
        Distribution.__init__(new, batch, self._event_shape, validate_args=False)
        new._validate_args = self._validate_args
        return new

    @property
    def has_rsample(self) -> bool:  # type: ignore[override]
        return self.base_dist.has_rsample

    @property
    def has_enumerate_support(self) -> bool:  # type: ignore[override]
        return not self.reinterpreted_batch_ndims and self.base_dist.has_enumerate_support

    @constraints.dependent_property
    def support(self) -> Any:
        base = self.base_dist.support
        more = self.reinterpreted_batch_ndims
        return constraints.independent(base, more) if more else base

    @property
    def mean(self) -> Tensor:
        return self.base_dist.mean

    @property
    def mode(self) -> Tensor:
        return self.base_dist.mode

    @property
    def variance(self) -> Tensor:
        return self.base_dist.variance

    def sample(self, sample_shape: Iterable[int] = ()) -> Tensor:
        return self.base_dist.sample(sample_shape)

    def rsample(self, sample_shape: Iterable[int] = ()) -> Tensor:
        return self.base_dist.rsample(sample_shape)

    def log_prob(self, value: Tensor) -> Tensor:
        each = self.base_dist.log_prob(value)
        return cast(Tensor, sum_rightmost(each, self.reinterpreted_batch_ndims))

    def entropy(self) -> Tensor:
        each = self.base_dist.entropy()
        return cast(Tensor, sum_rightmost(each, self.reinterpreted_batch_ndims))

    def enumerate_support(self, expand: bool = True) -> Tensor:
        if self.reinterpreted_batch_ndims > 0:
            raise NotImplementedError(
                "Independent: enumeration over the cartesian product of event axes is not "
                "implemented. Enumerate the base distribution's support."
            )
        return self.base_dist.enumerate_support(expand)

    def __repr__(self) -> str:
        return f"Independent({self.base_dist!r}, {self.reinterpreted_batch_ndims})"


class TransformedDistribution(Distribution):
    """The distribution of ``f(x)`` for ``x`` from another: ``log p(y) = log p(x) - log |dy / dx|``.

    Args:
        base_distribution: Of ``x``. Its batch axes become event axes as far as the transforms
            take events of more axes.
        transforms: A :class:`Transform` or a list of them, in the order in which they apply.
        validate_args: Whether values are checked.

    Raises:
        ValueError: There are other things among the transforms, or the base has too few axes.
    """

    arg_constraints: Any = {}

    def __init__(
        self,
        base_distribution: Distribution,
        transforms: Transform | Sequence[Transform],
        validate_args: bool | None = None,
    ) -> None:
        parts = [transforms] if isinstance(transforms, Transform) else transforms
        if not isinstance(parts, list | tuple) or not all(isinstance(t, Transform) for t in parts):
            raise ValueError(
                "TransformedDistribution: transforms must be a Transform or a list of Transforms; "
                f"got {transforms!r}."
            )
        self.transforms = list(parts)
        whole = ComposeTransform(self.transforms)
        base_events = len(base_distribution.event_shape)
        shape = (*base_distribution.batch_shape, *base_distribution.event_shape)
        if len(shape) < whole.domain.event_dim:
            raise ValueError(
                "TransformedDistribution: base_distribution needs to have shape with size at least "
                f"{whole.domain.event_dim}, the axes that the transforms take; got {shape}."
            )
        result = whole.forward_shape(shape)
        spread = whole.inverse_shape(result)  # where the transforms' parameters are batches
        if tuple(spread) != shape:
            base_distribution = base_distribution.expand(spread[: len(spread) - base_events])
        more = whole.domain.event_dim - base_events
        self.base_dist = Independent(base_distribution, more) if more > 0 else base_distribution
        change = whole.codomain.event_dim - whole.domain.event_dim
        events = max(whole.codomain.event_dim, base_events + change)
        cut = len(result) - events
        super().__init__(result[:cut], result[cut:], validate_args=validate_args)

    def expand(self, batch_shape: Iterable[int], _instance: Any = None) -> Any:
        new = self._get_checked_instance(TransformedDistribution, _instance)
        batch = Size(batch_shape)
        shape = Size((*batch, *self._event_shape))
        for transform in reversed(self.transforms):
            shape = transform.inverse_shape(shape)
        new.base_dist = self.base_dist.expand(
            Size(shape[: len(shape) - len(self.base_dist.event_shape)])
        )
        new.transforms = self.transforms
        Distribution.__init__(new, batch, self._event_shape, validate_args=False)
        new._validate_args = self._validate_args
        return new

    @constraints.dependent_property(is_discrete=False)
    def support(self) -> Any:
        if not self.transforms:
            return self.base_dist.support
        return with_events(self.transforms[-1].codomain, len(self._event_shape))

    @property
    def has_rsample(self) -> bool:  # type: ignore[override]
        return self.base_dist.has_rsample

    def sample(self, sample_shape: Iterable[int] = ()) -> Tensor:
        with no_grad():
            return self._through(self.base_dist.sample(sample_shape))

    def rsample(self, sample_shape: Iterable[int] = ()) -> Tensor:
        return self._through(self.base_dist.rsample(sample_shape))

    def _through(self, x: Tensor) -> Tensor:
        for transform in self.transforms:
            x = transform(x)
        return x

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        events, total, y = len(self._event_shape), cast(Any, 0.0), value
        for transform in reversed(self.transforms):
            x = transform.inv(y)
            events += transform.domain.event_dim - transform.codomain.event_dim
            change = transform.log_abs_det_jacobian(x, y)
            total = total - sum_rightmost(change, events - transform.domain.event_dim)
            y = x
        base = self.base_dist.log_prob(y)
        return cast(Tensor, total + sum_rightmost(base, events - len(self.base_dist.event_shape)))

    def _turned(self, probability: Tensor) -> Tensor:
        # A falling transform exchanges the tails.
        sign: Any = 1
        for transform in self.transforms:
            sign = sign * transform.sign
        if isinstance(sign, int) and sign == 1:
            return probability
        return cast(Tensor, sign * (probability - 0.5) + 0.5)

    def cdf(self, value: Tensor) -> Tensor:
        for transform in reversed(self.transforms):
            value = transform.inv(value)
        if self._validate_args:  # a bound of the support, which it excludes, has a probability
            self.base_dist._validate_sample(value)
        return self._turned(self.base_dist.cdf(value))

    def icdf(self, value: Tensor) -> Tensor:
        return self._through(self.base_dist.icdf(self._turned(value)))


def nan_like(x: Tensor) -> Tensor:
    """Return NaN in the shape of a tensor: what a moment is that does not exist."""
    return cast(Tensor, full(x.shape, float("nan"), dtype=x.dtype, device=x.device))


def filled(shape: Sequence[int], value: float, like: Tensor) -> Tensor:
    """Return a constant tensor of a shape, in another's dtype and on its device."""
    return cast(Tensor, full(tuple(shape), value, dtype=like.dtype, device=like.device))
