"""PyTorch's place of ``ExpRelaxedCategorical`` and ``RelaxedOneHotCategorical``."""

from lowtide.framework.distributions.relaxed import ExpRelaxedCategorical as ExpRelaxedCategorical
from lowtide.framework.distributions.relaxed import (
    RelaxedOneHotCategorical as RelaxedOneHotCategorical,
)

__all__ = [
    "ExpRelaxedCategorical",
    "RelaxedOneHotCategorical",
]
