"""The functional API, with PyTorch's arguments: ``import lowtide.nn.functional as F``.

Arguments, never arithmetic: what is computed is declared in ``framework/ops``. Functions whose
PyTorch signature equals the op's are passed on as they are; those below add the ``inplace`` flag,
or the arguments that PyTorch keeps for compatibility.
"""

from __future__ import annotations

import sys
import warnings
from types import FunctionType as _FunctionType
from typing import Any

from ..framework import ops
from ..framework.attribution.frames import is_ours as _is_ours
from ..framework.ops import relu_ as relu_
from ..framework.ops.activation.elu import celu as celu
from ..framework.ops.activation.elu import celu_ as celu_
from ..framework.ops.activation.elu import elu as elu
from ..framework.ops.activation.elu import selu as selu
from ..framework.ops.activation.elu import selu_ as selu_
from ..framework.ops.activation.gelu import gelu as gelu
from ..framework.ops.activation.gelu import logsigmoid as logsigmoid
from ..framework.ops.activation.gelu import mish as mish
from ..framework.ops.activation.gelu import silu as silu
from ..framework.ops.activation.gelu import softplus as softplus
from ..framework.ops.activation.glu_prelu import glu as glu
from ..framework.ops.activation.glu_prelu import prelu as prelu
from ..framework.ops.activation.relu import hardsigmoid as hardsigmoid
from ..framework.ops.activation.relu import hardswish as hardswish
from ..framework.ops.activation.relu import hardtanh as _hardtanh
from ..framework.ops.activation.relu import leaky_relu as _leaky_relu
from ..framework.ops.activation.relu import relu6 as relu6
from ..framework.ops.activation.relu import softsign as softsign
from ..framework.ops.activation.shrink import hardshrink as hardshrink
from ..framework.ops.activation.shrink import softshrink as softshrink
from ..framework.ops.activation.shrink import tanhshrink as tanhshrink
from ..framework.ops.activation.shrink import threshold as threshold
from ..framework.ops.activation.shrink import threshold_ as threshold_
from ..framework.ops.activation.stochastic import gumbel_softmax as gumbel_softmax
from ..framework.ops.activation.stochastic import rrelu as rrelu
from ..framework.ops.attention.multihead import (
    multi_head_attention_forward as multi_head_attention_forward,
)
from ..framework.ops.attention.sdpa import (
    scaled_dot_product_attention as scaled_dot_product_attention,
)
from ..framework.ops.convolution.functional import conv1d as conv1d
from ..framework.ops.convolution.functional import conv2d as conv2d
from ..framework.ops.convolution.functional import conv3d as conv3d
from ..framework.ops.convolution.functional import conv_transpose1d as conv_transpose1d
from ..framework.ops.convolution.functional import conv_transpose2d as conv_transpose2d
from ..framework.ops.convolution.functional import conv_transpose3d as conv_transpose3d
from ..framework.ops.convolution.unfold import channel_shuffle as channel_shuffle
from ..framework.ops.convolution.unfold import fold as fold
from ..framework.ops.convolution.unfold import pixel_shuffle as pixel_shuffle
from ..framework.ops.convolution.unfold import pixel_unshuffle as pixel_unshuffle
from ..framework.ops.convolution.unfold import unfold as unfold
from ..framework.ops.elementwise.unary import sigmoid as sigmoid
from ..framework.ops.elementwise.unary import tanh as tanh
from ..framework.ops.embedding.embedding import embedding as embedding
from ..framework.ops.embedding.embedding_bag import embedding_bag as embedding_bag
from ..framework.ops.indexing.nonzero import one_hot as one_hot
from ..framework.ops.linalg.bilinear import bilinear as bilinear
from ..framework.ops.linalg.linear import linear as linear
from ..framework.ops.linalg.pdist import pdist as pdist
from ..framework.ops.loss.binary_cross_entropy import binary_cross_entropy as binary_cross_entropy
from ..framework.ops.loss.binary_cross_entropy import (
    binary_cross_entropy_with_logits as binary_cross_entropy_with_logits,
)
from ..framework.ops.loss.cross_entropy import cross_entropy as cross_entropy
from ..framework.ops.loss.cross_entropy import nll_loss as nll_loss
from ..framework.ops.loss.ctc import ctc_loss as ctc_loss
from ..framework.ops.loss.likelihood import gaussian_nll_loss as gaussian_nll_loss
from ..framework.ops.loss.likelihood import kl_div as kl_div
from ..framework.ops.loss.likelihood import poisson_nll_loss as poisson_nll_loss
from ..framework.ops.loss.linear_cross_entropy import linear_cross_entropy as linear_cross_entropy
from ..framework.ops.loss.regression import huber_loss as huber_loss
from ..framework.ops.loss.regression import l1_loss as l1_loss
from ..framework.ops.loss.regression import mse_loss as mse_loss
from ..framework.ops.loss.regression import smooth_l1_loss as smooth_l1_loss
from ..framework.ops.loss.similarity import cosine_embedding_loss as cosine_embedding_loss
from ..framework.ops.loss.similarity import cosine_similarity as cosine_similarity
from ..framework.ops.loss.similarity import hinge_embedding_loss as hinge_embedding_loss
from ..framework.ops.loss.similarity import margin_ranking_loss as margin_ranking_loss
from ..framework.ops.loss.similarity import multi_margin_loss as multi_margin_loss
from ..framework.ops.loss.similarity import multilabel_margin_loss as multilabel_margin_loss
from ..framework.ops.loss.similarity import (
    multilabel_soft_margin_loss as multilabel_soft_margin_loss,
)
from ..framework.ops.loss.similarity import pairwise_distance as pairwise_distance
from ..framework.ops.loss.similarity import soft_margin_loss as soft_margin_loss
from ..framework.ops.loss.similarity import triplet_margin_loss as triplet_margin_loss
from ..framework.ops.loss.similarity import (
    triplet_margin_with_distance_loss as triplet_margin_with_distance_loss,
)
from ..framework.ops.manipulation.pad import pad as pad
from ..framework.ops.normalization.functional import batch_norm as batch_norm
from ..framework.ops.normalization.functional import instance_norm as instance_norm
from ..framework.ops.normalization.functional import local_response_norm as local_response_norm
from ..framework.ops.normalization.functional import normalize as normalize
from ..framework.ops.normalization.functional import rms_norm as rms_norm
from ..framework.ops.pooling.fractional import fractional_max_pool2d as fractional_max_pool2d
from ..framework.ops.pooling.fractional import (
    fractional_max_pool2d_with_indices as fractional_max_pool2d_with_indices,
)
from ..framework.ops.pooling.fractional import fractional_max_pool3d as fractional_max_pool3d
from ..framework.ops.pooling.fractional import (
    fractional_max_pool3d_with_indices as fractional_max_pool3d_with_indices,
)
from ..framework.ops.pooling.functional import adaptive_avg_pool1d as adaptive_avg_pool1d
from ..framework.ops.pooling.functional import adaptive_avg_pool2d as adaptive_avg_pool2d
from ..framework.ops.pooling.functional import adaptive_avg_pool3d as adaptive_avg_pool3d
from ..framework.ops.pooling.functional import adaptive_max_pool1d as adaptive_max_pool1d
from ..framework.ops.pooling.functional import adaptive_max_pool2d as adaptive_max_pool2d
from ..framework.ops.pooling.functional import adaptive_max_pool3d as adaptive_max_pool3d
from ..framework.ops.pooling.functional import avg_pool1d as avg_pool1d
from ..framework.ops.pooling.functional import avg_pool2d as avg_pool2d
from ..framework.ops.pooling.functional import avg_pool3d as avg_pool3d
from ..framework.ops.pooling.functional import lp_pool1d as lp_pool1d
from ..framework.ops.pooling.functional import lp_pool2d as lp_pool2d
from ..framework.ops.pooling.functional import lp_pool3d as lp_pool3d
from ..framework.ops.pooling.functional import max_pool1d as max_pool1d
from ..framework.ops.pooling.functional import max_pool2d as max_pool2d
from ..framework.ops.pooling.functional import max_pool3d as max_pool3d
from ..framework.ops.pooling.unpool import (
    adaptive_max_pool1d_with_indices as adaptive_max_pool1d_with_indices,
)
from ..framework.ops.pooling.unpool import (
    adaptive_max_pool2d_with_indices as adaptive_max_pool2d_with_indices,
)
from ..framework.ops.pooling.unpool import (
    adaptive_max_pool3d_with_indices as adaptive_max_pool3d_with_indices,
)
from ..framework.ops.pooling.unpool import max_pool1d_with_indices as max_pool1d_with_indices
from ..framework.ops.pooling.unpool import max_pool2d_with_indices as max_pool2d_with_indices
from ..framework.ops.pooling.unpool import max_pool3d_with_indices as max_pool3d_with_indices
from ..framework.ops.pooling.unpool import max_unpool1d as max_unpool1d
from ..framework.ops.pooling.unpool import max_unpool2d as max_unpool2d
from ..framework.ops.pooling.unpool import max_unpool3d as max_unpool3d
from ..framework.ops.random.dropout import alpha_dropout as alpha_dropout
from ..framework.ops.random.dropout import dropout as dropout
from ..framework.ops.random.dropout import dropout1d as dropout1d
from ..framework.ops.random.dropout import dropout2d as dropout2d
from ..framework.ops.random.dropout import dropout3d as dropout3d
from ..framework.ops.random.dropout import feature_alpha_dropout as feature_alpha_dropout
from ..framework.ops.vision.grid_sample import grid_sample as grid_sample
from ..framework.ops.vision.grid_sample_composite import affine_grid as affine_grid
from ..framework.ops.vision.interpolate import interpolate as interpolate
from ..framework.ops.vision.interpolate import upsample as upsample
from ..framework.ops.vision.interpolate import upsample_bilinear as upsample_bilinear
from ..framework.ops.vision.interpolate import upsample_nearest as upsample_nearest
from ..framework.serialization.own_classes import restores_functions as _restores_functions
from ..framework.tensor import Tensor

