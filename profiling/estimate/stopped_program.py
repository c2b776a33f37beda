"""A program as it is, stopped where its training step begins, and copied for each question.

A program, such as a script, is no function that can be called again. It runs in a forked copy
without kernels, up to the first call of a module that is to be trained. There the process is forked
once more for each change: the change is made, and the program goes on until its optimizer has made
three steps, the first with all that is fresh, the others with what stays. Then the copy tells its
peaks and ends, and the program itself still stands where it stood.

The models and optimizers are those that the program's variables hold there, in the functions that
are being called. The batch is what the module is called with, and each tensor in a variable with as
many rows; another number of rows is made at each call, as if the program had drawn it.
"""

from __future__ import annotations

import inspect
import runpy
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from ...framework.attribution import scopes
from ...framework.autograd.hooks import register_post_accumulate_hook
from ...framework.devices import live_backends, on_new_backend
from ...framework.modes import local
from ...framework.tensor import Tensor
from ..leaks.detect import detect_retained
from ..profiler import MemoryProfiler
from . import fake_kernels
from .advice_request import ProgramRaised
from .batches import Resized, tensors_in
from .changes import Change
from .estimate import Estimate, figures_of, split_steps
from .fake_values import is_ours
from .fork_sandbox import Branch, branched
from .proposals import Run
from .targets import models_among, optimizers_among, parameters_of

STEPS = 3  # of the optimizer that steps first, after which a copy has seen enough
WATCHED, PATIENCE = 24, 10.0  # steps, or seconds, for which it is watched whether a run grows

OnCall = Callable[[Callable[[Any, Any], None]], Any]


class _GoesOn(BaseException):
    """In a copy: back to where the program stands, to make changes and go on."""

    def __init__(self, changes: list[Change], branch: Branch, steps: int = STEPS) -> None:
        super().__init__()
        self.changes, self.branch, self.steps = changes, branch, steps


