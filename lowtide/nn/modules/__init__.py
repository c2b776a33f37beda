"""The files of ``lowtide.modules`` under the names that PyTorch's have.

Public code asks ``isinstance(m, nn.modules.batchnorm._BatchNorm)``, or imports
``nn.modules.utils._pair``. A name below is the module itself, or, where PyTorch has in one file
what lowtide has in several, a module with the names of all of them.
"""

import sys
from importlib import import_module
from types import ModuleType

from lowtide.modules import *  # noqa: F403

_FILES = {
    "activation": "activation attention",
    "adaptive": "adaptive",
    "batchnorm": "batchnorm sync_batchnorm lazy",
    "channelshuffle": "shuffling",
    "container": "container parameter_container",
    "conv": "convolution lazy",
    "distance": "distance",
    "dropout": "dropout",
    "flatten": "flatten",
    "fold": "folding",
    "instancenorm": "batchnorm lazy",
    "lazy": "lazy",
    "linear": "linear lazy",
    "loss": "loss margin_loss",
    "module": "module",
    "normalization": "normalization",
    "padding": "padding",
    "pixelshuffle": "shuffling",
    "pooling": "pooling fractional_pooling",
    "rnn": "recurrent cells",
    "sparse": "embedding",
    "transformer": "transformer",
    "upsampling": "upsampling",
    "utils": "sizes",
}


def _of(name: str, files: str) -> ModuleType:
    found = [import_module(f"lowtide.modules.{file}") for file in files.split()]
    if len(found) == 1:
        return found[0]
    made = ModuleType(f"{__name__}.{name}", found[0].__doc__)
    for file in reversed(found):  # the first has the last word
        made.__dict__.update(
            {name: value for name, value in vars(file).items() if not name.startswith("__")}
        )
    return made


for _name, _files in _FILES.items():
    globals()[_name] = sys.modules[f"{__name__}.{_name}"] = _of(_name, _files)
