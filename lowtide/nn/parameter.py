"""Parameters and buffers, under PyTorch's name for them."""

from lowtide.modules.lazy import UninitializedBuffer as UninitializedBuffer
from lowtide.modules.lazy import UninitializedParameter as UninitializedParameter
from lowtide.modules.lazy import is_lazy as is_lazy
from lowtide.modules.parameter import Buffer as Buffer
from lowtide.modules.parameter import Parameter as Parameter
