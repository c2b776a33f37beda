"""Imagination: from :func:`begin` on, kernels of this process do nothing, and all else goes on.

Every op is dispatched, every block taken from the pool, booked in the ledger and given back, every
node recorded and every hook called, as if the step ran. Only ``State.run``, through which all
kernels are called, calls none of them. So bytes and addresses are those of the real step without a
line that foretells them. There is no way back: it is for a forked copy (``fork_sandbox.py``).

**Values.** A storage is *real* or *imagined*, and its class says which: storages that were there
before are of class ``Storage`` and real; those born since are ``Imagined``; writing makes one real
or imagined, as the values written are. What follows from real values alone and costs next to
nothing (``CHEAP_BYTES``, ``CHEAP_FLOPS``) is computed if it is whole numbers, truth values, or
floating-point values moved and not calculated: sizes, lengths, masks, random orders. All other
values are unknown. Asked for (``item``, ``float``, ``bool``, ``tolist``, ``numpy``) they are
guessed: 1.0, 0, False, for none is NaN or infinite, programs divide by the first and use the
second as an index; and the program does not raise (``raise_analysis.py``). :attr:`World.guesses`
notes where. An op whose result's shape depends on values computes it from real ones at any price
and refuses imagined ones.

**CUDA** cannot be used in a forked process. A stand-in takes its place (``fake_cuda.py``).
"""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections import Counter
from copy import copy
from functools import partial
from typing import Any

import numpy as np

from ...framework import data_dependence, devices, modes, tensor
from ...framework.attribution import scopes
from ...framework.autograd import anomaly
from ...framework.devices import cuda, host
from ...framework.dtypes import as_dtype
from ...framework.kernels.runtime.errstate import run_nested
from ...framework.memory import events
from ...framework.memory.ledger import NO_LIMIT
from ...framework.ops import plan
from ...framework.ops.creation import factory
from ...framework.ops.plan import execute
from ...framework.ops.random import distributions, draw
from ...framework.ops.registry import OPS
from ...framework.ops.views import tiled
from ...framework.random.generator import generators_in_use
from ...framework.serialization import save_load
from ...framework.spec import Spec
from ...framework.storage import Storage
from ...framework.tensor import Tensor
from ..record import system_memory
from . import overlay_files
from .fake_cuda import NOTHING, Block, Elsewhere, on_no_gpu
from .raise_analysis import past_raising

CHEAP_BYTES = 1 << 18  # of inputs and results, up to which real values are moved
CHEAP_FLOPS = 1 << 24
CHEAPER = 64  # so many times more bytes where the values are likely to be asked for
ZEROS = (
    1 << 26
)  # bytes of larger zeros in all: masks begin so, but sums and states of optimizers too
_EXACT = "biu"  # kinds of values that are likely to be: sizes, lengths, masks, orders
_MASKING = frozenset({"triu", "tril", "masked_fill", "where"})
_MOVING = frozenset(
    {"cat", "stack", "clone", "convert", "copy", "fill", "index", "reshape_copy", "repeat", "pad"}
)
_CLAIMS = {"isfinite": True, "isnan": False, "isinf": False, "isposinf": False, "isneginf": False}
CHEAP_COPY = 1 << 26  # bytes of a batch that is brought to a device
PATIENCE = 1000  # questions at one line, after which a loop may wait for another answer
FEW_PIECES = 16  # into which a parameter is cut, above which not all are gone through


class Imagined(Storage):
    """A storage whose values are unknown."""

    __slots__ = ()


class Yes(Imagined):
    """Unknown truth values that are presumed to be true: a number is finite."""

    __slots__ = ()


class No(Imagined):
    """Those that are presumed to be false."""

    __slots__ = ()


class Blank(np.ndarray):
    """Guesses in the place of values that are unknown."""


world: World | None = None  # of this process


def begin() -> World:
    """Stop computing in this process, in all its threads; return what is learnt meanwhile."""
    global world
    if world is None:  # else an estimate within an estimate: this already is a copy of a copy
        world = World()
        world.take_over()
    else:
        world.guesses.clear()
        world.flops.clear()
    return world


def put(owner: Any, **replacements: Any) -> None:
    """Replace what a module or a class has under these names."""
    for name, value in replacements.items():
        getattr(owner, name)  # whoever renames it shall hear of it
        setattr(owner, name, value)


