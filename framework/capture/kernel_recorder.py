"""Recording of kernel calls while they run as ever.

All that writes values runs through ``State.run_kernel``. For a call that is recorded, a recorder
takes its place: it runs each kernel and notes it. An array belongs to a value by the address of its
storage, and the ledger tells which storages the call makes. The recorder holds no array, so what
depends on who holds one (gradients that a leaf takes over, memory that is used again) happens as it
would without it.

What cannot be repeated ends the recording with a reason, and the call goes on: values that Python
reads, kernels that keep an array, values that no kernel wrote.
"""

from __future__ import annotations

import sys
import threading
import types
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np

from ..attribution.frames import user_line
from ..attribution.recorded_sites import RecordedSite, SiteNotes
from ..device import device
from ..devices import backend
from ..devices.host import HostBackend
from ..dtypes import dtype
from ..interrupts import WholeContext
from ..memory.events import attach, detach
from ..memory.ledger import SAVED
from ..modes import local
from ..ops.plan import Plan, execute
from ..random.philox import Rng
from ..spec import Spec
from ..storage import LedgerEntry, Storage
from ..tensor import Tensor
from .program import (
    ARENA,
    CONSTANT,
    GIVEN,
    OUTSIDE,
    Draw,
    DrawNumber,
    EmptyArray,
    LiveCall,
    Place,
    Row,
    StepProgram,
    Value,
)
from .returned_numbers import Number, is_only_returned, keep_number
from .trail import Step, steps_to_here
from .value_reads import compare_value, may_be_undone

CPU = device("cpu")
_PACKAGE = str(Path(__file__).resolve().parents[2])
PLAIN = (bool, int, float, complex, str, bytes, type(None), type, slice, np.generic, np.dtype,
         types.ModuleType, type(Ellipsis), dtype, Spec)  # fmt: skip
_MOST_CONSTANT = 1 << 20  # bytes made from Python's numbers in one call


