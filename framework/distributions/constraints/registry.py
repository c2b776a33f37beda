"""Which transform leads from unconstrained numbers into a region: for learning by gradients.

``biject_to(constraint)`` is bijective, with a log-Jacobian, as densities need (Hamiltonian Monte
Carlo). ``transform_to(constraint)`` need not be, and is cheaper or better conditioned, as
optimizers want. Both are looked up by the constraint's class; new ones are registered.
"""

from __future__ import annotations

from collections.abc import Callable
from numbers import Number
from typing import Any, overload

from ..transforms import composed as composed
from ..transforms import elementwise as elementwise
from ..transforms import vector as vectors
from ..transforms.transform import Transform
from . import elementwise as constraints
from . import shaped as shaped_constraints

Factory = Callable[[Any], Transform]


class ConstraintRegistry:
    """A table from constraint classes to functions that make a transform for a constraint."""

    def __init__(self) -> None:
        self._registry: dict[type, Factory] = {}

    @overload
    def register(self, constraint: Any) -> Callable[[Factory], Factory]: ...

    @overload
    def register(self, constraint: Any, factory: Factory) -> Factory: ...

    def register(self, constraint: Any, factory: Any = None) -> Any:
        """Register a function for a class of constraints; a decorator without ``factory``.

        Args:
            constraint: A class, or an instance of one that takes no arguments.
            factory: Takes a constraint of the class, returns a Transform.

        Raises:
            TypeError: ``constraint`` is neither.
        """
        if factory is None:
            return lambda factory: self.register(constraint, factory)
        cls = type(constraint) if isinstance(constraint, constraints.Constraint) else constraint
        if not isinstance(cls, type) or not issubclass(cls, constraints.Constraint):
            raise TypeError(
                "register takes a Constraint subclass or instance; got "
                f"{constraint!r}. Derive it from lowtide.distributions.constraints.Constraint."
            )
        self._registry[cls] = factory
        return factory

    def __call__(self, constraint: Any) -> Transform:
        """Return a transform whose codomain is the constraint.

        Raises:
            NotImplementedError: Nothing is registered for its class.
        """
        factory = self._registry.get(type(constraint))
        if factory is None:
            raise NotImplementedError(
                f"Cannot transform {type(constraint).__name__} constraints: no transform leads "
                "there. Register one with biject_to.register or transform_to.register."
            )
        return factory(constraint)


biject_to = ConstraintRegistry()
transform_to = ConstraintRegistry()


@biject_to.register(constraints.real)
@transform_to.register(constraints.real)
def _to_real(constraint: Any) -> Transform:
    return composed.identity_transform


def _of_parts(registry: ConstraintRegistry) -> Factory:
    def factory(constraint: Any) -> Transform:
        base = registry(constraint.base_constraint)
        return composed.IndependentTransform(base, constraint.reinterpreted_batch_ndims)

    return factory


@biject_to.register(constraints.greater_than)
@biject_to.register(constraints.greater_than_eq)
@transform_to.register(constraints.greater_than)
@transform_to.register(constraints.greater_than_eq)
def _to_above(constraint: Any) -> Transform:
    shift = elementwise.AffineTransform(constraint.lower_bound, 1)
    return composed.ComposeTransform([elementwise.ExpTransform(), shift])


@biject_to.register(constraints.less_than)
@transform_to.register(constraints.less_than)
def _to_below(constraint: Any) -> Transform:
    shift = elementwise.AffineTransform(constraint.upper_bound, -1)
    return composed.ComposeTransform([elementwise.ExpTransform(), shift])


@biject_to.register(constraints.interval)
@biject_to.register(constraints.half_open_interval)
@transform_to.register(constraints.interval)
@transform_to.register(constraints.half_open_interval)
def _to_interval(constraint: Any) -> Transform:
    low, high = constraint.lower_bound, constraint.upper_bound
    if all(isinstance(v, Number) for v in (low, high)) and (low, high) == (0, 1):
        return elementwise.SigmoidTransform()
    stretch = elementwise.AffineTransform(low, high - low)
    return composed.ComposeTransform([elementwise.SigmoidTransform(), stretch])


@biject_to.register(shaped_constraints.simplex)
def _biject_to_simplex(constraint: Any) -> Transform:
    return vectors.StickBreakingTransform()


@transform_to.register(shaped_constraints.simplex)
def _transform_to_simplex(constraint: Any) -> Transform:
    return vectors.SoftmaxTransform()


@transform_to.register(shaped_constraints.lower_cholesky)
def _to_lower_cholesky(constraint: Any) -> Transform:
    return vectors.LowerCholeskyTransform()


@transform_to.register(shaped_constraints.positive_definite)
@transform_to.register(shaped_constraints.positive_semidefinite)
def _to_positive_definite(constraint: Any) -> Transform:
    return vectors.PositiveDefiniteTransform()


@biject_to.register(shaped_constraints.corr_cholesky)
@transform_to.register(shaped_constraints.corr_cholesky)
def _to_corr_cholesky(constraint: Any) -> Transform:
    return vectors.CorrCholeskyTransform()


def _of_stretches(registry: ConstraintRegistry) -> Factory:
    def factory(constraint: Any) -> Transform:
        parts = [registry(c) for c in constraint.cseq]
        return vectors.CatTransform(parts, constraint.dim, constraint.lengths)

    return factory


def _of_indices(registry: ConstraintRegistry) -> Factory:
    def factory(constraint: Any) -> Transform:
        return vectors.StackTransform([registry(c) for c in constraint.cseq], constraint.dim)

    return factory


for _registry in (biject_to, transform_to):
    _registry.register(constraints.independent, _of_parts(_registry))
    _registry.register(shaped_constraints.cat, _of_stretches(_registry))
    _registry.register(shaped_constraints.stack, _of_indices(_registry))
