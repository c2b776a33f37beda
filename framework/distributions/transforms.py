"""Transforms: functions with a known inverse and Jacobian, by which distributions are made.

``transform(x)`` computes ``y``, ``transform.inv(y)`` goes back, and ``log_abs_det_jacobian(x, y)``
gives the logarithm of the volume change, one number for each event. ``domain`` and ``codomain`` are
constraints; their ``event_dim`` is how many axes one event has on either side.

Here is what all share, and those made of others: inverse, composition, more event axes, shape.
Functions of one number are in ``elementwise_transforms.py``, of vectors and matrices in
``vector_transforms.py``.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from typing import Any, cast

from ..ops.creation.fill import ones, zeros_like
from ..spec import Size
from ..tensor import Tensor
from . import constraints
from .parameters import lazy_property

Constraint = constraints.Constraint


def sum_rightmost(value: Any, axes: int) -> Any:
    """Sum over the last ``axes`` axes."""
    if axes == 0:
        return value
    return value.reshape(*value.shape[: value.dim() - axes], -1).sum(-1)


def with_events(constraint: Constraint, event_dim: int) -> Constraint:
    """Return the constraint with more event axes, up to ``event_dim``."""
    more = event_dim - constraint.event_dim
    return constraints.independent(constraint, more) if more > 0 else constraint


class Transform:
    """A function of tensors whose inverse and log-Jacobian can be computed.

    Subclasses define ``domain``, ``codomain``, ``_call``, ``_inverse`` and
    ``log_abs_det_jacobian``, and say ``bijective = True`` where the inverse is one.

    Args:
        cache_size: 1 to keep the last pair (x, y), so that the inverse of a result is the very
            tensor it was made of; 0 to keep none.

    Raises:
        ValueError: ``cache_size`` is neither.
    """

    bijective: Any = False
    domain: Any
    codomain: Any

    def __init__(self, cache_size: int = 0) -> None:
        if cache_size not in (0, 1):
            raise ValueError(f"{type(self).__name__}: cache_size must be 0 or 1; got {cache_size}.")
        self._cache_size = cache_size
        self._inv: Any = None
        self._cached_x_y: tuple[Any, Any] = (None, None)
        super().__init__()

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        state["_inv"] = None  # a weak reference, which is made again when asked for
        return state

    @property
    def event_dim(self) -> int:
        """The number of axes of an event, where it is the same on both sides."""
        if self.domain.event_dim == self.codomain.event_dim:
            return int(self.domain.event_dim)
        raise ValueError(
            f"{type(self).__name__} changes the number of event axes. Please use either "
            ".domain.event_dim or .codomain.event_dim."
        )

    @property
    def inv(self) -> Transform:
        """The inverse transform, whose inverse is this one."""
        inverse = None if self._inv is None else self._inv()
        if inverse is None:
            inverse = _InverseTransform(self)
            self._inv = weakref.ref(inverse)
        return cast(Transform, inverse)

    @property
    def sign(self) -> Any:
        """1 where the function grows, -1 where it falls; of monotone functions of a number."""
        raise NotImplementedError(
            f"{type(self).__name__} has no sign: only monotone functions of one number have."
        )

    def with_cache(self, cache_size: int = 1) -> Transform:
        """Return this transform with a cache of a size, itself if it has that."""
        if self._cache_size == cache_size:
            return self
        if type(self).__init__ is Transform.__init__:
            return type(self)(cache_size=cache_size)
        raise NotImplementedError(
            f"{type(self).__name__}.with_cache is not implemented. Define it to return a copy."
        )

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = None  # type: ignore[assignment]  # subclasses compare by value

    def __call__(self, x: Tensor) -> Tensor:
        """Apply the transform."""
        if self._cache_size == 0:
            return self._call(x)
        x_old, y_old = self._cached_x_y
        if x is x_old:
            return cast(Tensor, y_old)
        y = self._call(x)
        self._cached_x_y = x, y
        return y

    def _inv_call(self, y: Tensor) -> Tensor:
        if self._cache_size == 0:
            return self._inverse(y)
        x_old, y_old = self._cached_x_y
        if y is y_old:
            return cast(Tensor, x_old)
        x = self._inverse(y)
        self._cached_x_y = x, y
        return x

    def _call(self, x: Tensor) -> Tensor:
        raise NotImplementedError(f"{type(self).__name__} does not define _call(x).")

    def _inverse(self, y: Tensor) -> Tensor:
        raise NotImplementedError(f"{type(self).__name__} does not define _inverse(y).")

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """Compute ``log |dy / dx|``, of the shape of ``x`` without an event's axes."""
        raise NotImplementedError(
            f"{type(self).__name__} has no log_abs_det_jacobian: it is not bijective, or does not "
            "define it. Densities need a bijective transform."
        )

    def forward_shape(self, shape: Sequence[int]) -> Size:
        """Return the shape of ``y`` for that of ``x``."""
        return Size(shape)

    def inverse_shape(self, shape: Sequence[int]) -> Size:
        """Return the shape of ``x`` for that of ``y``."""
        return Size(shape)

    def __repr__(self) -> str:
        return type(self).__name__ + "()"


class _InverseTransform(Transform):
    # The inverse; the cache is that of the transform it inverts.

    def __init__(self, transform: Transform) -> None:
        super().__init__(cache_size=transform._cache_size)
        self._inv: Any = transform

    def __getstate__(self) -> dict[str, Any]:
        return dict(self.__dict__)

    @constraints.dependent_property
    def domain(self) -> Any:
        return self._inv.codomain

    @constraints.dependent_property
    def codomain(self) -> Any:
        return self._inv.domain

    @property
    def bijective(self) -> Any:
        return self._inv.bijective

    @property
    def sign(self) -> Any:
        return self._inv.sign

    @property
    def inv(self) -> Transform:
        return cast(Transform, self._inv)

    def with_cache(self, cache_size: int = 1) -> Transform:
        return self.inv.with_cache(cache_size).inv

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _InverseTransform) and bool(self._inv == other._inv)

    def __call__(self, x: Tensor) -> Tensor:
        return self.inv._inv_call(x)

    def _inv_call(self, y: Tensor) -> Tensor:
        return self.inv(y)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return -self.inv.log_abs_det_jacobian(y, x)

    def forward_shape(self, shape: Sequence[int]) -> Size:
        return self.inv.inverse_shape(shape)

    def inverse_shape(self, shape: Sequence[int]) -> Size:
        return self.inv.forward_shape(shape)

    def __repr__(self) -> str:
        return f"_InverseTransform({self._inv!r})"


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
        return cast(Tensor, ones(batch, dtype=x.dtype, device=x.device) * 0)

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


def changed_last_axis(name: str, shape: Sequence[int], by: int, axes: int = 1) -> Size:
    """Return a shape whose last axis is longer by ``by``, after a check of its length.

    Raises:
        ValueError: There are fewer than ``axes`` axes.
    """
    if len(shape) < axes:
        raise ValueError(f"{name}: too few dimensions on input: {axes} needed; got {tuple(shape)}.")
    return Size((*shape[:-1], shape[-1] + by))