class KernelRecorder(WholeContext):
    """Records the kernel calls of one call.

    Args:
        arguments: The tensors that the call is given.
        found: The tensors that it can reach otherwise.

    Attributes:
        program: The recording.
        reason: Why there is none; None as long as all went well.
        line: The line of the program's code where it ended.
        code: The code of the recorded function, if its lines are of interest.
        own_line: The line of that function where it ended.
        caller: Code that calls the function, whose end ends the recording of its forward.
        trail: The calls of modules in which it ended (``trail.py``).
        numbers: Numbers that Python reads only to return them.
        sees_result: What the function returns comes here at once; a wrapper in C, such as
            ``lru_cache``, would keep what stands for a number.
    """

    def __init__(self, arguments: Sequence[Tensor], found: Sequence[Tensor]) -> None:
        self.program = StepProgram()
        self.reason: str | None = None
        self.line: str | None = None
        self.code: Any = None
        self.own_line: int | None = None
        self.caller: Any = None
        self.trail: list[Step] = []
        self.numbers: list[Number] = []
        self.sees_result = False
        self._state = local.state
        self._thread = threading.get_ident()
        self._ledger = backend(CPU).ledger
        self._runner = self._state.run_kernel
        self._in_kernel = False
        self._live = False
        self._row = 0
        self._over: int | None = None  # address of what the next call writes its result over
        self._draws: list[Any] = []  # kept: a start is known by its identity
        self._born: dict[int, Value] = {}  # living storages of the call, by address
        self._outside: dict[int, Value] = {}  # by the id of the storage, or of the array's owner
        self._given: dict[int, Value] = {}  # gradients that arrive, by the id of their owner
        self._given_at: list[int] = []  # the addresses of their first elements
        self._tensors = [*arguments, *found]
        self.program.argument_count = len(arguments)
        self.program.tensors = [None] * len(arguments) + list(found)
        self._leaves = [
            k
            for k, t in enumerate(self._tensors)
            if k >= len(arguments) and t._requires_grad and t._node is None
        ]
        self._sites = SiteNotes()
        self._known: dict[int, tuple[int, bool]] = {}  # id of an owner -> (tensor, of its gradient)
        self._starts: dict[tuple[int, bool], int] = {}  # address of each tensor's first element
        for k, t in enumerate(self._tensors):
            self._know(k, t, False)
        for k in self._leaves:
            if (g := self._tensors[k]._grad) is not None:
                self._know(k, g, True)

    # Begin and end

    def _enter(self) -> Self:
        self._sites.begin()
        attach(self._ledger, self._event)
        self._state.run_kernel = self._run
        self._state.capture = self
        return self

    def _leave(self) -> None:
        self._state.run_kernel = self._runner
        self._state.capture = None
        detach(self._ledger, self._event)
        self._sites.end()

    def refuse(self, reason: str) -> Any:
        """End the recording: the call cannot be replayed."""
        if self.reason is None and not self._live:
            self.reason = reason
            self.line = user_line()
            self.own_line = self._line_of_function()
            self.trail = steps_to_here(self.caller) if self.caller is not None else []

    def _line_of_function(self) -> int | None:
        # Which line of the recorded function runs.
        frame: Any = sys._getframe(1) if self.code is not None else None
        while frame is not None and frame.f_code is not self.code:
            frame = frame.f_back
        return None if frame is None else frame.f_lineno

    def read(self, what: str) -> None:
        """Note that Python reads a tensor's value."""
        self.refuse(f"Python reads a tensor's value ({what})")

    def read_number(self, array: np.ndarray, value: Any) -> Any:
        """Note that Python reads a number; return it, or what stands in its place.

        A replay reads what is only returned anew (``returned_numbers.py``), and compares all else
        (``value_reads.py``).
        """
        if self.reason is not None or self._live:
            return value
        frame: Any = sys._getframe(3)  # the caller of Tensor.item
        by_float = frame.f_back.f_code is Tensor.__float__.__code__ and type(value) is float
        frame = frame.f_back.f_back if by_float else frame
        returned = self.sees_result and is_only_returned(frame)
        if self.program.backward_at is None and returned:
            number = Number(len(self.numbers), value)
            row = Row(keep_number, [self._place(array, False), number], [])
            if self.reason is not None:
                return value
            self.numbers.append(number)
            self._append(row)
            return value if by_float else number  # float() wants a float, and returns that one
        if self.program.backward_at is not None or not may_be_undone(self.program):
            self.read("item, after it has changed what was there before the call")
            return value
        row = Row(compare_value, [self._place(array, False), value], [])
        if self.reason is None:
            self._append(row)
        return value

    def _append(self, entry: Row | Draw | LiveCall) -> None:
        line = self._line_of_function()
        if line is not None:
            self.program.lines[len(self.program.entries)] = line
        self.program.entries.append(entry)
        self._row += 1

    # What the framework tells it

    def _event(self, event: str, name: str, nbytes: int, role: int, address: int, old: int) -> None:
        if not nbytes:  # it lies nowhere, under the address of something else
            return
        if event == "free":
            self._born.pop(address, None)
        elif event == "alloc" and threading.get_ident() == self._thread:
            if not self._live:
                value = Value(len(self.program.values), nbytes, ARENA, role)
                value.site = self._sites.now()
                self.program.values.append(value)
                self._born[address] = value
        elif event == "role" and address in self._born:
            self._note_role(self._born[address], role)

    def _note_role(self, value: Value, role: int) -> None:
        at = len(self.program.entries)
        if role == SAVED and value.saved is None:
            value.saved, value.saver = (at, sys.maxsize), self._sites.now()
        elif value.role == SAVED and value.saved is not None:
            value.saved = value.saved[0], at
        value.role = role

    def overwrites(self, storage: Any) -> None:
        """Note that the next kernel call writes its first result over a value that ends there."""
        if not self._live:
            self._over = storage.address

    def filled_from_python(self, storage: Any) -> None:
        """Note that a storage was filled with Python's or NumPy's numbers, by no kernel."""
        if self._live or not storage.nbytes:  # one of no bytes has the address of another
            return
        value = self._born.get(storage.address)
        if value is not None:
            value.kind = CONSTANT

    def draw(self, generator: Any, words: int) -> Any:
        """Draw from a generator, and note it."""
        start = generator.draw(words)
        if not self._live and self.reason is None:
            self._draws.append(start)
            self._append(Draw(generator, words))
        return start

    # Rows

    def _run(self, f: Callable[..., Any], *args: Any) -> Any:
        if self._in_kernel or self.reason is not None:
            return self._runner(f, *args)
        row = self._noted(f, args)
        taken: list[Any] = []
        self._in_kernel = True
        try:
            if f is execute:
                result = self._runner(execute, *args, partial(self._take, args[0].backend, taken))
            else:
                result = self._runner(f, *args)
        finally:
            self._in_kernel = False
        if row is not None and f is execute:
            self._row -= 1  # what follows is of the row that is noted already
            row.arguments[2] = [self._workspace(*each) for each in taken]
            if args[2] is None:
                self._note_results(row, args[0], result)
            self._row += 1
            _shorten(row, args[0], len(taken))
        return result

    def _take(self, be: Any, taken: list[Any], spec: Spec, role: int) -> Any:
        taken.append((spec, spec.nbytes, self._sites.now()))
        return be.empty(spec, role)

    def _workspace(self, spec: Spec, nbytes: int, site: RecordedSite) -> Any:
        # Workspace of a row, which its kernel finds in the arena.
        if not nbytes:
            return EmptyArray(spec.shape, spec.np_dtype)
        row = self._row
        value = Value(len(self.program.values), nbytes, ARENA, 0, row, row, True, site=site)
        self.program.values.append(value)
        strides = _contiguous_strides(spec)
        return Place(value.number, 0, spec.shape, spec.np_dtype, strides)

    def _noted(self, f: Callable[..., Any], args: tuple[Any, ...]) -> Row | None:
        kept = _keeps_array(f)
        if kept is not None:
            self.refuse(f"a kernel keeps {kept}")
            return None
        if f is execute:
            plan, arrays, targets = args
            row = Row(partial(_executed, plan), [self._read_all(arrays), None, []], [], plan)
            if self._over is not None:
                self._begin_over(row)
            if targets is not None:
                row.arguments[1] = [[None, self._write(a, row)] for _, a in targets]
        else:
            first = next((k for k, a in enumerate(args) if isinstance(a, np.ndarray)), -1)
            arguments = self._read_all(args, but=first)
            row = Row(f, arguments, [])
            if first >= 0:
                arguments[first] = self._write(args[first], row)
        if self.reason is not None:
            return None
        self._append(row)
        return row

    def _begin_over(self, row: Row) -> None:
        # What is written is another value than the one that was read there.
        address, self._over = self._over, None
        old = self._born.get(address)  # type: ignore[arg-type]
        if old is None:
            self.refuse("a gradient is written over memory that was not allocated in the call")
            return
        value = Value(len(self.program.values), old.nbytes, ARENA, old.role)
        value.site = self._sites.now()
        self.program.values.append(value)
        self._born[address] = value  # type: ignore[index]
        if old.last == self._row:
            row.over = old.number

    def _note_results(self, row: Row, plan: Plan, results: list[Tensor]) -> None:
        if plan.op.adopt and not plan.results:
            self.refuse(f"the shape of {plan.op.display_name}'s result depends on values")
        row.arguments[1] = [[None, self._write(t._array, row)] for t in results]

    def _read_all(self, args: Sequence[Any], but: int = -1) -> list[Any]:
        return [a if k == but else self._read(a) for k, a in enumerate(args)]

    def _read(self, a: Any) -> Any:
        if isinstance(a, np.ndarray):
            return self._place(a, False)
        if type(a) is Rng:
            for k, start in enumerate(self._draws):
                if start is a:
                    return DrawNumber(k)
            self.refuse("a kernel takes random numbers that were not drawn in this call")
            return a
        if isinstance(a, PLAIN):
            return a
        if isinstance(a, list | tuple):
            found = [self._read(x) for x in a]
            if isinstance(a, tuple) and any(x is not y for x, y in zip(found, a, strict=True)):
                self.refuse("a kernel takes a tuple of arrays")
            return found if isinstance(a, list) else a
        if callable(a) or _is_ours(type(a)):
            kept = _keeps_array(a)
            if kept is not None:
                self.refuse(f"a kernel takes {kept}")
            return a
        self.refuse(f"a kernel takes a {type(a).__name__}")
        return a

    def _write(self, array: np.ndarray, row: Row) -> Any:
        place = self._place(array, True)
        if isinstance(place, Place):
            row.written.append(place.value)
        return place

    def _place(self, array: np.ndarray, writes: bool) -> Any:
        if not array.size:
            return EmptyArray(array.shape, array.dtype)
        owner = owner_of(array)
        start = address_of(array)
        value = self._given.get(id(owner)) or self._value(owner)
        if value is None:
            value = self._outside_value(owner)
            self._need_within(value, owner, array, start)
        elif value.kind == GIVEN:
            pass
        elif value.kind == CONSTANT and value.contents is None:
            if value.nbytes > _MOST_CONSTANT:
                self.refuse(f"the call makes {value.nbytes} bytes from Python's numbers")
            value.contents = owner.view(np.ndarray).copy()
        elif not (writes or value.written or value.kind == CONSTANT):
            self.refuse("a value is read that no kernel has written")
        offset = start - self._start(value, owner)
        if value.first < 0:
            value.first = self._row
        value.last = self._row
        if writes:
            value.written = True
            value.changed = value.kind == CONSTANT
        return Place(value.number, offset, array.shape, array.dtype, array.strides)

    def _value(self, owner: Any) -> Value | None:
        return self._born.get(owner.address) if isinstance(owner, Storage) else None

    def _outside_value(self, owner: Any) -> Value:
        found = self._outside.get(id(owner))
        if found is None:
            found = Value(len(self.program.values), owner.nbytes, OUTSIDE, written=True)
            self.program.values.append(found)
            self._outside[id(owner)] = found
            known = self._known.get(id(owner))
            if known is None:
                self.refuse(
                    "a kernel reads a tensor that is no argument, and that no module, "
                    "variable or list names"
                )
            else:
                found.tensor, found.is_gradient = known
        return found

    def _need_within(self, value: Value, owner: Any, array: np.ndarray, start: int) -> None:
        # Of memory that is not the pool's, only what the tensor itself shows can be repeated.
        if not isinstance(owner, Storage) and self.reason is None:
            holder = self._tensors[value.tensor]._array
            if (
                not holder.flags.c_contiguous
                or start < address_of(holder)
                or start + array.nbytes > address_of(holder) + holder.nbytes
            ):
                self.refuse("it reads a NumPy array beside what its tensor shows")

    def _start(self, value: Value, owner: Any) -> int:
        # The address from which offsets count: of an outside value, of its tensor's first element.
        if value.kind == GIVEN:
            return self._given_at[value.tensor]
        if value.kind != OUTSIDE:
            return owner.address  # type: ignore[no-any-return]
        return self._starts.get((value.tensor, value.is_gradient), 0)

    def _know(self, number: int, t: Tensor, is_gradient: bool) -> None:
        if isinstance(t._array, np.ndarray):
            self._known.setdefault(id(owner_of(t._array)), (number, is_gradient))
            start = self._starts[number, is_gradient] = address_of(t._array) if t._array.size else 0
            found = not is_gradient and number >= self.program.argument_count
            if found and isinstance(t._storage.root, Storage):
                self.program.addresses[number] = start


