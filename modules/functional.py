"""Every layer's function, with PyTorch's arguments: ``import lowtide.nn.functional as F``.

Arguments, never arithmetic: what is computed is declared in ``framework/ops``. Functions whose
PyTorch signature equals the op's are passed on as they are; those below add the ``inplace`` flag,
or the arguments that PyTorch keeps for compatibility.
"""

from __future__ import annotations

import warnings
from typing import Any

from ..framework import ops
from ..framework.ops.attention import scaled_dot_product_attention as scaled_dot_product_attention
from ..framework.ops.convolution import conv1d as conv1d
from ..framework.ops.convolution import conv2d as conv2d
from ..framework.ops.convolution import conv3d as conv3d
from ..framework.ops.convolution import conv_transpose1d as conv_transpose1d
from ..framework.ops.convolution import conv_transpose2d as conv_transpose2d
from ..framework.ops.convolution import conv_transpose3d as conv_transpose3d
from ..framework.ops.distances import binary_cross_entropy as binary_cross_entropy
from ..framework.ops.distances import (
    binary_cross_entropy_with_logits as binary_cross_entropy_with_logits,
)
from ..framework.ops.distances import cosine_embedding_loss as cosine_embedding_loss
from ..framework.ops.distances import cosine_similarity as cosine_similarity
from ..framework.ops.distances import gaussian_nll_loss as gaussian_nll_loss
from ..framework.ops.distances import hinge_embedding_loss as hinge_embedding_loss
from ..framework.ops.distances import huber_loss as huber_loss
from ..framework.ops.distances import kl_div as kl_div
from ..framework.ops.distances import l1_loss as l1_loss
from ..framework.ops.distances import margin_ranking_loss as margin_ranking_loss
from ..framework.ops.distances import mse_loss as mse_loss
from ..framework.ops.distances import multi_margin_loss as multi_margin_loss
from ..framework.ops.distances import multilabel_margin_loss as multilabel_margin_loss
from ..framework.ops.distances import multilabel_soft_margin_loss as multilabel_soft_margin_loss
from ..framework.ops.distances import pairwise_distance as pairwise_distance
from ..framework.ops.distances import poisson_nll_loss as poisson_nll_loss
from ..framework.ops.distances import smooth_l1_loss as smooth_l1_loss
from ..framework.ops.distances import soft_margin_loss as soft_margin_loss
from ..framework.ops.distances import triplet_margin_loss as triplet_margin_loss
from ..framework.ops.distances import (
    triplet_margin_with_distance_loss as triplet_margin_with_distance_loss,
)
from ..framework.ops.dropout import alpha_dropout as alpha_dropout
from ..framework.ops.dropout import dropout as dropout
from ..framework.ops.dropout import dropout1d as dropout1d
from ..framework.ops.dropout import dropout2d as dropout2d
from ..framework.ops.dropout import dropout3d as dropout3d
from ..framework.ops.dropout import feature_alpha_dropout as feature_alpha_dropout
from ..framework.ops.embedding import embedding as embedding
from ..framework.ops.embedding import embedding_bag as embedding_bag
from ..framework.ops.gumbel import gumbel_softmax as gumbel_softmax
from ..framework.ops.loss import cross_entropy as cross_entropy
from ..framework.ops.loss import nll_loss as nll_loss
from ..framework.ops.matmul import bilinear as bilinear
from ..framework.ops.matmul import linear as linear
from ..framework.ops.normalization import batch_norm as batch_norm
from ..framework.ops.normalization import instance_norm as instance_norm
from ..framework.ops.normalization import local_response_norm as local_response_norm
from ..framework.ops.normalization import normalize as normalize
from ..framework.ops.normalization import rms_norm as rms_norm
from ..framework.ops.padding import pad as pad
from ..framework.ops.pooling import adaptive_avg_pool1d as adaptive_avg_pool1d
from ..framework.ops.pooling import adaptive_avg_pool2d as adaptive_avg_pool2d
from ..framework.ops.pooling import adaptive_avg_pool3d as adaptive_avg_pool3d
from ..framework.ops.pooling import adaptive_max_pool1d as adaptive_max_pool1d
from ..framework.ops.pooling import adaptive_max_pool2d as adaptive_max_pool2d
from ..framework.ops.pooling import adaptive_max_pool3d as adaptive_max_pool3d
from ..framework.ops.pooling import avg_pool1d as avg_pool1d
from ..framework.ops.pooling import avg_pool2d as avg_pool2d
from ..framework.ops.pooling import avg_pool3d as avg_pool3d
from ..framework.ops.pooling import lp_pool1d as lp_pool1d
from ..framework.ops.pooling import lp_pool2d as lp_pool2d
from ..framework.ops.pooling import lp_pool3d as lp_pool3d
from ..framework.ops.pooling import max_pool1d as max_pool1d
from ..framework.ops.pooling import max_pool2d as max_pool2d
from ..framework.ops.pooling import max_pool3d as max_pool3d
from ..framework.tensor import Tensor

