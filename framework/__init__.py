"""The core: tensors, ops, autograd, memory, devices."""

from .kernels.runtime.blas import doze_sooner as _doze_sooner

_doze_sooner()  # before NumPy is loaded, if it is not loaded yet
