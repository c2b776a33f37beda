"""The base of all distributions."""

from lowtide.framework.distributions.distribution import Distribution as Distribution

__all__ = [
    "Distribution",
]
