"""Ready-made parametrizations, under PyTorch's name for them."""

from lowtide.modules.orthogonal import orthogonal as orthogonal
from lowtide.modules.spectral_norm import spectral_norm as spectral_norm
from lowtide.modules.weight_norm import weight_norm as weight_norm

__all__ = ["orthogonal", "spectral_norm", "weight_norm"]
