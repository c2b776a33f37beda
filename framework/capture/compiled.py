"""``compile``: a function that is recorded at its second and third call, and replayed from then on.

The first call of a kind runs as ever: it makes plans, and state that optimizers make lazily. The
next two are recorded while they run. If both recordings agree (``agreement.py``), a later call is
replayed, provided that what the recording depended on is as it was; else it is recorded anew, a
bounded number of times. A statement of the function that cannot be recorded runs as it is written,
and what lies before and after it is recorded apart (``division/``). Where that cannot be, the whole
function runs as it is written. A warning says why, once.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Sequence
from types import FunctionType, MethodType
from typing import Any

from .. import execution
from ..device import device
from ..errors import CaptureError
from ..modes import local
from ..ops.autocast_policy import thread
from .agreement import disagreement
from .call import Call, Inside, changed_by, may_replay, memory_of, stance
from .checking import Snapshot, checked
from .guards import Guards
from .kinds import Kinds
from .partial_sums import is_plain_gradient
from .pieces import InPieces
from .program import StepProgram
from .pythons_generators import drawn_from, states_of
from .recorder import Recorder
from .recording_backward import RecordingBackward
from .recordings import Kind, Recording, gradients_of
from .replay import Replay
from .reporting import described, name_of, warn
from .returned_numbers import with_numbers
from .split_replay import Layouts, SplitReplay
from .trail import Step, changing, steps_to_attribute
from .value_reads import ValueChanged, lines_of_reads
from .walk import CannotCompare

CPU = device("cpu")
MOST_RECORDINGS = 8  # of one kind of call; PyTorch's limit of recompilations
_NO_BACKWARD = "its results require grad, and no backward follows (call it under no_grad)"
_NEEDS_GRAPH = "its backward has to run it again: for second derivatives, or other gradients"
_MISSES = 8  # undone replays, from which on they have to be fewer than the others
_READ = "a number that Python reads (item)"
_FEWEST_ROWS = {False: 3, True: 7}  # whether with a backward: fewer are faster as written
_ATTEMPTS = 2  # recordings of a kind that may fail because Python's state changed in the call


class CompiledFunction(InPieces):
    """A function whose kernel calls are recorded and replayed.

    Args:
        function: The function.
        fullgraph: Raise where it cannot be recorded, instead of running it as it is written.
        check: Every so many replays run both ways, and are compared; 0: none.
        module: The module whose calls it makes, if it makes one's.

    Attributes:
        function: The function as it is written.
        replays: Calls that were replayed.
        recordings: Calls that were recorded.
        quiet: Do not warn.
        reasons: Why calls ran as written: a text for each kind of call that cannot be recorded.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        fullgraph: bool = False,
        check: int = 0,
        module: Any = None,
    ) -> None:
        super().__init__(check, module)
        functools.update_wrapper(self, function, updated=())
        self.function = function
        self.fullgraph = fullgraph
        self.replays = 0
        self.recordings = 0
        self.reasons: list[str] = []
        self.quiet = False
        self._kinds = Kinds()
        self._name = name_of(function)
        self._divisible = not fullgraph and isinstance(function, FunctionType | MethodType)
        self._lock = threading.Lock()

    def __get__(self, owner: Any, cls: Any = None) -> Any:
        """Bind a method: each object has separate recordings."""
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
        if stance[0] != "default":
            return self.function(*args, **kwargs)
        state = local.state
        inner, state.inner = state.inner, None
        state.compiling += 1
        try:
            if self._small or not may_replay() or not self._lock.acquire(blocking=False):
                if state.capture is not None and self._divided is not None:
                    state.capture.refuse("it calls a function that is recorded in pieces")
                return self.function(*args, **kwargs)
            try:
                if self._divided is not None:
                    return self._call_pieces(self._divided, args, kwargs)
                return self._call(args, kwargs)
            finally:
                self._lock.release()
        finally:
            state.compiling -= 1
            state.inner = inner

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        call = Call(self.function, args, kwargs, self.module)
        if call.reason is not None:
            return self._as_written(call.reason, args, kwargs)
        kind = self._kinds.of(call)
        if kind is None:
            kind = self._kinds.begin(call)
            if kind is None:
                return self._as_written("it is called in another way each time", args, kwargs)
            return self._begin(kind, call, args, kwargs)
        if kind.reason is None and kind.needs_graph():
            self._note_refusal(kind, _NEEDS_GRAPH)
        if kind.reason is not None:
            self._note(kind.reason)
            return self._call_inner(args, kwargs)
        holding: list[Recording] = []
        for recording in kind.usable():
            change = recording.changed(call)
            if change is None:
                holding.append(recording)
            if change is None and kind.confirmed:
                call.guards = recording.guards
                try:
                    result = self._replayed(recording, call)
                except ValueChanged:
                    kind.misses += 1
                    kind.last_change = _READ
                    continue
                kind.hits += 1
                return result
            if change is not None and change.lasting:
                kind.recordings.remove(recording)
                recording.close()
            kind.last_change = kind.last_change if change is None else change.name
        if kind.misses > _MISSES and kind.misses > kind.hits:
            reads = {n for r in kind.recordings for n in lines_of_reads(r.replay.recorded)}
            return self._refused(kind, f"{_READ} changes too often", args, kwargs, lines=reads)
        if not execution.current.computes:  # there is nothing to record in an estimate
            return self.function(*args, **kwargs)
        waits = kind.waits()
        if kind.without_backward() and _NO_BACKWARD not in self.reasons:
            self._note(_NO_BACKWARD)
        if waits or not self._kinds.make_room(kind):
            return self.function(*args, **kwargs)
        return self._record(kind, call, holding, args, kwargs)

    def _begin(self, kind: Kind, call: Call, args: Any, kwargs: Any) -> Any:
        # The first call of a kind.
        if self._presumed:
            kind.reason, self._presumed = self._presumed, ""
            self._note(kind.reason)
            return self._call_inner(args, kwargs)
        tell = changed_by(call.tensors)
        try:
            result = self.function(*args, **kwargs)
        finally:
            reason = tell()
        if reason is None or not self._set_apart(reason, reads=self._in_graphs(args, kwargs)):
            kind.reason = reason
            self._note_arguments(args, kwargs)
        return result

    def _replayed(self, recording: Recording, call: Call) -> Any:
        self.replays += 1
        try:
            if self.check and self.replays % self.check == 0:
                return self._checked(recording, call)
            return recording.run(call)
        except ValueChanged:
            self.replays -= 1
            raise

    def _checked(self, recording: Recording, call: Call) -> Any:
        replay = recording.replay
        snapshot = functools.partial(Snapshot, call.tensors, recording.guards, replay.program)
        return checked(call.again, functools.partial(replay, call), snapshot)

    def _record(
        self, kind: Kind, call: Call, holding: list[Recording], args: Any, kwargs: Any
    ) -> Any:
        again = bool(holding) and not kind.confirmed
        many = len(holding) if again else kind.recorded
        if many >= MOST_RECORDINGS:
            often = f"it was recorded {kind.recorded} times: {kind.last_change} changes"
            trail = steps_to_attribute(self.module, kind.last_change)
            return self._refused(kind, often, args, kwargs, trail, **changing(kind.last_change))
        try:
            without = (*self._around, *call.gathered.tensors)
            guards = Guards(self.function, call.others, without)
        except CannotCompare as error:
            return self._refused(kind, str(error), args, kwargs, names=error.names)
        before = states_of(guards)
        gradients = gradients_of(guards.tensors)
        inside = Inside(call)
        recorder = Recorder(inside.tensors, guards, call.gathered.tensors)
        recorder.sees_result = isinstance(call.again.func, FunctionType | MethodType)
        recorder.code = getattr(call.again.func, "__code__", None) if self._divisible else None
        recorder.caller = _RECORD
        if any(id(o) in {id(memory_of(t)) for t in guards.tensors} for o in call.owners):
            recorder.refuse("an argument shares memory with a tensor that it finds elsewhere")
        if len(gradients) and not all(is_plain_gradient(g) for g in gradients if g is not None):
            recorder.refuse("a gradient is sparse, sharded, or not contiguous")
        casts, thread.cache = thread.cache, {}  # weights that others converted are not in the call
        try:
            with recorder:
                result = inside.function()
                thread.cache = casts  # the recorder sees the call's own ones go
        finally:
            thread.cache = casts
        for why in inside.found(result, call):
            recorder.refuse(why)
        recorder.finish(result)
        if self._divisible and self._acts(recorder, args, kwargs):
            inside.join(result)
            return inside.returned(with_numbers(result) if recorder.numbers else result)
        sources = recorder.sources() if recorder.outputs and recorder.reason is None else []
        keep = functools.partial(self._keep, kind, guards, gradients, holding)
        reason = self._why_not(kind, recorder, guards, before, again)
        if reason is not None or not recorder.outputs:
            inside.join(result)
        if reason is None and recorder.outputs:
            numbers = recorder.program.sources
            outer = [
                call.tensors[k] if k < len(call.tensors) else recorder.program.tensors[k]
                for k in numbers
            ]
            node = RecordingBackward(recorder, sources, outer, keep)
            kind.waiting.append(weakref.ref(node))
        elif reason is None:
            keep(recorder.program)
        elif reason:
            self._note_end(kind, reason, recorder, result)
        return inside.returned(with_numbers(result) if recorder.numbers else result)

    def _note_end(self, kind: Kind, reason: str, recorder: Recorder, result: Any) -> None:
        which: dict[str, Any] = {"returns": recorder.by_result}
        which["lines"] = () if recorder.own_line is None else (recorder.own_line,)
        trail = recorder.trail
        if recorder.wrong_result is not None:
            which["changes"] = self._assigned(result, recorder.wrong_result)
        elif recorder.reason is None:
            which |= changing(kind.last_change)
            trail = steps_to_attribute(self.module, kind.last_change)
        self._note_refusal(kind, reason, recorder.line, trail, **which)

    def _why_not(
        self, kind: Kind, recorder: Recorder, guards: Guards, before: Any, again: bool
    ) -> str | None:
        # Why a recorded call will not be replayed; None if it will, "" if the next may be.
        if recorder.reason is not None:
            return recorder.reason
        drawn = drawn_from(guards, before)
        if drawn is not None:
            return f"it draws from {drawn}"
        changed = None if again else guards.changed()
        if changed is None:
            return None
        kind.attempts += 1
        kind.last_change = changed.name
        return f"it changes {changed.name} in each call" if kind.attempts >= _ATTEMPTS else ""

    def _keep(
        self,
        kind: Kind,
        guards: Guards,
        gradients: Any,
        holding: list[Recording],
        program: StepProgram | str,
        layouts: Layouts | None = None,
    ) -> None:
        # `program`: or the reason why there is none. `layouts`: of the gradients from which its
        # backward was run later.
        kind.dropped = 0
        if isinstance(program, str):
            self._note_refusal(kind, program)
            return
        # Recordings that held for this call; of a model, those of other calls of the step, too.
        later = program.backward_at is not None
        alike = [r for r in kind.recordings if r.replay.begins_with(layouts)]
        alike = [
            r
            for r in alike
            if r in holding or (later and r.began_alike(gradients) and not r.guards.changed())
        ]
        found = [disagreement(r.replay.recorded, program) for r in alike]
        if None in found:
            kind.confirmed = True
            self._small |= self._is_inner and len(program.rows) < _FEWEST_ROWS[later]
            return  # the other one stays
        reasons = [d for d in found if d is not None and not d.branch]
        if len(reasons) < len(found):
            kind.last_change = _READ
        if reasons and not kind.confirmed:
            line = program.lines.get(reasons[0].entry)
            self._note_refusal(kind, reasons[0].reason, lines=() if line is None else (line,))
            return
        self.recordings += 1
        kind.recorded += 1
        replay = Replay(program) if layouts is None else SplitReplay(program, layouts)
        kind.add(Recording(replay, guards, gradients))

    # What cannot be recorded

    def _refused(
        self,
        kind: Kind,
        reason: str,
        args: Any,
        kwargs: Any,
        trail: Sequence[Step] = (),
        **which: Any,
    ) -> Any:
        self._note_refusal(kind, reason, None, trail, **which)
        return self.function(*args, **kwargs)

    def _as_written(self, reason: str, args: Any, kwargs: Any) -> Any:
        self._note(reason)
        return self.function(*args, **kwargs)

    def _note_refusal(
        self,
        kind: Kind,
        reason: str,
        line: str | None = None,
        trail: Sequence[Step] = (),
        **which: Any,
    ) -> None:
        # ``trail``: the modules that cannot be recorded either. ``which``: what tells the
        # statements that are at fault (DividedFunction.set_apart).
        if self._set_apart(reason, trail, **which):
            return
        self.inner.expect(reason, trail)
        kind.reason = f"{reason} at {line}" if line else reason
        inside = "Modules that it calls are recorded, where they can be: see compiler.explain."
        self._note(kind.reason, f" {inside}")

    def _note(self, reason: str, more: str = "") -> None:
        if self.fullgraph:
            raise CaptureError(f"compile: {self._name} cannot be recorded: {reason}.")
        self._warn(reason, f"{self._name} runs as it is written: {reason}.{more}")

    def _warn(self, reason: str, text: str) -> None:
        if reason in self.reasons:
            return
        self.reasons.append(reason)
        if not self.quiet:
            warn(f"compile: {text}")

    def forget(self) -> None:
        """Forget all recordings, and the reasons of those that failed."""
        with self._lock:
            self._kinds.clear()
            self._arguments.clear()
            self._cut = self._divided = None
            self.inner.forget()
            self.recordings = 0
            self.reasons.clear()
            self._small = False

    @property
    def apart(self) -> int:
        """How many statements run as they are written while others are recorded."""
        return 0 if self._divided is None else len(self._divided.apart)

    def progress(self) -> int:
        """A number that grows while it is being found out what can be recorded."""
        attempts = sum(kind.attempts for kind in self._kinds.values())
        inside: int = sum(1 + part.progress() for part in self.parts())
        return self.apart + attempts + inside

    def explain(self) -> str:
        """Return what was recorded, and why other calls run as they are written."""
        lines = [f"{self._name}: {self.recordings} recorded, {self.replays} replayed"]
        for kind in self._kinds.values():
            lines += described(kind)
        lines += [f"  not recorded: {reason}" for reason in self.reasons]
        if self._small:
            lines.append("  runs as it is written: a replay of so few kernel calls takes longer")
        for part in self.parts():
            lines += [f"  {line}" for line in part.explain().splitlines()]
        return "\n".join(lines)

    def __del__(self) -> None:
        if hasattr(self, "_kinds"):  # an interrupt may have come before that
            self._kinds.close()

    def __reduce__(self) -> Any:
        return type(self), (self.function, self.fullgraph, self.check)  # a copy begins anew

    def __repr__(self) -> str:
        return f"<compiled {self.function!r}>"


_RECORD = CompiledFunction._record.__code__
