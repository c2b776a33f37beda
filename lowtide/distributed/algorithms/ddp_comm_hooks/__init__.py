"""Communication hooks of ``DistributedDataParallel``, under PyTorch's names."""

from lowtide.distributed.algorithms.ddp_comm_hooks import default_hooks as default_hooks
from lowtide.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as powerSGD_hook