__all__ = [
    "adaptive_avg_pool1d",
    "adaptive_avg_pool2d",
    "adaptive_avg_pool3d",
    "adaptive_max_pool1d",
    "adaptive_max_pool2d",
    "adaptive_max_pool3d",
    "alpha_dropout",
    "avg_pool1d",
    "avg_pool2d",
    "avg_pool3d",
    "batch_norm",
    "bilinear",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "celu",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "cosine_embedding_loss",
    "cosine_similarity",
    "cross_entropy",
    "dropout",
    "dropout1d",
    "dropout2d",
    "dropout3d",
    "elu",
    "embedding",
    "embedding_bag",
    "feature_alpha_dropout",
    "gaussian_nll_loss",
    "gelu",
    "glu",
    "group_norm",
    "gumbel_softmax",
    "hardshrink",
    "hardsigmoid",
    "hardswish",
    "hardtanh",
    "hinge_embedding_loss",
    "huber_loss",
    "instance_norm",
    "kl_div",
    "l1_loss",
    "layer_norm",
    "leaky_relu",
    "linear",
    "local_response_norm",
    "log_softmax",
    "logsigmoid",
    "lp_pool1d",
    "lp_pool2d",
    "lp_pool3d",
    "margin_ranking_loss",
    "max_pool1d",
    "max_pool2d",
    "max_pool3d",
    "mish",
    "mse_loss",
    "multi_margin_loss",
    "multilabel_margin_loss",
    "multilabel_soft_margin_loss",
    "nll_loss",
    "normalize",
    "one_hot",
    "pad",
    "pairwise_distance",
    "poisson_nll_loss",
    "prelu",
    "relu",
    "relu6",
    "rms_norm",
    "rrelu",
    "scaled_dot_product_attention",
    "selu",
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
    "triplet_margin_loss",
    "triplet_margin_with_distance_loss",
]


def _run(name: str, input: Tensor, inplace: bool, *args: Any) -> Tensor:
    # The op, or its in-place twin; where an op has none, its result is copied in.
    if inplace:
        twin = getattr(input, name + "_", None)
        if twin is not None:
            return twin(*args)  # type: ignore[no-any-return]
        return input.copy_(getattr(ops, name)(input, *args))
    return getattr(ops, name)(input, *args)  # type: ignore[no-any-return]


def relu(input: Tensor, inplace: bool = False) -> Tensor:
    """Replace negative elements by zero."""
    return _run("relu", input, inplace)


def relu6(input: Tensor, inplace: bool = False) -> Tensor:
    """Clamp elements to [0, 6]."""
    return _run("relu6", input, inplace)


def elu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """Bend negative elements to ``alpha * (exp(x) - 1)``."""
    return _run("elu", input, inplace, alpha)


def selu(input: Tensor, inplace: bool = False) -> Tensor:
    """Apply the scaled exponential unit that keeps zero mean and unit variance."""
    return _run("selu", input, inplace)


def celu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """Bend negative elements to ``alpha * (exp(x / alpha) - 1)``."""
    return _run("celu", input, inplace, alpha)


def silu(input: Tensor, inplace: bool = False) -> Tensor:
    """Multiply each element by its sigmoid."""
    return _run("silu", input, inplace)


def mish(input: Tensor, inplace: bool = False) -> Tensor:
    """Multiply each element by ``tanh(softplus(x))``."""
    return _run("mish", input, inplace)


def leaky_relu(input: Tensor, negative_slope: float = 0.01, inplace: bool = False) -> Tensor:
    """Multiply negative elements by ``negative_slope``."""
    return _run("leaky_relu", input, inplace, negative_slope)