__all__ = [
    "adaptive_avg_pool1d",
    "adaptive_avg_pool2d",
    "adaptive_avg_pool3d",
    "adaptive_max_pool1d",
    "adaptive_max_pool1d_with_indices",
    "adaptive_max_pool2d",
    "adaptive_max_pool2d_with_indices",
    "adaptive_max_pool3d",
    "adaptive_max_pool3d_with_indices",
    "affine_grid",
    "alpha_dropout",
    "avg_pool1d",
    "avg_pool2d",
    "avg_pool3d",
    "batch_norm",
    "bilinear",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "celu",
    "celu_",
    "channel_shuffle",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "cosine_embedding_loss",
    "cosine_similarity",
    "cross_entropy",
    "ctc_loss",
    "dropout",
    "dropout1d",
    "dropout2d",
    "dropout3d",
    "elu",
    "elu_",
    "embedding",
    "embedding_bag",
    "feature_alpha_dropout",
    "fold",
    "fractional_max_pool2d",
    "fractional_max_pool2d_with_indices",
    "fractional_max_pool3d",
    "fractional_max_pool3d_with_indices",
    "gaussian_nll_loss",
    "gelu",
    "glu",
    "grid_sample",
    "group_norm",
    "gumbel_softmax",
    "hardshrink",
    "hardsigmoid",
    "hardswish",
    "hardtanh",
    "hardtanh_",
    "hinge_embedding_loss",
    "huber_loss",
    "instance_norm",
    "interpolate",
    "kl_div",
    "l1_loss",
    "layer_norm",
    "leaky_relu",
    "leaky_relu_",
    "linear",
    "linear_cross_entropy",
    "local_response_norm",
    "log_softmax",
    "logsigmoid",
    "lp_pool1d",
    "lp_pool2d",
    "lp_pool3d",
    "margin_ranking_loss",
    "max_pool1d",
    "max_pool1d_with_indices",
    "max_pool2d",
    "max_pool2d_with_indices",
    "max_pool3d",
    "max_pool3d_with_indices",
    "max_unpool1d",
    "max_unpool2d",
    "max_unpool3d",
    "mish",
    "mse_loss",
    "multi_head_attention_forward",
    "multi_margin_loss",
    "multilabel_margin_loss",
    "multilabel_soft_margin_loss",
    "nll_loss",
    "normalize",
    "one_hot",
    "pad",
    "pairwise_distance",
    "pdist",
    "pixel_shuffle",
    "pixel_unshuffle",
    "poisson_nll_loss",
    "prelu",
    "relu",
    "relu6",
    "relu_",
    "rms_norm",
    "rrelu",
    "rrelu_",
    "scaled_dot_product_attention",
    "selu",
    "selu_",
    "sigmoid",
    "silu",
    "smooth_l1_loss",
    "soft_margin_loss",
    "softmax",
    "softmin",
    "softplus",
    "softshrink",
    "softsign",
    "tanh",
    "tanhshrink",
    "threshold",
    "threshold_",
    "triplet_margin_loss",
    "triplet_margin_with_distance_loss",
    "unfold",
    "upsample",
    "upsample_bilinear",
    "upsample_nearest",
]


