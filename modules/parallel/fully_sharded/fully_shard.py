"""``fully_shard``: parameters, gradients and optimizer state in parts, gathered module by module.

Call it on the layers of a model and then on the model, before the optimizer is made. Source of the
interface: PyTorch's ``torch.distributed.fsdp.fully_shard``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ....framework.attribution.scopes import enter, leave, recording
from ....framework.device import device as as_device
from ....framework.distributed.device_mesh import DeviceMesh, group_of
from ....framework.distributed.objects import all_gather_object
from ....framework.distributed.process_group import ProcessGroup, resolve
from ....framework.distributed.shards import Shard
from ....framework.tensor import Tensor
from ...module import Module
from ...parameter import Parameter
from .mixed_precision import FULL_PRECISION, MixedPrecisionPolicy
from .sharded_parameter import ShardedParameter
from .unit import Place, Unit
from .unsharded import Unsharded

_classes: dict[type[Module], type[Module]] = {}  # a module's class, and its sharded one


@dataclass(frozen=True)
class OffloadPolicy:
    """Where shards are between forwards: where they were made."""


@dataclass(frozen=True)
class CPUOffloadPolicy(OffloadPolicy):
    """Shards are on the CPU between forwards, which they are here in any case."""

    pin_memory: bool = True


class UnshardHandle:
    """What ``unshard(async_op=True)`` returns; the parameters are there already."""

    def wait(self) -> None:
        """Return at once."""


class FSDPModule(Module):
    """A module that ``fully_shard`` was called on: a base of its class from then on."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Gather the parameters, run the module, and give the parameters up.

        Of a list of modules that share a unit, the first call gathers, and the last gives up.
        """
        unit, member = unit_of(self), self.__dict__["_fsdp_member"]
        if unit.is_ahead_of(member):
            args, kwargs = unit.policy.inputs(args, kwargs)
            return unit.policy.output(super().__call__(*args, **kwargs))
        try:
            if unit.active is None:
                _gather(self, Unsharded(unit))
                unit.waiting = set(range(unit.members))
            unit.running.add(member)
            args, kwargs = unit.policy.inputs(args, kwargs)
            out = super().__call__(*args, **kwargs)
            unit.finish(member)
            return unit.policy.output(out)
        except BaseException:
            unit.abandon()
            raise

    def unshard(self, async_op: bool = False) -> UnshardHandle | None:
        """Gather the parameters until ``reshard``; all ranks call it."""
        unit = unit_of(self)
        if unit.active is None:
            _gather(self, Unsharded(unit))
        return UnshardHandle() if async_op else None

    def reshard(self) -> None:
        """Put the shards back into their places.

        Raises:
            RuntimeError: A full parameter was written, and the write is lost.
        """
        unit = unit_of(self)
        if unit.active is not None:
            try:
                unit.active.require_unwritten()
            finally:
                unit.abandon()

    def set_reshard_after_forward(self, reshard_after_forward: bool, recurse: bool = True) -> None:
        """Set whether bytes that backward needs go after forward, and are gathered again."""
        for unit in _units(self, recurse):
            unit.reshards = reshard_after_forward

    def set_requires_gradient_sync(
        self, requires_gradient_sync: bool, *, recurse: bool = True
    ) -> None:
        """Set whether backward averages gradients over the ranks.

        While it does not, full gradients accumulate in each rank. The next backward that does
        averages their sums.
        """
        for unit in _units(self, recurse):
            unit.reduces = requires_gradient_sync

    def set_is_last_backward(self, is_last_backward: bool) -> None:
        """Do nothing: every backward ends what it began."""

    def set_modules_to_forward_prefetch(self, modules: Sequence[Any]) -> None:
        """Do nothing: a module's parameters are gathered when its forward begins."""

    def set_modules_to_backward_prefetch(self, modules: Sequence[Any]) -> None:
        """Do nothing: a parameter is gathered when backward reads it."""

    def __deepcopy__(self, memo: Any) -> Any:
        raise AssertionError(
            "FSDP does not support deepcopy. Please use state dict for serialization."
        )


