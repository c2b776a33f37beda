"""Gradients averaged over the ranks while the backward pass still runs.

A gradient is reduced where it lies, as soon as it is accumulated. Only small ones are copied
together, so that many do not wait for as many messages. All ranks reduce in one order: at first
that of the parameters from last to first, later that in which rank 0's first pass produced them.

The running pass tells at its first gradient which parameters it will reach. So parameters that the
loss does not depend on are named at once, and cost no walk through the graph.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

from ..autograd.hooks import register_post_accumulate_hook
from ..dtypes import int64, uint8
from ..memory.ledger import COMMUNICATION
from ..modes import local, no_grad
from ..ops.creation.fill import empty, zeros, zeros_like
from ..ops.creation.from_data import tensor as tensor_of
from ..tensor import Tensor
from . import collectives
from .collectives import ReduceOp
from .process_group import ProcessGroup
from .reduction import all_reduce_bytes
from .work import Work
from .workspace import Workspace

ALONE = 256 << 10  # bytes from which a gradient is reduced where it lies
TOGETHER = 1 << 20  # bytes of small gradients that are reduced together
AT_A_TIME = 2  # reductions of a pass that have workspace
BLOCK = 2 << 20  # bytes that each of them has under way


class GradBucket:
    """Gradients that are reduced together, as a communication hook gets them.

    Args:
        index: Which bucket of the pass, from 0.
        parameters: Whose gradients.
        flat: The gradients one after the other.
        last: Whether it is the pass's last bucket.
    """

    def __init__(self, index: int, parameters: list[Tensor], flat: Tensor, last: bool) -> None:
        self._index, self._parameters, self._flat, self._last = index, parameters, flat, last

    def index(self) -> int:
        """Return which bucket of the pass it is."""
        return self._index

    def buffer(self) -> Tensor:
        """Return the gradients one after the other, as one flat tensor."""
        return self._flat

    def set_buffer(self, tensor: Tensor) -> None:
        """Replace the flat tensor."""
        self._flat = tensor

    def gradients(self) -> list[Tensor]:
        """Return views of the flat tensor, in the parameters' shapes."""
        return _views(self._flat, self._parameters)

    def parameters(self) -> list[Tensor]:
        """Return the parameters."""
        return self._parameters

    def is_last(self) -> bool:
        """Return whether it is the pass's last bucket."""
        return self._last


