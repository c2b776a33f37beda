"""A unit: parameters that are gathered together, and the modules whose forwards they are for."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from ....framework.distributed.process_group import ProcessGroup
from ....framework.tensor import Tensor
from .mixed_precision import MixedPrecisionPolicy
from .sharded_parameter import ShardedParameter

if TYPE_CHECKING:
    from .unsharded import Unsharded


class Place:
    """Where a parameter is registered.

    Args:
        module: The module, which is not kept: it keeps the unit.
        name: Of the parameter in it.
    """

    def __init__(self, module: Any, name: str) -> None:
        self._module = weakref.ref(module)
        self._name = name

    def get(self) -> Any:
        """Return the parameter."""
        module = self._module()
        return None if module is None else module._parameters.get(self._name)

    def put(self, parameter: Any) -> None:
        """Register another parameter."""
        module = self._module()
        if module is not None:
            module._parameters[self._name] = parameter


class Unit:
    """Parameters that are gathered together.

    Args:
        name: For messages.
        shards: The shards, each with the places where it is registered.
        group: The ranks.
        policy: Dtypes of the computation.
        members: How many modules gather them together.
        replicas: The ranks that have the same rows, in other groups.

    Attributes:
        reshards: Whether bytes go after the forward; None: unless it is the outermost one.
        reduces: Whether backward averages gradients; if not, they accumulate in full.
        kept: Full gradients that were not averaged yet, by position.
        active: The full parameters, during a forward or between ``unshard`` and ``reshard``.
        waiting: The members whose forward has not ended yet, while they are gathered for those.
        running: The members whose forward runs.
    """

    _captured_opaque = True  # compiled functions take what it gathers as arguments
    forwards = 0  # of all units, one inside the other
    gathered: ClassVar[list[Unsharded]] = []

    def __init__(
        self,
        name: str,
        shards: Sequence[tuple[ShardedParameter, Sequence[Place]]],
        group: ProcessGroup,
        policy: MixedPrecisionPolicy,
        members: int = 1,
        replicas: ProcessGroup | None = None,
    ) -> None:
        self.name, self.policy, self.members = name, policy, members
        self.shards = [shard for shard, _ in shards]
        self.places = [list(places) for _, places in shards]
        self.group, self.replicas = group, replicas
        self.place = self._place()
        self.reshards: bool | None = None
        self.reduces = True
        self.kept: dict[int, Tensor] = {}
        self.active: Unsharded | None = None
        self.waiting: set[int] = set()
        self.running: set[int] = set()

    def is_ahead_of(self, member: int) -> bool:
        """Whether the parameters are there, and stay, whatever a member's forward does.

        So it is between ``unshard`` and ``reshard``, and in a forward that calls itself. What was
        gathered for forwards of which some never came is given up if the shards were stepped since.
        """
        if self.active is None:
            return False
        if not self.waiting or member in self.running:
            return True
        if not self.running and self.active.is_of_the_past():
            self.abandon()
        return False

    def finish(self, member: int) -> None:
        """Note that a member's forward has ended; after the last, give the parameters up.

        Raises:
            RuntimeError: A full parameter was written, and the write is lost.
        """
        self.running.discard(member)
        self.waiting.discard(member)
        if not self.waiting and self.active is not None:
            self.active.require_unwritten()
            self.abandon()

    def abandon(self) -> None:
        """Give up what was gathered for forwards, if anything was."""
        self.running.clear()
        self.waiting.clear()
        if self.active is not None:
            self.active.end()

    def _place(self) -> list[tuple[int, int]]:
        groups = (self.group, self.replicas)
        return [(group.rank(), group.size()) for group in groups if group is not None]

    def require_same_world(self) -> None:
        """Raise an error if the shards are another rank's, in an estimate of another world."""
        place = self._place()
        if place != self.place:
            raise RuntimeError(
                f"fully_shard: the module has the rows of (rank, world_size) {self.place[0]}, and "
                f"a step is imagined for {place[0]}. Call fully_shard inside the step, or make a "
                'group of that size with init_process_group("fake", rank=..., world_size=...).'
            )
