"""MemoryProfiler: records the allocations of a program by owner.

This file begins and ends a recording, names what modules and optimizers hold, and sets marks; the
events themselves are ``profiling/record/event_log.py``.

An observer sees the bookings of all threads, or the sums would not be the ledger's; so a profiler
in one thread sees what the others allocate meanwhile, each under its own path and line.

What it keeps of the program are names, numbers, and weak references to modules.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import Counter
from collections.abc import Iterable
from typing import Any

from ..framework.attribution import scopes
from ..framework.device import device
from ..framework.devices import backend, live_backends, on_new_backend
from ..framework.distributed.waiting import waits
from ..framework.interrupts import WholeContext
from ..framework.tensor import Tensor
from .leaks.detect import detect_retained
from .leaks.waste import WasteWatch
from .profile import Profile
from .record import system_memory
from .record.event_log import IF_BEFORE, EventRecorder
from .record.recording import Mark, Recording
from .record.source_lines import texts
from .record.variable_names import called, leaves, names


class _UntimedWatch(detect_retained):
    """Leak detection whose walks through the process are no time of the program's."""

    def __init__(self, profiler: MemoryProfiler) -> None:
        super().__init__()
        self._profiler = weakref.ref(profiler)

    def _look_around(self, only_new: bool = False) -> None:
        profiler = self._profiler()
        if profiler is None:
            return
        with profiler._recorder.clock.paused():
            super()._look_around(only_new)


