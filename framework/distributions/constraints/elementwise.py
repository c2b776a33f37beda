"""Constraints: the regions that parameters and samples lie in, each with a check of membership.

``constraint.check(value)`` says for each event of ``value`` whether it lies in the region: the
result has the shape of ``value`` without its last ``constraint.event_dim`` axes. A region that
depends on the other parameters of a distribution is a :class:`dependent_property`; of an instance
it gives the region itself.

Names are PyTorch's: ``constraints.positive``, ``constraints.interval(0, 1)``. Regions made of
others (cat, stack, of vectors and matrices) are in ``shaped.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...tensor import Tensor
from ..parameters import known


class Constraint:
    """A region, over which a variable may range.

    Attributes:
        is_discrete: Whether its points are isolated.
        event_dim: How many of the last axes make one point.
    """

    is_discrete: Any = False
    event_dim: Any = 0

    def check(self, value: Tensor) -> Tensor:
        """Say for each event whether it is in the region: bool, of the leading axes' shape."""
        raise NotImplementedError(
            f"{type(self).__name__} has no check: define check(value) in the class."
        )

    def __repr__(self) -> str:
        return type(self).__name__.lstrip("_") + "()"


class _Dependent(Constraint):
    """A region that is known only with the values of other parameters."""

    def __init__(self, *, is_discrete: Any = NotImplemented, event_dim: Any = NotImplemented):
        self._is_discrete = is_discrete
        self._event_dim = event_dim
        super().__init__()

    @property
    def is_discrete(self) -> bool:
        return bool(_stated("is_discrete", self._is_discrete))

    @property
    def event_dim(self) -> int:
        return int(_stated("event_dim", self._event_dim))

    def __call__(
        self, *, is_discrete: Any = NotImplemented, event_dim: Any = NotImplemented
    ) -> _Dependent:
        """Return one of which more is known."""
        return _Dependent(
            is_discrete=self._is_discrete if is_discrete is NotImplemented else is_discrete,
            event_dim=self._event_dim if event_dim is NotImplemented else event_dim,
        )

    def check(self, value: Tensor) -> Tensor:
        raise ValueError(
            "a constraint that depends on parameters cannot be checked without them. Ask an "
            "instance of the distribution for it."
        )


def _stated(name: str, value: Any) -> Any:
    if value is NotImplemented:
        raise NotImplementedError(
            f".{name} cannot be determined statically: it depends on the parameters. Ask an "
            "instance of the distribution, or state it where the constraint is declared."
        )
    return value


