"""The recording of a backward that runs outside of the call.

The results of a recorded forward get one node in the place of their graph. When backward comes to
it, it runs the graph, recorded, from the gradients that have arrived: of all outputs or of some,
in the layout that they have. So a program holds just the backward that the user's loop runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..autograd.engine import gradients_of
from ..autograd.node import Node, attach, edge_to
from ..autograd.view_history import base_of, mark_view
from ..devices import backend
from ..distributed.unsharded_storage import UnshardedStorage
from ..modes import local
from ..tensor import Tensor, wrap
from .binding import CPU
from .call import sees_replays
from .partial_sums import apart_from, ending_at, take_arrived, used_several_times
from .recorder import Recorder
from .replay import freed
from .split_replay import layouts_of


class RecordingBackward(Node):
    """The node of the results of a call whose backward will be recorded.

    Args:
        recorder: Has recorded the call.
        sources: The tensors whose gradients the backward computes, inside the call: its graph
            ends there.
        outer: The same tensors, outside.
        keep: Called with the program and the layouts of the gradients that arrived; or with a
            reason why there is no program.
    """

    __slots__ = (
        "_is_differentiated",
        "_keep",
        "_outputs",
        "_recorder",
        "_sources",
        "edge_specs",
        "output_count",
    )

    def __init__(
        self,
        recorder: Recorder,
        sources: list[Tensor],
        outer: list[Tensor],
        keep: Callable[..., None],
    ) -> None:
        self.edges = [edge_to(t) for t in outer]
        self.edge_specs = [t._spec for t in sources]
        self.output_count = len(recorder.outputs)
        self._recorder: Any = recorder
        self._sources = sources
        self._keep = keep
        self._is_differentiated = False
        self._outputs: Any = []
        bases = [None if x._viewed is None else base_of(x._viewed) for x in recorder.outputs]
        for k, x in enumerate(recorder.outputs):
            inner = wrap(x._array, x._spec, x._storage)
            inner._node, inner._index, inner._requires_grad = x._node, x._index, True
            self._outputs.append(inner)
            x._viewed = None  # of a value inside, which no one else sees, or of another result
            attach(x, self, k)
        self._begin()
        for k, (x, base) in enumerate(zip(recorder.outputs, bases, strict=True)):
            if base is not None and any(base is other for other in recorder.outputs):
                mark_view("a compiled function", k, x, base)
        recorder.outputs.clear()

    @property
    def pending(self) -> bool:
        """True if its backward may still be recorded."""
        return self._recorder is not None

    def name(self) -> str:
        """Return the name of the first result's node."""
        if self._outputs is None:
            return "CompiledFunctionBackward"
        return self._outputs[0]._node.name()  # type: ignore[no-any-return]

    def apply(self, grads: Any, wanted: Any, retain: bool, create: bool) -> Any:
        """Run the graph behind the results, and record it if it is all of it.

        Raises:
            GradientError: It was freed.
        """
        if self._outputs is None:
            raise freed(self.name())
        outputs, recorder = self._outputs, self._recorder
        pairs = [(o, g) for o, g in zip(outputs, grads, strict=True) if g is not None]
        roots, arriving = [o for o, _ in pairs], [g for _, g in pairs]
        several = used_several_times(roots, self._sources)
        before = take_arrived(self.edges, several, wanted)
        self._is_differentiated |= create  # then the graph of its gradients leads through its own
        options = (retain or self._is_differentiated, create, True, False)
        records = recorder is not None and not create
        if not records or _is_watched():
            arrived = _at(several, before)
            with ending_at(self._sources):
                found = gradients_of(roots, self._sources, arriving, *options, arrived)
        else:
            self._recorder = None
            layouts = layouts_of([*grads, *before])
            before = apart_from(grads, before)  # the list holds them: they are not written
            arrived = _at(several, before)
            for t in recorder.gathered:
                if t._storage.pins:  # the graph reads it: not while kernel calls are recorded
                    t._storage.restore(UnshardedStorage.THERE)
            recorder.begin_backward([*grads, *before], list(several))
            with recorder, ending_at(self._sources):
                found = gradients_of(roots, self._sources, arriving, *options, arrived)
            program = recorder.finish_backward(found)
            if program is None:
                self._keep(f"{recorder.reason}{f' at {recorder.line}' if recorder.line else ''}")
            else:
                self._keep(program, layouts)
        if not retain:
            self._outputs = None
        return found

    def release(self) -> None:
        """Free the graph behind the results."""
        self._outputs = None


def _at(several: dict[int, Any], before: list[Tensor | None]) -> list[tuple[Any, Tensor]]:
    return [
        (target, g) for target, g in zip(several.values(), before, strict=True) if g is not None
    ]


def _is_watched() -> bool:
    state, ledger = local.state, backend(CPU).ledger
    return bool(
        not sees_replays(ledger)
        or ledger.budgets
        or state.recorder
        or state.anomaly
        or state.capture
    )
