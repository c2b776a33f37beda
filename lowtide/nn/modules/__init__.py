"""The files of ``lowtide.modules`` under the names that PyTorch's have.

Public code asks ``isinstance(m, nn.modules.batchnorm._BatchNorm)``, or imports
``nn.modules.utils._pair``. Each name below is the module itself, not a copy of it.
"""

import sys

from lowtide.modules import *  # noqa: F403
from lowtide.modules import (
    activation,
    adaptive,
    batchnorm,
    container,
    convolution,
    distance,
    dropout,
    embedding,
    flatten,
    folding,
    lazy,
    linear,
    loss,
    module,
    normalization,
    padding,
    pooling,
    recurrent,
    shuffling,
    sizes,
    transformer,
    upsampling,
)

_FILES = {
    "activation": activation,
    "adaptive": adaptive,
    "batchnorm": batchnorm,
    "channelshuffle": shuffling,
    "container": container,
    "conv": convolution,
    "distance": distance,
    "dropout": dropout,
    "flatten": flatten,
    "fold": folding,
    "instancenorm": batchnorm,
    "lazy": lazy,
    "linear": linear,
    "loss": loss,
    "module": module,
    "normalization": normalization,
    "padding": padding,
    "pixelshuffle": shuffling,
    "pooling": pooling,
    "rnn": recurrent,
    "sparse": embedding,
    "transformer": transformer,
    "upsampling": upsampling,
    "utils": sizes,
}
for _name, _file in _FILES.items():
    globals()[_name] = sys.modules[f"{__name__}.{_name}"] = _file
