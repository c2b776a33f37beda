"""Regions that parameters and samples lie in, each with a check of membership."""

from lowtide.framework.distributions.constraints.elementwise import Constraint as Constraint
from lowtide.framework.distributions.constraints.elementwise import (
    MixtureSameFamilyConstraint as MixtureSameFamilyConstraint,
)
from lowtide.framework.distributions.constraints.elementwise import boolean as boolean
from lowtide.framework.distributions.constraints.elementwise import dependent as dependent
from lowtide.framework.distributions.constraints.elementwise import (
    dependent_property as dependent_property,
)
from lowtide.framework.distributions.constraints.elementwise import (
    greater_than as greater_than,
)
from lowtide.framework.distributions.constraints.elementwise import (
    greater_than_eq as greater_than_eq,
)
from lowtide.framework.distributions.constraints.elementwise import (
    half_open_interval as half_open_interval,
)
from lowtide.framework.distributions.constraints.elementwise import independent as independent
from lowtide.framework.distributions.constraints.elementwise import (
    integer_interval as integer_interval,
)
from lowtide.framework.distributions.constraints.elementwise import interval as interval
from lowtide.framework.distributions.constraints.elementwise import (
    is_dependent as is_dependent,
)
from lowtide.framework.distributions.constraints.elementwise import less_than as less_than
from lowtide.framework.distributions.constraints.elementwise import nonnegative as nonnegative
from lowtide.framework.distributions.constraints.elementwise import (
    nonnegative_integer as nonnegative_integer,
)
from lowtide.framework.distributions.constraints.elementwise import positive as positive
from lowtide.framework.distributions.constraints.elementwise import (
    positive_integer as positive_integer,
)
from lowtide.framework.distributions.constraints.elementwise import real as real
from lowtide.framework.distributions.constraints.elementwise import real_vector as real_vector
from lowtide.framework.distributions.constraints.elementwise import (
    unit_interval as unit_interval,
)
from lowtide.framework.distributions.constraints.shaped import cat as cat
from lowtide.framework.distributions.constraints.shaped import corr_cholesky as corr_cholesky
from lowtide.framework.distributions.constraints.shaped import (
    lower_cholesky as lower_cholesky,
)
from lowtide.framework.distributions.constraints.shaped import (
    lower_triangular as lower_triangular,
)
from lowtide.framework.distributions.constraints.shaped import multinomial as multinomial
from lowtide.framework.distributions.constraints.shaped import one_hot as one_hot
from lowtide.framework.distributions.constraints.shaped import (
    positive_definite as positive_definite,
)
from lowtide.framework.distributions.constraints.shaped import (
    positive_semidefinite as positive_semidefinite,
)
from lowtide.framework.distributions.constraints.shaped import simplex as simplex
from lowtide.framework.distributions.constraints.shaped import square as square
from lowtide.framework.distributions.constraints.shaped import stack as stack
from lowtide.framework.distributions.constraints.shaped import symmetric as symmetric

__all__ = [
    "Constraint",
    "MixtureSameFamilyConstraint",
    "boolean",
    "cat",
    "corr_cholesky",
    "dependent",
    "dependent_property",
    "greater_than",
    "greater_than_eq",
    "half_open_interval",
    "independent",
    "integer_interval",
    "interval",
    "is_dependent",
    "less_than",
    "lower_cholesky",
    "lower_triangular",
    "multinomial",
    "nonnegative",
    "nonnegative_integer",
    "one_hot",
    "positive",
    "positive_definite",
    "positive_integer",
    "positive_semidefinite",
    "real",
    "real_vector",
    "simplex",
    "square",
    "stack",
    "symmetric",
    "unit_interval",
]
