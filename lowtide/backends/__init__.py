"""Switches of libraries that PyTorch uses and lowtide does not, so that scripts can set them."""

from lowtide.backends import cpu as cpu
from lowtide.backends import cuda as cuda
from lowtide.backends import cudnn as cudnn
from lowtide.backends import cusparselt as cusparselt
from lowtide.backends import mha as mha
from lowtide.backends import miopen as miopen
from lowtide.backends import mkl as mkl
from lowtide.backends import mkldnn as mkldnn
from lowtide.backends import mps as mps
from lowtide.backends import nnpack as nnpack
from lowtide.backends import openmp as openmp
from lowtide.backends import opt_einsum as opt_einsum


def disable_global_flags() -> None:
    """Do nothing: switches can be set at any time."""


def flags_frozen() -> bool:
    """False: switches can be set at any time."""
    return False