def hardtanh(
    input: Tensor, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False
) -> Tensor:
    """Clamp elements to [``min_val``, ``max_val``]."""
    return _run("hardtanh", input, inplace, min_val, max_val)


def hardswish(input: Tensor, inplace: bool = False) -> Tensor:
    """Multiply each element by ``relu6(x + 3) / 6``."""
    return _run("hardswish", input, inplace)


def hardsigmoid(input: Tensor, inplace: bool = False) -> Tensor:
    """Take ``relu6(x + 3) / 6``."""
    return _run("hardsigmoid", input, inplace)


def threshold(input: Tensor, threshold: float, value: float, inplace: bool = False) -> Tensor:
    """Replace elements up to ``threshold`` by ``value``."""
    return _run("threshold", input, inplace, threshold, value)


def rrelu(
    input: Tensor,
    lower: float = 1.0 / 8,
    upper: float = 1.0 / 3,
    training: bool = False,
    inplace: bool = False,
) -> Tensor:
    """Multiply negative elements by a random slope in training, by the mean slope otherwise."""
    return _run("rrelu", input, inplace, lower, upper, training)


def gelu(input: Tensor, approximate: str = "none") -> Tensor:
    """Multiply each element by the normal distribution function of it."""
    return ops.gelu(input, approximate=approximate)


def glu(input: Tensor, dim: int = -1) -> Tensor:
    """Multiply the first half along ``dim`` by the sigmoid of the second."""
    return ops.glu(input, dim)


def sigmoid(input: Tensor) -> Tensor:
    """Take ``1 / (1 + exp(-x))``."""
    return ops.sigmoid(input)


def tanh(input: Tensor) -> Tensor:
    """Take the hyperbolic tangent."""
    return ops.tanh(input)


def logsigmoid(input: Tensor) -> Tensor:
    """Take the logarithm of the sigmoid."""
    return ops.logsigmoid(input)


def softplus(input: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """Take ``log(1 + exp(beta * x)) / beta``; ``x`` itself where ``beta * x > threshold``."""
    return ops.softplus(input, beta, threshold)


def softsign(input: Tensor) -> Tensor:
    """Take ``x / (1 + |x|)``."""
    return ops.softsign(input)


def softshrink(input: Tensor, lambd: float = 0.5) -> Tensor:
    """Move elements by ``lambd`` towards zero, and those nearer to zero."""
    return ops.softshrink(input, lambd)


def hardshrink(input: Tensor, lambd: float = 0.5) -> Tensor:
    """Replace elements within ``lambd`` of zero by zero."""
    return ops.hardshrink(input, lambd)


def tanhshrink(input: Tensor) -> Tensor:
    """Take ``x - tanh(x)``."""
    return ops.tanhshrink(input)


def prelu(input: Tensor, weight: Tensor) -> Tensor:
    """Multiply negative elements by a slope of their channel."""
    return ops.prelu(input, weight)


def one_hot(tensor: Tensor, num_classes: int = -1) -> Tensor:
    """Mark each class number by a one in a new last dimension of zeros."""
    return ops.one_hot(tensor, num_classes)


def softmax(
    input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None
) -> Tensor:
    """Take exponentials and divide by their sum along ``dim``."""
    return ops.softmax(input, _dim(input, dim, "softmax"), dtype)


def softmin(
    input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None
) -> Tensor:
    """Take the softmax of ``-input``."""
    return ops.softmin(input, _dim(input, dim, "softmin"), dtype)


def log_softmax(
    input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None
) -> Tensor:
    """Take the logarithm of the softmax along ``dim``."""
    return ops.log_softmax(input, _dim(input, dim, "log_softmax"), dtype)


def _dim(input: Tensor, dim: int | None, name: str) -> int:
    if dim is not None:
        return dim
    warnings.warn(
        f"Implicit dimension choice for {name} has been deprecated. Change the call to include "
        "dim=X as an argument.",
        UserWarning,
        stacklevel=3,
    )
    return 0 if input.ndim in (0, 1, 3) else 1


def layer_norm(
    input: Tensor,
    normalized_shape: Any,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Normalize the last dimensions to mean 0 and variance 1, then scale and shift.

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
    """Normalize each group of channels of each example, then scale and shift per channel.

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
