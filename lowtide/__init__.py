"""lowtide: one import name over framework/, modules/, optim/, profiling/ and recipes/."""

import os as _os

if __name__ == "lowtide" and not _os.path.isfile(
    _os.path.join(__path__[0], "framework", "__init__.py")
):
    # A checkout, not an installed wheel: the folders lie beside this one.
    __path__.append(_os.path.dirname(__path__[0]))

from lowtide.framework.autograd.modes import enable_grad as enable_grad
from lowtide.framework.autograd.modes import inference_mode as inference_mode
from lowtide.framework.autograd.modes import is_grad_enabled as is_grad_enabled
from lowtide.framework.autograd.modes import no_grad as no_grad
from lowtide.framework.autograd.modes import set_grad_enabled as set_grad_enabled
from lowtide.framework.devices import device as device
from lowtide.framework.dtypes import float32 as float32
from lowtide.framework.dtypes import float64 as float64
from lowtide.framework.ops import *  # noqa: F403
from lowtide.framework.tensor import Tensor as Tensor

__version__ = "0.1.0"
