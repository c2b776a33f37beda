"""PyTorch's place of ``LogitRelaxedBernoulli`` and ``RelaxedBernoulli``."""

from lowtide.framework.distributions.relaxed import LogitRelaxedBernoulli as LogitRelaxedBernoulli
from lowtide.framework.distributions.relaxed import RelaxedBernoulli as RelaxedBernoulli

__all__ = [
    "LogitRelaxedBernoulli",
    "RelaxedBernoulli",
]