class _DependentProperty(property, _Dependent):
    """A property whose value is a constraint; of the class, it stands for the unknown one.

    A decorator: ``@dependent_property`` or ``@dependent_property(is_discrete=..., event_dim=...)``.

    Args:
        fn: Returns the constraint of an instance.
        is_discrete: If it is the same for all instances.
        event_dim: The same.
    """

    def __init__(
        self,
        fn: Callable[[Any], Any] | None = None,
        *,
        is_discrete: Any = NotImplemented,
        event_dim: Any = NotImplemented,
    ) -> None:
        super().__init__(fn)
        self._is_discrete = is_discrete
        self._event_dim = event_dim

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Decorate the function, where it was not given before."""
        return _DependentProperty(
            *args, is_discrete=self._is_discrete, event_dim=self._event_dim, **kwargs
        )


def is_dependent(constraint: Any) -> bool:
    """True if a constraint is not known without an instance."""
    return isinstance(constraint, _Dependent)


class _Boolean(Constraint):
    is_discrete = True

    def check(self, value: Tensor) -> Tensor:
        return (value == 0) | (value == 1)


class _Real(Constraint):
    # Every number; NaN is none.

    def check(self, value: Tensor) -> Tensor:
        return value == value


class _Bounded(Constraint):
    # What the following have in common: bounds, which may be tensors, and how they are shown.
    bounds: tuple[str, ...] = ()
    lower_bound: Any
    upper_bound: Any

    def __init__(self, *bounds: Any, **named: Any) -> None:
        names = self.bounds
        given = dict(zip(names, bounds, strict=False)) | named
        if set(given) != set(names) or len(bounds) > len(names):
            raise TypeError(f"{type(self).__name__} takes {', '.join(names)}; got {given}.")
        for name, value in given.items():
            setattr(self, name, value)
        super().__init__()

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={_text(getattr(self, name))}" for name in self.bounds)
        return f"{type(self).__name__[1:]}({shown})"


def _text(bound: Any) -> str:
    # A bound of one element as a number, more of them by their shape.
    if not isinstance(bound, Tensor):
        return str(bound)
    if bound.numel() == 1 and known(bound):
        return str(bound.item())
    return f"tensor of shape {tuple(bound.shape)}"


class _IntegerInterval(_Bounded):
    """The integers from ``lower_bound`` to ``upper_bound``, both included."""

    is_discrete = True
    bounds = ("lower_bound", "upper_bound")

    def check(self, value: Tensor) -> Tensor:
        return (value % 1 == 0) & (self.lower_bound <= value) & (value <= self.upper_bound)


class _IntegerGreaterThan(_Bounded):
    """The integers from ``lower_bound`` on, included."""

    is_discrete = True
    bounds = ("lower_bound",)

    def check(self, value: Tensor) -> Tensor:
        return (value % 1 == 0) & (value >= self.lower_bound)


class _GreaterThan(_Bounded):
    """The numbers above ``lower_bound``."""

    bounds = ("lower_bound",)

    def check(self, value: Tensor) -> Tensor:
        return self.lower_bound < value


class _GreaterThanEq(_Bounded):
    """The numbers from ``lower_bound`` on."""

    bounds = ("lower_bound",)

    def check(self, value: Tensor) -> Tensor:
        return self.lower_bound <= value


class _LessThan(_Bounded):
    """The numbers below ``upper_bound``."""

    bounds = ("upper_bound",)

    def check(self, value: Tensor) -> Tensor:
        return value < self.upper_bound


class _Interval(_Bounded):
    """The numbers from ``lower_bound`` to ``upper_bound``, both included."""

    bounds = ("lower_bound", "upper_bound")

    def check(self, value: Tensor) -> Tensor:
        return (self.lower_bound <= value) & (value <= self.upper_bound)


class _HalfOpenInterval(_Bounded):
    """The numbers from ``lower_bound`` to ``upper_bound``, of which the upper is left out."""

    bounds = ("lower_bound", "upper_bound")

    def check(self, value: Tensor) -> Tensor:
        return (self.lower_bound <= value) & (value < self.upper_bound)


class _IndependentConstraint(Constraint):
    """A constraint whose last batch axes belong to the event: an event is in it if all parts are.

    Args:
        base_constraint: Of the parts.
        reinterpreted_batch_ndims: How many axes more belong to an event.
    """

    def __init__(self, base_constraint: Constraint, reinterpreted_batch_ndims: int) -> None:
        if not isinstance(base_constraint, Constraint):
            raise TypeError(
                f"independent takes a Constraint; got {type(base_constraint).__name__}."
            )
        if not isinstance(reinterpreted_batch_ndims, int) or reinterpreted_batch_ndims < 0:
            raise ValueError(
                "independent: reinterpreted_batch_ndims is an integer of 0 or more; got "
                f"{reinterpreted_batch_ndims!r}."
            )
        self.base_constraint = base_constraint
        self.reinterpreted_batch_ndims = reinterpreted_batch_ndims
        super().__init__()

    @property
    def is_discrete(self) -> bool:
        return bool(self.base_constraint.is_discrete)

    @property
    def event_dim(self) -> int:
        return int(self.base_constraint.event_dim) + self.reinterpreted_batch_ndims

    def check(self, value: Tensor) -> Tensor:
        parts = self.base_constraint.check(value)
        if parts.dim() < self.reinterpreted_batch_ndims:
            raise ValueError(
                f"{self!r}: expected value.dim() >= {self.event_dim}, the axes of an event; got "
                f"{value.dim()}."
            )
        kept = parts.dim() - self.reinterpreted_batch_ndims
        return parts.reshape(*parts.shape[:kept], -1).all(-1)

    def __repr__(self) -> str:
        return f"IndependentConstraint({self.base_constraint!r}, {self.reinterpreted_batch_ndims})"


class MixtureSameFamilyConstraint(Constraint):
    """The support of a mixture: each event is in the support of every component.

    Args:
        base_constraint: Of the components, along the axis before the event's.
    """

    def __init__(self, base_constraint: Constraint) -> None:
        if not isinstance(base_constraint, Constraint):
            raise TypeError(
                "MixtureSameFamilyConstraint takes a Constraint; got "
                f"{type(base_constraint).__name__}."
            )
        self.base_constraint = base_constraint
        super().__init__()

    @property
    def is_discrete(self) -> bool:
        return bool(self.base_constraint.is_discrete)

    @property
    def event_dim(self) -> int:
        return int(self.base_constraint.event_dim)

    def check(self, value: Tensor) -> Tensor:
        events = self.event_dim
        if value.dim() < events:
            raise ValueError(
                f"{self!r}: expected value.dim() >= {events}, the axes of an event; got "
                f"{value.dim()}."
            )
        each = self.base_constraint.check(value.unsqueeze(-1 - events))  # with a component axis
        return each.all(-1)

    def __repr__(self) -> str:
        return f"MixtureSameFamilyConstraint({self.base_constraint!r})"


# The names of PyTorch

dependent = _Dependent()
dependent_property = _DependentProperty
independent = _IndependentConstraint
boolean = _Boolean()
real = _Real()
real_vector = independent(real, 1)
nonnegative_integer = _IntegerGreaterThan(0)
positive_integer = _IntegerGreaterThan(1)
integer_interval = _IntegerInterval
positive = _GreaterThan(0.0)
nonnegative = _GreaterThanEq(0.0)
greater_than = _GreaterThan
greater_than_eq = _GreaterThanEq
less_than = _LessThan
interval = _Interval
half_open_interval = _HalfOpenInterval
unit_interval = _Interval(0.0, 1.0)