def relu(input: Tensor, inplace: bool = False) -> Tensor:
    """Apply ReLU: replace negative elements by zero."""
    return input.relu_() if inplace else ops.relu(input)


def leaky_relu(input: Tensor, negative_slope: float = 0.01, inplace: bool = False) -> Tensor:
    """Apply leaky ReLU: multiply negative elements by ``negative_slope``."""
    return _leaky_relu(input, negative_slope, inplace)


def hardtanh(
    input: Tensor, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False
) -> Tensor:
    """Clamp elements to [``min_val``, ``max_val``]."""
    if inplace:
        return input._hardtanh_(min_val, max_val)
    return _hardtanh(input, min_val, max_val)


def leaky_relu_(input: Tensor, negative_slope: float = 0.01) -> Tensor:
    """In-place twin of ``leaky_relu``."""
    return leaky_relu(input, negative_slope, inplace=True)


def hardtanh_(input: Tensor, min_val: float = -1.0, max_val: float = 1.0) -> Tensor:
    """In-place twin of ``hardtanh``."""
    return hardtanh(input, min_val, max_val, inplace=True)


def elu_(input: Tensor, alpha: float = 1.0) -> Tensor:
    """In-place twin of ``elu``."""
    return elu(input, alpha, inplace=True)


def rrelu_(
    input: Tensor, lower: float = 1.0 / 8, upper: float = 1.0 / 3, training: bool = False
) -> Tensor:
    """In-place twin of ``rrelu``."""
    return rrelu(input, lower, upper, training, inplace=True)


