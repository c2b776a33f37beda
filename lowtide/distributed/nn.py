"""Collectives with gradients, under PyTorch's name ``torch.distributed.nn``."""

import sys as _sys

from lowtide.framework.distributed.collectives import ReduceOp as ReduceOp
from lowtide.framework.distributed.differentiable import all_gather as all_gather
from lowtide.framework.distributed.differentiable import all_reduce as all_reduce
from lowtide.framework.distributed.differentiable import all_to_all as all_to_all
from lowtide.framework.distributed.differentiable import all_to_all_single as all_to_all_single
from lowtide.framework.distributed.differentiable import broadcast as broadcast
from lowtide.framework.distributed.differentiable import gather as gather
from lowtide.framework.distributed.differentiable import group as group
from lowtide.framework.distributed.differentiable import reduce as reduce
from lowtide.framework.distributed.differentiable import reduce_scatter as reduce_scatter
from lowtide.framework.distributed.differentiable import scatter as scatter

__path__: list[str] = []  # so that Python asks for modules below: lowtide._torch_paths

functional = _sys.modules[__name__]  # PyTorch keeps them in torch.distributed.nn.functional
