"""Ready-made parametrizations, under PyTorch's name for them."""

from lowtide.modules.parametrization.orthogonal import orthogonal as orthogonal
from lowtide.modules.parametrization.spectral_norm import spectral_norm as spectral_norm
from lowtide.modules.parametrization.weight_norm import weight_norm as weight_norm

__all__ = ["orthogonal", "spectral_norm", "weight_norm"]
