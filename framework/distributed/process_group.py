"""Process groups of one process: who takes part, and as which rank."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

from ..device import device as as_device
from .futures import Future
from .stores import HashStore, Store

default_pg_timeout = timedelta(minutes=30)  # of collectives, none of which waits here
BACKENDS = ("gloo", "nccl", "mpi", "ucc", "xccl", "fake")


class Backend(str):
    """Name of a backend in lower case, as PyTorch spells it.

    A world of one moves no byte between processes, so every backend that PyTorch knows is accepted
    and none is started.

    Raises:
        ValueError: the name is none of PyTorch's backends.
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


class Work:
    """Handle of a collective that was asked for with ``async_op=True``; it is done already."""

    def __init__(self, result: Sequence[Any] = ()) -> None:
        self._result = list(result)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Return True: the collective is done."""
        return True

    def is_completed(self) -> bool:
        """Return True: the collective is done."""
        return True

    def is_success(self) -> bool:
        """Return True: the collective went well, or it would have raised."""
        return True

    def exception(self) -> None:
        """Return None: there was no exception."""

    def result(self) -> list[Any]:
        """Return the tensors that the collective wrote."""
        return self._result

    def source_rank(self) -> int:
        """Return 0, the only rank."""
        return 0

    def get_future(self) -> Future:
        """Return the result as a future, done already."""
        future = Future()
        future.set_result(self._result)
        return future


class ProcessGroup:
    """Group of one process, of rank 0.

    Attributes:
        group_name: name of the group.
        group_desc: description that the caller gave.
    """

    def __init__(self, backend: str, name: str, description: str | None = None) -> None:
        self._backend = Backend(backend)
        self.group_name = name
        self.group_desc = description or "undefined"
        self.bound_device_id: Any = None

    def rank(self) -> int:
        """Return 0."""
        return 0

    def size(self) -> int:
        """Return 1."""
        return 1

    def name(self) -> str:
        """Return the backend's name, as PyTorch does."""
        return str(self._backend)

    def __repr__(self) -> str:
        return f"<ProcessGroup {self.group_name!r} of 1 process, backend {str(self._backend)!r}>"


class GroupMember:
    """The default group, and what ``new_group`` returns to a process that is not in the group."""

    WORLD: ClassVar[ProcessGroup | None] = None
    NON_GROUP_MEMBER: ClassVar[int] = -100


class _Default(type):
    @property
    def WORLD(cls) -> ProcessGroup | None:
        """The default group, None before ``init_process_group``."""
        return GroupMember.WORLD

    @WORLD.setter
    def WORLD(cls, value: ProcessGroup | None) -> None:
        GroupMember.WORLD = value


class group(metaclass=_Default):
    """Holder of the default group, ``group.WORLD``."""


_groups: dict[str, ProcessGroup] = {}
_store: list[Store] = []


def is_initialized() -> bool:
    """Whether there is a default group."""
    return GroupMember.WORLD is not None


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
    """Make the default group: one process, of rank 0.

    Rank and size come from the arguments, from ``init_method``
    (``tcp://host:port?rank=0&world_size=1``) or, for ``env://``, from the variables ``RANK`` and
    ``WORLD_SIZE`` that a launcher sets. Nothing is connected: one process needs no meeting place.

    Raises:
        ValueError: there is a default group already; rank or size is missing or impossible.
        RuntimeError: more than one process is asked for.
    """
    if GroupMember.WORLD is not None:
        raise ValueError(
            "init_process_group: the default process group is there already; call it once, or"
            " destroy_process_group() first."
        )
    if store is not None and init_method is not None:
        raise ValueError("init_process_group: give init_method or store, not both.")
    name = Backend(backend) if backend else Backend("gloo")
    rank, world_size = _place(init_method, store, rank, world_size)
    if world_size > 1:
        raise RuntimeError(
            f"init_process_group: world_size={world_size}, and lowtide trains in one process for"
            " now. Start the script once, without a launcher or with one process (WORLD_SIZE=1)."
        )
    if world_size < 1 or rank != 0:
        raise ValueError(
            f"init_process_group: rank {rank} of world_size {world_size} does not exist; of one"
            " process the rank is 0."
        )
    made = ProcessGroup(name, group_name or "0")
    made.bound_device_id = None if device_id is None else as_device(device_id)
    _store[:] = [store or HashStore()]
    _groups[made.group_name] = made
    GroupMember.WORLD = made


def _place(
    init_method: str | None, store: Store | None, rank: int, world_size: int
) -> tuple[int, int]:
    if store is not None:
        if rank < 0 or world_size < 0:
            raise ValueError("init_process_group: a store needs rank and world_size beside it.")
        return rank, world_size
    url = urlsplit(init_method or "env://")
    if url.scheme == "env":
        found = {"RANK": rank, "WORLD_SIZE": world_size}
        for variable, given in found.items():
            if given >= 0:
                continue
            if variable not in os.environ:
                raise ValueError(
                    f"init_process_group: env:// needs the environment variable {variable}, which"
                    " is not set. Set RANK=0 and WORLD_SIZE=1, or give rank=0, world_size=1."
                )
            found[variable] = int(os.environ[variable])
        return found["RANK"], found["WORLD_SIZE"]
    if url.scheme not in ("tcp", "file"):
        raise ValueError(
            f"init_process_group: init_method {init_method!r} is none of env://, tcp:// and file://."
        )
    asked = parse_qs(url.query)
    rank = int(asked.get("rank", [rank])[0])
    world_size = int(asked.get("world_size", [world_size])[0])
    if rank < 0 or world_size < 0:
        raise ValueError(f"init_process_group: {url.scheme}:// needs rank and world_size.")
    return rank, world_size


