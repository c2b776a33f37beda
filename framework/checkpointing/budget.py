"""A budget of bytes: ``with memory_budget("2GiB"):`` keeps a device's live bytes within it."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from threading import get_ident
from typing import Any

from ..attribution.frames import user_line
from ..autograd.remat.evictable import BudgetRegion, EvictableVersion, Kept
from ..autograd.remat.evictor import Evictor
from ..autograd.remat.recorder import flows_in, leave_copies
from ..autograd.remat.replay import Recomputed
from ..autograd.remat.replay_costs import EvictionRule
from ..autograd.remat.values import OpCall, RegionInput, StridedView
from ..autograd.saved import HookSaver
from ..device import device as as_device
from ..device import get_default_device
from ..devices import backend
from ..interrupts import WholeContext
from ..memory.sizes import as_bytes
from ..modes import _Mode, local
from ..tensor import Tensor
from .budget_limits import ProcessLimit, TensorLimit
from .packing import pack
from .stash import Stash, WriteCheckingRecorder

SETTLE_EVERY = 4096  # values, after which what is not wanted is freed


class BudgetRecorder(WriteCheckingRecorder):
    """Records the kernels inside a budget; what backward wants is held until it is dropped.

    Args:
        budget: The budget's region.
    """

    __slots__ = ("budget", "evictor", "left", "limits", "outside")
    version_class = EvictableVersion
    records_backward = True

    def __init__(self, budget: BudgetRegion) -> None:
        super().__init__()
        self.region = self.budget = budget
        self.evictor: Evictor = budget.evictor
        self.left = SETTLE_EVERY
        self.limits: list[Any] = []  # (ledger, limit) of the budgets entered
        self.outside: dict[int, Any] = {}  # values from outside that are held, by id of the array

    def note(self, plan: Any, inputs: Any, outputs: Any, saves: Any = ()) -> None:
        """Record a kernel that ran; nothing of what ``no_grad`` computes.

        A running average, such as ``ema = 0.9 * ema + 0.1 * x``, would otherwise grow for ever.
        """
        if not _graph_may_want_it():
            return
        if self.left <= 0:  # here, and not between the parts of a call that is recorded
            self.pass_ended()
        if self.region is not self.budget:
            super().note(plan, inputs, outputs, saves)
            return
        # As in the base class, for the outermost region, which has no policy and which nothing
        # crosses into: every op of a budget comes by here.
        recorded = self.recorded
        found: list[Any] = []
        for x in inputs:
            if isinstance(x, Tensor):
                storage = x._storage
                value = recorded.get(id(storage))
                if (
                    value is not None
                    and value.version == storage.version
                    and value.owner_region is not None
                    and value._storage() is storage
                ):
                    found.append(StridedView(value, x))
                else:
                    found.append(self._from_outside(x, value))
            else:
                found.append(x)
        call = OpCall(plan, tuple(found))
        for k, out in enumerate(outputs):
            self._add(call, k, out, plan, "")

    def _from_outside(self, x: Tensor, value: Any) -> RegionInput:
        # Values that were read already, such as shared weights, are held once.
        array = x._array
        reference = self.outside.get(id(array))
        held = None if reference is None else reference()
        if held is None or held.array is not array or held.version != x._storage.version:
            held = flows_in(x, value)
            self.outside[id(array)] = weakref.ref(held)
        return held

    def before_write(self, inputs: Any) -> Any:
        """Record the arguments of an in-place write before it happens."""
        storage = inputs[0]._storage
        value = self.value_of(storage)
        if _graph_may_want_it() or (value is not None and value.stash is not None):
            noted = super().before_write(inputs)
        else:  # from here on it is a value from outside
            leave_copies(storage)
            noted = None
        if value is not None and value.held is not None:
            value.drop()  # who wants what is overwritten gets it by replay
        return noted

    def before_step(self, parameters: Any) -> None:
        """Leave copies of parameters for what may have to be recomputed after the step.

        A graph may live on across it, as that of a second loss does. After an ordinary backward
        pass no value is wanted that is made from a parameter, and nothing is copied.
        """
        for p in parameters:
            leave_copies(p._storage)

    def _add(self, call: Any, index: int, out: Any, plan: Any, result: str) -> Any:
        value: Any = super()._add(call, index, out, plan, result)
        storage = out._storage
        value.ledger, value.nbytes = storage.ledger, storage.nbytes
        self.left -= 1
        if self.evictor.active:
            self.evictor.made(value)
        return value

    def _handle(
        self, tensor: Tensor, value: Any, owner_region: Any, source: Any, index: int
    ) -> Recomputed:
        if owner_region is self.budget and value.stash is None:
            return Kept(tensor, value, self.budget, source, index)
        return Recomputed(tensor, value, owner_region, source, index)

    def pass_ended(self) -> None:
        """Let go of what no graph wants any more."""
        self.left = SETTLE_EVERY
        self.outside.clear()
        self.evictor.pass_ended()
        self.evictor.settle()
        for ledger, limit in list(self.limits):
            limit.look(ledger, again=True)


def _graph_may_want_it() -> bool:
    # What is computed now: not under `no_grad`, but in the forward of a Function.
    state = local.state
    return state.grad or state.phase == "forward"


def other_ways(stash: Any, lossy: Any, who: str) -> tuple[Stash, ...]:
    """Check and return the stashes that an evictor may use.

    Args:
        stash: A stash, or several, that change nothing.
        lossy: A packing that changes values, or None.
        who: For messages.
    """
    found = [stash] if isinstance(stash, Stash) else list(stash)
    for way in found:
        if not isinstance(way, Stash):
            raise TypeError(
                f"{who}: stash is a stash such as checkpointing.offload_to_disk(), or "
                f"several; got {way!r}."
            )
        if isinstance(way, pack) and not way.lossless:
            raise ValueError(
                f"{who}: {way!r} changes values, and gradients with them. If that is "
                f"wanted, pass it as lossy={way!r}."
            )
    if lossy is not None:
        if not isinstance(lossy, pack) or lossy.lossless:
            raise ValueError(
                "memory_budget: lossy is a packing that changes values, such as checkpointing.pack("
                f'"bfloat16"); got {lossy!r}.'
            )
        found.append(lossy)
    return tuple(way.at_once() for way in found)


class memory_budget(WholeContext, _Mode):
    """Keep the live bytes of a device within a budget: drop saved values, and recompute them.

    A context manager; as ``@memory_budget("2GiB")`` also a decorator, for functions and generators.
    Around a step, or around a whole training loop with its evaluation and its checkpoints. What is
    saved for backward is kept until an allocation needs its bytes; then the values that are
    cheapest to make again for their bytes and for the time until backward reads them are dropped,
    and recomputed when backward asks. Results, gradients, buffers and the generator are the same
    bits as without a budget.

    - Inside another budget of the same device the smaller one holds.
    - Checkpointed regions and their policies inside do what they do elsewhere: what a policy saves
      stays, what it recomputes is recomputed. ``saved_tensors_hooks`` keep what they return.
    - ``no_grad`` inside changes nothing: what was saved before can be dropped for its sake.
    - The pages behind the tensors stay within the budget, too: where free blocks are scattered,
      their pages go back to the system before others are taken.
    - Only the thread that entered it drops values. Other threads' allocations count, and are
      refused where they would pass the budget.

    Args:
        limit: Bytes of all living tensors of the device, those from before the budget included; or
            text such as ``"2GiB"``.
        device: The default device if None.
        of: What the bytes are of. ``"pages"``: of the tensors, and of the pages behind them, which
            free blocks between them hold too. ``"tensors"``: of the tensors alone, which takes less
            time where the budget is tight. ``"process"``: of all that the process has in memory (on
            the cpu only). The interpreter and libraries are then measured again and
            again, and 4 MiB are kept free; what they take between two looks counts from the next
            one on.
        stash: Other ways than recomputing to bring a value back: a stash, or several, such as
            ``checkpointing.offload_to_disk(dir, limit="20GiB")``, ``checkpointing.offload()`` (from
            a GPU to the host) or ``checkpointing.pack()``. A value that is dropped goes by the way
            that takes least time; a stash without room is passed by.
        lossy: A packing that changes values, such as ``checkpointing.pack("bfloat16")``: one more
            way. Gradients are then not the same bits.
        rule: How values are compared (:class:`EvictionRule`).

    Attributes:
        evictions: Values dropped so far.
        evicted_bytes: Their bytes.
        replays: How often values were recomputed.
        stashed: How many of the dropped values were stashed.
        stashed_bytes: Their bytes.
        replay_seconds: The time that took; on a GPU, until the kernels were launched.
        where: What messages say began it; the user's line if None.

    Raises:
        MemoryLimitError: (by an op inside) Everything that can be dropped is, and the op would
            still pass the budget. The op has done nothing.
        RuntimeError: It is entered inside a checkpointed region.
        ValueError: It is entered inside another budget that has not its stashes.

    Memory:
        What a kernel reads of tensors from outside the budget is kept as long as what it made may
        have to be recomputed.

    Example:
        >>> import lowtide as lt
        >>> net = lt.nn.Sequential(*[lt.nn.Linear(256, 256) for _ in range(8)])
        >>> x = lt.ones(2048, 256)
        >>> with lt.memory_budget(lt.memory_allocated() + 12 * 2**20) as budget:
        ...     net(x).square().mean().backward()
        >>> budget.evictions > 0
        True
    """

    recorder_class = BudgetRecorder

    def __init__(
        self,
        limit: int | str,
        device: Any = None,
        *,
        of: str = "pages",
        stash: Stash | Sequence[Stash] = (),
        lossy: pack | None = None,
        rule: EvictionRule | None = None,
    ) -> None:
        if of not in ("pages", "tensors", "process"):
            raise ValueError(f'memory_budget: of is "pages", "tensors" or "process", got {of!r}.')
        self.limit = as_bytes(limit, "memory_budget: limit")
        self.of = of
        self.device = None if device is None else as_device(device)
        self.rule = rule or EvictionRule()
        self.stashes = other_ways(stash, lossy, "memory_budget")
        self.where: str | None = None
        self._open: dict[int, list[Any]] = {}  # what was entered, by thread
        self._regions: dict[int, BudgetRegion] = {}  # by thread

    @property
    def evictions(self) -> int:
        """Values dropped so far."""
        return self._sum("evictions")  # type: ignore[no-any-return]

    @property
    def evicted_bytes(self) -> int:
        """Bytes of the values dropped so far."""
        return self._sum("evicted_bytes")  # type: ignore[no-any-return]

    @property
    def replays(self) -> int:
        """How often values were recomputed."""
        return self._sum("replays")  # type: ignore[no-any-return]

    @property
    def stashed(self) -> int:
        """How many of the dropped values were stashed."""
        return sum(r.evictor.stashing.values for r in list(self._regions.values()))

    @property
    def stashed_bytes(self) -> int:
        """Bytes of the values that were stashed."""
        return sum(r.evictor.stashing.nbytes for r in list(self._regions.values()))

    @property
    def replay_seconds(self) -> float:
        """Seconds in which values were recomputed."""
        return self._sum("replay_seconds")  # type: ignore[no-any-return]

    def _sum(self, name: str) -> Any:
        return sum(getattr(region.evictor, name) for region in list(self._regions.values()))

    def _again(self) -> Any:
        found = type(self)(self.limit, self.device, of=self.of, rule=self.rule)
        found.stashes = self.stashes
        found.where = self.where
        found._regions = self._regions  # a function called again goes on with its budget
        return found

    def _enter(self) -> memory_budget:
        state, me = local.state, get_ident()
        be = backend(self.device or get_default_device())
        if self.of == "process" and (be.device.type != "cpu"):
            raise ValueError(
                f'memory_budget: of="process" counts the pages of this process, which those of '
                f'{be.device} are not; on it only "pages" and "tensors" are there.'
            )
        for way in self.stashes:
            float(way.speed)  # measured here, and not where something is to be dropped
        ledger = be.ledger
        recorder = state.recorder
        where = self.where or user_line() or "an unknown line"
        before = (recorder, state.saver, state.notes_results)
        if recorder is None:
            region = self._regions.get(me)
            if region is None:
                region = self._regions[me] = BudgetRegion(where, Evictor(self.rule, self.stashes))
            recorder = self.recorder_class(region)
            region.evictor.open(recorder)
        elif isinstance(recorder, BudgetRecorder) and recorder.region is recorder.budget:
            around = recorder.evictor.stashing.stashes
            if not set(self.stashes) <= set(around):
                raise ValueError(
                    f"memory_budget: entered at {where} inside the budget begun at "
                    f"{recorder.region.where}, which drops values for both and has not the stashes "
                    "that this one names. Pass them to the outer budget."
                )
            self._regions[me] = recorder.budget  # joins the budget around
            before = None  # type: ignore[assignment]
        else:
            raise RuntimeError(
                f"memory_budget: entered at {where} inside a checkpointed region, begun at "
                f"{recorder.region.where}, whose values are recomputed already. Enter the budget "
                "outside, around the region."
            )
        budget = (
            TensorLimit(self.limit, where, recorder.evictor, self.of == "pages")
            if self.of != "process"
            else ProcessLimit(self.limit, where, recorder.evictor, be.pool)
        )
        ledger.open_budget(budget)
        be.budget_opened()
        recorder.limits.append((ledger, budget))
        self._open.setdefault(me, []).append((before, recorder, ledger, budget))
        if before is not None:
            state.recorder, state.notes_results = recorder, True
            if not isinstance(state.saver, HookSaver):  # hooks around keep what they return
                state.saver = recorder
        return self

    def _leave(self) -> None:
        me = get_ident()
        mine = self._open[me]
        before, recorder, ledger, budget = mine.pop()
        if not mine:
            del self._open[me]
        recorder.limits.remove((ledger, budget))
        ledger.close_budgets(budget)
        backend(ledger.device).budget_closed()
        if before is not None:
            state = local.state
            if state.recorder is recorder:  # else left out of turn, by a generator
                state.recorder, state.saver, state.notes_results = before
            recorder.evictor.close()
            recorder.recorded.clear()


__all__ = ["EvictionRule", "memory_budget", "other_ways"]
