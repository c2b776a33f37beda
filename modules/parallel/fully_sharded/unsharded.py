"""The full parameters of a unit, gathered for a forward.

Between forwards a module has its rows of each parameter, as leaves that an optimizer steps. For a
forward, :class:`Unsharded` gathers the others' rows and puts full parameters, leaves too, in their
place. The graph keeps those that backward reads. Their bytes go after the forward, and come back
one parameter at a time when backward asks for them (``unsharded_storage.py``); with the graph they
go for good. As soon as a full gradient is there, it is averaged over the ranks, and each rank adds
its rows to ``.grad`` of its shard.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

from ....framework.autograd.accumulate import accumulate
from ....framework.autograd.hooks import register_post_accumulate_hook
from ....framework.checkpointing.stash import unrecorded
from ....framework.distributed import collectives
from ....framework.distributed.collectives import ReduceOp
from ....framework.distributed.shards import mark
from ....framework.distributed.unsharded_storage import UnshardedStorage, release_unused
from ....framework.errors import GradientError
from ....framework.interrupts import defer_interrupts
from ....framework.memory.ledger import COMMUNICATION
from ....framework.modes import is_grad_enabled, local
from ....framework.ops.creation.fill import empty
from ....framework.spec import Spec
from ....framework.tensor import Tensor
from ...parameter import Parameter
from .sharded_parameter import ShardedParameter
from .unit import Unit

SMALL = 256 << 10  # bytes of a gradient below which it is averaged with others of its unit


class Unsharded:
    """The full parameters of a unit, for one forward.

    Args:
        unit: The unit.
    """

    def __init__(self, unit: Unit) -> None:
        self.unit = unit
        self.versions = [shard._storage.version for shard in unit.shards]
        self._full: list[Parameter] = []  # in use, while the forward runs
        self._alive: list[weakref.ref[Parameter]] = []
        self._outer = 0

    def begin(self) -> None:
        """Gather the parameters, and put them into their modules.

        Raises:
            RuntimeError: A module has another parameter by now.
            DistBackendError: A rank is gone, or calls something else.
            MemoryLimitError: There is no room.
        """
        unit = self.unit
        unit.require_same_world()
        for shard, places in zip(unit.shards, unit.places, strict=True):
            if any(place.get() is not shard for place in places):
                raise RuntimeError(
                    f"fully_shard: {shard.shard.name} was replaced after fully_shard. Load "
                    "values with load_state_dict, or assign parameters before."
                )
        with unrecorded():
            storages = [self._storage(k) for k in range(len(unit.shards))]
            self._gather(range(len(unit.shards)), [s.flat() for s in storages])
        grad = is_grad_enabled()
        for k, storage in enumerate(storages):
            storage.filled()
            self._full.append(self._parameter(k, storage, grad))
        self._alive = [weakref.ref(p) for p in self._full]
        with defer_interrupts():
            unit.active = self
            Unit.gathered.append(self)
            Unit.forwards += 1
            self._outer = Unit.forwards
            for p, places in zip(self._full, unit.places, strict=True):
                for place in places:
                    place.put(p)

    def _storage(self, k: int) -> UnshardedStorage:
        shard = self.unit.shards[k]
        spec = Spec(shard.shard.shape, self.unit.policy.gathered(shard.dtype), shard.device)
        storage = UnshardedStorage(spec, self._filling(k))
        storage.book()
        return storage

    def _filling(self, k: int) -> Callable[[Tensor], None]:
        # Fills the bytes of a parameter again.
        def fill(flat: Tensor) -> None:
            shard = self.unit.shards[k]
            if shard._storage.version != self.versions[k]:
                raise GradientError(
                    f"{shard.shard.name} has been modified by an inplace operation after the "
                    "forward whose backward runs. Step the optimizer after backward."
                )
            with unrecorded():
                self._gather([k], [flat])
            running = local.state.running
            if running is not None:  # a parameter that takes no gradient goes at the end
                running.endings.append(lambda: _release(self._alive[k]()))

        return fill

    def _gather(self, which: Sequence[int], into: list[Tensor]) -> None:
        unit = self.unit
        shards = [unit.shards[k] for k in which]
        if unit.group.size() == 1:
            for flat, shard in zip(into, shards, strict=True):
                flat.copy_(shard.to_local().reshape(-1))
            return
        parts = [s.shard.parts(flat) for s, flat in zip(shards, into, strict=True)]
        own = [s.to_local().reshape(-1).to(t.dtype) for s, t in zip(shards, into, strict=True)]
        name = shards[0].shard.name if len(shards) == 1 else unit.name
        collectives.all_gather_parts(parts, own, unit.group, name)

    def _parameter(self, k: int, storage: UnshardedStorage, grad: bool) -> Parameter:
        shard = self.unit.shards[k]
        p = Parameter(storage.tensor(), shard.requires_grad)
        storage.set_role(COMMUNICATION)
        storage.shown_as(p)
        if grad and shard.requires_grad:
            register_post_accumulate_hook(p, self._arrival(k), first=True)
        return p

    def is_of_the_past(self) -> bool:
        """Whether a shard was written since the rows were gathered."""
        now = [shard._storage.version for shard in self.unit.shards]
        return now != self.versions

    def require_unwritten(self) -> None:
        """Raise an error if a full parameter was written, which no shard would keep.

        Raises:
            RuntimeError: One was.
        """
        for shard, p in zip(self.unit.shards, self._full, strict=True):
            if not p._storage.there:
                raise RuntimeError(
                    f"fully_shard: {shard.shard.name} was written while its rows were gathered, "
                    "and the write is lost. Write the shards, outside of forward."
                )

    def end(self) -> None:
        """Put the shards back into their modules, and give the full parameters up."""
        unit = self.unit
        if unit.active is not self:  # it never began
            return
        with defer_interrupts():
            for shard, places in zip(unit.shards, unit.places, strict=True):
                for place in places:
                    place.put(shard)
            unit.active = None
            Unit.gathered.remove(self)
            Unit.forwards -= 1
        outermost = self._outer == 1
        if outermost:  # units that wait for members that its forward has not called
            for other in [one for one in Unit.gathered if one.unit.waiting]:
                other.unit.abandon()
        self._full.clear()
        reshards = unit.reshards
        if reshards is None:
            reshards = not outermost or not is_grad_enabled()
        if reshards:
            for found in self._alive:
                _release(found())

    def _arrival(self, k: int) -> Callable[[Tensor], None]:
        def arrival(full: Tensor) -> None:
            g, full._grad = full._grad, None
            if g is not None and g._requires_grad:
                raise NotImplementedError(
                    "fully_shard: gradients of gradients (create_graph=True) do not reach shards. "
                    "Use DistributedDataParallel."
                )
            _release(full)  # all that read it have run
            if g is not None:
                with unrecorded():
                    g = g.to(self.unit.policy.reduced(g.dtype))
                    self._arrived(k, g)

        return arrival

    # Backward

    def _arrived(self, k: int, g: Tensor) -> None:
        before = self.unit.kept.pop(k, None)
        if before is not None:
            g = before.add_(g)
        if not self.unit.reduces:
            self.unit.kept[k] = g
            return
        if g.numel() * g.itemsize >= SMALL:
            self._average([k], [g])
            return
        running = local.state.running
        small = running.notes.get(self)
        if small is None:
            small = running.notes[self] = _Small(self, running)
            running.endings.append(small.flush)
        small.add(k, g)

    def _average(self, which: Sequence[int], grads: list[Tensor]) -> None:
        # Average full gradients over the ranks, and add this rank's rows to its shards'.
        unit = self.unit
        shards = [unit.shards[k] for k in which]
        group = unit.group
        if group.size() == 1:
            for shard, g in zip(shards, grads, strict=True):
                _accumulate(shard, self._averaged(g, shard.shard.name))
            return
        if len(which) == 1 and grads[0].is_contiguous():
            parts = shards[0].shard.parts(grads[0].view(-1))
        else:
            parts = _packed(shards, grads, group.size())
        own: Any = empty(parts[group.rank()].numel(), dtype=grads[0].dtype)
        collectives.reduce_scatter_parts(own, parts, group, shards[0].shard.name)
        del parts
        grads.clear()
        own = self._averaged(own, shards[0].shard.name)
        if len(which) == 1:
            _accumulate(shards[0], own.view(shards[0].shape))
            return
        for shard, part in zip(shards, own.split([s.numel() for s in shards]), strict=True):
            _accumulate(shard, part.view(shard.shape).clone())

    def _averaged(self, own: Tensor, name: str) -> Tensor:
        # Rows averaged over the ranks of other groups that have the same.
        replicas = self.unit.replicas
        if replicas is None or replicas.size() == 1:
            return own
        own = own.contiguous()
        collectives.begin_all_reduce(own, ReduceOp.AVG, replicas, name).wait()
        return own


class _Small:
    """Small gradients of a pass, until all of a unit are there."""

    def __init__(self, unsharded: Unsharded, running: Any) -> None:
        self.unsharded = unsharded
        self.missing = {
            k
            for k, found in enumerate(unsharded._alive)
            if (p := found()) is not None
            and p.numel() * p.itemsize < SMALL
            and p.requires_grad
            and running.reaches(p)
        }
        self.grads: dict[int, Tensor] = {}

    def add(self, k: int, g: Tensor) -> None:
        self.missing.discard(k)
        self.grads[k] = g
        if not self.missing:
            self.flush()

    def flush(self) -> None:
        by_dtype: dict[Any, list[int]] = {}
        for k in sorted(self.grads):
            by_dtype.setdefault(self.grads[k].dtype, []).append(k)
        with unrecorded():
            for which in by_dtype.values():
                self.unsharded._average(which, [self.grads.pop(k) for k in which])


def _release(p: Tensor | None) -> None:
    if p is not None:
        release_unused(p)


def _accumulate(shard: ShardedParameter, rows: Tensor) -> None:
    accumulate(shard, rows.to(shard.dtype), False)
    if shard._grad is not None:
        mark(shard._grad, shard.shard)


def _packed(shards: list[ShardedParameter], grads: list[Tensor], size: int) -> list[Tensor]:
    # The rows of each rank behind one another, in one buffer.
    whole: Any = empty(sum(g.numel() for g in grads), dtype=grads[0].dtype)
    whole._storage.set_role(COMMUNICATION)
    found = []
    start = 0
    for rank in range(size):
        first = start
        for shard, g in zip(shards, grads, strict=True):
            a, b = shard.shard.rows(rank)
            stop = start + (b - a) * shard.shard.row_size
            whole[start:stop].copy_(g[a:b].reshape(-1))
            start = stop
        found.append(whole[first:start])
    return found
