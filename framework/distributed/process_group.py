"""Process groups: who takes part, and as which rank."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, ClassVar

from ..device import device as as_device
from ..execution import Executor, when_installed
from .backends import Backend
from .buffers import Buffer
from .channel import Call, Channel, Steps
from .stores import Store
from .work import Work


class ProcessGroup:
    """Some processes, each with a rank in the group.

    Args:
        backend: Its name.
        name: Of the group, unique.
        ranks: The ranks in the world of its members, in the order of their ranks in the group.
        channel: The group's collectives.
        description: That the caller gave.

    Attributes:
        group_name: Its name.
        group_desc: Its description.
        channel: Its collectives.
    """

    def __init__(
        self,
        backend: str,
        name: str,
        ranks: Sequence[int],
        channel: Channel,
        description: str | None = None,
    ) -> None:
        self._backend = Backend(backend)
        self.group_name = name
        self.group_desc = description or "undefined"
        self.bound_device_id: Any = None
        self.ranks = list(ranks)
        self.channel = channel
        channel.ranks = self.ranks
        self.groups_made = 0  # of the world

    def rank(self) -> int:
        """Return the rank of this process in the group."""
        return self.channel.rank

    def size(self) -> int:
        """Return the number of processes."""
        return len(self.ranks)

    def name(self) -> str:
        """Return the backend's name, as PyTorch does."""
        return str(self._backend)

    def group_rank(self, rank: int, op_name: str) -> int:
        """Return the rank in the group of a rank in the world.

        Raises:
            ValueError: It does not exist, or is not a member.
        """
        if rank in self.ranks:
            return self.ranks.index(rank)
        size = self.size()
        who = "has one process, of rank 0" if size == 1 else f"has the ranks {self.ranks}"
        raise ValueError(f"{op_name}: rank {rank} does not exist; the group {who}.")

    def global_rank(self, rank: int, op_name: str) -> int:
        """Return the rank in the world of a rank in the group.

        Raises:
            ValueError: It does not exist.
        """
        if not 0 <= rank < self.size():
            raise ValueError(
                f"{op_name}: rank {rank} does not exist in a group of {self.size()}, whose ranks "
                f"are 0 to {self.size() - 1}."
            )
        return self.ranks[rank]

    def run(
        self,
        line: str,
        steps: Callable[[Call], Steps],
        buffers: Sequence[Buffer],
        result: Sequence[Any],
        async_op: bool,
        held: Any = None,
    ) -> Work | None:
        """Run a collective to its end, or return a handle.

        Args:
            line: Its name and what all ranks must agree about.
            steps: See ``channel.py``.
            buffers: What it writes.
            result: The tensors that these are of.
            async_op: Whether to return a handle at once.
            held: Workspace that lives until it was waited for.
        """

        def settled(call: Call) -> Steps:
            yield from steps(call)
            for buffer in buffers:
                buffer.settle()

        call = self.channel.start(line, settled)
        if async_op:
            return Work(call, result, (buffers, held))
        call.wait()
        return None

    def __repr__(self) -> str:
        size = self.size()
        return (
            f"<ProcessGroup {self.group_name!r} of {size} process{'es' * (size > 1)}, backend "
            f"{str(self._backend)!r}>"
        )


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


groups: dict[str, ProcessGroup] = {}


@when_installed
def _imagine(executor: Executor) -> None:
    # An estimate's copy of this process is no rank: it imagines the others.
    if not executor.computes:
        for one in groups.values():
            one.channel.imagine(one.channel.rank, one.channel.size)


stores: list[Store] = []
_LOCAL_GROUPS = 1 << 20  # numbers of groups that only their members make


def is_initialized() -> bool:
    """Whether there is a default group."""
    return GroupMember.WORLD is not None


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
    if groups.get(group.group_name) is not group:
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
    """Return a group of some ranks, or ``GroupMember.NON_GROUP_MEMBER`` to a process outside.

    All processes must call it, in the same order, also those outside.

    Args:
        ranks: In the world; all of them if None. Their ranks in the group are in this order.
        timeout: How long a collective may take; the world's timeout if None.
        backend: The world's if None. Messages take the world's connections in any case.
        pg_options: Ignored.
        use_local_synchronization: Only members call it.
        group_desc: A description.
        device_id: Ignored.
        group_name: A name; a number by default.

    Raises:
        ValueError: There is no default group yet, or a rank does not exist or comes twice.
    """
    world = resolve(None, "new_group")
    size = world.size()
    chosen = list(range(size)) if ranks is None else list(ranks)
    if any(not 0 <= rank < size for rank in chosen) or len(set(chosen)) < len(chosen):
        only = "the only rank is 0" if size == 1 else f"ranks are 0 to {size - 1}"
        raise ValueError(f"new_group: ranks {chosen} of a world of {size}; {only}, named once.")
    number = _number_of_group(world, chosen, use_local_synchronization)
    if world.rank() not in chosen:
        return GroupMember.NON_GROUP_MEMBER
    name = group_name or str(1 + max((int(n) for n in groups if n.isdigit()), default=0))
    limit = timeout or world.channel.timeout
    transport = world.channel.transport.subgroup(number, chosen) if len(chosen) > 1 else None
    channel = Channel(transport, limit)
    made = ProcessGroup(backend or world._backend, name, chosen, channel, group_desc)
    groups[name] = made
    return made


def _number_of_group(world: ProcessGroup, chosen: list[int], local: bool) -> int:
    # The same number in all members, from which the tags of the group's messages are made.
    if local:  # others do not count: a number that depends on the members
        found = 0
        for rank in chosen:
            found = (found * 1_000_003 + rank + 1) % _LOCAL_GROUPS
        return _LOCAL_GROUPS + found
    world.groups_made += 1
    return world.groups_made


def get_rank(group: Any = None) -> int:
    """Return the rank of this process in a group, or -1 if it is not a member."""
    return -1 if _outside(group) else resolve(group, "get_rank").rank()


def get_world_size(group: Any = None) -> int:
    """Return the number of processes of a group, or -1 if this one is not a member."""
    return -1 if _outside(group) else resolve(group, "get_world_size").size()


def _outside(group: Any) -> bool:
    return isinstance(group, int) and group == GroupMember.NON_GROUP_MEMBER


def get_backend(group: Any = None) -> str:
    """Return the name of a group's backend."""
    return str(resolve(group, "get_backend")._backend)


def get_process_group_ranks(group: Any) -> list[int]:
    """Return the ranks in the world of a group's members."""
    return list(resolve(group, "get_process_group_ranks").ranks)


def get_global_rank(group: Any, group_rank: int) -> int:
    """Return the rank in the world of a rank in a group."""
    return resolve(group, "get_global_rank").global_rank(group_rank, "get_global_rank")


def get_group_rank(group: Any, global_rank: int) -> int:
    """Return the rank in a group of a rank in the world."""
    return resolve(group, "get_group_rank").group_rank(global_rank, "get_group_rank")


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
