"""The default group: made from arguments, a launcher's variables or MPI, and ended."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

from ..device import device as as_device
from .backends import Backend, connect, is_mpi_available, started_by_mpi
from .channel import Channel
from .fake import imagining, set_variables
from .place import place_of
from .process_group import GroupMember, ProcessGroup, groups, stores
from .stores import HashStore, Store
from .transport import Transport
from .waiting import waits

default_pg_timeout = timedelta(minutes=30)  # of collectives


def init_process_group(
    backend: str | None = None,
    init_method: str | None = None,
    timeout: timedelta | None = None,
    world_size: int = -1,
    rank: int = -1,
    store: Store | None = None,
    group_name: str = "",
    pg_options: Any = None,
    device_id: Any = None,
) -> None:
    """Make the default group, and connect its processes.

    Rank and size come from the arguments, from ``init_method``
    (``tcp://host:port?rank=0&world_size=1``, ``file:///path``) or, for ``env://``, from the
    variables ``RANK``, ``WORLD_SIZE``, ``MASTER_ADDR`` and ``MASTER_PORT``, which
    ``lowtide launch`` sets. In a process that MPI's ``mpiexec`` started, they come from MPI.

    Args:
        backend: ``gloo`` (sockets), ``mpi``, or ``fake``, which imagines the other processes, so
            that one can show the bytes of any rank; by default ``mpi`` under ``mpiexec``, else
            ``gloo``. In an estimate all are ``fake``.
        init_method: Where the processes meet.
        timeout: How long a collective may take, and the meeting; half an hour by default.
        world_size: How many processes.
        rank: Which of them this is.
        store: Where they meet, in place of ``init_method``.
        group_name: Of the group.
        pg_options: Ignored.
        device_id: Kept as ``bound_device_id``.

    Raises:
        ValueError: There is a default group already; rank or size is missing or impossible.
        DistNetworkError: The processes did not meet in time.
    """
    if GroupMember.WORLD is not None:
        raise ValueError(
            "init_process_group: the default process group is there already; call it once, or"
            " destroy_process_group() first."
        )
    if store is not None and init_method is not None:
        raise ValueError("init_process_group: give init_method or store, not both.")
    limit = timeout or default_pg_timeout
    by_mpi = not imagining() and _by_mpi(backend, init_method, store, rank)
    name = Backend(backend) if backend else Backend("mpi" if by_mpi else "gloo")
    transport: Transport | None
    if by_mpi:
        from .mpi import MpiTransport

        transport = MpiTransport.world()
        size = transport.size
    else:
        nowhere = name == "fake" and init_method is None and rank >= 0  # they need not meet
        place = place_of(init_method, store is not None or nowhere, rank, world_size)
        size = place.size
        if size < 1 or not 0 <= place.rank < size:
            raise ValueError(
                f"init_process_group: rank {place.rank} of world_size {size} does not exist; ranks "
                f"are 0 to {size - 1}."
            )
        if size > 1 and isinstance(store, HashStore) and name != "fake" and not imagining():
            raise ValueError(
                "init_process_group: a HashStore is in the memory of one process. Let several "
                "meet in a TCPStore or a FileStore."
            )
        place = place._replace(store=store)
        transport = connect(name, place, limit.total_seconds()) if size > 1 else None
    made = ProcessGroup(name, group_name or "0", range(size), Channel(transport, limit))
    made.bound_device_id = None if device_id is None else as_device(device_id)
    stores[:] = [store or HashStore()]
    groups[made.group_name] = made
    GroupMember.WORLD = made
    if size > 1 and not made.channel.imagined:
        waits.joined(made.rank(), size)


def _by_mpi(backend: str | None, init_method: str | None, store: Any, rank: int) -> bool:
    # Whether MPI tells who takes part. Who names a meeting place or a rank means sockets.
    if backend is not None and backend.lower() == "mpi":
        if started_by_mpi() or is_mpi_available():
            return True
        raise RuntimeError(
            "init_process_group: backend 'mpi' needs mpi4py and an MPI library: pip install "
            "'lowtide[mpi]'."
        )
    named = init_method not in (None, "env://") or store is not None or rank >= 0
    return started_by_mpi() and not named and "RANK" not in os.environ


def imagine(rank: int, size: int) -> None:
    """Imagine this process as a rank of a world of any size; its other processes do not exist.

    The default group, if there is one, has that size from now on. Launcher's variables say so, for
    an ``init_process_group`` that comes later. For a process that computes nothing.

    Args:
        rank: The rank.
        size: The number of ranks.

    Raises:
        ValueError: There are groups within the world, and that had another size.
    """
    set_variables(rank, size)
    world = GroupMember.WORLD
    if world is None or (world.rank(), world.size()) == (rank, size):
        return
    if len(groups) > 1:
        raise ValueError(
            f"estimate: there are groups within the world of {world.size()}, so it cannot become "
            f"one of {size}. Make them inside the step."
        )
    world.ranks = list(range(size))
    world.channel.imagine(rank, size)


def destroy_process_group(group: ProcessGroup | None = None) -> None:
    """Forget a group; without an argument, or with the default group, all of them.

    Raises:
        ValueError: there is no such group.
    """
    which = group or GroupMember.WORLD
    if which is None or which.group_name not in groups:
        raise ValueError(
            "destroy_process_group: there is no such group; it was never made, or destroyed before."
        )
    if which is GroupMember.WORLD:
        which.channel.break_off("destroy_process_group() was called.")
        groups.clear()
        stores.clear()
        GroupMember.WORLD = None
    else:
        del groups[which.group_name]