class MemoryProfiler(WholeContext, Profile):
    """Record the owner of every allocated byte over time, inside a ``with`` block.

    Args:
        devices: Names of the devices to watch; all, if None, those first used inside included.
        modules: How to name modules: a model, whose paths then have no prefix; or a dict of prefix
            and module. Without it the outermost module called gives the paths.
        lines: Note the user's source lines.
        timeline: Keep every event, for ``timeline()``, pictures and exports. Without it, memory
            does not grow with the length of the run (the marks' differences apart).
        sample_ms: Also look at process and devices every so many milliseconds, in a thread.
        leaks: Also watch for graphs and tensors that outlive their step, as ``detect_retained``
            does; they are in ``findings``, in the report and on the page. Notes source lines of
            all nodes.
        warn: Warn, once a line, of bytes that bought nothing (``profiling.MemoryWarning``): a
            forward without a backward or a graph retained without need, of a mebibyte and more;
            a parameter that an optimizer never had a gradient for. Not without ``lines``.

    Attributes:
        recording: What was noted so far; see ``profiling/record/recording.py``.

    Raises:
        RuntimeError: Entered a second time.
        TypeError: ``modules`` is or holds something else.
        ValueError: ``sample_ms`` is not positive.

    Example:
        >>> import lowtide as lt
        >>> x = lt.ones(1000, requires_grad=True)
        >>> with lt.profiling.MemoryProfiler() as prof:
        ...     loss = (x * x).sum()
        ...     del loss
        >>> prof.at_peak("role", phase="forward").as_dict()
        {'temporary': 4004}
    """

    def __init__(
        self,
        devices: Any = None,
        *,
        modules: Any = None,
        lines: bool = True,
        timeline: bool = True,
        sample_ms: float | None = None,
        leaks: bool = False,
        warn: bool = True,
    ) -> None:
        super().__init__(Recording(timeline=bool(timeline)))
        names = [devices] if isinstance(devices, str | device) else devices
        self._wanted = None if names is None else [device(d) for d in names]
        if modules is not None and not isinstance(modules, dict):
            modules = {"": modules}
        for prefix, module in (modules or {}).items():
            if not isinstance(prefix, str) or not hasattr(module, "named_modules"):
                raise TypeError(
                    "MemoryProfiler: modules is a module, or a dict of name and module; got "
                    f"{type(module).__name__} under {prefix!r}."
                )
        if sample_ms is not None and not sample_ms > 0:
            raise ValueError(f"MemoryProfiler: sample_ms is a positive number; got {sample_ms!r}.")
        self._given = [(weakref.ref(m), prefix) for prefix, m in (modules or {}).items()]
        self._lines = bool(lines)
        self._sample_ms = sample_ms
        self._waste = WasteWatch() if warn and lines else None  # a warning is of a line
        self._watch_leaks = _UntimedWatch(self) if leaks else None
        self._recorder = EventRecorder(self.recording, self._lines)
        self._modules: list[tuple[Any, str]] = []  # weak references of outermost modules
        self._optimizers: weakref.WeakSet[Any] = weakref.WeakSet()
        self._named: list[tuple[int, ...]] = []  # what was held when all had their names
        self._missed: Counter[int] = Counter()  # by address: how often a leaf there got no name
        self._steps = 0
        self._state = "new"
        self._end_sampling: threading.Event | None = None

    @property
    def recorder(self) -> EventRecorder:
        """The observer of the ledgers, for what asks while it records."""
        return self._recorder

    # Beginning and end

    def _enter(self) -> MemoryProfiler:
        self.start()
        return self

    def _leave(self) -> None:
        self.stop()

    def start(self) -> None:
        """Start recording; entering the ``with`` block does it."""
        if self._state != "new":
            raise RuntimeError(
                "MemoryProfiler: a profiler records once. Make another one for another stretch, "
                "and compare them with .diff()."
            )
        for d in self._wanted or ():
            backend(d)  # raises if it is not there
        self._state = "recording"
        self.recording.start = time.time()
        self._recorder = EventRecorder(self.recording, self._lines)  # its clock begins now
        self._recorder.clock.start()
        with self._recorder.lock:
            for be in live_backends():
                self._watch(be)
            on_new_backend.append(self._watch)
            self._mark("start", "start")
        scopes.listen(self._lines, **self._listeners())
        if self._watch_leaks is not None:
            self._watch_leaks._enter()
        if self._waste is not None:
            self._waste.start()
        for reference, prefix in self._given:
            module = reference()
            if module is not None:
                scopes.name_module(module, prefix)
                self._seen(module, prefix)
        if self._sample_ms is not None:
            self._sample(self._sample_ms / 1e3)

    def stop(self) -> None:
        """Stop recording; a second call does nothing."""
        if self._state != "recording":
            return
        self._state = "stopped"
        if self._end_sampling is not None:
            self._end_sampling.set()
        if self._watch_leaks is not None:
            self._watch_leaks._leave()
        self._note_findings()
        scopes.unlisten(self._lines, **self._listeners())
        on_new_backend.remove(self._watch)
        if self._waste is not None:
            self._waste.stop()
        self._name_modules()
        self._recorder.leave()
        self._mark("stop", "stop")
        self._recorder.clock.stop()
        self.recording.compilations = self._recorder.clock.compilations()
        self.settle()
        lines = {line for o in self.recording.owners for line in (o.line, *o.callers)}
        lines |= {f.line for f in self.recording.findings}
        self.recording.lines = texts(lines)
        names = self._parameter_names() if self._waste is not None else {}
        self._modules.clear()
        for d in self._recorder.accounts:
            d.backend = None
            d.named.clear()
        if self._waste is not None:  # last, for a warning may be an error
            self._waste.tell_rest(names)

    def _watch(self, be: Any) -> None:
        if self._wanted is None or be.device in self._wanted:
            self._recorder.watch(be)

    # What is noted

    def _listeners(self) -> dict[str, Any]:
        told = {
            "seen": self._seen,
            "stepped": self._stepped,
            "owned": self._owned,
            "began": self._began,
            "called": self._called,
            "replayed": self._name_leaves,
        }
        if self._waste is not None:
            told["made"] = self._waste.made
        return told

    def mark(self, name: str) -> None:
        """Mark a point in time with a name: ``prof.mark("epoch 1")``; ``growth`` compares marks.

        Outside of its ``with`` block it does nothing.

        Raises:
            TypeError: The name is no string.
        """
        if not isinstance(name, str):
            raise TypeError(f"MemoryProfiler.mark: a name is a string; got {name!r}.")
        if self._state == "recording":
            self._name_modules()
            self._mark(name, "mark")

    def _mark(self, name: str, kind: str) -> None:
        at = self._recorder.now()
        mark = Mark(name, kind, 0.0)  # its time comes with its bytes
        mark.probes = system_memory.look(d.backend for d in self._recorder.accounts)
        mark.late, mark.exchanging = dict(waits.late), waits.exchanging
        self.recording.place = waits.place
        self._recorder.mark(mark, at)

    def _stepped(self, optimizer: Any) -> None:
        # An optimizer made a step: all that is its state belongs to where its parameters belong.
        self._steps += 1
        if self._waste is not None:
            self._waste.stepped(optimizer)
        if optimizer not in self._optimizers or self._recorder.held() != self._named:
            self._optimizers.add(optimizer)
            self._name_modules()
            self._name_state(optimizer)
            self._named = self._recorder.held()
        self._mark(f"step {self._steps}", "step")

    def _owned(self, tensor: Any, parameter: Any) -> None:
        # State at its birth: a peak inside the first step has it where it belongs.
        path = self._recorder.path_of(parameter)
        if path is not None:
            self._recorder.name(tensor, path)

    def _began(self, root: Any) -> None:
        self._name_leaves(leaves(root))

    def _name_leaves(self, which: Iterable[Any]) -> None:
        # A backward begins: leaves that no module holds get the names of the program's variables.
        fresh = {
            id(leaf): leaf
            for leaf in which
            if self._recorder.path_of(leaf) is None and self._missed[leaf._storage.address] < 2
        }
        if fresh:
            found = names(fresh)
            for key, leaf in fresh.items():
                if key in found:
                    self._recorder.name(leaf, found[key])
                else:
                    self._missed[leaf._storage.address] += 1
            if found:
                self._name_states()

    def _called(self, module: Any) -> tuple[str, Any, bool] | None:
        # An outermost module is met: what it is called. Those beside it, such as a running average
        # of its weights, have their names before they are called, if they ever are.
        others: dict[str, Any] = {}
        told = called(module, others)
        known = {id(reference()) for reference, _ in self._modules}
        for name, other in others.items():
            if id(other) not in known:
                self._keep_named(other, name)
        return told

    def _seen(self, module: Any, prefix: str) -> None:
        # An outermost module: what it holds gets its path.
        self._keep_named(module, prefix)
        self._name_states()

    def _keep_named(self, module: Any, prefix: str) -> None:
        new = (weakref.ref(module), prefix)
        with self._recorder.lock:
            self._modules = [*(m for m in self._modules if m[0]() is not None), new]
        self._name_modules([new])

    def _name_modules(self, which: Any = None) -> None:
        for reference, prefix in self._modules if which is None else which:
            root = reference()
            for name, module in () if root is None else root.named_modules():
                path = f"{prefix}.{name}" if prefix and name else prefix or name
                path = path or type(root).__name__
                self.recording.classes.setdefault(path, type(module).__name__)
                for _, p in module.named_parameters(recurse=False):
                    self._recorder.name(p, path)
                    if which is not None and p._grad is not None:
                        self._recorder.name(p._grad, path, IF_BEFORE)
                for _, b in module.named_buffers(recurse=False):
                    self._recorder.name(b, path)

    def _parameter_names(self) -> dict[int, str]:
        found = {}
        for reference, prefix in self._modules:
            root = reference()
            for name, p in () if root is None else root.named_parameters():
                found[id(p)] = f"{prefix}.{name}" if prefix else name
        return found

    def _name_states(self) -> None:
        # Of optimizers that made steps before.
        for optimizer in list(scopes.optimizers):
            self._name_state(optimizer)

    def _name_state(self, optimizer: Any) -> None:
        for group in optimizer.param_groups:
            for p in group["params"]:
                path = self._recorder.path_of(p)
                if path is not None and p in optimizer.state:
                    self._name_all(optimizer.state[p], path)

    def _name_all(self, value: Any, path: str) -> None:
        if isinstance(value, Tensor):
            self._recorder.name(value, path)
        elif isinstance(value, dict):
            for v in value.values():
                self._name_all(v, path)
        elif isinstance(value, list | tuple):
            for v in value:
                self._name_all(v, path)

    def _note_findings(self) -> None:
        watch = self._watch_leaks
        if watch is not None:
            self.recording.findings, self.recording.watched = watch.findings, watch.steps

    def _sample(self, seconds: float) -> None:
        end = self._end_sampling = threading.Event()
        profiler = weakref.ref(self)

        def run() -> None:
            while not end.wait(seconds):
                prof = profiler()
                if prof is None or prof._state != "recording":
                    return
                prof._mark(f"sample {prof.seconds:.3f}", "sample")
                del prof

        threading.Thread(target=run, name="lowtide-sampler", daemon=True).start()

    @property
    def seconds(self) -> float:
        """Duration of the recording in seconds."""
        return self._recorder.seconds if self._state == "recording" else self.recording.seconds

    def settle(self) -> None:
        """Process the events recorded since the last query; every query calls it."""
        self._recorder.settle()
        if self._state == "recording":
            self.recording.seconds = self.seconds
            self.recording.compilations = self._recorder.clock.compilations()
            self._note_findings()
