"""Where the processes of a group meet: what arguments, addresses and variables say."""

from __future__ import annotations

import os
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit


class Place(NamedTuple):
    """Where rank 0 is, and who asks.

    Attributes:
        rank: Of this process.
        size: Of the group.
        host: Rank 0's address; "" if ``file`` says where it is.
        port: Rank 0's port.
        file: A file that rank 0 writes its address into; "" for none.
        job: What the processes of one job have in common, such as a launcher's run and restart.
        store: Where rank 0 writes its address; None for an address or a file.
    """

    rank: int
    size: int
    host: str = ""
    port: int = 0
    file: str = ""
    job: str = ""
    store: Any = None


# Variables by which launchers tell a process its rank and how many there are: torchrun's and ours,
# MPICH's and Intel's, Open MPI's.
_LAUNCHERS = (
    ("RANK", "WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
)


def launched_rank() -> int | None:
    """Return the rank that a launcher gave this process; None if it is the only one."""
    for rank, size in _LAUNCHERS:
        found = os.environ.get(rank, ""), os.environ.get(size, "")
        if all(map(str.isdecimal, found)):
            return int(found[0]) if int(found[1]) > 1 else None
    return None


def place_of(init_method: str | None, has_store: bool, rank: int, world_size: int) -> Place:
    """Return the place that ``init_process_group`` gets.

    Args:
        init_method: ``env://``, ``tcp://host:port`` or ``file:///path``; None for ``env://``.
        has_store: There is a store instead; rank and size are given.
        rank: Of this process; negative for what the address or the variables say.
        world_size: How many processes; likewise.

    Raises:
        ValueError: Something is missing, or cannot be read.
    """
    if has_store:
        if rank < 0 or world_size < 0:
            raise ValueError("init_process_group: a store needs rank and world_size beside it.")
        return Place(rank, world_size)
    url = urlsplit(init_method or "env://")
    if url.scheme == "env":
        return _place_of_environment(rank, world_size)
    if url.scheme not in ("tcp", "file"):
        raise ValueError(
            f"init_process_group: init_method {init_method!r} is none of env://, tcp:// and file://."
        )
    asked = parse_qs(url.query)
    rank = int(asked.get("rank", [rank])[0])
    world_size = int(asked.get("world_size", [world_size])[0])
    if rank < 0 or world_size < 0:
        raise ValueError(f"init_process_group: {url.scheme}:// needs rank and world_size.")
    if url.scheme == "file":
        return Place(rank, world_size, file=url.netloc + url.path)
    if world_size > 1 and not (url.hostname and url.port):
        raise ValueError(f"init_process_group: {init_method!r} needs a host and a port.")
    return Place(rank, world_size, url.hostname or "", url.port or 0)


def _place_of_environment(rank: int, world_size: int) -> Place:
    found: dict[str, Any] = {"RANK": rank, "WORLD_SIZE": world_size}
    for variable, given in found.items():
        if given < 0:
            found[variable] = int(_variable(variable))
    rank, world_size = found["RANK"], found["WORLD_SIZE"]
    if world_size == 1:
        return Place(rank, world_size)
    job = [os.environ.get(f"TORCHELASTIC_{name}", "") for name in ("RUN_ID", "RESTART_COUNT")]
    port = _variable("MASTER_PORT")
    if not port.isdecimal():
        raise ValueError(f"init_process_group: MASTER_PORT must be a number; it is {port!r}.")
    return Place(rank, world_size, _variable("MASTER_ADDR"), int(port), job=" ".join(job).strip())


def _variable(name: str) -> str:
    if name in os.environ:
        return os.environ[name]
    raise ValueError(
        f"init_process_group: env:// needs the environment variable {name}, which is not set. "
        "Start the script with `lowtide launch -n 2 SCRIPT`, or for one process set RANK=0 and "
        "WORLD_SIZE=1, or give rank=0, world_size=1."
    )