def _shorten(row: Row, plan: Plan, taken: int) -> None:
    # The kernel's own call, where `execute` has nothing to convert.
    converts = plan.casts is not None or plan.compute is not None or plan.op.adopt
    if not converts and taken == len(plan.scratch):  # else some input was copied: another layout
        arrays, targets, workspace = row.arguments
        assert plan.run is not None  # there are arrays, so kernels run
        row.function = plan.run
        row.arguments = [*[array for _, array in targets], *workspace, *arrays]


def _executed(plan: Plan, arrays: list[Any], targets: Any, workspace: list[Any]) -> None:
    # `execute` with its workspace at hand, in the order in which it asks for it.
    given = iter(workspace)
    execute(plan, arrays, targets, lambda spec, role: (None, next(given)))


def owner_of(array: np.ndarray) -> Any:
    """Return the storage of an array, or the array that owns its memory."""
    while not isinstance(array, Storage):
        base = array.base
        if not isinstance(base, np.ndarray):
            base = getattr(base, "base", None)  # what as_strided puts between
            if not isinstance(base, np.ndarray):
                return array
        array = base
    return array


def address_of(array: np.ndarray) -> int:
    """Return the address of an array's first element."""
    return int(array.__array_interface__["data"][0])


def _is_ours(cls: type) -> bool:
    module = sys.modules.get(cls.__module__)
    return str(getattr(module, "__file__", None) or "").startswith(_PACKAGE)


