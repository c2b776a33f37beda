"""Optimizer state in parts: each rank keeps that of the parameters which it steps for all.

ZeRO's first stage. Adam's state is twice the parameters; each of N ranks keeps about 1/N of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ..framework.distributed import collectives
from ..framework.distributed.objects import gather_object
from ..framework.distributed.process_group import resolve
from ..framework.distributed.strategies import Strategy, declare, strategy
from ..framework.modes import enable_grad, no_grad
from ..framework.tensor import Tensor
from .optimizer import Optimizer


class ZeroRedundancyOptimizer(Optimizer):
    """An optimizer whose state is shared out among the ranks of a group.

    Each parameter belongs to one rank: the largest first, to the rank that has the least so far.
    ``step`` updates the own parameters and then takes the others' values from their ranks. The
    gradients must be the same in all ranks, as ``DistributedDataParallel`` leaves them. Parameters
    are bit for bit those of the optimizer without it.

    Args:
        params: As of any optimizer.
        optimizer_class: Which optimizer, such as ``optim.AdamW``.
        process_group: The group; the default one if None.
        parameters_as_bucket_view: No meaning: parameters are sent from where they lie.
        overlap_with_ddp: Refused.
        **defaults: Options of the optimizer.

    Attributes:
        optim: The optimizer that steps the own parameters.

    Raises:
        ValueError: There is no process group.
    """

    def __init__(
        self,
        params: Iterable[Any],
        optimizer_class: type[Optimizer],
        process_group: Any = None,
        parameters_as_bucket_view: bool = False,
        overlap_with_ddp: bool = False,
        **defaults: Any,
    ) -> None:
        if overlap_with_ddp:
            raise NotImplementedError(
                "ZeroRedundancyOptimizer: overlap_with_ddp is not there. Leave it out."
            )
        self.process_group = resolve(process_group, "ZeroRedundancyOptimizer")
        self._share_out(optimizer_class(params, **defaults))

    def _share_out(self, optimizer: Optimizer) -> None:
        self.optim = optimizer
        self._step_own = optimizer.step
        self._owners: list[int] = []
        self._place: tuple[int, int] | None = None  # the rank that they are for, and of how many
        self._consolidated: dict[Any, Any] | None = None

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The groups of all parameters, which schedulers change."""
        return self.optim.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        """The state of the own parameters."""
        return self.optim.state

    @property
    def defaults(self) -> dict[str, Any]:  # type: ignore[override]
        """The options of groups that do not set them."""
        return self.optim.defaults

    @property
    def _hooks(self) -> Any:  # type: ignore[override]
        return self.optim._hooks  # they run around the own parameters' step

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters, in all ranks."""
        self.optim.add_param_group(param_group)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Reset the gradients of all parameters to None, or to zeros."""
        self.optim.zero_grad(set_to_none)

    def _parameters(self) -> list[Tensor]:
        return [p for group in self.param_groups for p in group["params"]]

    def owners(self) -> list[int]:
        """Return the rank of each parameter, in the order of the groups."""
        every = self._parameters()
        size = self.process_group.size()
        place = self.process_group.rank(), size
        if self._place not in (None, place) and self.optim.state:
            raise RuntimeError(
                f"ZeroRedundancyOptimizer: it has the state of (rank, world_size) {self._place}, "
                f"and a step is imagined for {place}. Estimate before the first step."
            )
        if len(self._owners) != len(every) or self._place != place:
            self._place = place
            self._owners = _owners_of(every, size)[0]
        return self._owners

    def step(self, closure: Any = None, **kwargs: Any) -> Any:
        """Update the own parameters, and take the others' values.

        Args:
            closure: Computes the loss again and returns it.
            **kwargs: Of the optimizer's own ``step``.

        Returns:
            What ``closure`` returned, or None.

        Raises:
            DistBackendError: Ranks have gradients of different parameters, or one is gone.
        """
        self._consolidated = None
        loss = None
        if closure is not None:
            with enable_grad():
                loss = closure()
        with_gradient = [
            (p, owner)
            for p, owner in zip(self._parameters(), self.owners(), strict=True)
            if p._grad is not None
        ]
        self.step_own(**kwargs)
        if self.process_group.size() > 1:
            self._share(with_gradient)
        return loss

    def step_own(self, **kwargs: Any) -> None:
        """Update the own parameters alone; the other ranks are not told.

        Args:
            **kwargs: Of the optimizer's own ``step``.
        """
        rank = self.process_group.rank()
        others = [
            (p, p._grad)
            for p, owner in zip(self._parameters(), self.owners(), strict=True)
            if owner != rank and p._grad is not None
        ]
        try:  # a step skips what has no gradient
            for p, _ in others:
                p._grad = None
            self._step_own(**kwargs)
        finally:
            for p, grad in others:
                p._grad = grad

    def own_state_dict(self) -> dict[str, Any]:
        """Return the groups, and the state of the own parameters alone."""
        return self.optim.state_dict()

    def _share(self, parameters: list[tuple[Tensor, int]]) -> None:
        with no_grad():
            works = [
                collectives.broadcast(
                    p.detach(), group=self.process_group, async_op=True, group_src=owner
                )
                for p, owner in parameters
            ]
            for work in works:
                work.wait()

    def consolidate_state_dict(self, to: int = 0) -> None:
        """Gather the state of all ranks in one, for its ``state_dict()``; all ranks call it.

        Args:
            to: The rank.
        """
        group = self.process_group
        receives = group.rank() == group.group_rank(to, "consolidate_state_dict")
        parts: list[Any] | None = [None] * group.size() if receives else None
        gather_object(self.optim.state_dict()["state"], parts, to, group)
        if parts is not None:
            merged = {k: state for part in parts for k, state in part.items()}
            self._consolidated = dict(sorted(merged.items()))

    def state_dict(self) -> dict[str, Any]:
        """Return the state of all ranks, as the optimizer without them has it.

        Raises:
            RuntimeError: ``consolidate_state_dict`` was not called since the latest step, or for
                another rank.
        """
        if self.process_group.size() == 1:
            return self.optim.state_dict()
        if self._consolidated is None:
            raise RuntimeError(
                "ZeroRedundancyOptimizer.state_dict: this rank has its own part of the state only. "
                "Call consolidate_state_dict(to=rank) in all ranks after the step, and then "
                "state_dict() in that rank."
            )
        return {**self.optim.state_dict(), "state": self._consolidated}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over the state of the own parameters from one of all: of any number of ranks."""
        rank, owners = self.process_group.rank(), self.owners()
        own = {k: s for k, s in state_dict["state"].items() if owners[int(k)] == rank}
        self._consolidated = None
        self.optim.load_state_dict({**state_dict, "state": own})

    def __repr__(self) -> str:
        size = self.process_group.size()
        return f"ZeroRedundancyOptimizer({self.optim!r}, ranks={size})"


def _owners_of(parameters: list[Tensor], size: int) -> tuple[list[int], list[int]]:
    # The rank of each parameter, and the elements that each rank has.
    loads, found = [0] * size, [0] * len(parameters)
    for k in sorted(range(len(parameters)), key=lambda k: (-parameters[k].numel(), k)):
        found[k] = loads.index(min(loads))
        loads[found[k]] += parameters[k].numel()
    return found, loads


# For estimates


def _share_in_place(models: Sequence[Any], optimizers: Sequence[Any]) -> Any:
    # The optimizers themselves step for all, as if one around them did.
    kept = [strategy("DistributedDataParallel").apply(models, optimizers)]
    for optimizer in optimizers:
        around: Any = object.__new__(ZeroRedundancyOptimizer)
        around.process_group = resolve(None, "ZeroRedundancyOptimizer")
        around._share_out(optimizer)
        rank = around.process_group.rank()
        for p, owner in zip(around._parameters(), around.owners(), strict=True):
            if owner != rank:
                optimizer.state.pop(p, None)
        optimizer.step = around.step
        kept.append(around)
    return kept


def _fullest(models: Sequence[Any], optimizers: Sequence[Any], size: int) -> int:
    loads = [0] * size
    for optimizer in optimizers:
        every = [p for group in optimizer.param_groups for p in group["params"]]
        loads = [a + b for a, b in zip(loads, _owners_of(every, size)[1], strict=True)]
    return loads.index(max(loads))


declare(
    Strategy(
        1,
        "ZeroRedundancyOptimizer",
        _share_in_place,
        _fullest,
        "model = lowtide.nn.parallel.DistributedDataParallel(model)\n"
        "optimizer = lowtide.distributed.optim.ZeroRedundancyOptimizer(model.parameters(), "
        "type(optimizer), **optimizer.defaults)",
    )
)
