"""Which transform leads from unconstrained numbers into a region."""

from lowtide.framework.distributions.constraints.registry import (
    ConstraintRegistry as ConstraintRegistry,
)
from lowtide.framework.distributions.constraints.registry import biject_to as biject_to
from lowtide.framework.distributions.constraints.registry import transform_to as transform_to

__all__ = [
    "ConstraintRegistry",
    "biject_to",
    "transform_to",
]
