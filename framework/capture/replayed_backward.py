"""The node of a replayed forward's results, and what it holds for their backward."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..autograd.engine import gradients_of
from ..autograd.node import Node, edge_to
from ..autograd.saved import Pin
from ..errors import GradientError
from ..interop.pytree import tree_flatten
from ..modes import enable_grad
from ..tensor import Tensor
from .call import Inside
from .partial_sums import ending_at, take_arrived, used_several_times
from .program import Result
from .replay import freed

if TYPE_CHECKING:
    from .split_replay import SplitReplay


class ForwardPass:
    """What a call has left for its backward.

    Attributes:
        call: The call: its tensors and other arguments.
        storages: Storages that backward reads, by the number of their value.
        block: The storage of the small ones.
        starts: Where each of its draws started.
        held: (array, storage, version) of each tensor from outside that backward reads, by value.
        gathered: A pin of the memory of each gathered parameter that backward reads, by value.
        versions: The versions that these storages had.
        read: Those of the memory from outside that it reads.
        sites: What a profiler is shown (``attribution/recorded_sites.py``); None without one.
    """

    def __init__(self, call: Any) -> None:
        self.call = call
        self.storages: dict[int, Any] = {}
        self.block: Any = None
        self.starts: list[Any] = []
        self.held: dict[int, tuple[Any, Any, int]] = {}
        self.gathered: dict[int, Pin] = {}
        self.versions: dict[int, int] = {}
        self.read: list[int] = []
        self.sites: Any = None


class ReplayedBackward(Node):
    """The node of a replayed call's results.

    Attributes:
        display: The name of the node that the recorded call had.
    """

    __slots__ = ("_lease", "_left", "_replay", "display", "edge_specs", "output_count")

    def __init__(self, replay: SplitReplay, left: ForwardPass, sources: list[Tensor]) -> None:
        self.edges = [edge_to(t) for t in sources]
        self.edge_specs = [t._spec for t in sources]
        self.output_count = replay.output_count
        self.display = "CompiledFunctionBackward"
        self._replay: Any = replay
        self._lease = replay.lease()
        self._left: Any = left
        self._begin()

    def name(self) -> str:
        """Return the name of the node that the recorded call had."""
        return self.display

    def apply(self, grads: Any, wanted: Any, retain: bool, create: bool) -> Any:
        """Replay the backward.

        With ``create`` the function runs once more, and so do its gradients, with a graph.

        Raises:
            GradientError: It was freed, or a tensor that it reads was written in place since.
            RuntimeError: The function would have to run once more, and cannot.
        """
        left, replay = self._left, self._replay
        if left is None:
            raise freed(self.display)
        _need_unwritten(left, self.display)
        before = take_arrived(self.edges, replay.program.several, wanted)
        replay.fill_up(before)
        if create or not replay.fits([*grads, *before]):
            return self._as_written(grads, before, create)
        arriving = [*grads, *before]
        grads[:] = [None] * len(grads)  # each goes when it has been used
        del before
        if not retain:  # also if it fails half-way: what was used is gone
            self._left = None
        return replay.run_backward(left, arriving, retain)

    def _as_written(self, grads: Any, before: list[Tensor | None], create: bool) -> Any:
        # Second derivatives, gradients of another layout, or of other outputs: the function runs
        # once more.
        left, replay = self._left, self._replay
        replay.again += 1
        change = left.call.guards.changed()
        why = "" if change is None else f"{change.name} has changed since"
        if not why and not replay.runs_again():
            why = "it computes results from tensors that it also writes"
        if not why and replay.versions(left.call) != left.read:
            why = "a tensor that it reads has been modified by an inplace operation since"
        if why:
            asked = "second derivatives are asked for" if create else "backward got gradients of "
            asked += "" if create else "another layout, or of other results, than were recorded"
            raise RuntimeError(
                f"compile: {asked}, and the function cannot be called again to compute them: "
                f"{why}. Call it as it is written: compile(f, disable=True)."
            )
        with left.call.gathered.in_place(), replay.as_it_was(left), enable_grad():
            inside = Inside(left.call)
            result = inside.function()
        leaves, _ = tree_flatten(result)
        outputs = {
            r.output: x
            for r, x in zip(replay.program.results, leaves, strict=True)
            if isinstance(r, Result) and r.output >= 0
        }
        pairs = [(outputs[k], g) for k, g in enumerate(grads) if g is not None]
        count = replay.program.argument_count
        sources = [
            inside.tensors[k] if k < count else replay.program.tensors[k]
            for k in replay.program.sources
        ]
        roots, arriving = [o for o, _ in pairs], [g for _, g in pairs]
        targets = used_several_times(roots, sources)
        taken = zip(replay.program.several, before, strict=True)
        arrived = [(targets.get(k, edge_to(sources[k])[0]), g) for k, g in taken if g is not None]
        with ending_at(sources):
            return gradients_of(roots, sources, arriving, create, create, True, False, arrived)

    def kept_storages(self) -> list[Any]:
        """Return the storages that it keeps for backward."""
        left = self._left
        if left is None:
            return []
        return [s for s in (*left.storages.values(), left.block) if s is not None]

    def release(self) -> None:
        """Free what forward has left."""
        self._left = None


def _need_unwritten(left: ForwardPass, name: str) -> None:
    results = any(left.storages[n].version != version for n, version in left.versions.items())
    if results or any(storage.version != version for _, storage, version in left.held.values()):
        raise GradientError(
            f"A tensor kept by {name}, of a compiled function, has been modified by an inplace "
            "operation after it was kept. Use the out-of-place op, or clone before changing it."
        )