def _keeps_array(f: Any, depth: int = 0) -> str | None:
    # What a function holds beside its arguments that may be other bytes at its next call.
    if isinstance(f, np.ndarray):
        return "a tensor's array" if isinstance(owner_of(f), Storage) else None
    if isinstance(f, Tensor):
        return "a tensor"
    if depth > 6 or isinstance(f, PLAIN):
        return None
    parts: list[Any] = []
    if isinstance(f, partial):
        parts = [f.func, *f.args, *f.keywords.values()]
    elif isinstance(f, types.FunctionType):
        parts = [c.cell_contents for c in f.__closure__ or () if _is_filled(c)]
    elif isinstance(f, types.MethodType):
        if not isinstance(f.__self__, HostBackend | Plan):
            return f"an object, a {type(f.__self__).__name__}"
    elif isinstance(f, list | tuple):
        parts = list(f)
    elif isinstance(f, dict):
        parts = list(f.values())
    elif isinstance(f, LedgerEntry):
        return "a storage"
    elif not isinstance(f, HostBackend | Plan) and _is_ours(type(f)):
        slots = [s for c in type(f).__mro__ for s in getattr(c, "__slots__", ())]
        parts = [getattr(f, s, None) for s in slots if s not in ("__dict__", "__weakref__")]
        parts += getattr(f, "__dict__", {}).values()
    return next((k for k in (_keeps_array(p, depth + 1) for p in parts) if k), None)


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - reading it is the question
    except ValueError:
        return False
    return True


def _contiguous_strides(spec: Spec) -> tuple[int, ...]:
    found = []
    step = spec.dtype.itemsize
    for n in reversed(spec.shape):
        found.append(step)
        step *= n
    return tuple(reversed(found))
