"""PyTorch's place of ``HalfCauchy``."""

from lowtide.framework.distributions.location_scale import HalfCauchy as HalfCauchy

__all__ = [
    "HalfCauchy",
]
