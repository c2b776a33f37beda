"""Transforms made of others, one after the other or on more axes, and the change of shape."""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from typing import Any, cast

from ...ops.creation.fill import zeros, zeros_like
from ...spec import Size
from ...tensor import Tensor
from ..constraints import elementwise as constraints
from ..parameters import lazy_property
from .transform import Constraint, Transform, sum_rightmost, with_events


class ComposeTransform(Transform):
    """Several transforms, one after the other; of none, the identity.

    Args:
        parts: In the order in which they are applied.
        cache_size: 1 to keep the last pair, in the parts.
    """

    def __init__(self, parts: Sequence[Transform], cache_size: int = 0) -> None:
        self.parts = [p.with_cache(cache_size) for p in parts] if cache_size else list(parts)
        super().__init__(cache_size=cache_size)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ComposeTransform) and self.parts == other.parts

    @constraints.dependent_property
    def domain(self) -> Any:
        if not self.parts:
            return constraints.real
        events = self.parts[-1].codomain.event_dim
        for part in reversed(self.parts):
            events += part.domain.event_dim - part.codomain.event_dim
            events = max(events, part.domain.event_dim)
        return with_events(self.parts[0].domain, events)

    @constraints.dependent_property
    def codomain(self) -> Any:
        if not self.parts:
            return constraints.real
        events = self.parts[0].domain.event_dim
        for part in self.parts:
            events += part.codomain.event_dim - part.domain.event_dim
            events = max(events, part.codomain.event_dim)
        return with_events(self.parts[-1].codomain, events)

    @lazy_property
    def bijective(self) -> Any:
        return all(p.bijective for p in self.parts)

    @lazy_property
    def sign(self) -> Any:
        return math.prod(p.sign for p in self.parts)

    @property
    def inv(self) -> Transform:
        inverse = None if self._inv is None else self._inv()
        if inverse is None:
            inverse = ComposeTransform([p.inv for p in reversed(self.parts)])
            self._inv = weakref.ref(inverse)
            inverse._inv = weakref.ref(self)
        return cast(Transform, inverse)

    def with_cache(self, cache_size: int = 1) -> Transform:
        if self._cache_size == cache_size:
            return self
        return ComposeTransform(self.parts, cache_size=cache_size)

    def __call__(self, x: Tensor) -> Tensor:
        for part in self.parts:
            x = part(x)
        return x

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        if not self.parts:
            return zeros_like(x)
        total: Any = 0
        events = self.domain.event_dim
        for k, part in enumerate(self.parts):
            after = y if k == len(self.parts) - 1 else part(x)
            change = part.log_abs_det_jacobian(x, after)
            total = total + sum_rightmost(change, events - part.domain.event_dim)
            events += part.codomain.event_dim - part.domain.event_dim
            x = after
        return cast(Tensor, total)

    def forward_shape(self, shape: Sequence[int]) -> Size:
        for part in self.parts:
            shape = part.forward_shape(shape)
        return Size(shape)

    def inverse_shape(self, shape: Sequence[int]) -> Size:
        for part in reversed(self.parts):
            shape = part.inverse_shape(shape)
        return Size(shape)

    def __repr__(self) -> str:
        inside = ",\n    ".join(repr(p).replace("\n", "\n    ") for p in self.parts)
        return f"{type(self).__name__}(\n    {inside}\n)"


identity_transform = ComposeTransform([])