def destroy_process_group(group: ProcessGroup | None = None) -> None:
    """Forget a group; without an argument, or with the default group, all of them.

    Raises:
        ValueError: there is no such group.
    """
    which = group or GroupMember.WORLD
    if which is None or which.group_name not in _groups:
        raise ValueError(
            "destroy_process_group: there is no such group; it was never made, or destroyed before."
        )
    if which is GroupMember.WORLD:
        _groups.clear()
        _store.clear()
        GroupMember.WORLD = None
    else:
        del _groups[which.group_name]


def resolve(group: Any, op_name: str) -> ProcessGroup:
    """Return the group that a call means, the default one for None.

    Raises:
        ValueError: there is no default group yet, or the group was destroyed or is another's.
    """
    if group is None:
        if GroupMember.WORLD is None:
            raise ValueError(
                f"{op_name}: the default process group has not been initialized; call"
                " init_process_group() first."
            )
        return GroupMember.WORLD
    if not isinstance(group, ProcessGroup):
        if group == GroupMember.NON_GROUP_MEMBER:
            raise ValueError(f"{op_name}: this process is not a member of the group.")
        raise TypeError(
            f"{op_name}: group must be a ProcessGroup or None; got {type(group).__name__}."
        )
    if _groups.get(group.group_name) is not group:
        raise ValueError(f"{op_name}: the group {group.group_name!r} was destroyed.")
    return group


def new_group(
    ranks: Sequence[int] | None = None,
    timeout: timedelta | None = None,
    backend: str | None = None,
    pg_options: Any = None,
    use_local_synchronization: bool = False,
    group_desc: str | None = None,
    device_id: Any = None,
    group_name: str | None = None,
) -> Any:
    """Return a group of some ranks: of rank 0, or ``GroupMember.NON_GROUP_MEMBER`` for no rank.

    Raises:
        ValueError: there is no default group yet, or a rank does not exist.
    """
    world = resolve(None, "new_group")
    chosen = [0] if ranks is None else list(ranks)
    if any(rank != 0 for rank in chosen) or len(chosen) > 1:
        raise ValueError(
            f"new_group: ranks {chosen} of a world of 1; the only rank is 0, named once."
        )
    if not chosen:
        return GroupMember.NON_GROUP_MEMBER
    name = group_name or str(1 + max((int(n) for n in _groups if n.isdigit()), default=0))
    made = ProcessGroup(backend or world._backend, name, group_desc)
    _groups[name] = made
    return made


def get_rank(group: Any = None) -> int:
    """Return the rank of this process in a group: 0, or -1 if it is not a member."""
    return -1 if _outside(group) else resolve(group, "get_rank").rank()


def get_world_size(group: Any = None) -> int:
    """Return the number of processes of a group: 1, or -1 if this one is not a member."""
    return -1 if _outside(group) else resolve(group, "get_world_size").size()


def _outside(group: Any) -> bool:
    return isinstance(group, int) and group == GroupMember.NON_GROUP_MEMBER


def get_backend(group: Any = None) -> str:
    """Return the name of a group's backend."""
    return str(resolve(group, "get_backend")._backend)


def get_process_group_ranks(group: Any) -> list[int]:
    """Return the ranks of a group, ``[0]``."""
    resolve(group, "get_process_group_ranks")
    return [0]


def get_global_rank(group: Any, group_rank: int) -> int:
    """Return the rank in the world of a rank in a group."""
    return only_rank(group_rank, group, "get_global_rank")


def get_group_rank(group: Any, global_rank: int) -> int:
    """Return the rank in a group of a rank in the world."""
    return only_rank(global_rank, group, "get_group_rank")


def only_rank(rank: int, group: Any, op_name: str) -> int:
    """Return a rank after checking that it exists.

    Raises:
        ValueError: it is not 0.
    """
    resolve(group, op_name)
    if rank != 0:
        raise ValueError(
            f"{op_name}: rank {rank} does not exist; the group has one process, of rank 0."
        )
    return rank


def get_node_local_rank(fallback_rank: int | None = None) -> int:
    """Return ``LOCAL_RANK``, which a launcher sets, or the fallback.

    Raises:
        RuntimeError: neither is there.
    """
    if "LOCAL_RANK" in os.environ:
        return int(os.environ["LOCAL_RANK"])
    if fallback_rank is None:
        raise RuntimeError(
            "get_node_local_rank: LOCAL_RANK is not set, as no launcher started this process; give"
            " fallback_rank=0."
        )
    return int(fallback_rank)


def is_torchelastic_launched() -> bool:
    """Whether torchrun started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def get_default_backend_for_device(device: Any) -> str:
    """Return the backend that PyTorch takes for a device: gloo on the CPU, nccl on CUDA."""
    return "nccl" if as_device(device).type == "cuda" else "gloo"