class World:
    """What takes the place of the kernels.

    Attributes:
        flops: Operations of the kernels not called, by op.
        guesses: Source lines that asked for a value that is unknown, with what they asked for.
    """

    def __init__(self) -> None:
        self.flops: Counter[str] = Counter()
        self.guesses: Counter[str] = Counter()
        self.hollow: dict[Any, Any] = {}
        self.written: list[Any] = []  # arrays of others, with values that are unknown by now
        self.forced = False
        self.zeros = ZEROS  # what is left of them
        self.copies: set[Any] = set()
        self.costs: dict[Any, int] = {}
        self.kernels = {
            function: op
            for op in OPS.values()
            for function in (op.plain, *[k[0] for found in op.kernels.values() for k in found])
        }

    def op_of(self, f: Any) -> Any:
        """Whose kernel that is, with or without its attributes, cut in parts or not."""
        f = f.func if type(f) is partial else f
        return self.kernels.get(getattr(f, "__wrapped__", f))

    # Whether values are known

    def is_real(self, array: Any) -> bool:
        """True if the values of an array are known."""
        storage = _storage_of(array)
        if storage is not None:
            return type(storage) is Storage
        array = getattr(array, "_a", array)
        return isinstance(array, np.ndarray) and not any(
            np.may_share_memory(array, other) for other in self.written
        )

    def now_real(self, array: Any) -> None:
        """An array was computed: if it is all of its storage, that is real."""
        storage: Any = _storage_of(array)
        kind = type(storage)
        if issubclass(kind, Imagined) and array.nbytes == storage.nbytes:
            storage.__class__ = Storage

    def now_unknown(self, array: Any) -> None:
        """An array was written without being computed."""
        storage: Any = _storage_of(array)
        if storage is None:
            if isinstance(array, np.ndarray):
                self.written.append(array)
        elif type(storage) in (Storage, Yes, No):
            storage.__class__ = Imagined

    def guess(self, what: str) -> int:
        """Note that the user's program asked for a value that is unknown; return how often."""
        place = f"{what} at {_users_line()}"
        self.guesses[place] += 1
        return self.guesses[place]

    # What computes

    def run(self, f: Any, *args: Any) -> Any:
        """In the place of ``State.run``: the first array among ``args`` is written."""
        if f is execute:
            return self.execute(*args)
        if f in self.copies:
            return f(*args)
        bound = type(f) is partial
        arrays = [a for a in args if hasattr(a, "dtype") and hasattr(a, "strides")]
        cost = self.count(f, arrays)
        op = self.op_of(f)
        name = op.shown if op is not None else ""
        out = getattr(arrays[0], "_a", arrays[0])
        if (f.args if bound else args)[0] is NOTHING or not out.flags.writeable:
            self.presume(name, arrays)
            return None
        kernel = bound or op is not None or len(arrays) == 1
        known = all(map(self.is_real, arrays[1:] if kernel else arrays))
        likely = out.dtype.kind in _EXACT or name in _MASKING
        if f is factory._fill:
            likely = likely or args[1] != 0 or self.afford(out.nbytes)
            name = "fill"
        times = CHEAPER if likely else name in _MOVING
        known = known and times > 0 and cost <= CHEAP_FLOPS
        known = known and sum(a.nbytes for a in arrays) <= CHEAP_BYTES * times
        if not known and name in _CLAIMS and out.nbytes <= CHEAP_BYTES * CHEAPER:
            out.fill(_CLAIMS[name])
            self.now_real(arrays[0])
        elif known or f is draw._permute:  # a random order is there to be used as indices
            run_nested(f, *args)
            self.now_real(arrays[0])
        else:
            for array in arrays[:1] if kernel else arrays:
                self.now_unknown(array)
            self.presume(name, arrays)
        return None

    def afford(self, nbytes: int) -> bool:
        """Whether so many bytes of zeros are known; they are then taken from the budget."""
        if CHEAP_BYTES < nbytes <= min(self.zeros, CHEAP_BYTES * CHEAPER):
            self.zeros -= nbytes
            return True
        return False

    def execute(self, plan: Any, arrays: list[Any], targets: Any) -> Any:
        """In the place of ``plan.execute``, for ops with more than a kernel and a result."""
        op = plan.op
        cost = self.costs.get(plan)
        if cost is None:
            cost = self.costs[plan] = _flops(op, plan.specs, plan.attributes)
        self.flops[op.shown] += cost
        depends = op.adopt and not plan.results
        inputs = [a for a in arrays if hasattr(a, "dtype")]
        real = plan.xp is not None and plan.xp is not NOTHING and all(map(self.is_real, inputs))
        if depends and not real:
            raise NotImplementedError(
                f"{op.shown}: the shape of its result depends on values, and an estimate has none "
                "for what the step computes. Compute it before the step from real values, or use "
                "an op whose shape is known (where, a mask, topk)."
            )
        outs = [a for _, a in targets] if targets else []
        nbytes = sum(a.nbytes for a in inputs) + sum(s.nbytes for s in plan.results)
        exact = all(s.dtype.category < 2 for s in plan.results)  # no floating-point result
        times = CHEAPER if exact or op.shown in _MASKING else op.shown in _MOVING
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
        results = execute(hollow, arrays, targets)
        for array in outs:
            self.now_unknown(array)
        self.presume(op.shown, [results[0]._array, *inputs])
        return results

    def presume(self, name: str, arrays: list[Any]) -> None:
        """Note what is presumed of truth values where there are none."""
        kind: Any = None
        if name in _CLAIMS:
            kind = Yes if _CLAIMS[name] else No
        elif name in ("all", "any", "logical_not") and len(arrays) > 1:
            kind = type(_storage_of(arrays[1]))
            if name == "logical_not":
                kind = {Yes: No, No: Yes}.get(kind)
        storage: Any = _storage_of(arrays[0])
        if kind in (Yes, No) and isinstance(storage, Imagined):
            storage.__class__ = kind

    def count(self, f: Any, arrays: list[Any]) -> int:
        """Add the operations of a kernel, known from its arrays; return them."""
        attributes = f.keywords if type(f) is partial else {}
        op = self.op_of(f)
        if op is None or op.flops is None:
            return 0
        key = (f, *[a.shape for a in arrays])
        cost = self.costs.get(key)
        if cost is None:
            specs = [Spec(a.shape, as_dtype(a.dtype)) for a in arrays[1:]]
            cost = self.costs[key] = _flops(op, specs, attributes)
        self.flops[op.shown] += cost
        return cost

    # Taking the kernels' place

    def take_over(self) -> None:
        """Put all of this where the framework's own was."""
        modes.local.state.run = self.run
        modes.local.state.check_nan = False
        put(modes, quiet_runner=lambda: self.run)
        put(anomaly, _has_nan=lambda tensor: False)
        put(host, Storage=Imagined)
        make = devices._make
        put(devices, _make=lambda d: self.prepared(Elsewhere(d) if d.type == "cuda" else make(d)))
        for d, be in list(devices._backends.items()):
            if d is not None and d.type == "cuda":
                devices._backends[d] = be = Elsewhere(d, be)
            self.prepared(be)
        on_no_gpu()
        self._without_values()
        for op in OPS.values():
            for p in op.plans.values():
                _countable(p)
        really = plan.Plan.__init__

        def init(self: Any, *args: Any) -> None:
            really(self, *args)
            _countable(self)

        put(plan.Plan, __init__=init)
        check = distributions._check_probabilities
        put(
            distributions,
            _check_probabilities=lambda p: check(p) if self.is_real(p._array) else None,
        )
        put(tiled, _cut=self.cut(tiled._cut))
        put(save_load, replacing=overlay_files.replacing)
        gpus = sum(isinstance(be, Elsewhere) for be in devices.live_backends())
        put(cuda, device_count=lambda: gpus)  # would ask the driver
        put(system_memory, _gpu=lambda be: {})
        _hire_again()
        for g in generators_in_use().values():
            g._lock = threading.Lock()  # another thread may have held it
        put(events, _changing=threading.Lock())
        put(scopes, _lock=threading.RLock())

    def prepared(self, be: Any) -> Any:
        """Let a device's backend copy and read what is real only."""
        be.ledger.limit = NO_LIMIT
        really_copy, really_take, really_give = be.copy, be.from_host, be.to_host
        computes = be.xp is not None and be.xp is not NOTHING

        def copy(out: Any, array: Any) -> None:
            if self.is_real(array) and (self.forced or array.nbytes <= CHEAP_BYTES):
                run_nested(really_copy, out, array)
                self.now_real(out)
            else:
                self.now_unknown(out)

        def from_host(array: Any, spec: Any, role: int) -> tuple[Any, Any]:
            if not computes or isinstance(array, Blank) or spec.nbytes > CHEAP_COPY:
                return be.empty(spec, role)  # type: ignore[no-any-return]
            storage, out = really_take(array, spec, role)
            self.now_real(out)
            return storage, out

        def to_host(array: Any) -> Any:
            if computes and self.is_real(array):
                return really_give(array)
            return np.broadcast_to(_guess_for(array), array.shape).view(Blank)

        be.copy, be.from_host, be.to_host = copy, from_host, to_host
        be.item = lambda array: to_host(array).item()
        self.copies.add(copy)
        return be

    def cut(self, really: Any) -> Any:
        """In the place of ``pieces._cut``: of many pieces alike the first and the last are enough.

        What is done to a piece takes and gives back the same blocks each time; so the peak stands
        after the second, and the rest is counted, not repeated.
        """

        def cut(views: list[Any], limit: int) -> Any:
            n = views[0].numel()
            if n <= FEW_PIECES * limit or not all(t is None or t.is_contiguous() for t in views):
                yield from really(views, limit)
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

        return cut

    def _without_values(self) -> None:
        # What gives the user values gives zeros, and notes it.
        def asking(name: str, real: Any) -> Any:
            def asked(self_: Any, *args: Any, **kwargs: Any) -> Any:
                if not self_.is_meta and self.is_real(self_._array):
                    return real(self_, *args, **kwargs)
                if not (name == "item" and self_.numel() != 1):
                    asked = self.guess(f"{name}()")
                    if name == "item":
                        return _expected(self_, asked)
                    if not self_.is_meta and getattr(self_._array.flags, "writeable", False):
                        self_._array.fill(_guess_for(self_._array)[()])
                return real(self_, *args, **kwargs)

            return asked

        for name in ("item", "tolist", "numpy", "__array__"):
            label = "numpy" if name == "__array__" else name
            put(Tensor, **{name: asking(label, getattr(Tensor, name))})
        put(Tensor, _need_values=lambda self_, what: None)
        put(data_dependence, knows=lambda t: not t.is_meta and self.is_real(t._array))


