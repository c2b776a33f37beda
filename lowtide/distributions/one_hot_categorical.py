"""PyTorch's place of ``OneHotCategorical`` and ``OneHotCategoricalStraightThrough``."""

from lowtide.framework.distributions.categorical import OneHotCategorical as OneHotCategorical
from lowtide.framework.distributions.categorical import (
    OneHotCategoricalStraightThrough as OneHotCategoricalStraightThrough,
)

__all__ = [
    "OneHotCategorical",
    "OneHotCategoricalStraightThrough",
]
