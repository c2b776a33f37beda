"""Batch normalizations fused into the layers before them, for evaluation."""

from lowtide.modules.weights.fusion import fuse_conv_bn_eval as fuse_conv_bn_eval
from lowtide.modules.weights.fusion import fuse_conv_bn_weights as fuse_conv_bn_weights
from lowtide.modules.weights.fusion import fuse_linear_bn_eval as fuse_linear_bn_eval
from lowtide.modules.weights.fusion import fuse_linear_bn_weights as fuse_linear_bn_weights
