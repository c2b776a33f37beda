"""Transforms: functions with a known inverse and Jacobian, by which distributions are made.

``transform(x)`` computes ``y``, ``transform.inv(y)`` goes back, and ``log_abs_det_jacobian(x, y)``
gives the logarithm of the volume change, one number for each event. ``domain`` and ``codomain`` are
constraints; their ``event_dim`` is how many axes one event has on either side.

Here is what all share, and the inverse. Those made of others are in ``composed.py``,
functions of one number in ``elementwise.py``, of vectors and matrices in
``vector.py``.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, cast

from ...spec import Size
from ...tensor import Tensor
from ..constraints import elementwise as constraints

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
        state["_inv"] = None  # a weak reference, which is created again on request
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


def changed_last_axis(name: str, shape: Sequence[int], by: int, axes: int = 1) -> Size:
    """Return a shape whose last axis is longer by ``by``, after a check of its length.

    Raises:
        ValueError: There are fewer than ``axes`` axes.
    """
    if len(shape) < axes:
        raise ValueError(f"{name}: too few dimensions on input: {axes} needed; got {tuple(shape)}.")
    return Size((*shape[:-1], shape[-1] + by))
