"""Fusion of a batch normalization in evaluation into the convolution or linear layer before it.

``y = (Wx + b - mean) / sqrt(var + eps) * gamma + beta`` is again of the form ``W'x + b'``: the
normalization's numbers are those of evaluation, so nothing is left of it at run time.
"""

from __future__ import annotations

import copy
from typing import Any

from ...framework import ops
from ...framework.modes import no_grad
from ..module import Module
from ..parameter import Parameter


def fuse_conv_bn_weights(
    conv_w: Any,
    conv_b: Any,
    bn_rm: Any,
    bn_rv: Any,
    bn_eps: float,
    bn_w: Any,
    bn_b: Any,
    transpose: bool = False,
) -> tuple[Parameter, Parameter]:
    """Return the weight and bias of a convolution with a normalization in it.

    Args:
        conv_w: Weight; the output channels are dimension 0, or 1 if ``transpose``.
        conv_b: Bias, or None.
        bn_rm: Running mean.
        bn_rv: Running variance.
        bn_eps: The constant in the square root.
        bn_w: Scale, or None.
        bn_b: Shift, or None.
        transpose: Whether the convolution is transposed.
    """
    with no_grad():
        bias = ops.zeros_like(bn_rm) if conv_b is None else conv_b
        gamma = ops.ones_like(bn_rm) if bn_w is None else bn_w
        beta = ops.zeros_like(bn_rm) if bn_b is None else bn_b
        scale = gamma * (bn_rv + bn_eps).rsqrt()
        shape = [1, -1] if transpose else [-1, 1]
        shape += [1] * (conv_w.dim() - 2)
        weight = (conv_w * scale.reshape(shape)).to(conv_w.dtype)
        shifted = ((bias - bn_rm) * scale + beta).to(bias.dtype)
    grad = bool(conv_w.requires_grad)
    return Parameter(weight, grad), Parameter(shifted, grad)


def fuse_linear_bn_weights(
    linear_w: Any, linear_b: Any, bn_rm: Any, bn_rv: Any, bn_eps: float, bn_w: Any, bn_b: Any
) -> tuple[Parameter, Parameter]:
    """Return the weight and bias of a linear layer with a normalization in it."""
    return fuse_conv_bn_weights(linear_w, linear_b, bn_rm, bn_rv, bn_eps, bn_w, bn_b)


def fuse_conv_bn_eval(conv: Any, bn: Any, transpose: bool = False) -> Any:
    """Return a copy of a convolution with the normalization behind it in its weights.

    Args:
        conv: The convolution, in evaluation.
        bn: The normalization, in evaluation.
        transpose: Whether the convolution is transposed.

    Raises:
        AssertionError: One of them is in training, where batches decide.
    """
    if conv.training or bn.training:
        raise AssertionError("Fusion only for eval! Call eval() on both.")
    fused = copy.deepcopy(conv)
    fused.weight, fused.bias = fuse_conv_bn_weights(
        fused.weight,
        fused.bias,
        bn.running_mean,
        bn.running_var,
        bn.eps,
        bn.weight,
        bn.bias,
        transpose,
    )
    return fused


def fuse_linear_bn_eval(linear: Module, bn: Any) -> Any:
    """Return a copy of a linear layer with the normalization behind it in its weights.

    Raises:
        AssertionError: One of them is in training; or they differ in their features.
    """
    found: Any = linear
    if found.out_features != bn.num_features and bn.num_features != 1:
        raise AssertionError(
            "To fuse, linear.out_features == bn.num_features or bn.num_features == 1"
        )
    return fuse_conv_bn_eval(linear, bn)
