"""Training with many processes, under PyTorch's names: a world of one process, for now.

A program that asks for a process group gets one, of rank 0 and size 1, whose collectives are those
of one rank. More than one process is refused by ``init_process_group``.
"""

from lowtide.distributed import nn as nn
from lowtide.framework.distributed.collectives import ReduceOp as ReduceOp
from lowtide.framework.distributed.collectives import all_gather as all_gather
from lowtide.framework.distributed.collectives import (
    all_gather_into_tensor as all_gather_into_tensor,
)
from lowtide.framework.distributed.collectives import all_reduce as all_reduce
from lowtide.framework.distributed.collectives import all_reduce_coalesced as all_reduce_coalesced
from lowtide.framework.distributed.collectives import all_to_all as all_to_all
from lowtide.framework.distributed.collectives import all_to_all_single as all_to_all_single
from lowtide.framework.distributed.collectives import barrier as barrier
from lowtide.framework.distributed.collectives import batch_isend_irecv as batch_isend_irecv
from lowtide.framework.distributed.collectives import broadcast as broadcast
from lowtide.framework.distributed.collectives import gather as gather
from lowtide.framework.distributed.collectives import irecv as irecv
from lowtide.framework.distributed.collectives import isend as isend
from lowtide.framework.distributed.collectives import monitored_barrier as monitored_barrier
from lowtide.framework.distributed.collectives import recv as recv
from lowtide.framework.distributed.collectives import reduce as reduce
from lowtide.framework.distributed.collectives import reduce_op as reduce_op
from lowtide.framework.distributed.collectives import reduce_scatter as reduce_scatter
from lowtide.framework.distributed.collectives import reduce_scatter_tensor as reduce_scatter_tensor
from lowtide.framework.distributed.collectives import scatter as scatter
from lowtide.framework.distributed.collectives import send as send
from lowtide.framework.distributed.objects import all_gather_object as all_gather_object
from lowtide.framework.distributed.objects import broadcast_object_list as broadcast_object_list
from lowtide.framework.distributed.objects import gather_object as gather_object
from lowtide.framework.distributed.objects import scatter_object_list as scatter_object_list
from lowtide.framework.distributed.process_group import Backend as Backend
from lowtide.framework.distributed.process_group import GroupMember as GroupMember
from lowtide.framework.distributed.process_group import ProcessGroup as ProcessGroup
from lowtide.framework.distributed.process_group import Work as Work
from lowtide.framework.distributed.process_group import (
    destroy_process_group as destroy_process_group,
)
from lowtide.framework.distributed.process_group import get_backend as get_backend
from lowtide.framework.distributed.process_group import (
    get_default_backend_for_device as get_default_backend_for_device,
)
from lowtide.framework.distributed.process_group import get_global_rank as get_global_rank
from lowtide.framework.distributed.process_group import get_group_rank as get_group_rank
from lowtide.framework.distributed.process_group import get_node_local_rank as get_node_local_rank
from lowtide.framework.distributed.process_group import (
    get_process_group_ranks as get_process_group_ranks,
)
from lowtide.framework.distributed.process_group import get_rank as get_rank
from lowtide.framework.distributed.process_group import get_world_size as get_world_size
from lowtide.framework.distributed.process_group import group as group
from lowtide.framework.distributed.process_group import init_process_group as init_process_group
from lowtide.framework.distributed.process_group import is_initialized as is_initialized
from lowtide.framework.distributed.process_group import (
    is_torchelastic_launched as is_torchelastic_launched,
)
from lowtide.framework.distributed.process_group import new_group as new_group
from lowtide.framework.distributed.stores import FileStore as FileStore
from lowtide.framework.distributed.stores import HashStore as HashStore
from lowtide.framework.distributed.stores import PrefixStore as PrefixStore
from lowtide.framework.distributed.stores import Store as Store
from lowtide.framework.distributed.stores import TCPStore as TCPStore


def is_available() -> bool:
    """True: there are process groups, of one process."""
    return True


def is_gloo_available() -> bool:
    """True: one process needs no library between processes."""
    return True


def is_mpi_available() -> bool:
    """False: MPI connects several processes, and there is one."""
    return False


def is_backend_available(backend: str) -> bool:
    """Whether a backend's library is there: gloo, which one process does without, and no other."""
    return backend.lower() == "gloo"


is_nccl_available = is_ucc_available = is_xccl_available = is_mpi_available
