"""Fake execution for estimates: after :func:`begin`, kernels of this process do nothing.

Every op is dispatched, every block taken from the pool, booked in the ledger and given back, every
node recorded and every hook called, as if the step ran. Only :meth:`FakeExecutor.run`, through
which all kernels are called, calls none of them. So bytes and addresses are those of the real step
without a line that foretells them. It is an executor like the usual one (``framework/execution.py``
says what the framework asks of it), and there is no way back: it is for a forked copy
(``fork_sandbox.py``).

**Values.** A storage is *real* or *fake*, and its class says which: storages that were there before
are of class ``Storage`` and real; those born since are ``FakeStorage``; writing makes one real or
fake, as the values written are. What follows from real values alone and costs next to
nothing (``CHEAP_BYTES``, ``CHEAP_FLOPS``) is computed if it is integers, truth values, or
floating-point values moved and not calculated: sizes, lengths, masks, random orders. All other
values are unknown. Asked for (``item``, ``float``, ``bool``, ``tolist``, ``numpy``) they are
guessed: 1.0, 0, False, for none is NaN or infinite, programs divide by the first and use the
second as an index; and the program does not raise (``raise_analysis.py``).
:attr:`FakeExecutor.guesses` notes where. An op whose result's shape depends on values computes it
from real ones at any price and refuses fake ones.

**CUDA** cannot be used in a forked process. A stand-in takes its place (``fake_cuda.py``).
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from copy import copy
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

from ...framework import devices, execution
from ...framework.devices.host import HostBackend
from ...framework.dtypes import as_dtype
from ...framework.execution import READ
from ...framework.kernels.runtime.errstate import run_nested
from ...framework.memory.ledger import Ledger
from ...framework.ops.creation import factory
from ...framework.ops.plan import execute
from ...framework.ops.random import draw
from ...framework.ops.registry import OPS
from ...framework.spec import Spec
from ...framework.storage import Storage
from . import overlay_files
from .fake_cuda import NOTHING, FakeCudaBackend, on_no_gpu
from .fake_values import (
    FakeStorage,
    HintFalse,
    HintTrue,
    PlaceholderArray,
    expected,
    guess_for,
    storage_of,
    users_expression,
    users_line,
)

CHEAP_BYTES = 1 << 18  # of inputs and results, up to which real values are moved
CHEAP_FLOPS = 1 << 24
CHEAPER = 64  # so many times more bytes where the values are likely to be asked for
ZEROS = 1 << 26  # bytes of larger zeros in all: masks begin so, but sums and optimizers' states too
_EXACT = "biu"  # kinds of values that are likely to be: sizes, lengths, masks, orders
_MASKING = frozenset({"triu", "tril", "masked_fill", "where"})
_MOVING = frozenset(
    {"cat", "stack", "clone", "convert", "copy", "fill", "index", "reshape_copy", "repeat", "pad"}
)
_CLAIMS = {"isfinite": True, "isnan": False, "isinf": False, "isposinf": False, "isneginf": False}
BALANCE = 16  # operations in the time that a byte takes: between a laptop's cores and a GPU
CHEAP_COPY = 1 << 26  # bytes of a batch that is brought to a device
FEW_PIECES = 16  # into which a parameter is cut, above which not all are gone through


def begin() -> FakeExecutor:
    """Replace the executor of this process by a fake one, for all threads, and return it."""
    found = execution.current
    if isinstance(found, FakeExecutor):  # an estimate within an estimate: a copy of a copy
        found.forget()
        return found
    executor = FakeExecutor()
    execution.install(executor)
    executor.gpus = on_no_gpu()
    workers = workers_in_use()
    if workers is not None:
        workers.disown_all()
    return executor


class UnlimitedLedger(Ledger):
    """A ledger that knows its limit and refuses nothing: an estimate says what would be needed."""

    __slots__ = ()

    def refuse(self, nbytes: int) -> None:
        """Let the allocation pass, after the budgets have tried to make room for it."""
        any(budget.make_room(self, nbytes) for budget in reversed(self.budgets))


class FakeExecutor(execution.Executor):
    """The executor of estimates: it leaves kernels out and counts their work.

    Attributes:
        flops: Operations of the kernels not called, by op.
        work: Bytes that the kernels not called would have moved; for one that computes more than
            ``BALANCE`` operations with a byte, as many bytes as take that long.
        guesses: Source lines that asked for a value that is unknown, with what they asked for.
    """

    computes = False

    def __init__(self) -> None:
        self.gpus = 0
        self.gpu_bytes: int | None = None  # of an imagined GPU
        self.flops: Counter[str] = Counter()
        self.guesses: Counter[str] = Counter()
        self.work = 0.0
        self.hollow: dict[Any, Any] = {}
        self.written: list[Any] = []  # arrays of others, with values that are unknown by now
        self.forced = False
        self.zeros = ZEROS  # what is left of them
        self.copies: set[Any] = set()
        self.costs: dict[Any, int] = {}
        self.calls: Any = None  # notes kernel calls, if their time is wanted
        self.measures = False  # runs kernels after all, to measure them
        self.kernels = {
            function: op
            for op in OPS.values()
            for function in (op.plain, *[k.function for k in op.kernels])
        }

    def imagine_gpu(self, nbytes: int) -> None:
        """Let a program that asks find a GPU, one of so many bytes."""
        self.gpus, self.gpu_bytes = max(self.gpus, 1), nbytes

    def forget(self) -> None:
        """Count from zero again."""
        self.flops.clear()
        self.guesses.clear()
        self.work = 0.0

    def op_of(self, f: Any) -> Any:
        """Return the op whose kernel a callable is, bound to attributes or not."""
        f = f.func if type(f) is partial else f
        return self.kernels.get(getattr(f, "__wrapped__", f))

    # Whether values are known

    def is_real(self, array: Any) -> bool:
        """True if the values of an array are known."""
        storage = storage_of(array)
        if storage is not None:
            return type(storage) is Storage
        array = getattr(array, "_a", array)
        return isinstance(array, np.ndarray) and not any(
            np.may_share_memory(array, other) for other in self.written
        )

    def now_real(self, array: Any) -> None:
        """Mark the storage of an array as known, if the array covers all of it."""
        storage: Any = storage_of(array)
        kind = type(storage)
        if issubclass(kind, FakeStorage) and array.nbytes == storage.nbytes:
            storage.__class__ = Storage

    def now_unknown(self, array: Any) -> None:
        """Mark the storage of an array as unknown: it was written without being computed."""
        storage: Any = storage_of(array)
        if storage is None:
            if isinstance(array, np.ndarray):
                self.written.append(array)
        elif type(storage) in (Storage, HintTrue, HintFalse):
            storage.__class__ = FakeStorage

    def guess(self, what: str) -> int:
        """Record that the program read an unknown value; return how often it has."""
        place = f"{what} at {users_line()}"
        self.guesses[place] += 1
        return self.guesses[place]

    # What computes

    def run(self, f: Any, *args: Any) -> Any:
        """Run a kernel if its inputs are known, else skip it; it writes the first of ``args``."""
        if self.measures:
            return run_nested(f, *args)
        if f is execute:
            return self.execute(*args)
        if self.calls is None:
            return self.leave_out(f, *args)
        began = perf_counter()
        try:
            self.note(f, args)
            return self.leave_out(f, *args)
        finally:
            self.calls.left_out(perf_counter() - began)

    def leave_out(self, f: Any, *args: Any) -> Any:
        """Run a kernel if its inputs are known, else count its work."""
        if f in self.copies:
            return f(*args)
        bound = type(f) is partial
        arrays = [a for a in args if hasattr(a, "dtype") and hasattr(a, "strides")]
        cost = self.count(f, arrays)
        op = self.op_of(f)
        name = op.display_name if op is not None else ""
        out = getattr(arrays[0], "_a", arrays[0])
        if (f.args if bound else args)[0] is NOTHING or not out.flags.writeable:
            self.presume(name, arrays)
            return None
        kernel = bound or op is not None or len(arrays) == 1
        known = all(map(self.is_real, arrays[1:] if kernel else arrays))
        likely = out.dtype.kind in _EXACT or name in _MASKING
        if f is factory.fill:
            likely = likely or args[1] != 0 or self.afford(out.nbytes)
            name = "fill"
        times = CHEAPER if likely else name in _MOVING
        known = known and times > 0 and cost <= CHEAP_FLOPS
        known = known and sum(a.nbytes for a in arrays) <= CHEAP_BYTES * times
        if not known and name in _CLAIMS and out.nbytes <= CHEAP_BYTES * CHEAPER:
            out.fill(_CLAIMS[name])
            self.now_real(arrays[0])
        elif known or f is draw.permute:  # a random order is there to be used as indices
            run_nested(f, *args)
            self.now_real(arrays[0])
        else:
            for array in arrays[:1] if kernel else arrays:
                self.now_unknown(array)
            self.presume(name, arrays)
        return None

    def note(self, f: Any, args: Any) -> None:
        """Note a call of a kernel whose time is wanted."""
        arrays = [a for a in args if hasattr(a, "dtype") and hasattr(a, "strides")]
        op = self.op_of(f)
        bare = f.func if type(f) is partial else f
        name = getattr(bare, "__qualname__", "a function") if op is None else op.name
        weight = sum(a.nbytes for a in arrays)
        if op is not None and op.flops is not None:
            key = (f, *[a.shape for a in arrays])
            weight = max(weight, self.costs.get(key, 0) / BALANCE)
        self.calls.note(f, name, args, args[1:], weight)

    def afford(self, nbytes: int) -> bool:
        """True if the budget allows zeros of so many bytes to be kept; they are then deducted."""
        if CHEAP_BYTES < nbytes <= min(self.zeros, CHEAP_BYTES * CHEAPER):
            self.zeros -= nbytes
            return True
        return False

    def execute(self, plan: Any, arrays: list[Any], targets: Any) -> Any:
        """Replace ``plan.execute``, for ops with more than one kernel or result."""
        began = perf_counter()
        op = plan.op
        cost = self.costs.get(plan)
        if cost is None:
            cost = self.costs[plan] = _flops(op, plan.specs, plan.attributes)
        self.flops[op.display_name] += cost
        depends = op.adopt and not plan.results
        inputs = [a for a in arrays if hasattr(a, "dtype")]
        real = plan.xp is not None and plan.xp is not NOTHING and all(map(self.is_real, inputs))
        if depends and not real:
            raise NotImplementedError(
                f"{users_expression() or op.display_name}: the shape of its result depends on "
                "values, and an estimate has none for what the step computes. Compute it "
                "before the step from real values, or use an op whose shape is known "
                "(where, a mask, topk)."
            )
        outs = [a for _, a in targets] if targets else []
        nbytes = sum(a.nbytes for a in inputs) + sum(s.nbytes for s in plan.results)
        self.work += max(nbytes, cost / BALANCE)
        if self.calls is not None and plan.run is not None:
            weight = max(nbytes, cost / BALANCE)
            self.calls.note(plan, op.name, arrays, arrays, weight)
        exact = all(s.dtype.category < 2 for s in plan.results)  # no floating-point result
        times = CHEAPER if exact or op.display_name in _MASKING else op.display_name in _MOVING
        cheap = times > 0 and nbytes <= CHEAP_BYTES * times and cost <= CHEAP_FLOPS
        if real and (depends or cheap):
            self.forced, before = True, self.forced
            try:
                results = run_nested(execute, plan, arrays, targets)
            finally:
                self.forced = before
            for r in results:
                self.now_real(r._array)
            return results
        hollow = self.hollow.get(plan)
        if hollow is None:
            hollow = self.hollow[plan] = copy(plan)
            hollow.run = None
        if self.calls is not None:
            self.calls.left_out(perf_counter() - began)
        results = execute(hollow, arrays, targets)
        for array in outs:
            self.now_unknown(array)
        self.presume(op.display_name, [results[0]._array, *inputs])
        return results

    def presume(self, name: str, arrays: list[Any]) -> None:
        """Record the assumed truth value of a boolean result without values."""
        kind: Any = None
        if name in _CLAIMS:
            kind = HintTrue if _CLAIMS[name] else HintFalse
        elif name in ("all", "any", "logical_not") and len(arrays) > 1:
            kind = type(storage_of(arrays[1]))
            if name == "logical_not":
                kind = {HintTrue: HintFalse, HintFalse: HintTrue}.get(kind)
        storage: Any = storage_of(arrays[0])
        if kind in (HintTrue, HintFalse) and isinstance(storage, FakeStorage):
            storage.__class__ = kind

    def count(self, f: Any, arrays: list[Any]) -> int:
        """Add the FLOPs of a kernel, computed from its arrays, and return them."""
        attributes = f.keywords if type(f) is partial else {}
        op = self.op_of(f)
        moved = sum(a.nbytes for a in arrays)
        if op is None or op.flops is None:
            self.work += moved
            return 0
        key = (f, *[a.shape for a in arrays])
        cost = self.costs.get(key)
        if cost is None:
            specs = [Spec(a.shape, as_dtype(a.dtype)) for a in arrays[1:]]
            cost = self.costs[key] = _flops(op, specs, attributes)
        self.flops[op.display_name] += cost
        self.work += max(moved, cost / BALANCE)
        return cost

    # What the framework asks of an executor

    @property
    def counts_replays(self) -> bool:  # type: ignore[override]
        """True unless each kernel call is wanted, with its arrays."""
        return self.calls is None and not self.measures

    def count_row(self, row: Any) -> None:
        """Count the work of a kernel call of a replay; of a pass, that of the calls in it."""
        for call in getattr(row.function, "rows", (row,)):
            plan = call.plan
            if plan is None:
                arrays = [a for a in call.arguments if hasattr(a, "strides")]
                self.count(call.function, arrays)
                continue
            cost = self.costs.get(plan)
            if cost is None:
                cost = self.costs[plan] = _flops(plan.op, plan.specs, plan.attributes)
            self.flops[plan.op.display_name] += cost
            specs = [s for s in (*plan.specs, *plan.results) if isinstance(s, Spec)]
            self.work += max(sum(s.nbytes for s in specs), cost / BALANCE)

    def runner(self) -> Callable[..., Any]:
        """Return :meth:`run`, for all threads."""
        return self.run

    def plan_made(self, plan: Any) -> None:
        """Make the kernels of devices without values be called, so that they are counted."""
        if plan.xp is None and plan.simple and not plan.op.view:
            plan.xp = NOTHING
            plan.run = partial(plan.kernel, NOTHING, **plan.attributes)

    def new_backend(self, d: Any, make: Callable[[Any], Any]) -> Any:
        """Return the backend of a device, a fake one for a GPU."""
        if d.type != "cuda":
            return self.prepared(make(d))
        return self.prepared(FakeCudaBackend(d, total_bytes=self.gpu_bytes))

    def known_backend(self, d: Any, be: Any) -> Any:
        """Replace the backend of a GPU that was used before by a fake one."""
        return self.prepared(FakeCudaBackend(d, be) if d.type == "cuda" else be)

    def knows(self, tensor: Any) -> bool:
        """True if the values of a tensor are known."""
        return not tensor.is_meta and self.is_real(tensor._array)

    def replacing(self, usual: Callable[[Any], Any], path: Any) -> Any:
        """Open a file for writing in the overlay instead of on disk."""
        return overlay_files.replacing(path)

    def device_count(self, ask: Callable[[], int]) -> int:
        """Return the number of GPUs that were in use; the driver must not be called."""
        return self.gpus

    def prepared(self, be: Any) -> Any:
        """Make a backend copy and read known values only."""
        be.ledger.__class__ = UnlimitedLedger
        if isinstance(be, HostBackend):
            be.storage_class = FakeStorage
        really_copy, really_take, really_give = be.copy, be.from_host, be.to_host
        computes = be.xp is not None and be.xp is not NOTHING

        def copy(out: Any, array: Any) -> None:
            if self.measures:
                run_nested(really_copy, out, array)
            elif self.is_real(array) and (self.forced or array.nbytes <= CHEAP_BYTES):
                run_nested(really_copy, out, array)
                self.now_real(out)
            else:
                self.now_unknown(out)

        def from_host(array: Any, spec: Any, role: int) -> tuple[Any, Any]:
            if not computes or isinstance(array, PlaceholderArray) or spec.nbytes > CHEAP_COPY:
                return be.empty(spec, role)  # type: ignore[no-any-return]
            storage, out = really_take(array, spec, role)
            self.now_real(out)
            return storage, out

        def to_host(array: Any) -> Any:
            if computes and self.is_real(array):
                return really_give(array)
            return np.broadcast_to(guess_for(array), array.shape).view(PlaceholderArray)

        be.copy, be.from_host, be.to_host = copy, from_host, to_host
        be.item = lambda array: to_host(array).item()
        self.copies.add(copy)
        return be

    def tiles(self, cut: Callable[..., Any], views: list[Any], limit: int) -> Iterator[list[Any]]:
        """Iterate over the first and the last of many equal tiles only.

        What is done to a tile takes and gives back the same blocks each time; so the peak stands
        after the second, and the rest is counted, not repeated.
        """
        n = views[0].numel()
        if n <= FEW_PIECES * limit or not all(t is None or t.is_contiguous() for t in views):
            yield from cut(views, limit)
            return
        flat = [None if t is None else t.view(-1) for t in views]
        starts = range(0, n, limit)
        ledger = devices.backend(views[0].device).ledger
        for k in (0, 1, 2, len(starts) - 2, len(starts) - 1):
            start = starts[k]
            flops, made = self.flops.copy(), ledger.allocations
            yield [None if t is None else t[start : start + limit] for t in flat]
            if k == 2:
                left_out = len(starts) - 5
                ledger.allocations += left_out * (ledger.allocations - made)
                for op, count in (self.flops - flops).items():
                    self.flops[op] += left_out * count

    def read(self, tensor: Any, name: str) -> Any:
        """Return a number for one that is unknown; other values are guessed where they are kept."""
        if self.knows(tensor):
            return READ
        times = self.guess(f"{name}()")
        if name == "item":
            return expected(tensor, times)
        if not tensor.is_meta and getattr(tensor._array.flags, "writeable", False):
            tensor._array.fill(guess_for(tensor._array)[()])
        return READ


def _flops(op: Any, specs: Any, attributes: Any) -> int:
    if op.flops is None:
        return 0
    return int(op.flops(*[s if isinstance(s, Spec) else None for s in specs], **attributes))


def workers_in_use() -> Any:
    """Return the module of DataLoader workers if it is imported, else None."""
    return sys.modules.get(devices.__name__.replace(".devices", ".data.workers"))
