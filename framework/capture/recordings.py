"""The recordings of a compiled function, by kind of call, and when each of them holds."""

from __future__ import annotations

from typing import Any

from ..devices import backend
from ..tensor import Tensor
from .binding import CPU
from .call import Call, memory_of
from .guards import Guards
from .partial_sums import is_plain_gradient
from .program import OUTSIDE, StepProgram
from .replay import Replay
from .split_replay import SplitReplay
from .watched_replay import watched

_AGAIN = 3  # backward passes for which a function ran once more, from which on they are counted
_WAITING = 2  # recorded calls that wait for their backward at once
# Recorded calls without a backward, from which on few are recorded: none had one, or one had.
_DROPPED = (8, 64)
_MOST_LEFT_OUT = 61  # calls that run as they are written, between two that are recorded then


class Kind:
    """Calls with arguments of the same specs, in the same modes.

    Attributes:
        recordings: Recordings, the latest first.
        hits: Replays.
        misses: Replays that were undone because a number that Python reads had changed.
        confirmed: Two recordings have found the same.
        reason: Why such calls run as they are written; None if they need not.
        attempts: Recordings that failed because Python's state changed in the call.
        again: How often a backward had to run the function once more, of recordings that are gone.
        waiting: Weak references to the nodes of recorded calls whose backward has not come.
        dropped: How many of these went without one, since the last backward that was recorded.
        left_out: Calls that are not recorded because of that, before the next one is.
        last_change: Why a recording did not hold.
        calls: How often it was called, since it had no recordings.
        last: Number of the latest call.
        recorded: How often it was recorded.
        names_objects: An argument is an object that is compared by identity.
    """

    def __init__(self, names_objects: bool = False) -> None:
        self.names_objects = names_objects
        self.calls = 1
        self.last = self.recorded = 0
        self.recordings: list[Recording] = []
        self.hits = self.misses = 0
        self.confirmed = False
        self.reason: str | None = None
        self.attempts = self.again = 0
        self.waiting: list[Any] = []
        self.dropped = self.left_out = 0
        self.last_change = "what it is called with"

    def close(self) -> None:
        """Let go of the recordings."""
        for recording in self.recordings:
            recording.close()

    def forget(self) -> None:
        """Let go of the recordings, to make room; later calls may be recorded again."""
        self.close()
        self.recordings = []
        self.confirmed = False
        self.calls = self.recorded = 0

    def usable(self) -> list[Recording]:
        """Return the recordings, without those whose backward lacks gradients that arrive."""
        if any(r.replay.lacks for r in self.recordings):
            self.again += sum(r.replay.again for r in self.recordings if r.replay.lacks)
            self.recordings = [r for r in self.recordings if not r.replay.lacks]
            self.confirmed = False
        return list(self.recordings)

    def add(self, recording: Recording) -> None:
        """Add a recording: the latest comes first, after those that fit more backward passes."""
        at = 0
        if not recording.replay.takes_arrived:  # these are first
            at = sum(r.replay.takes_arrived for r in self.recordings)
        self.recordings.insert(at, recording)

    def needs_graph(self) -> bool:
        """Whether calls of it had to run once more for their backward, and more often than not."""
        again = self.again + sum(r.replay.again for r in self.recordings)
        return again > _AGAIN and 2 * again > self.hits

    def waits(self) -> bool:
        """Whether this call is better not recorded: others wait for a backward, or had none.

        Of calls whose backward does not come, as those of an evaluation, a few are recorded, so
        that it is noticed when it does.
        """
        nodes = [(ref, ref()) for ref in self.waiting]
        gone = sum(node is None for _, node in nodes)
        self.waiting = [ref for ref, node in nodes if node is not None and node.pending]
        self.dropped += gone
        if gone and self.without_backward():
            # Ever another number: backward may follow on every tenth call.
            self.left_out = (self.dropped - _DROPPED[0]) % _MOST_LEFT_OUT
        if self.left_out:
            self.left_out -= 1
            return True
        return len(self.waiting) >= _WAITING

    def without_backward(self) -> bool:
        """Whether many recorded calls in a row had no backward."""
        return self.dropped >= _DROPPED[bool(self.recordings) and not self.confirmed]


class Recording:
    """A recording, and what it depends on.

    Args:
        replay: The recording, ready to run.
        guards: What the function can reach.
        gradients: Of the leaves it can reach, before the call.

    Attributes:
        rows: The number of its kernel calls.
    """

    def __init__(self, replay: Replay | SplitReplay, guards: Guards, gradients: list[Any]) -> None:
        self.replay = replay
        self.rows = len(replay.recorded.rows)
        self._leases = [replay.lease()] if isinstance(replay, SplitReplay) else []
        self._watched: Any = None  # the same for profilers, once one has watched
        self._ledger = backend(CPU).ledger
        self.guards = guards
        self.gradients = _layouts(gradients)
        self.leaves = [t for t in guards.tensors if t._requires_grad]
        if replay.program.backward_at is not None and not guards.names_gradients():
            # A model's forward, and a backward that leaves .grad to the engine.
            self.gradients, self.leaves = [], []
        self.memory = {id(memory_of(t)) for t in guards.tensors}
        self.written = _written(replay.program)

    def run(self, call: Call) -> Any:
        """Replay a call; return what the function would."""
        if not self._ledger.observers:
            return self.replay(call)
        if self._watched is None:
            self._watched = watched(self.replay)
            if isinstance(self._watched, SplitReplay):
                self._leases.append(self._watched.lease())
        return self._watched(call)

    def close(self) -> None:
        """Let go of the replay, unless a backward of it may still come."""
        if isinstance(self.replay, Replay):
            self.replay.close()
            if self._watched is not None:
                self._watched.close()

    def began_alike(self, gradients: list[Any]) -> bool:
        """True if leaves had such gradients before the call, or if it does not depend on them."""
        return not self.leaves or self.gradients == _layouts(gradients)

    def changed(self, call: Call) -> Any:
        """What is not as it was when the call was recorded."""
        change = self.guards.changed()
        if change is not None:
            return change
        if not all(map(_is_as_before, self.leaves, self.gradients)):
            return _GRADIENTS
        if not self.memory.isdisjoint(map(id, call.owners)):
            return _ALIASES
        if any(t._storage.pins for t in self.written):
            return _PINNED
        return None


def _written(program: StepProgram) -> list[Tensor]:
    # The tensors from outside whose bytes rows write.
    values = [program.values[n] for n in sorted(program.written())]
    outside = [v.tensor for v in values if v.kind == OUTSIDE and not v.is_gradient]
    return [program.tensors[k] for k in outside if k >= program.argument_count]


class _Elsewhere:
    # A change of something that is no variable.

    lasting = False

    def __init__(self, name: str) -> None:
        self.name = name


_GRADIENTS = _Elsewhere("which parameters have gradients")
_ALIASES = _Elsewhere("which arguments share memory with parameters")
_PINNED = _Elsewhere("which buffers a graph holds")


def _is_as_before(leaf: Tensor, before: Any) -> bool:
    # Whether a leaf has a gradient of the same layout, or none, as when the call was recorded.
    g = leaf._grad
    if g is None or before is None:
        return g is before
    spec, strides = before
    return g._spec is spec and g._array.strides == strides and is_plain_gradient(g)


def _layouts(gradients: list[Any]) -> list[Any]:
    return [None if g is None else (g._spec, g._array.strides) for g in gradients]


def gradients_of(tensors: list[Tensor]) -> list[Any]:
    """Return the gradients of those that require grad; None where there is none."""
    return [t._grad for t in tensors if t._requires_grad]
