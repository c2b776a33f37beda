"""Parallel training of modules: over processes, and over the devices of one process."""

from lowtide.modules.distributed_data_parallel import (
    DistributedDataParallel as DistributedDataParallel,
)
from lowtide.modules.parallel import DataParallel as DataParallel
from lowtide.modules.parallel import data_parallel as data_parallel
from lowtide.modules.parallel import gather as gather
from lowtide.modules.parallel import parallel_apply as parallel_apply
from lowtide.modules.parallel import replicate as replicate
from lowtide.modules.parallel import scatter as scatter

__all__ = [
    "DataParallel",
    "DistributedDataParallel",
    "data_parallel",
    "gather",
    "parallel_apply",
    "replicate",
    "scatter",
]
