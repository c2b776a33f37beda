"""Training with many processes, under PyTorch's names.

``lowtide launch -n 4 train.py`` starts the processes, ``init_process_group`` connects them, and
``nn.parallel.DistributedDataParallel`` trains one model in all of them.
"""

from lowtide.distributed import device_mesh as device_mesh
from lowtide.distributed import fsdp as fsdp
from lowtide.distributed import nn as nn
from lowtide.distributed import optim as optim
from lowtide.framework.distributed.backends import Backend as Backend
from lowtide.framework.distributed.backends import is_mpi_available as is_mpi_available
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
from lowtide.framework.distributed.collectives import broadcast as broadcast
from lowtide.framework.distributed.collectives import gather as gather
from lowtide.framework.distributed.collectives import monitored_barrier as monitored_barrier
from lowtide.framework.distributed.collectives import reduce as reduce
from lowtide.framework.distributed.collectives import reduce_op as reduce_op
from lowtide.framework.distributed.collectives import reduce_scatter as reduce_scatter
from lowtide.framework.distributed.collectives import reduce_scatter_tensor as reduce_scatter_tensor
from lowtide.framework.distributed.collectives import scatter as scatter
from lowtide.framework.distributed.device_mesh import DeviceMesh as DeviceMesh
from lowtide.framework.distributed.device_mesh import init_device_mesh as init_device_mesh
from lowtide.framework.distributed.file_store import FileStore as FileStore
from lowtide.framework.distributed.gradient_reduction import GradBucket as GradBucket
from lowtide.framework.distributed.initialization import (
    default_pg_timeout as default_pg_timeout,
)
from lowtide.framework.distributed.initialization import (
    destroy_process_group as destroy_process_group,
)
from lowtide.framework.distributed.initialization import init_process_group as init_process_group
from lowtide.framework.distributed.objects import all_gather_object as all_gather_object
from lowtide.framework.distributed.objects import broadcast_object_list as broadcast_object_list
from lowtide.framework.distributed.objects import gather_object as gather_object
from lowtide.framework.distributed.objects import scatter_object_list as scatter_object_list
from lowtide.framework.distributed.point_to_point import P2POp as P2POp
from lowtide.framework.distributed.point_to_point import batch_isend_irecv as batch_isend_irecv
from lowtide.framework.distributed.point_to_point import irecv as irecv
from lowtide.framework.distributed.point_to_point import isend as isend
from lowtide.framework.distributed.point_to_point import recv as recv
from lowtide.framework.distributed.point_to_point import send as send
from lowtide.framework.distributed.process_group import GroupMember as GroupMember
from lowtide.framework.distributed.process_group import ProcessGroup as ProcessGroup
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
from lowtide.framework.distributed.process_group import is_initialized as is_initialized
from lowtide.framework.distributed.process_group import (
    is_torchelastic_launched as is_torchelastic_launched,
)
from lowtide.framework.distributed.process_group import new_group as new_group
from lowtide.framework.distributed.stores import HashStore as HashStore
from lowtide.framework.distributed.stores import PrefixStore as PrefixStore
from lowtide.framework.distributed.stores import Store as Store
from lowtide.framework.distributed.tcp_store import TCPStore as TCPStore
from lowtide.framework.distributed.transport import DistBackendError as DistBackendError
from lowtide.framework.distributed.transport import DistError as DistError
from lowtide.framework.distributed.transport import DistNetworkError as DistNetworkError
from lowtide.framework.distributed.transport import DistStoreError as DistStoreError
from lowtide.framework.distributed.work import Work as Work


def is_available() -> bool:
    """True: processes can be connected."""
    return True


def is_gloo_available() -> bool:
    """True: processes on the CPU are connected by sockets."""
    return True


def is_nccl_available() -> bool:
    """False: tensors of GPUs go through the CPU."""
    return False


def is_backend_available(backend: str) -> bool:
    """Whether a backend can be had: gloo, and mpi where mpi4py is installed."""
    return backend.lower() == "gloo" or (backend.lower() == "mpi" and is_mpi_available())


is_ucc_available = is_xccl_available = is_nccl_available
