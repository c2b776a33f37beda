"""``compile``: a function that is recorded at its second call and replayed from the third on.

The first call of a kind runs as ever: it makes plans, and state that optimizers make lazily. The
second is recorded while it runs. A later one is replayed if what the recording depended on is as it
was; else it is recorded anew, a bounded number of times. Whatever cannot be recorded runs as it is
written, and a warning says why, once.
"""

from __future__ import annotations

import functools
import random
import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from .. import execution
from ..attribution import scopes
from ..attribution.frames import is_ours
from ..device import device
from ..devices import backend
from ..dtypes import get_default_dtype
from ..errors import CaptureError, CaptureWarning
from ..interop.pytree import tree_flatten
from ..modes import local
from ..ops.autocast_policy import thread
from ..storage import Storage
from ..tensor import Tensor
from .checking import Snapshot, checked
from .guards import Guards
from .program import Value
from .recorder import Recorder, owner_of
from .recording_backward import RecordingBackward
from .replay import Replay

CPU = device("cpu")
MOST_RECORDINGS = 8  # of one function; PyTorch's limit of recompilations
_ATTEMPTS = 3  # recordings of a kind that may fail because Python's state changed in the call


class CompiledFunction:
    """A function whose kernel calls are recorded and replayed.

    Args:
        function: The function.
        fullgraph: Raise where it cannot be recorded, instead of running it as it is written.
        check: Every so many replays run both ways, and are compared; 0: none.

    Attributes:
        function: The function as it is written.
        replays: Calls that were replayed.
        recordings: Calls that were recorded.
        quiet: Do not warn.
        reasons: Why calls ran as written: a text for each kind of call that cannot be recorded.
    """

    def __init__(
        self, function: Callable[..., Any], fullgraph: bool = False, check: int = 0
    ) -> None:
        functools.update_wrapper(self, function, updated=())
        self.function = function
        self.fullgraph = fullgraph
        self.check = check
        self.replays = 0
        self.recordings = 0
        self.reasons: list[str] = []
        self.quiet = False
        self._kinds: dict[Any, _Kind] = {}
        self._lock = threading.Lock()

    def __get__(self, owner: Any, cls: Any = None) -> Any:
        """Bind a method: each object has recordings of its own."""
        if owner is None:
            return self
        own = owner.__dict__.setdefault("_compiled_methods", {})
        name = self.function.__name__
        if name not in own:
            bound = self.function.__get__(owner, cls)
            own[name] = CompiledFunction(bound, self.fullgraph, self.check)
        return own[name]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Replay the function if a recording holds for this call; else run it."""
        if not _may_replay() or not self._lock.acquire(blocking=False):
            return self.function(*args, **kwargs)
        try:
            return self._call(args, kwargs)
        finally:
            self._lock.release()

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        call = _Call(self.function, args, kwargs)
        if call.reason is not None:
            return self._as_written(call.reason, args, kwargs)
        kind = self._kinds.get(call.key)
        if kind is None:
            if len(self._kinds) > 8 * MOST_RECORDINGS:
                return self._as_written("it is called in too many ways", args, kwargs)
            self._kinds[call.key] = _Kind()
            return self.function(*args, **kwargs)
        if kind.reason is not None:
            return self._as_written(kind.reason, args, kwargs)
        for recording in list(kind.recordings):
            change = recording.changed(call)
            if change is None:
                self.replays += 1
                if self.check and self.replays % self.check == 0:
                    return self._checked(recording, call)
                return recording.replay(call)
            if change.lasting:
                kind.recordings.remove(recording)
            kind.last_change = change.name
        return self._record(kind, call, args, kwargs)

    def _checked(self, recording: _Recording, call: _Call) -> Any:
        replay = recording.replay
        snapshot = functools.partial(Snapshot, call.tensors, recording.guards, replay.program)
        return checked(call.again, functools.partial(replay, call), snapshot)

    def _record(self, kind: _Kind, call: _Call, args: Any, kwargs: Any) -> Any:
        if self.recordings >= MOST_RECORDINGS:
            reason = f"it was recorded {self.recordings} times: {kind.last_change} changes"
            return self._refused(kind, reason, args, kwargs)
        try:
            guards = Guards(self.function, call.others)
        except CaptureError as error:
            return self._refused(kind, str(error), args, kwargs)
        before = _python_randomness()
        gradients = _gradients(guards.tensors)
        recorder = Recorder(call.tensors, guards)
        if any(id(o) in {id(_memory(t)) for t in guards.tensors} for o in call.owners):
            recorder.refuse("an argument shares memory with a tensor that it finds elsewhere")
        if len(gradients) and not all(_is_plain_gradient(g) for g in gradients if g is not None):
            recorder.refuse("a gradient is sparse, or not contiguous")
        casts, thread.cache = thread.cache, {}  # weights that others converted are not in the call
        try:
            with recorder:
                result = self.function(*args, **kwargs)
                thread.cache = casts  # the recorder sees the call's own ones go
        finally:
            thread.cache = casts
        program = recorder.finish(result)
        changed = guards.changed()
        if program is not None and recorder.outputs:
            kind.waiting += 1
            if kind.waiting > _ATTEMPTS:
                recorder.refuse("its results require grad, and no backward follows")
        sources = recorder.sources() if recorder.outputs and recorder.reason is None else []
        if recorder.reason is not None:
            where = f" at {recorder.line}" if recorder.line else ""
            self._note_refusal(kind, f"{recorder.reason}{where}")
        elif not _same_randomness(before, _python_randomness()):
            self._note_refusal(kind, "it draws from Python's or NumPy's random generator")
        elif changed is not None:
            kind.attempts += 1
            if kind.attempts >= _ATTEMPTS:
                self._note_refusal(kind, f"it changes {changed.name} in each call")
        elif recorder.outputs:
            keep = functools.partial(self._keep, kind, guards, gradients)
            RecordingBackward(recorder, sources, keep)
        else:
            self._keep(kind, guards, gradients, Replay(program))
        return result

    def _keep(self, kind: _Kind, guards: Guards, gradients: Any, replay: Any) -> None:
        kind.waiting = 0
        if isinstance(replay, str):
            self._note_refusal(kind, replay)
            return
        self.recordings += 1
        kind.recordings.insert(0, _Recording(replay, guards, gradients))

    def _refused(self, kind: _Kind, reason: str, args: Any, kwargs: Any) -> Any:
        self._note_refusal(kind, reason)
        return self.function(*args, **kwargs)

    def _as_written(self, reason: str, args: Any, kwargs: Any) -> Any:
        self._note(reason)
        return self.function(*args, **kwargs)

    def _note_refusal(self, kind: _Kind, reason: str) -> None:
        kind.reason = reason
        self._note(reason)

    def _note(self, reason: str) -> None:
        name = name_of(self.function)
        if self.fullgraph:
            raise CaptureError(f"compile: {name} cannot be recorded: {reason}.")
        if reason not in self.reasons:
            self.reasons.append(reason)
            if self.quiet:
                return
            level = 2
            while is_ours(sys._getframe(level - 1).f_code.co_filename):
                level += 1
            warnings.warn(
                f"compile: {name} runs as it is written: {reason}.", CaptureWarning, level
            )

    def forget(self) -> None:
        """Forget all recordings, and the reasons of those that failed."""
        with self._lock:
            self._kinds.clear()
            self.recordings = 0
            self.reasons.clear()

    def explain(self) -> str:
        """Return what was recorded, and why other calls run as they are written."""
        name = name_of(self.function)
        lines = [f"{name}: {self.recordings} recorded, {self.replays} replayed"]
        for kind in self._kinds.values():
            lines += [recording.replay.describe() for recording in kind.recordings]
        lines += [f"  not recorded: {reason}" for reason in self.reasons]
        return "\n".join(lines)

    def __reduce__(self) -> Any:
        return type(self), (self.function, self.fullgraph, self.check)  # a copy begins anew

    def __repr__(self) -> str:
        return f"<compiled {self.function!r}>"


class _Kind:
    # Calls with arguments of the same specs, in the same modes.

    def __init__(self) -> None:
        self.recordings: list[_Recording] = []
        self.reason: str | None = None
        self.attempts = 0
        self.waiting = 0  # recordings whose backward has not come
        self.last_change = "something"


class _Call:
    # A call's tensors, the other arguments, and the key that both have to match.

    def __init__(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self.again = functools.partial(function, *args, **kwargs)
        self.reason: str | None = None
        self.tensors: list[Tensor] = []
        self.others: list[Any] = []
        key: list[Any] = []
        leaves, structure = ([*args], len(args)) if not kwargs else tree_flatten((args, kwargs))
        if not kwargs and not all(type(x) is Tensor for x in args):
            leaves, structure = tree_flatten(args)
        for x in leaves:
            if not isinstance(x, Tensor):
                self.others.append(x)
                key.append((type(x), x if isinstance(x, _COMPARED) else id(x)))
                continue
            array = x._array
            if type(x) is not Tensor or x._extra is not None or x._spec.device.type != "cpu":
                self.reason = "an argument is no plain tensor of the CPU"
                return
            if x._spec.runs is not None:
                self.reason = "an argument is sparse"
                return
            storage = x._storage.root
            if not (isinstance(storage, Storage) or array.flags.c_contiguous):
                self.reason = "an argument is a NumPy array that is not contiguous"
                return
            self.tensors.append(x)
            key.append((x._spec, array.strides, x._requires_grad))
        self.owners = [_memory(t) for t in self.tensors]
        if len(self.owners) > 1:
            key.append(self._aliasing())
        self.key = (structure, *key, _modes())

    def _aliasing(self) -> Any:
        # Which tensors share memory, and how far apart they lie in it.
        ids = [id(o) for o in self.owners]
        if len(set(ids)) == len(ids):
            return None
        first = [ids.index(i) for i in ids]
        at = [int(t._array.__array_interface__["data"][0]) for t in self.tensors]
        return tuple((k, at[n] - at[k]) for n, k in enumerate(first))


_COMPARED = (bool, int, float, complex, str, bytes, type(None))


class _Recording:
    # A recording, and what it depends on.

    def __init__(self, replay: Replay, guards: Guards, gradients: list[Any]) -> None:
        self.replay = replay
        self.guards = guards
        self.gradients = [None if g is None else (g._spec, g._array.strides) for g in gradients]
        self.leaves = [t for t in guards.tensors if t._requires_grad]
        self.memory = {id(_memory(t)) for t in guards.tensors}
        self.written = [
            t for t in map(self._holder, replay.program.values) if t is not None
        ]  # fmt: skip

    def _holder(self, value: Value) -> Any:
        # The tensor from outside whose bytes a row writes.
        program = self.replay.program
        if value.tensor < program.argument_count or value.is_gradient:
            return None
        if not any(value.number in row.written for row in program.rows):
            return None
        return program.tensors[value.tensor]

    def changed(self, call: _Call) -> Any:
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
    return g._spec is spec and g._array.strides == strides and _is_plain_gradient(g)


def _gradients(tensors: list[Tensor]) -> list[Any]:
    return [t._grad for t in tensors if t._requires_grad]


def _is_plain_gradient(g: Any) -> bool:
    return (
        isinstance(g._storage.root, Storage)
        and g._spec.runs is None
        and not g._requires_grad
        and g._extra is None
        and g._viewed is None
    )


def _memory(t: Tensor) -> Any:
    # Who owns the bytes of a tensor.
    return owner_of(t._array)


def _may_replay() -> bool:
    # Outside of what changes how calls run: regions, profilers, budgets, estimates, vmap.
    state = local.state
    ledger = backend(CPU).ledger
    return (
        state.capture is None
        and state.saver is None
        and state.recorder is None
        and state.dependence is None
        and state.running is None
        and state.function is None
        and not state.levels
        and not state.anomaly
        and not ledger.observers
        and not ledger.budgets
        and type(execution.current) is execution.Executor
        and not scopes.listening()
    )


def _modes() -> tuple[Any, ...]:
    state = local.state
    autocast = None if state.autocast is None else tuple(sorted(state.autocast.items()))
    others = tuple(ask() for ask in _settings)
    return state.grad, state.inference, autocast, get_default_dtype(), others


def name_of(function: Any) -> str:
    """Return the name of a function; of a module's call, that of its class."""
    if isinstance(function, functools.partial):
        return type(function.args[0]).__name__ if function.args else name_of(function.func)
    return getattr(function, "__qualname__", type(function).__name__)


_settings: list[Callable[[], Any]] = []


def depends_on(ask: Callable[[], Any]) -> None:
    """Let recordings hold only while ``ask()`` returns the same: a setting of all modules."""
    _settings.append(ask)


def _python_randomness() -> tuple[Any, Any]:
    return random.getstate(), np.random.get_state()  # noqa: NPY002 - programs draw from it


def _same_randomness(a: Any, b: Any) -> bool:
    return a[0] == b[0] and all(np.array_equal(x, y) for x, y in zip(a[1], b[1], strict=True))