def softmax(
    input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None
) -> Tensor:
    """Apply the softmax along ``dim``."""
    return ops.softmax(input, _dim(input, dim, "softmax", _stacklevel), dtype)


def softmin(
    input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None
) -> Tensor:
    """Apply the softmax to ``-input``."""
    return ops.softmin(input, _dim(input, dim, "softmin", _stacklevel), dtype)


def log_softmax(
    input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None
) -> Tensor:
    """Apply the logarithm of the softmax along ``dim``."""
    return ops.log_softmax(input, _dim(input, dim, "log_softmax", _stacklevel), dtype)


def _dim(input: Tensor, dim: int | None, name: str, stacklevel: int) -> int:
    if dim is not None:
        return dim
    frame: Any = sys._getframe(stacklevel - 1)
    while frame.f_back is not None and _is_ours(frame.f_code.co_filename):  # hooks call a module
        frame, stacklevel = frame.f_back, stacklevel + 1
    warnings.warn(
        f"Implicit dimension choice for {name} has been deprecated. Change the call to include "
        "dim=X as an argument.",
        UserWarning,
        stacklevel=stacklevel,
    )
    return 0 if input.ndim in (0, 1, 3) else 1


def layer_norm(
    input: Tensor,
    normalized_shape: Any,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Apply layer normalization over the last dimensions.

    Args:
        input: (*, normalized_shape).
        normalized_shape: Sizes of the last dimensions, which are averaged over.
        weight: Of that shape, or None.
        bias: Of that shape, or None.
        eps: Added to the variance.

    Returns:
        Tensor of the shape of ``input``.
    """
    return ops.layer_norm(input, normalized_shape, weight, bias, eps)


def group_norm(
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Apply group normalization over groups of channels.

    Args:
        input: (N, C, *).
        num_groups: Groups that the C channels are divided into.
        weight: (C,), or None.
        bias: (C,), or None.
        eps: Added to the variance.

    Returns:
        Tensor of the shape of ``input``.
    """
    return ops.group_norm(input, num_groups, weight, bias, eps)


# What a module keeps as its activation is a name in files; these are the names.
_restores_functions(
    {
        name: value
        for name, value in list(globals().items())
        if isinstance(value, _FunctionType) and name[0] != "_"
    }
)
