"""Parallel training of modules: over processes, and over the devices of one process."""

from lowtide.modules.parallel.data_parallel import DataParallel as DataParallel
from lowtide.modules.parallel.data_parallel import data_parallel as data_parallel
from lowtide.modules.parallel.data_parallel import gather as gather
from lowtide.modules.parallel.data_parallel import parallel_apply as parallel_apply
from lowtide.modules.parallel.data_parallel import replicate as replicate
from lowtide.modules.parallel.data_parallel import scatter as scatter
from lowtide.modules.parallel.distributed_data_parallel import (
    DistributedDataParallel as DistributedDataParallel,
)

__all__ = [
    "DataParallel",
    "DistributedDataParallel",
    "data_parallel",
    "gather",
    "parallel_apply",
    "replicate",
    "scatter",
]
