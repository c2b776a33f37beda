"""``torch.distributed._composable.fsdp``: where ``fully_shard`` was before it was public."""

from lowtide.distributed.fsdp import CPUOffloadPolicy as CPUOffloadPolicy
from lowtide.distributed.fsdp import FSDPModule as FSDPModule
from lowtide.distributed.fsdp import MixedPrecisionPolicy as MixedPrecisionPolicy
from lowtide.distributed.fsdp import OffloadPolicy as OffloadPolicy
from lowtide.distributed.fsdp import fully_shard as fully_shard
