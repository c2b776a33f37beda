"""What one does to modules and their gradients, under PyTorch's names for it."""

from lowtide.modules.initialization.skip_init import skip_init as skip_init
from lowtide.modules.parametrization.spectral_norm import (
    hooked_spectral_norm as spectral_norm,
)
from lowtide.modules.parametrization.spectral_norm import (
    remove_spectral_norm as remove_spectral_norm,
)
from lowtide.modules.parametrization.weight_norm import hooked_weight_norm as weight_norm
from lowtide.modules.parametrization.weight_norm import (
    remove_weight_norm as remove_weight_norm,
)
from lowtide.modules.weights.clip import clip_grad_norm as clip_grad_norm
from lowtide.modules.weights.clip import clip_grad_norm_ as clip_grad_norm_
from lowtide.modules.weights.clip import clip_grad_value_ as clip_grad_value_
from lowtide.modules.weights.clip import clip_grads_with_norm_ as clip_grads_with_norm_
from lowtide.modules.weights.clip import get_total_norm as get_total_norm
from lowtide.modules.weights.fusion import fuse_conv_bn_eval as fuse_conv_bn_eval
from lowtide.modules.weights.fusion import fuse_conv_bn_weights as fuse_conv_bn_weights
from lowtide.modules.weights.fusion import fuse_linear_bn_eval as fuse_linear_bn_eval
from lowtide.modules.weights.fusion import fuse_linear_bn_weights as fuse_linear_bn_weights
from lowtide.modules.weights.vectors import parameters_to_vector as parameters_to_vector
from lowtide.modules.weights.vectors import vector_to_parameters as vector_to_parameters

# isort: split
from lowtide.nn.utils import clip_grad as clip_grad
from lowtide.nn.utils import convert_parameters as convert_parameters
from lowtide.nn.utils import fusion as fusion
from lowtide.nn.utils import parametrizations as parametrizations
from lowtide.nn.utils import parametrize as parametrize
from lowtide.nn.utils import prune as prune
from lowtide.nn.utils import rnn as rnn

__all__ = [
    "clip_grad",
    "clip_grad_norm",
    "clip_grad_norm_",
    "clip_grad_value_",
    "clip_grads_with_norm_",
    "convert_parameters",
    "fuse_conv_bn_eval",
    "fuse_conv_bn_weights",
    "fuse_linear_bn_eval",
    "fuse_linear_bn_weights",
    "fusion",
    "get_total_norm",
    "parameters_to_vector",
    "parametrizations",
    "parametrize",
    "prune",
    "remove_spectral_norm",
    "remove_weight_norm",
    "rnn",
    "skip_init",
    "spectral_norm",
    "vector_to_parameters",
    "weight_norm",
]
