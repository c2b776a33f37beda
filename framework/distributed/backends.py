"""Backends by PyTorch's names, and how each connects the processes of a group."""

from __future__ import annotations

import os
import warnings
from importlib.util import find_spec
from typing import ClassVar

from .fake import FakeTransport, imagining
from .place import Place
from .transport import Transport

BACKENDS = ("gloo", "nccl", "mpi", "ucc", "xccl", "fake")
# Variables by which MPI's launchers tell a process its rank.
_OF_MPI = ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "MPI_LOCALRANKID")


class Backend(str):
    """Name of a backend in lower case, as PyTorch spells it.

    ``gloo`` connects processes by sockets, ``mpi`` by an MPI library; ``fake`` imagines the other
    processes. The names of backends for GPUs are accepted: tensors go through the CPU, by sockets.

    Raises:
        ValueError: The name is none of PyTorch's backends.
    """

    UNDEFINED, GLOO, NCCL, UCC, MPI, XCCL, FAKE = (
        "undefined",
        "gloo",
        "nccl",
        "ucc",
        "mpi",
        "xccl",
        "fake",
    )
    backend_list: ClassVar[list[str]] = ["undefined", *BACKENDS]

    def __new__(cls, name: str) -> Backend:
        """Return the backend's name; ``"cpu:gloo,cuda:nccl"`` names one a device."""
        if not isinstance(name, str):
            raise ValueError(f"Backend: expected a string; got {type(name).__name__}.")
        given = name.lower()
        for part in given.split(","):
            if part.rpartition(":")[2] not in cls.backend_list:
                raise ValueError(
                    f"Backend: {part.rpartition(':')[2]!r} is not a backend of PyTorch; it knows"
                    f" {', '.join(BACKENDS)}."
                )
        return super().__new__(cls, given)


def is_mpi_available() -> bool:
    """Whether mpi4py is installed: ``pip install 'lowtide[mpi]'`` brings it, and an MPI library."""
    return find_spec("mpi4py") is not None


def started_by_mpi() -> bool:
    """Whether a launcher of MPI started this process, such as ``mpiexec -n 4 python train.py``."""
    return any(name in os.environ for name in _OF_MPI)


def connect(backend: Backend, place: Place, seconds: float) -> Transport:
    """Connect all ranks by sockets; return this one's transport.

    Raises:
        DistNetworkError: A rank did not come in time.
        NotImplementedError: The backend connects nothing here.
    """
    names = {part.rpartition(":")[2] for part in backend.split(",")}
    if "fake" in names or imagining():
        return FakeTransport(place.rank, place.size)
    if "ucc" in names:
        raise NotImplementedError(
            f"init_process_group: backend {str(backend)!r} connects no processes here. Use 'gloo'."
        )
    from .rendezvous import meet

    if "gloo" not in names:
        warnings.warn(
            f"init_process_group: backend {str(backend)!r} is not there yet; tensors go through "
            "the CPU, by sockets ('gloo').",
            stacklevel=4,
        )
    return meet(place, seconds)
