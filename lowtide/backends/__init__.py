"""What libraries a backend has, under PyTorch's names; scripts set these, lowtide has none of them."""

from lowtide.backends import cuda as cuda
from lowtide.backends import cudnn as cudnn
from lowtide.backends import mps as mps