class StoppedProgram:
    """A program that stands where its training step begins, in a copy of the process.

    Args:
        asked: The copy.
        name: Of what is asked, for errors.
        program: Runs it from its start to its end.
        on_call: Registers a function of (module, args), called before any module's forward.
        question: Called with this where the program stands; what it returns is the answer.
        gpu: Bytes of a GPU that the program shall find, whether there is one or not.

    Attributes:
        roots: The outermost modules, by name.
        optimizers: The optimizers, by name.
        rows: The rows of the batch; 0 if it is not known.
        batch: Its tensors, by path.
    """

    def __init__(
        self,
        asked: Branch,
        name: str,
        program: Any,
        on_call: OnCall,
        question: Callable[[StoppedProgram], Any],
        gpu: int | None = None,
    ) -> None:
        self.asked, self.name = asked, name
        self.program, self.on_call = program, on_call
        self.question, self.gpu = question, gpu
        self.rows = 0
        self.batch: dict[str, Tensor] = {}
        self.optimizers: dict[str, Any] = {}
        self.branch: Branch | None = None  # of the copy for a change, if this process is one
        self.roots: Any = {}
        self.changes: list[Change] = []
        self.steps: Counter[int] = Counter()
        self.until = STEPS
        self.live: list[dict[str, int]] = []  # bytes of each device, after each step
        self.reached: set[str] = set()
        self.watch = detect_retained()
        self.start: dict[int, tuple[int, int]] = {}
        self.limits = {str(be.device): be.ledger.limit for be in live_backends()}

    def run(self) -> None:
        """Run the program, in the copy, which ends with the answer.

        Raises:
            ValueError: The program calls no module with a parameter to train.
            Exception: What the program raises.
        """
        self.executor = fake_kernels.begin()
        if self.gpu is not None:
            self.executor.imagine_gpu(self.gpu)
        for be in live_backends():
            be.ledger.observers = ()
        self.on_call(self._called)
        try:
            self.program()
        except BaseException as error:
            if self.branch is not None:
                self.branch.fail(error)
            raise
        if self.branch is not None:  # it ended before so many steps
            self._tell()
        raise ValueError(
            f"{self.name}: the program calls no module with a parameter to train, so there is no "
            "step to change. Train a model in it, or run `lowtide estimate`."
        )

    # Where the step begins

    def _called(self, module: Any, args: Any) -> None:
        if self.branch is not None:
            if any(module is root for root in self.roots.values()):
                self._resize(args)
            return
        if not local.state.grad or not any(p.requires_grad for p in module.parameters()):
            return
        frames = list(_frames())
        self.roots = models_among(_variables(frames), frames[0].f_globals if frames else {})
        self.roots.tensors = {}  # a batch of before among them
        if not any(m is module for root in self.roots.values() for m in root.modules()):
            self.roots["model"] = module
        try:
            self._ask(frames, args)
        except _GoesOn as copy:
            self._go_on(copy, module, args)
        except Exception as error:  # of a question that makes no sense
            (self.branch or self.asked).fail(error)

    def _ask(self, frames: list[Any], args: Any) -> None:
        first = next((t for _, t in tensors_in("input", list(args)) if t.dim()), None)
        self.rows = 0 if first is None else int(first.shape[0])
        rows = self.rows
        self.batch = {n: t for n, t in self._batch(frames, args, rows) if rows}
        self.optimizers = optimizers_among(_variables(frames))
        self.asked.give(self.question(self))  # the program need not go on

    def estimate(self, changes: list[Change]) -> tuple[Estimate, list[str]]:
        """Estimate the step with some changes.

        Returns:
            The estimate, and the names of the parameters that gradients reached.

        Raises:
            ProgramRaised: The program does not run so.
        """
        with branched() as branch:
            if branch.pid == 0:
                branch.begin()
                raise _GoesOn(changes, branch)
            try:
                return branch.answer()  # type: ignore[no-any-return]
            except SystemExit as stop:  # with the program's traceback, of which the end says most
                raise ProgramRaised(str(stop).rstrip().rpartition("\n")[2]) from None

    def resized(self, rows: int) -> Change:
        """Return the change to a batch of so many rows."""
        return _Redrawn(self.rows, rows)

    def longer_run(self, device: str) -> Run | None:
        """Find out whether what lives after a step grows.

        Returns:
            None if the program does not go on so far.
        """
        with branched() as branch:
            if branch.pid == 0:
                branch.begin()
                raise _GoesOn([], branch, WATCHED)
            try:
                live, peaks, found = branch.answer()
            except (Exception, SystemExit):  # what is wrong with the program, its estimate says
                return None
        after = [found.get(device, 0) for found in live]
        half = len(after) // 2
        steps = len(after) - 1 - half
        grown = max(0, (after[-1] - after[half]) // steps) if steps > 0 else 0
        return Run(len(after), peaks.get(device, 0), grown, found)

    # In a copy

    def _go_on(self, copy: _GoesOn, module: Any, args: Any) -> None:
        self.branch, self.changes, self.until = copy.branch, copy.changes, copy.steps
        self.batch = {}  # which lives as long as the program wants it to
        self.began = time.monotonic()
        shared_out = any(change.calls_anew for change in self.changes)
        for name, p in parameters_of(self.roots):
            # Not if ranks share the step out: gradients with hooks are reduced one by one.
            if p.requires_grad and p._node is None and not shared_out:
                register_post_accumulate_hook(p, lambda _, name=name: self.reached.add(name))
        for change in self.changes:
            change.make()
        if shared_out:
            _call_anew(module)
        self._resize(args)
        self.executor.forget()
        for be in live_backends():
            self._watch(be)
        on_new_backend.append(self._watch)
        self.prof = MemoryProfiler()
        self.prof.__enter__()
        if self.until != STEPS:  # who holds what grows
            self.watch.__enter__()
        scopes.listen(False, stepped=self._stepped)

    def _watch(self, be: Any) -> None:
        be.ledger.reset_peak()
        be.pool.reset_peak()
        self.start[id(be)] = be.ledger.live, be.ledger.allocations

    def _stepped(self, optimizer: Any) -> None:
        self.steps[id(optimizer)] += 1
        if self.until == STEPS:
            if self.steps[id(optimizer)] == STEPS:
                self._tell()
        elif id(optimizer) == next(iter(self.steps)):
            self.live.append({str(be.device): be.ledger.live for be in live_backends()})
            if len(self.live) == self.until or time.monotonic() - self.began > PATIENCE:
                self._tell()

    def _tell(self) -> None:
        # The figures, to the process that asks; then this one ends.
        assert self.branch is not None
        if self.until != STEPS:
            self.watch.__exit__(None, None, None)
            peaks = {str(b.device): b.ledger.peak for b in live_backends()}
            self.branch.give((self.live, peaks, tuple(self.watch.findings)))
        try:
            for change in self.changes:
                change.check()
            self.prof.__exit__(None, None, None)
            recording = self.prof.recording
            found = [
                split_steps(figures_of(be, *self.start[id(be)], self.limits), recording)
                for be in live_backends()
            ]
            found.sort(key=lambda d: (not d.allocations, -d.needed_bytes))
            flops, guesses = dict(self.executor.flops), dict(self.executor.guesses)
            work = self.executor.work
            steps = max(self.steps.values(), default=1)
            later = sum(flops.values()) // steps, work / steps
            estimate = Estimate(recording, found, flops, guesses, 0.0, work=work, later=later)
        except BaseException as error:
            self.branch.fail(error)
        self.branch.give((estimate, sorted(self.reached)))

    def _resize(self, args: Any) -> None:
        for change in self.changes:
            if isinstance(change, _Redrawn):
                rows = self._batch(list(_frames()), args, change.before)
                Resized([t for _, t in rows], change.size).make()

    def _batch(self, frames: list[Any], args: Any, size: int) -> Iterator[tuple[str, Tensor]]:
        # The tensors with so many rows that the program's functions hold, or pass to the module.
        own = {id(t) for r in self.roots.values() for t in (*r.parameters(), *r.buffers())}
        met: set[int] = set()
        held = [item for f in frames for item in _locals_of(f).items()]
        for name, value in [*held, ("input", list(args))]:
            for path, t in tensors_in(name, value):
                fits = t.dim() > 0 and t.shape[0] == size and not t.requires_grad
                if fits and id(t) not in met and id(t) not in own:
                    met.add(id(t))
                    yield path, t


class _Redrawn(Change):
    """A change to the number of rows that the program draws, made at each call of a model."""

    met = True

    def __init__(self, before: int, size: int) -> None:
        self.before, self.size = before, size
        self.words = f"batch of {size}"

    def make(self) -> None:
        """Do nothing yet."""


def _call_anew(module: Any) -> None:
    # This call of the module has begun without what the changes made of it: it calls it once more.
    before = module.__dict__.get("forward")  # a program may have put its own there

    def forward(*args: Any, **kwargs: Any) -> Any:
        if before is None:
            object.__delattr__(module, "forward")
        else:
            object.__setattr__(module, "forward", before)
        return module(*args, **kwargs)

    object.__setattr__(module, "forward", forward)


def _frames() -> Iterator[Any]:
    # The program's own functions that are being called, the innermost first.
    frame: Any = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if name == runpy.__file__ or name == "<frozen runpy>":
            return
        if not is_ours(name):
            yield frame
        frame = frame.f_back


def _locals_of(frame: Any) -> dict[str, Any]:
    # Before Python 3.13 a function's frame keeps what it answers, and with it a batch of before.
    found = frame.f_locals
    variables = dict(found)
    if frame.f_code.co_flags & inspect.CO_OPTIMIZED and type(found) is dict:
        found.clear()
    return variables


def _variables(frames: list[Any]) -> Iterator[tuple[str, Any]]:
    for frame in frames:
        yield from _locals_of(frame).items()
    for frame in frames[:1]:
        yield from list(frame.f_globals.items())
