"""Making tensors: from data, filled, counted, like others."""

from __future__ import annotations

import numpy as np

from ..devices import backend
from ..devices.device import device as as_device
from ..devices.device import get_default_device
from ..dtypes import as_dtype, get_default_dtype
from ..memory.ledger import INPUT
from ..spec import Spec
from ..tensor import Tensor, wrap
from .registry import function


def new(spec, role=0):
    """An uninitialized tensor of a spec."""
    storage, array = backend(spec.device).empty(spec, role)
    return wrap(array, spec, storage)


@function()
def tensor(data, *, dtype=None, device=None, requires_grad=False, pin_memory=False):
    """Copy data into a new leaf tensor."""
    array = np.asarray(data._array if isinstance(data, Tensor) else data)
    if dtype is None:
        from_numpy = hasattr(data, "dtype")
        wanted = as_dtype(array.dtype)
        if not from_numpy and wanted.is_floating_point:
            wanted = get_default_dtype()
    else:
        wanted = as_dtype(dtype)
    where = get_default_device() if device is None else as_device(device)
    spec = Spec(array.shape, wanted, where)
    storage, out = backend(where).from_host(array, spec, INPUT)
    return wrap(out, spec, storage).requires_grad_(requires_grad)


def legacy_tensor(cls, *args):
    """PyTorch's ``Tensor(...)``."""
    return tensor(args[0], dtype=get_default_dtype())
