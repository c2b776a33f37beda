"""Parameters and buffers, under PyTorch's name for them."""

from lowtide.modules.parameter import Buffer as Buffer
from lowtide.modules.parameter import Parameter as Parameter