def _guess_for(array: Any) -> Any:
    # A 0-d array: 1.0, 0 or False, or what is presumed of its values.
    usual: Any = {Yes: True, No: False}.get(type(_storage_of(array)))
    if usual is None:
        usual = as_dtype(array.dtype).category >= 2
    return np.asarray(usual).astype(array.dtype)


def _expected(t: Any, asked: int) -> Any:
    # The guess for one number. Sometimes the opposite: a loop may wait for it.
    guess = _guess_for(t._array).item()
    if guess is False and type(_storage_of(t._array)) is not No:
        frame = _users_frame()
        guess = past_raising(frame.f_code, frame.f_lasti, False)
    return guess if asked % PATIENCE else type(guess)(not guess)


def _storage_of(array: Any) -> Any:
    # The storage below an array of the host, or None.
    array = getattr(array, "_a", array)
    while array is not None and not isinstance(array, Storage | Block):
        # NumPy's stride tricks put an object with a `base` between, a buffer one with an `obj`.
        array = getattr(array, "base", getattr(array, "obj", None))
    return array


def _flops(op: Any, specs: Any, attributes: Any) -> int:
    if op.flops is None:
        return 0
    return int(op.flops(*[s if isinstance(s, Spec) else None for s in specs], **attributes))


def _countable(p: Any) -> None:
    # A plan of a device that computes nothing: the dispatcher calls its kernel, so it is counted.
    if p.xp is None and p.simple and not p.op.view:
        p.xp = NOTHING
        p.run = partial(p.kernel, NOTHING, **p.attributes)


