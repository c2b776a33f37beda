"""Switches of libraries that PyTorch uses and lowtide does not, so that scripts can set them."""

from lowtide.backends import cuda as cuda
from lowtide.backends import cudnn as cudnn
from lowtide.backends import mps as mps
