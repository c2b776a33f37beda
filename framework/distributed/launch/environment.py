"""Where workers run and what tells them so: nodes, ranks, the meeting place, cores.

The variables are torchrun's. A script that reads them, or calls ``init_process_group()``, needs no
change.
"""

from __future__ import annotations

import os
import re
import socket
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field

from ...kernels.runtime import cores

LOOPBACK = "127.0.0.1"
DEFAULT_PORT = 29500  # PyTorch's, where launchers on several nodes must agree


@dataclass(frozen=True)
class Job:
    """What one launcher starts on its node, and the nodes beside it.

    Attributes:
        local_size: Workers on this node; as many on each of the others.
        nodes: How many nodes, each with a launcher.
        node_rank: Which of them this one is.
        master_addr: Address of the node of rank 0.
        master_port: Port there; None for a free one, a new one at each restart.
        max_restarts: How often all workers are started again after one failed.
        run_id: Name of the job.
        role: Name of what the workers do.
        bind_cores: Each worker runs on cores that no other worker of the node has.
    """

    local_size: int = 1
    nodes: int = 1
    node_rank: int = 0
    master_addr: str = LOOPBACK
    master_port: int | None = None
    max_restarts: int = 0
    run_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    role: str = "default"
    bind_cores: bool = False

    @property
    def world_size(self) -> int:
        """Workers on all nodes."""
        return self.local_size * self.nodes

    def rank(self, local_rank: int) -> int:
        """The rank in the world of a worker of this node."""
        return self.node_rank * self.local_size + local_rank


def variables(job: Job, local_rank: int, port: int, restarts: int) -> dict[str, str]:
    """What one worker finds in its environment, beside what the launcher itself found.

    Args:
        job: The job.
        local_rank: Number of the worker on this node.
        port: The port of the meeting place.
        restarts: How often the workers were started again.

    Returns:
        torchrun's variables, and the number of threads unless the user has set that.
    """
    rank, world = str(job.rank(local_rank)), str(job.world_size)
    found = {
        "RANK": rank,
        "WORLD_SIZE": world,
        "LOCAL_RANK": str(local_rank),
        "LOCAL_WORLD_SIZE": str(job.local_size),
        "GROUP_RANK": str(job.node_rank),
        "GROUP_WORLD_SIZE": str(job.nodes),
        "ROLE_RANK": rank,
        "ROLE_WORLD_SIZE": world,
        "ROLE_NAME": job.role,
        "MASTER_ADDR": job.master_addr,
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": job.run_id,
        "TORCHELASTIC_RESTART_COUNT": str(restarts),
        "TORCHELASTIC_MAX_RESTARTS": str(job.max_restarts),
        "TORCHELASTIC_USE_AGENT_STORE": "False",  # rank 0 itself is the meeting place
        "PYTHONUNBUFFERED": "1",  # a line is passed on when it is printed
    }
    if not os.environ.get("OMP_NUM_THREADS"):
        share = cores.usable() // job.local_size
        found["OMP_NUM_THREADS"] = str(max(1, min(share, cores.MOST)))
    return found


def cores_of(job: Job, local_rank: int) -> list[int]:
    """The hardware threads of one worker: neighbours, and as many as every other worker has.

    Where there are more workers than hardware threads, each has one, and some have the same.

    Returns:
        Their numbers; empty if the job does not bind workers.
    """
    if not job.bind_cores:
        return []
    found = cores.side_by_side()
    share = max(1, len(found) // job.local_size)
    start = local_rank * share % len(found)
    return found[start : start + share]


def free_port() -> int:
    """A TCP port that is free now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as found:
        found.bind((LOOPBACK, 0))
        return int(found.getsockname()[1])


@dataclass(frozen=True)
class SlurmNode:
    """Where ``srun`` has started this launcher.

    Attributes:
        nodes: Nodes of the job step.
        node_rank: Which of them this one is.
        master: The first of them.
        local_id: Which of the launchers on this node this one is.
        run_id: Name of the job step.
    """

    nodes: int
    node_rank: int
    master: str
    local_id: int
    run_id: str


def slurm(environment: Mapping[str, str]) -> SlurmNode | None:
    """Read Slurm's variables.

    Those of the job step come first: a step may have fewer nodes than the job has.

    Args:
        environment: Of this process.

    Returns:
        None if ``srun`` has not started this process on one of several nodes.
    """
    found = environment.get
    nodes = found("SLURM_STEP_NUM_NODES") or found("SLURM_NNODES") or "1"
    if found("SLURM_PROCID") is None or not nodes.isdecimal() or int(nodes) < 2:
        return None
    hosts = found("SLURM_STEP_NODELIST") or found("SLURM_JOB_NODELIST") or ""
    return SlurmNode(
        nodes=int(nodes),
        node_rank=int(found("SLURM_NODEID") or "0"),
        master=first_host(hosts) or found("SLURM_LAUNCH_NODE_IPADDR") or "",
        local_id=int(found("SLURM_LOCALID") or "0"),
        run_id=f"{found('SLURM_JOB_ID') or 'slurm'}.{found('SLURM_STEP_ID') or '0'}",
    )


def first_host(hosts: str) -> str:
    """The first node of a list as Slurm writes it.

    Example:
        >>> first_host("cpu[07-09,12],gpu1"), first_host("a1,a2"), first_host("rack[2-3]n[01-04]")
        ('cpu07', 'a1', 'rack2n01')
    """
    first = re.match(r"(?:[^,\[]|\[[^]]*\])*", hosts)
    return re.sub(r"\[([^],-]*)[^]]*\]", r"\1", first.group() if first else "")