_OURS = tuple(
    os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(tensor.__file__))), folder)
    + os.sep
    for folder in ("framework", "modules", "optim", "profiling")
)


def workers_in_use() -> Any:
    """The module of loaders' workers, or None: nobody has imported it, so there are none."""
    return sys.modules.get(devices.__name__.replace(".devices", ".data.workers"))


def _users_line() -> str:
    frame = _users_frame()
    return f"{frame.f_code.co_filename.removeprefix(os.getcwd() + os.sep)}:{frame.f_lineno}"


def _users_frame() -> Any:
    frame = sys._getframe(2)
    while frame.f_back is not None:
        name = frame.f_code.co_filename
        if not name.startswith((*_OURS, "<")):
            break
        frame = frame.f_back
    return frame


def _hire_again() -> None:
    # Workers of a loader answer to the original. Whoever asks for their next batch gets others,
    # which go on from the same place.
    if workers_in_use() is None:
        return
    from ...framework.data import loader, workers

    for crew in list(workers._crews):
        crew.closed = True
    theirs, really = list(workers._crews), loader._Ahead.__next__

    def following(ahead: Any) -> Any:
        if ahead.crew in theirs:
            # type(), for isinstance asks a weak proxy's object, which may be dead
            loaders = (d for d in gc.get_objects() if issubclass(type(d), loader.DataLoader))
            of = next((d for d in loaders if d._epoch is ahead.progress), None)
            if of is None:
                raise RuntimeError(
                    "an estimate cannot go on with a loader's workers, and the loader that knows "
                    "how to start others is gone. Keep the DataLoader in a variable, or take the "
                    "batch before the step."
                )
            of.load_state_dict(of.state_dict())
            resumed, of._resumed = of._resumed, None
            crew = workers.Crew(
                of._recipe(), of.num_workers, of.worker_init_fn, of.multiprocessing_context,
                of.timeout,
            )  # fmt: skip
            fresh = loader._Ahead(of, resumed, crew)
            vars(ahead).update(vars(fresh))
            fresh.kept = True  # its end must not be the crew's
            of._epoch = ahead.progress
        return really(ahead)

    put(loader._Ahead, __next__=following)