class IndependentTransform(Transform):
    """A transform with more event axes: its log-Jacobian is summed over them.

    Args:
        base_transform: Of the parts.
        reinterpreted_batch_ndims: How many axes more belong to an event.
        cache_size: 1 to keep the last pair.
    """

    def __init__(
        self, base_transform: Transform, reinterpreted_batch_ndims: int, cache_size: int = 0
    ) -> None:
        super().__init__(cache_size=cache_size)
        self.base_transform = base_transform.with_cache(cache_size)
        self.reinterpreted_batch_ndims = reinterpreted_batch_ndims

    def with_cache(self, cache_size: int = 1) -> Transform:
        if self._cache_size == cache_size:
            return self
        return IndependentTransform(self.base_transform, self.reinterpreted_batch_ndims, cache_size)

    @constraints.dependent_property
    def domain(self) -> Any:
        return constraints.independent(self.base_transform.domain, self.reinterpreted_batch_ndims)

    @constraints.dependent_property
    def codomain(self) -> Any:
        return constraints.independent(self.base_transform.codomain, self.reinterpreted_batch_ndims)

    @property
    def bijective(self) -> Any:
        return self.base_transform.bijective

    @property
    def sign(self) -> Any:
        return self.base_transform.sign

    def _event(self, x: Tensor, side: Constraint) -> None:
        if x.dim() < side.event_dim:
            raise ValueError(
                f"{self!r}: too few dimensions on input: an event has {side.event_dim} axes; got "
                f"shape {tuple(x.shape)}."
            )

    def _call(self, x: Tensor) -> Tensor:
        self._event(x, self.domain)
        return self.base_transform(x)

    def _inverse(self, y: Tensor) -> Tensor:
        self._event(y, self.codomain)
        return self.base_transform.inv(y)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        change = self.base_transform.log_abs_det_jacobian(x, y)
        return cast(Tensor, sum_rightmost(change, self.reinterpreted_batch_ndims))

    def forward_shape(self, shape: Sequence[int]) -> Size:
        return self.base_transform.forward_shape(shape)

    def inverse_shape(self, shape: Sequence[int]) -> Size:
        return self.base_transform.inverse_shape(shape)

    def __repr__(self) -> str:
        return f"IndependentTransform({self.base_transform!r}, {self.reinterpreted_batch_ndims})"


class ReshapeTransform(Transform):
    """Another shape of the event.

    Args:
        in_shape: Of an event of ``x``.
        out_shape: Of an event of ``y``, of as many elements.
        cache_size: 1 to keep the last pair.

    Raises:
        ValueError: The numbers of elements differ.
    """

    bijective = True

    def __init__(
        self, in_shape: Sequence[int], out_shape: Sequence[int], cache_size: int = 0
    ) -> None:
        self.in_shape, self.out_shape = Size(in_shape), Size(out_shape)
        if self.in_shape.numel() != self.out_shape.numel():
            raise ValueError(
                "ReshapeTransform: in_shape, out_shape have different numbers of elements: "
                f"{tuple(in_shape)} and {tuple(out_shape)}."
            )
        super().__init__(cache_size=cache_size)

    @constraints.dependent_property
    def domain(self) -> Any:
        return constraints.independent(constraints.real, len(self.in_shape))

    @constraints.dependent_property
    def codomain(self) -> Any:
        return constraints.independent(constraints.real, len(self.out_shape))

    def with_cache(self, cache_size: int = 1) -> Transform:
        if self._cache_size == cache_size:
            return self
        return ReshapeTransform(self.in_shape, self.out_shape, cache_size)

    def _call(self, x: Tensor) -> Tensor:
        return x.reshape(self.forward_shape(x.shape))

    def _inverse(self, y: Tensor) -> Tensor:
        return y.reshape(self.inverse_shape(y.shape))

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        batch = x.shape[: x.dim() - len(self.in_shape)]
        return cast(Tensor, zeros(batch, dtype=x.dtype, device=x.device))

    def forward_shape(self, shape: Sequence[int]) -> Size:
        return _exchanged(shape, self.in_shape, self.out_shape)

    def inverse_shape(self, shape: Sequence[int]) -> Size:
        return _exchanged(shape, self.out_shape, self.in_shape)


def _exchanged(shape: Sequence[int], ending: Size, new: Size) -> Size:
    # The shape with another end.
    shape, cut = tuple(shape), len(shape) - len(ending)
    if cut < 0 or shape[cut:] != tuple(ending):
        raise ValueError(
            f"ReshapeTransform: shape mismatch: expected {shape} to end in {tuple(ending)}."
        )
    return Size((*shape[:cut], *new))
