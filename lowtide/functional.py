"""Functions of ``lowtide`` under the path where PyTorch defines them."""

from lowtide.framework.ops import atleast_1d as atleast_1d
from lowtide.framework.ops import atleast_2d as atleast_2d
from lowtide.framework.ops import atleast_3d as atleast_3d
from lowtide.framework.ops import block_diag as block_diag
from lowtide.framework.ops import broadcast_shapes as broadcast_shapes
from lowtide.framework.ops import broadcast_tensors as broadcast_tensors
from lowtide.framework.ops import cartesian_prod as cartesian_prod
from lowtide.framework.ops import cdist as cdist
from lowtide.framework.ops import chain_matmul as chain_matmul
from lowtide.framework.ops import einsum as einsum
from lowtide.framework.ops import istft as istft
from lowtide.framework.ops import lu as lu
from lowtide.framework.ops import meshgrid as meshgrid
from lowtide.framework.ops import norm as norm
from lowtide.framework.ops import split as split
from lowtide.framework.ops import stft as stft
from lowtide.framework.ops import tensordot as tensordot
from lowtide.framework.ops import unique as unique
from lowtide.framework.ops import unique_consecutive as unique_consecutive
from lowtide.framework.ops import unravel_index as unravel_index
