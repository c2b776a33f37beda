"""The base of exponential families."""

from lowtide.framework.distributions.distribution import ExponentialFamily as ExponentialFamily

__all__ = [
    "ExponentialFamily",
]