class Reducer:
    """Averages the gradients of some parameters over a group, in each backward pass.

    Args:
        named: The parameters, by name: the same in all ranks.
        group: The ranks.
        may_miss: Whether a pass may leave out parameters; else that is an error.
        together: Bytes of small gradients that are reduced together.

    Attributes:
        armed: Whether passes reduce; a pass of other ranks must then do so too.
        divisor: By what sums are divided; None for the number of ranks.
    """

    def __init__(
        self,
        named: Sequence[tuple[str, Tensor]],
        group: ProcessGroup,
        may_miss: bool,
        together: int = TOGETHER,
    ) -> None:
        self.names = [name for name, _ in named]
        self.parameters = [p for _, p in named]
        self.group = group
        self.may_miss = may_miss
        self.armed = False
        self._expected = False  # a forward whose pass reduces, and there was no pass since
        self.divisor: int | None = None
        self.hook: tuple[Any, Callable[..., Any]] | None = None
        self._together = together
        self._in_given_order = True  # no pass has told a better one yet
        self.buckets = self._cut(list(reversed(range(len(named)))))
        me = weakref.ref(self)  # the parameters must not keep what keeps them
        self._handles = [
            register_post_accumulate_hook(p, _arrival(me, k), first=True)
            for k, p in enumerate(self.parameters)
        ]

    def _cut(self, order: list[int]) -> list[list[int]]:
        # Buckets in the order in which they are reduced: numbers of parameters.
        found: list[list[int]] = []
        filled = 0
        for k in order:
            p = self.parameters[k]
            small = p.numel() * p.itemsize < ALONE
            last = self.parameters[found[-1][0]] if found else None
            fits = (
                small
                and last is not None
                and 0 < filled < self._together
                and (last.dtype, last.device) == (p.dtype, p.device)
            )
            if fits:
                found[-1].append(k)
            else:
                found.append([k])
                filled = 0
            filled = filled + p.numel() * p.itemsize if small else 0
        return found

    def arrived(self, k: int) -> None:
        """Take note of an accumulated gradient."""
        if not self.armed or (self.group.size() == 1 and self.hook is None):
            return
        running = local.state.running
        state = running.notes.get(self)
        if state is None:
            with no_grad():
                state = running.notes[self] = _Pass(self, running)
        with no_grad():
            state.arrived(k)

    def reduce_nothing(self) -> None:
        """Take part in the reductions of a pass of the other ranks, with zeros."""
        if any(map(self.steps_in_backward, range(len(self.parameters)))):
            raise RuntimeError(
                "DistributedDataParallel.join: a rank without inputs cannot follow an optimizer in "
                "backward. Step after backward."
            )
        with no_grad():
            left_out: set[int] = set()
            if self.may_miss:
                left_out = self.agree([False] * len(self.parameters))
            works = []
            space = self.workspace()
            for bucket in self.buckets:
                some = [self.parameters[k] for k in bucket if k not in left_out]
                if some:
                    count = sum(p.numel() for p in some)
                    flat = zeros(count, dtype=some[0].dtype, device=some[0].device)
                    if len(some) == 1:  # as the others say it
                        flat = flat.view(some[0].shape)
                    used = [k for k in bucket if k not in left_out]
                    works.append(self.begin(flat, used, space))
            for work in works:
                work.wait()
            if self.learns:
                self.learn([k for bucket in self.buckets for k in bucket])

    def workspace(self) -> Workspace:
        """Return workspace for the reductions of a pass, of which few are under way at a time."""
        if self.hook is not None or self.group.size() == 1:
            return Workspace(0)
        need = 0
        for bucket in self.buckets:
            n = sum(self.parameters[k].numel() for k in bucket)
            itemsize = self.parameters[bucket[0]].itemsize
            # Single gradients of a bucket may be reduced too, and small ones take more than large.
            some = [n, *[self.parameters[k].numel() for k in bucket]]
            need = max(need, *[self._need(m, itemsize) for m in some])
        return Workspace(need, AT_A_TIME)

    def begin(self, flat: Tensor, bucket: list[int], space: Workspace) -> Work:
        """Begin to reduce the gradients of a bucket; ranks compare the name of its first one."""
        op = ReduceOp.AVG if self.divisor is None else ReduceOp.SUM
        name = f"gradient of {self.names[bucket[0]][-60:]}"
        need = self._need(flat.numel(), flat.itemsize)
        if need > space.nbytes:  # gradients of another dtype than their parameters
            space = Workspace(need)
        return collectives.begin_all_reduce(flat, op, self.group, name, space, BLOCK)

    def _need(self, numel: int, itemsize: int) -> int:
        return all_reduce_bytes(numel, itemsize, self.group.size(), BLOCK)

    def steps_in_backward(self, k: int) -> bool:
        """Whether something waits for a parameter's average as soon as its gradient is there."""
        return len((self.parameters[k]._extra or {}).get("post_accumulate", ())) > 1

    def agree(self, uses: list[bool]) -> set[int]:
        """Return the parameters that no rank uses, given those that this one does."""
        used = tensor_of([int(u) for u in uses], dtype=uint8)
        collectives.all_reduce(used, ReduceOp.MAX, self.group)
        return {k for k, u in enumerate(used.tolist()) if not u}

    def learn(self, order: list[int]) -> None:
        """Reduce in rank 0's order from now on."""
        given = tensor_of(order, dtype=int64)
        collectives.broadcast(given, group=self.group, group_src=0)
        self._in_given_order = False
        self.buckets = self._cut(given.tolist())

    def expect_pass(self, reduces: bool) -> None:
        """Take note of a forward with gradients, and of whether its pass is to reduce.

        Passes reduce from then on. A forward whose pass is not to reduce ends that, but not before
        the pass of an earlier one.
        """
        if reduces:
            self.armed = self._expected = True
        elif not self._expected:
            self.armed = False

    def pass_ended(self) -> None:
        """Take note of a pass that has reduced."""
        self._expected = False

    @property
    def learns(self) -> bool:
        """Whether the next pass tells the order of later ones."""
        return self._in_given_order and not self.may_miss

    def remove(self) -> None:
        """Remove the hooks from the parameters."""
        for handle in self._handles:
            handle.remove()


def _arrival(reducer: weakref.ref[Reducer], k: int) -> Callable[[Tensor], None]:
    def arrival(_: Tensor) -> None:
        found = reducer()
        if found is not None:
            found.arrived(k)

    return arrival


