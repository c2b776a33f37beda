"""Data parallelism over processes: each computes gradients of its inputs, and all average them.

After a step all processes have the same parameters, bit for bit, and so has one process that
accumulates the gradients of the same inputs in the order of ranks and divides the sum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ...framework.distributed import collectives
from ...framework.distributed.device_mesh import group_of
from ...framework.distributed.gradient_reduction import TOGETHER, Reducer
from ...framework.distributed.objects import all_gather_object
from ...framework.distributed.process_group import ProcessGroup, resolve
from ...framework.distributed.strategies import Strategy, declare, rank_zero
from ...framework.dtypes import int64
from ...framework.modes import is_grad_enabled, no_grad
from ...framework.ops.creation.fill import zeros
from ...framework.ops.creation.from_data import tensor as tensor_of
from ...framework.tensor import Tensor
from ..module import Module


class DistributedDataParallel(Module):
    """Data parallelism over the processes of a group.

    Parameters and buffers are rank 0's at the start. Backward averages gradients over the ranks
    while it runs, in place; gradients of less than 256 KiB are copied together.

    Args:
        module: What computes; ``.module`` afterwards. Must have a parameter that takes a gradient.
        device_ids: The device of this process, at most one.
        output_device: Likewise.
        dim: Must be 0.
        broadcast_buffers: Whether ranks take rank 0's buffers before a forward, unless the one
            before was without gradients or under ``no_sync``.
        init_sync: Whether ranks take rank 0's parameters and buffers now, after they have compared
            names, shapes and dtypes.
        process_group: The group, None for the default one, which must be there.
        bucket_cap_mb: MiB of small gradients that travel together, at most 1.
        find_unused_parameters: Whether the loss may leave out a parameter: other ranks' gradients
            of it are then averaged with zeros. Otherwise that is an error.
        check_reduction: No meaning, as in PyTorch.
        gradient_as_bucket_view: No meaning: gradients are reduced where they lie.
        static_graph: No meaning: what a pass reaches is known when it starts.
        delay_all_reduce_named_params: Refused.
        param_to_hook_all_reduce: Refused.
        mixed_precision: Refused: use ``autocast``.
        device_mesh: A mesh of one dim, in place of ``process_group``.
        skip_all_reduce_unused_params: No meaning: what no rank uses is not reduced.

    Raises:
        ValueError: There is no process group, or more than one device.
        RuntimeError: No parameter takes a gradient, or ranks have different parameters.
    """

    def __init__(
        self,
        module: Module,
        device_ids: Sequence[Any] | None = None,
        output_device: Any = None,
        dim: int = 0,
        broadcast_buffers: bool = True,
        init_sync: bool = True,
        process_group: Any = None,
        bucket_cap_mb: float | None = None,
        find_unused_parameters: bool = False,
        check_reduction: bool = False,
        gradient_as_bucket_view: bool = False,
        static_graph: bool = False,
        delay_all_reduce_named_params: Any = None,
        param_to_hook_all_reduce: Any = None,
        mixed_precision: Any = None,
        device_mesh: Any = None,
        skip_all_reduce_unused_params: bool = False,
    ) -> None:
        super().__init__()
        if device_mesh is not None and process_group is not None:
            raise RuntimeError(
                "DistributedDataParallel: give process_group or device_mesh, not both."
            )
        given = process_group if device_mesh is None else device_mesh
        group = resolve(group_of(given, "DistributedDataParallel"), "DistributedDataParallel")
        if device_ids is not None and len(device_ids) > 1:
            raise ValueError(
                f"DistributedDataParallel: device_ids {list(device_ids)} are {len(device_ids)} "
                "devices; a process has one. Name one, or leave device_ids out."
            )
        for name, given in (
            ("delay_all_reduce_named_params", delay_all_reduce_named_params),
            ("param_to_hook_all_reduce", param_to_hook_all_reduce),
            ("mixed_precision", mixed_precision),
        ):
            if given is not None:
                raise NotImplementedError(
                    f"DistributedDataParallel: {name} is not there. Leave it out."
                )
        self.parameters_to_ignore: set[str] = set(
            getattr(module, "_ddp_params_and_buffers_to_ignore", ())
        )
        named = [
            (name, p)
            for name, p in module.named_parameters()
            if p.requires_grad and name not in self.parameters_to_ignore
        ]
        if not named:
            raise RuntimeError(
                "DistributedDataParallel: no parameter of the module takes a gradient, so there is"
                " nothing to reduce. Use the module itself."
            )
        self.module = module
        self.dim = dim
        self.process_group = group
        self.device_ids = None if device_ids is None else list(device_ids)
        self.output_device = output_device
        self.device = named[0][1].device
        self.device_type = self.device.type
        self.broadcast_buffers = broadcast_buffers
        self.find_unused_parameters = find_unused_parameters
        self.gradient_as_bucket_view = gradient_as_bucket_view
        self.static_graph = static_graph
        self.require_backward_grad_sync = True
        self.require_forward_param_sync = True
        self._joined: _Join | None = None
        if init_sync and group.size() > 1:
            _compare(module, group)
            self._take_over([*module.parameters(), *module.buffers()], 0)
        together = TOGETHER if bucket_cap_mb is None else int(bucket_cap_mb * (1 << 20))
        self.reducer = Reducer(named, group, find_unused_parameters, min(together, TOGETHER))

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Call the module; backward of what it returns averages gradients."""
        reduces = is_grad_enabled() and self.require_backward_grad_sync
        sends = self._sends_buffers()
        root = 0
        if self._joined is not None:
            root = self._joined.meet(reduces, sends)
        if sends:
            self._take_over(list(self.module.buffers()), root)
        if is_grad_enabled():  # an evaluation before backward changes nothing
            self.reducer.expect_pass(reduces)
        out = self.module(*inputs, **kwargs)
        self.require_forward_param_sync = reduces
        return out

    def _sends_buffers(self) -> bool:
        return (
            self.broadcast_buffers
            and self.require_forward_param_sync
            and self.process_group.size() > 1
            and next(iter(self.module.buffers()), None) is not None
        )

    def _take_over(self, tensors: list[Tensor], root: int) -> None:
        # The values of rank ``root``, all on their way at once.
        with no_grad():
            works = [
                collectives.broadcast(
                    t.detach(), group=self.process_group, async_op=True, group_src=root
                )
                for t in tensors
            ]
            for work in works:
                work.wait()

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Leave the gradients of forwards inside unreduced: they accumulate."""
        before = self.require_backward_grad_sync
        self.require_backward_grad_sync = False
        try:
            yield
        finally:
            self.require_backward_grad_sync = before

    @contextmanager
    def join(
        self,
        divide_by_initial_world_size: bool = True,
        enable: bool = True,
        throw_on_early_termination: bool = False,
    ) -> Iterator[None]:
        """Let ranks have different numbers of inputs inside.

        A rank that has no more takes part in the others' reductions with zeros, and has their
        parameters at the end.

        Args:
            divide_by_initial_world_size: Divide sums by the number of all ranks; else by the number
                of those that still have inputs.
            enable: False does nothing.
            throw_on_early_termination: Raise an error in all ranks once one has no more inputs.
        """
        if not enable or self.process_group.size() == 1:
            yield
            return
        self._joined = joined = _Join(
            self, divide_by_initial_world_size, throw_on_early_termination
        )
        try:
            yield
            joined.stand_in()
        finally:
            self._joined = None
            self.reducer.divisor = None

    def register_comm_hook(self, state: object, hook: Callable[..., Any]) -> None:
        """Let ``hook(state, bucket)`` reduce gradients.

        Args:
            state: Its first argument.
            hook: Of a ``GradBucket``; returns a future of the averaged flat tensor.

        Raises:
            TypeError: ``hook`` cannot be called.
            RuntimeError: There is one already.
        """
        if not callable(hook):
            raise TypeError("Communication hook must be callable.")
        if self.reducer.hook is not None:
            raise RuntimeError("register_comm_hook can only be called once.")
        self.reducer.hook = state, hook

    def _set_static_graph(self) -> None:
        self.static_graph = True


def _wrap_in_place(models: Sequence[Any], optimizers: Sequence[Any]) -> Any:
    # The module itself averages gradients, as if a wrapper called it.
    return [_reducing(m) for m in models if any(p.requires_grad for p in m.parameters())]


def _reducing(module: Any) -> DistributedDataParallel:
    wrapper = DistributedDataParallel(module)
    expect = wrapper.reducer.expect_pass

    def expecting(*_: Any) -> None:
        if is_grad_enabled():
            expect(True)

    module.register_forward_pre_hook(expecting)
    return wrapper


declare(
    Strategy(
        0,
        "DistributedDataParallel",
        _wrap_in_place,
        rank_zero,
        "model = lowtide.nn.parallel.DistributedDataParallel(model)",
    )
)


class _Join:
    """What ranks tell one another at each forward, if they have different numbers of inputs."""

    def __init__(self, ddp: DistributedDataParallel, all_ranks: bool, throw: bool) -> None:
        self._ddp, self._all_ranks, self._throw = ddp, all_ranks, throw
        self._root: int | None = None  # a rank that had inputs in the latest forward

    def _round(self, mine: list[int]) -> list[list[int]]:
        # Of each rank: whether it has inputs, whether its backward reduces, whether buffers travel.
        group = self._ddp.process_group
        found = zeros(group.size(), 3, dtype=int64)
        given = tensor_of([mine], dtype=int64)
        collectives.all_gather_into_tensor(found, given, group)
        rounds: list[list[int]] = found.tolist()
        present = [rank for rank, (has, *_) in enumerate(rounds) if has]
        if present:
            self._root = present[0]
        if not self._all_ranks:
            self._ddp.reducer.divisor = max(1, len(present))
        if self._throw and 0 < len(present) < group.size():
            raise RuntimeError(
                "DistributedDataParallel.join: a rank has no more inputs, and "
                "throw_on_early_termination is set."
            )
        return rounds

    def meet(self, reduces: bool, sends: bool) -> int:
        """Tell the others that this rank has inputs; return the rank whose buffers count."""
        self._round([1, int(reduces), int(sends)])
        return self._root or 0

    def stand_in(self) -> None:
        """Take part in what the others do, until none has inputs; then take their parameters."""
        ddp = self._ddp
        while True:
            rounds = self._round([0, 0, 0])
            if not any(has for has, *_ in rounds):
                break
            if any(sends for *_, sends in rounds):
                ddp._take_over(list(ddp.module.buffers()), self._root or 0)
            if any(reduces for _, reduces, _ in rounds):
                ddp.reducer.reduce_nothing()
        if self._root is not None:
            tensors = [*ddp.module.parameters(), *ddp.module.buffers()]
            ddp._take_over(tensors, self._root)


def _compare(module: Module, group: ProcessGroup) -> None:
    # All ranks must have the same tensors, in the same order.
    own = [
        [name, str(t.dtype), list(t.shape)]
        for named in (module.named_parameters(), module.named_buffers())
        for name, t in named
    ]
    every: list[Any] = [None] * group.size()
    all_gather_object(every, own, group)
    for rank, other in enumerate(every):
        for mine, theirs in zip([*own, None], [*other, None], strict=False):
            if mine != theirs:
                raise RuntimeError(
                    f"DistributedDataParallel: rank {group.rank()} has {_words(mine)} where rank "
                    f"{rank} has {_words(theirs)}. Build the same module in all ranks."
                )


def _words(entry: Any) -> str:
    return "nothing" if entry is None else f"{entry[0]} ({entry[1]}, shape {tuple(entry[2])})"