def _gather(module: FSDPModule, unsharded: Unsharded) -> None:
    # What is gathered belongs to the module, for a profiler.
    entry = enter(module) if recording.on else None
    try:
        unsharded.begin()
    finally:
        if entry is not None:
            leave(entry)


def fully_shard(
    module: Any,
    *,
    mesh: Any = None,
    reshard_after_forward: bool | None = None,
    shard_placement_fn: Any = None,
    mp_policy: MixedPrecisionPolicy = FULL_PRECISION,
    offload_policy: OffloadPolicy = OffloadPolicy(),  # frozen
    ignored_params: Iterable[Any] | None = None,
) -> Any:
    """Share a module's parameters out among the ranks; each gathers them for the forward.

    Those of modules inside that were sharded before stay separate. Each rank has
    ``ceil(n / N)`` rows of a parameter of n, or what is left. Rows come from each rank's own
    module, so all ranks must begin with the same values. Gradients are averaged in the order of
    ranks, as ``DistributedDataParallel`` does, with the same bits.

    Args:
        module: A module, or a list of modules whose parameters are gathered together: before the
            first one's forward, until each has had its own. They may be called in any order, and
            all of them must be.
        mesh: A mesh of one dim, or a process group; the default group if None. Of a mesh of two
            dims the second shares the parameters out, and along the first each rank has the same
            rows: gradients are averaged along the second, and then along the first.
        reshard_after_forward: Whether the bytes of parameters that backward reads go after the
            forward, and are gathered again. None: yes, but for the outermost module.
        shard_placement_fn: Refused: parameters are cut along dim 0.
        mp_policy: In which dtypes the module computes, and gradients are averaged.
        offload_policy: No meaning: parameters are on the CPU.
        ignored_params: Parameters that stay as they are, in all ranks.

    Returns:
        ``module``, whose class is also a :class:`FSDPModule` now.

    Raises:
        ValueError: There is no process group, the module is sharded already, a parameter has no
            dims, or it is shared with a module that was sharded before; of a list of modules one
            contains another, or it is empty.
        NotImplementedError: A parameter is not on the CPU, or ``shard_placement_fn`` is given.
    """
    modules = list(module) if isinstance(module, list | tuple) else [module]
    group, replicas = _groups(mesh)
    _check_supported(shard_placement_fn, offload_policy)
    for one in modules:
        if not isinstance(one, Module):
            raise TypeError(f"fully_shard: expected a Module; got {type(one).__name__}.")
        if isinstance(one, FSDPModule):
            raise ValueError("fully_shard: the module is sharded already.")
    _require_apart(modules)
    ignored = {id(p) for p in ignored_params or ()}
    found = _parameters(modules, ignored)
    name = ", ".join(type(one).__name__ for one in modules)
    _compare(name, found, group)
    if replicas is not None:
        _compare(name, found, replicas)
    shards = []
    for p, (path, places) in found.items():
        shard = Shard(tuple(p.shape), group, path)
        shards.append((ShardedParameter.of(p, shard, p.requires_grad), places))
    for p, (sharded, places) in zip(found, shards, strict=True):
        if p._extra is None:
            p._extra = {}
        p._extra["sharded as"] = sharded
        for place in places:
            place.put(sharded)
    unit = Unit(name, shards, group, mp_policy, len(modules), replicas)
    unit.reshards = reshard_after_forward
    for k, one in enumerate(modules):
        one.__dict__["_fsdp_unit"], one.__dict__["_fsdp_member"] = unit, k
        one.__class__ = _sharded_class(type(one))
    return module


def _require_apart(modules: list[Any]) -> None:
    if not modules:
        raise ValueError("fully_shard: the list of modules is empty.")
    for k, one in enumerate(modules):
        inside = {id(m) for m in one.modules()}
        for other in modules[k + 1 :]:
            if id(other) in inside or any(m is one for m in other.modules()):
                raise ValueError(
                    "fully_shard: none of a list of modules may contain another, but of "
                    f"{type(one).__name__} and {type(other).__name__} one contains the other. "
                    "Leave the inner one out of the list."
                )