class _Pass:
    """The reductions of one backward pass."""

    def __init__(self, reducer: Reducer, running: Any) -> None:
        self.reducer = reducer
        self.reached = [running.reaches(p) for p in reducer.parameters]
        self.waiting = [len(bucket) for bucket in reducer.buckets]
        self.bucket_of = {k: b for b, bucket in enumerate(reducer.buckets) for k in bucket}
        self.order: list[int] = []
        self.begun = 0  # buckets
        self.under_way: list[tuple[Any, list[int], Tensor | None]] = []
        self.space = reducer.workspace()
        self.left_out: set[int] = set()  # parameters that no rank uses
        missing = [k for k, reached in enumerate(self.reached) if not reached]
        if reducer.may_miss and any(map(reducer.steps_in_backward, range(len(self.reached)))):
            raise RuntimeError(
                "DistributedDataParallel: an optimizer in backward does not step parameters that "
                "only other ranks use. Leave out find_unused_parameters, or step after backward."
            )
        if reducer.may_miss:
            self._agree(missing)
        elif missing:
            raise _unused([reducer.names[k] for k in missing])
        running.endings.append(self._finish)

    def _agree(self, missing: list[int]) -> None:
        # Which parameters any rank uses. Who does not use one of these contributes what it has.
        self.left_out = self.reducer.agree(self.reached)
        for k in missing:
            p = self.reducer.parameters[k]
            if k not in self.left_out and p.grad is None:
                p.grad = zeros_like(p)
            self._note(k)

    def arrived(self, k: int) -> None:
        self.order.append(k)
        self._note(k)
        if self.reducer.steps_in_backward(k):  # next: the average must be there
            self.left_out.add(k)  # of its bucket
            last = not any(self.waiting)
            self._reduce(len(self.waiting) + k, [k], last)  # a bucket that no other has
            self._settle()
        self._begin()
        if self.under_way:
            self.reducer.group.channel.poll()

    def _note(self, k: int) -> None:
        self.waiting[self.bucket_of[k]] -= 1

    def _begin(self) -> None:
        # In order: another rank may have its gradients in another one.
        while self.begun < len(self.waiting) and self.waiting[self.begun] == 0:
            index = self.begun
            self.begun += 1
            bucket = [k for k in self.reducer.buckets[index] if k not in self.left_out]
            if bucket:
                self._reduce(index, bucket, self.begun == len(self.waiting))

    def _reduce(self, index: int, bucket: list[int], last: bool) -> None:
        parameters = [self.reducer.parameters[k] for k in bucket]
        grads = [_grad(p) for p in parameters]
        flat: Tensor | None = None
        if len(bucket) > 1 or self.reducer.hook is not None:
            flat = _flattened(grads)
        if self.reducer.hook is not None:
            state, hook = self.reducer.hook
            assert flat is not None
            given = GradBucket(index, parameters, flat, last)
            self.under_way.append((hook(state, given), bucket, flat))
            return
        what = grads[0] if flat is None else flat
        work = self.reducer.begin(what, bucket, self.space)
        self.under_way.append((work, bucket, flat))

    def _settle(self) -> None:
        # Wait for what is under way, and give each parameter its average.
        for work, bucket, flat in self.under_way:
            found: Any = work.wait()
            if not isinstance(work, Work):  # a future of a communication hook
                flat = found[0] if isinstance(found, (list, tuple)) else found
            parameters = [self.reducer.parameters[k] for k in bucket]
            if flat is not None:
                for p, average in zip(parameters, _views(flat, parameters), strict=True):
                    _grad(p).copy_(average)
            if self.reducer.divisor is not None:
                for p in parameters:
                    _grad(p).div_(self.reducer.divisor)
        self.under_way.clear()

    def _finish(self) -> None:
        # The pass has ended: a gradient that could have come and did not is missing.
        late = [k for k in range(len(self.reached)) if self.waiting[self.bucket_of[k]]]
        missing = [k for k in late if k not in self.order and self.reached[k]]
        if missing and not self.reducer.may_miss:
            raise _unused([self.reducer.names[k] for k in missing])
        with no_grad():
            for k in missing:
                p = self.reducer.parameters[k]
                if p.grad is None:
                    p.grad = zeros_like(p)
                self._note(k)
            self._begin()
            self._settle()
            self.reducer.pass_ended()
            if self.reducer.learns:
                self.reducer.learn(self.order)


def _grad(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None, "a pass that has begun lost a gradient"
    return parameter.grad


def _flattened(tensors: Sequence[Tensor]) -> Tensor:
    if len(tensors) == 1 and tensors[0].is_contiguous():
        return tensors[0].view(-1)
    first = tensors[0]
    count = sum(t.numel() for t in tensors)
    flat: Tensor = empty(count, dtype=first.dtype, device=first.device)
    flat._storage.set_role(COMMUNICATION)
    for view, t in zip(_views(flat, tensors), tensors, strict=True):
        view.copy_(t)
    return flat


def _views(flat: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    parts = flat.split([t.numel() for t in like])
    return [part.view(t.shape) for part, t in zip(parts, like, strict=True)]


def _unused(names: list[str]) -> RuntimeError:
    shown = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
    return RuntimeError(
        f"DistributedDataParallel: the loss does not depend on the parameters {shown}, so this "
        "rank has no gradient of them to average. Leave them out of the module, let the loss "
        "depend on them, or set find_unused_parameters=True."
    )
