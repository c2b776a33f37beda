"""The base of all distributions: shapes, checks of parameters and samples, what each can tell.

Shapes have three parts. A **sample** shape is asked for by ``sample(sample_shape)``; the **batch**
shape counts distributions of different parameters; the **event** shape is that of one draw. So a
sample is of shape ``sample_shape + batch_shape + event_shape``, and ``log_prob`` of it of shape
``sample_shape + batch_shape``.

Parameters are checked when a distribution is made, values when their density is asked for, unless
``validate_args=False``. Tensors that have no values (on meta, in an estimate of a step) pass.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any, Self, cast

from ..autograd.engine import grad
from ..modes import enable_grad, no_grad
from ..spec import Size
from ..tensor import Tensor
from .constraints import elementwise as constraints
from .parameters import decided, known, lazy_property

_SHOWN = 5  # invalid values in a message


class Distribution:
    """A probability distribution, or a batch of them.

    Args:
        batch_shape: A separate distribution for each index.
        event_shape: Of one draw.
        validate_args: Whether parameters and values are checked; None for the default of the class,
            which is True.

    Raises:
        ValueError: A parameter is outside of its constraint.
    """

    has_rsample = False
    has_enumerate_support = False
    _validate_args: bool = __debug__

    def __init__(
        self,
        batch_shape: Iterable[int] = (),
        event_shape: Iterable[int] = (),
        validate_args: bool | None = None,
    ) -> None:
        self._batch_shape = Size(batch_shape)
        self._event_shape = Size(event_shape)
        if validate_args is not None:
            self._validate_args = validate_args
        if self._validate_args:
            self._check_parameters()
        super().__init__()

    @staticmethod
    def set_default_validate_args(value: bool) -> None:
        """Switch the checks on or off for distributions that are made from now on.

        Raises:
            ValueError: ``value`` is not a bool.
        """
        if value not in (True, False):
            raise ValueError(f"set_default_validate_args takes True or False; got {value!r}.")
        Distribution._validate_args = value

    def _check_parameters(self) -> None:
        try:
            limits = self.arg_constraints
        except NotImplementedError:
            warnings.warn(
                f"{type(self).__name__} does not define arg_constraints, so its parameters are not "
                "checked. Define arg_constraints = {}, or pass validate_args=False.",
                stacklevel=4,
            )
            return
        for name, constraint in limits.items():
            if constraints.is_dependent(constraint):
                continue
            if name not in self.__dict__ and isinstance(
                getattr(type(self), name, None), lazy_property
            ):
                continue  # derived from a parameter that is checked
            value = getattr(self, name)
            wrong = _outside(constraint, value)
            if wrong is not None:
                raise ValueError(
                    f"Expected parameter {name} ({_described(value)}) of distribution "
                    f"{self!r} to satisfy the constraint {constraint!r}, but found invalid "
                    f"values: {wrong}. Correct them, or pass validate_args=False to go without "
                    "the check."
                )

    # What it is

    @property
    def batch_shape(self) -> Size:
        """The shape of the parameters: how many distributions these are."""
        return self._batch_shape

    @property
    def event_shape(self) -> Size:
        """The shape of one draw from one of them."""
        return self._event_shape

    @property
    def arg_constraints(self) -> dict[str, constraints.Constraint]:
        """The region of each parameter, by name."""
        raise self._lacks("arg_constraints")

    @property
    def support(self) -> Any:
        """The region that draws lie in, a constraint."""
        raise self._lacks("support")

    @property
    def mean(self) -> Tensor:
        """The expected value, of shape batch_shape + event_shape."""
        raise self._lacks("mean")

    @property
    def mode(self) -> Tensor:
        """Where the density is greatest, of shape batch_shape + event_shape."""
        raise self._lacks("mode")

    @property
    def variance(self) -> Tensor:
        """The variance of each number, of shape batch_shape + event_shape."""
        raise self._lacks("variance")

    @property
    def stddev(self) -> Tensor:
        """The square root of the variance."""
        return self.variance.sqrt()

    # What it does

    def expand(self, batch_shape: Iterable[int], _instance: Any = None) -> Self:
        """Return the same distribution with a larger batch shape; no parameter is copied.

        Args:
            batch_shape: To which the present one broadcasts.
            _instance: For subclasses that call their base's: what to fill.
        """
        raise self._lacks("expand")

    def sample(self, sample_shape: Iterable[int] = ()) -> Tensor:
        """Draw without a gradient: of shape sample_shape + batch_shape + event_shape."""
        with no_grad():
            return self.rsample(sample_shape)

    def rsample(self, sample_shape: Iterable[int] = ()) -> Tensor:
        """Draw with a gradient by the parameters (reparametrised), where there is one."""
        raise self._lacks("rsample", "Its draws have no gradient; use sample() and log_prob().")

    def sample_n(self, n: int) -> Tensor:
        """Draw ``n`` times; ``sample((n,))`` by its old name."""
        warnings.warn(
            "`sample_n(n)` will be deprecated. Use `sample((n,))` instead.",
            FutureWarning,
            stacklevel=2,
        )
        return self.sample((n,))

    def log_prob(self, value: Tensor) -> Tensor:
        """Take the logarithm of the density (or probability) at ``value``.

        Args:
            value: Broadcasts against batch_shape + event_shape.

        Returns:
            The broadcast shape, without that of the event.
        """
        raise self._lacks("log_prob")

    def cdf(self, value: Tensor) -> Tensor:
        """Compute the probability of a draw that is at most ``value``."""
        raise self._lacks("cdf")

    def icdf(self, value: Tensor) -> Tensor:
        """Compute the quantile: the inverse of ``cdf``."""
        raise self._lacks("icdf")

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """List all values of a discrete distribution, along a new first axis.

        Args:
            expand: Whether the result has the batch shape; else axes of size 1 stand for it.
        """
        raise self._lacks("enumerate_support")

    def entropy(self) -> Tensor:
        """Compute the entropy in nats, of the batch shape."""
        raise self._lacks("entropy")

    def perplexity(self) -> Tensor:
        """Compute the exponential of the entropy."""
        return self.entropy().exp()

    # For subclasses

    def _extended_shape(self, sample_shape: Iterable[int] = ()) -> Size:
        """Return sample_shape + batch_shape + event_shape."""
        return Size((*sample_shape, *self._batch_shape, *self._event_shape))

    def _validate_sample(self, value: Any) -> None:
        """Check a value before its density is computed.

        Raises:
            ValueError: It is no tensor, does not broadcast, or lies outside of the support.
        """
        name = type(self).__name__
        if not isinstance(value, Tensor):
            raise ValueError(
                f"{name}: the value argument must be a Tensor; got {type(value).__name__}. "
                "Convert it with lowtide.tensor()."
            )
        events = len(self._event_shape)
        if tuple(value.shape[max(value.dim() - events, 0) :]) != tuple(self._event_shape):
            raise ValueError(
                f"{name}: the right-most size of value must match event_shape: "
                f"{tuple(value.shape)} vs {tuple(self._event_shape)}."
            )
        expected = (*self._batch_shape, *self._event_shape)
        for have, want in zip(reversed(value.shape), reversed(expected), strict=False):
            if have != 1 and want != 1 and have != want:
                raise ValueError(
                    f"{name}: value is not broadcastable with batch_shape+event_shape: "
                    f"{tuple(value.shape)} vs {tuple(expected)}."
                )
        try:
            support = self.support
        except NotImplementedError:
            warnings.warn(
                f"{name} does not define support, so values are not checked. Define it, or pass "
                "validate_args=False.",
                stacklevel=3,
            )
            return
        wrong = _outside(support, value)
        if wrong is not None:
            raise ValueError(
                f"Expected value argument ({_described(value)}) to be within the support "
                f"({support!r}) of the distribution {self!r}, but found invalid values: {wrong}. "
                "Correct them, or make the distribution with validate_args=False."
            )

    def _get_checked_instance(self, cls: type, _instance: Any = None) -> Any:
        """Return what ``expand`` fills: ``_instance``, or a new object of this class.

        Raises:
            NotImplementedError: A subclass has an ``__init__`` of its own and no ``expand``, and
                so may have state that would not be expanded.
        """
        if _instance is None and type(self).__init__ is not cls.__init__:  # type: ignore[misc]
            raise NotImplementedError(
                f"Subclass {type(self).__name__} of {cls.__name__} that defines a custom __init__ "
                "method must also define a custom .expand() method."
            )
        return type(self).__new__(type(self)) if _instance is None else _instance

    def _expanded(self, cls: type, batch_shape: Iterable[int], _instance: Any, *names: str) -> Any:
        """Do the work of ``expand`` where all parameters ``names`` have the batch shape.

        A lazily computed one is expanded if it has been given or read.
        """
        new = self._get_checked_instance(cls, _instance)
        shape = Size(batch_shape)
        for name in names:
            if name in self.__dict__:
                setattr(new, name, getattr(self, name).expand(shape))
        Distribution.__init__(new, shape, self._event_shape, validate_args=False)
        new._validate_args = self._validate_args
        return new

    def _lacks(self, what: str, instead: str = "") -> NotImplementedError:
        return NotImplementedError(
            f"{type(self).__name__} has no {what}: there is none in PyTorch, or no closed form. "
            + (instead or "Estimate it from samples, or define it in a subclass.")
        )

    def __repr__(self) -> str:
        try:
            names = [n for n in self.arg_constraints if n in self.__dict__]
        except NotImplementedError:
            names = []
        shown = [f"{name}: {_brief(self.__dict__[name])}" for name in names]
        return f"{type(self).__name__}({', '.join(shown)})"


class ExponentialFamily(Distribution):
    r"""A distribution whose density is ``exp(t(x) . theta - F(theta) + k(x))``.

    ``theta`` are the natural parameters, ``t`` the sufficient statistics, ``F`` the log normalizer
    and ``k`` the carrier measure. Entropies and divergences follow from ``F`` and its gradient.

    Source:
        Nielsen and Nock: "Entropies and cross-entropies of exponential families", ICIP 2010.
    """

    @property
    def _natural_params(self) -> tuple[Tensor, ...]:
        raise self._lacks("_natural_params")

    def _log_normalizer(self, *natural_params: Tensor) -> Tensor:
        raise self._lacks("_log_normalizer")

    @property
    def _mean_carrier_measure(self) -> Any:
        raise self._lacks("_mean_carrier_measure")

    def entropy(self) -> Tensor:
        """Compute ``F(theta) - theta . F'(theta) - E[k(x)]``, of which the gradient is autograd's.

        It can itself be differentiated by the parameters, since the graph of ``F'`` is kept.
        """
        given = self._natural_params
        recorded = any(p.requires_grad for p in given)
        with enable_grad():
            theta = [p if p.requires_grad else p.detach().requires_grad_() for p in given]
            normalizer = self._log_normalizer(*theta)
            slopes = grad([normalizer.sum()], theta, create_graph=recorded)
        result: Any = (normalizer if recorded else normalizer.detach()) - self._mean_carrier_measure
        for parameter, slope in zip(given, slopes, strict=True):
            part = parameter * cast(Tensor, slope)
            events = part.dim() - len(self._batch_shape)
            result = result - (part.flatten(-events).sum(-1) if events > 0 else part)
        return cast(Tensor, result)


def _outside(constraint: constraints.Constraint, value: Tensor) -> str | None:
    # The values that break a constraint, in words; None if there are none or it cannot be known.
    with no_grad():
        valid = constraint.check(value.detach())
        if decided(valid.all(), True):
            return None
        if valid.dim() == value.dim():
            chosen = value.detach()[~valid]
        else:  # whole events: the first of them
            chosen = value.detach().reshape(-1, *value.shape[valid.dim() :])
            chosen = chosen[~valid.expand(value.shape[: valid.dim()]).reshape(-1)][:1]
            return f"{chosen[0].tolist()} ({int((~valid).sum())} of {valid.numel()} events)"
    count = chosen.numel()
    listed = ", ".join(f"{v:g}" for v in chosen[:_SHOWN].tolist())
    return f"{listed}{', ...' if count > _SHOWN else ''} ({count} of {value.numel()})"


def _described(value: Any) -> str:
    return f"{type(value).__name__} of shape {tuple(value.shape)}"


def _brief(value: Any) -> str:
    if isinstance(value, Tensor) and (value.numel() != 1 or not known(value)):
        return str(value.shape)
    return str(value.item()) if isinstance(value, Tensor) else str(value)