def _groups(mesh: Any) -> tuple[ProcessGroup, ProcessGroup | None]:
    # The ranks that share parameters out, and those that have the same rows.
    if isinstance(mesh, DeviceMesh) and mesh.ndim == 2:
        replicas, group = mesh.get_all_groups()
        return resolve(group, "fully_shard"), resolve(replicas, "fully_shard")
    return resolve(group_of(mesh, "fully_shard"), "fully_shard"), None


def _check_supported(placement: Any, offload: Any) -> None:
    if placement is not None:
        raise NotImplementedError(
            "fully_shard: shard_placement_fn is not there; parameters are cut along dim 0."
        )
    if not isinstance(offload, OffloadPolicy):
        raise TypeError(
            f"fully_shard: offload_policy must be an OffloadPolicy; got {type(offload).__name__}."
        )


def _parameters(modules: list[Any], ignored: set[int]) -> dict[Parameter, tuple[str, list[Place]]]:
    # The parameters that no inner module has sharded, with a name and all their places.
    found: dict[Any, tuple[str, list[Place]]] = {}
    for k, root in enumerate(modules):
        for prefix, module in root.named_modules(prefix=str(k) if len(modules) > 1 else ""):
            for name, p in module._parameters.items():
                if p is None or isinstance(p, ShardedParameter) or id(p) in ignored:
                    continue
                path = f"{prefix}.{name}" if prefix else name
                _require_shardable(path, p)
                found.setdefault(p, (path, []))[1].append(Place(module, name))
    return found


def _require_shardable(path: str, p: Any) -> None:
    before = (p._extra or {}).get("sharded as")
    if before is not None:
        raise ValueError(
            f"fully_shard: {path} is the parameter {before.shard.name} of a module that was "
            "sharded before. Modules that share a parameter must be sharded together: call "
            "fully_shard on their common parent only."
        )
    if p.ndim == 0:
        raise ValueError(
            "fully_shard doesn't support scalar parameters. "
            f"Change {path} to a 1D tensor with numel equal to 1."
        )
    if as_device(p.device).type not in ("cpu", "meta"):
        raise NotImplementedError(
            f"fully_shard: {path} is on {p.device}; it works on the CPU so far."
        )


def _compare(name: str, found: dict[Parameter, Any], group: ProcessGroup) -> None:
    if group.size() == 1:
        return
    own = [[path, str(p.dtype), list(p.shape)] for p, (path, _) in found.items()]
    every: list[Any] = [None] * group.size()
    all_gather_object(every, own, group)
    for rank, other in enumerate(every):
        if other != own:
            mine = next(
                (a, b) for a, b in zip([*own, None], [*other, None], strict=False) if a != b
            )
            raise RuntimeError(
                f"fully_shard of {name}: rank {group.rank()} has {mine[0]} where rank {rank} has "
                f"{mine[1]}. Build the same module in all ranks."
            )


def _sharded_class(cls: type[Module]) -> type[Module]:
    found = _classes.get(cls)
    if found is None:
        found = _classes[cls] = type(f"FSDP{cls.__name__}", (FSDPModule, cls), {})
        found.__module__, found.__qualname__ = cls.__module__, f"FSDP{cls.__qualname__}"
    return found


def unit_of(module: Any) -> Unit:
    """Return the unit of a sharded module."""
    unit: Unit = module.__dict__["_fsdp_unit"]
    return unit


def _units(module: Any, recurse: bool) -> list[Unit]:
    modules = module.modules() if recurse else [module]
    return [unit_of(m) for m in modules if isinstance(m, FSDPModule)]


def full_state_dict(module: Module) -> dict[str, Tensor]:
    """Return a module's state dict with the parameters of all ranks; all ranks call it."""
    found = {}
    for name, value in module.state_dict(keep_vars=True).items():
        sharded = isinstance(value, ShardedParameter)
        found[name] = value.full_tensor() if sharded else value.detach()
    return found
