"""Sharded modules, under PyTorch's names ``torch.distributed.fsdp``."""

from lowtide.modules.parallel.fully_sharded.fully_shard import (
    CPUOffloadPolicy as CPUOffloadPolicy,
)
from lowtide.modules.parallel.fully_sharded.fully_shard import FSDPModule as FSDPModule
from lowtide.modules.parallel.fully_sharded.fully_shard import OffloadPolicy as OffloadPolicy
from lowtide.modules.parallel.fully_sharded.fully_shard import UnshardHandle as UnshardHandle
from lowtide.modules.parallel.fully_sharded.fully_shard import (
    full_state_dict as full_state_dict,
)
from lowtide.modules.parallel.fully_sharded.fully_shard import fully_shard as fully_shard
from lowtide.modules.parallel.fully_sharded.in_place import layers_of as layers_of
from lowtide.modules.parallel.fully_sharded.mixed_precision import (
    MixedPrecisionPolicy as MixedPrecisionPolicy,
)
from lowtide.modules.parallel.fully_sharded.sharded_parameter import (
    ShardedParameter as ShardedParameter,
)

__path__: list[str] = []  # so that Python asks for modules below it: lowtide._torch_paths
