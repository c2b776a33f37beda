"""Whether two recordings of a call agree: only then a third call is replayed.

What a function computes with may come from where no comparison of variables looks: a clock, a file,
a generator of random numbers inside a library. Then two recordings differ in a number or in the
contents of a tensor that Python has made.
"""

from __future__ import annotations

from functools import partial
from types import FunctionType
from typing import Any, NamedTuple

import numpy as np

from ..ops.plan import Plan
from .program import GIVEN, OUTSIDE, Draw, LiveCall, Place, Result, Row, StepProgram, Value
from .returned_numbers import Number
from .value_reads import is_read


class Disagreement(NamedTuple):
    """What differs between two recordings.

    Attributes:
        reason: Why the call cannot be replayed.
        branch: It is only a truth value or an integer that Python reads: each has its recording.
        entry: The entry that differs; -1 if none does.
    """

    reason: str
    branch: bool = False
    entry: int = -1


def disagreement(a: StepProgram, b: StepProgram) -> Disagreement | None:
    """Return why the recordings of two calls do not stand for a third one; None if they agree."""
    return _Comparison(a, b).disagreement()


class _Comparison:
    # Values are numbered as storages were made. What a call makes and no kernel uses may differ, so
    # numbers are compared by who stands for whom.

    def __init__(self, a: StepProgram, b: StepProgram) -> None:
        self.a, self.b = a, b
        self.theirs: dict[int, int] = {}
        self.ours: dict[int, int] = {}

    def disagreement(self) -> Disagreement | None:
        a, b = self.a, self.b
        for k, (x, y) in enumerate(zip(a.entries, b.entries, strict=False)):
            if type(x) is not type(y):
                return Disagreement("it runs other kernels in each call")
            if not self.same_entry(x, y):
                return self.differing(x, y)._replace(entry=k)
        if len(a.entries) != len(b.entries):
            return Disagreement("it runs other kernels in each call")
        if not all(self.same_value(a.values[x], b.values[y]) for x, y in self.theirs.items()):
            return Disagreement("it makes a tensor from values that differ from call to call")
        if not self.same_results() or a.structure != b.structure:
            return Disagreement("what it returns beside tensors differs from call to call")
        return None

    def differing(self, x: Any, y: Any) -> Disagreement:
        if is_read(x) and is_read(y):
            branch = isinstance(x.arguments[1], int) and self.same(x.arguments[0], y.arguments[0])
            reason = "Python reads a tensor's value (item) that differs from call to call"
            return Disagreement(reason, branch)
        where = f" of {_name(x.function)}" if isinstance(x, Row) else ""
        return Disagreement(
            f"an argument{where} differs from call to call, and no variable tells why"
        )

    def same_entry(self, x: Any, y: Any) -> bool:
        if isinstance(x, Row):
            return self.same(_call_of(x), _call_of(y))
        if isinstance(x, Draw):
            return x.generator is y.generator and x.words == y.words
        if isinstance(x, LiveCall):
            return x.owner is y.owner and self.same(
                (x.method, x.args, x.kwargs), (y.method, y.args, y.kwargs)
            )
        return self.same((x.gradients, x.versions), (y.gradients, y.versions))

    def same_place(self, x: Place, y: Place) -> bool:
        known = self.theirs.setdefault(x.value, y.value) == y.value
        return known and self.ours.setdefault(y.value, x.value) == x.value and x[1:] == y[1:]

    def same_value(self, x: Value, y: Value) -> bool:
        if (x.kind, x.tensor) != (y.kind, y.tensor):
            return False
        if x.kind in (OUTSIDE, GIVEN):  # of a view, these are the bytes of its base
            return True
        if x.nbytes != y.nbytes or x.contents is None or y.contents is None:
            return x.nbytes == y.nbytes and x.contents is y.contents
        return bool(x.contents.tobytes() == y.contents.tobytes())

    def same_results(self) -> bool:
        found = [self.a.results, self.b.results]
        plain = [[_parts(r) for r in results] for results in found]
        return self.same(plain[0], plain[1]) and self.same(self.a.gradients, self.b.gradients)

    def same(self, x: Any, y: Any) -> bool:
        # Objects without a rule here are equal if they are of one type: kernels, array modules.
        if type(x) is not type(y):
            return False
        if isinstance(x, Place):
            return self.same_place(x, y)
        if isinstance(x, Number):
            return bool(x.index == y.index)
        if x is y:
            return True
        if isinstance(x, (list, tuple)):
            return len(x) == len(y) and all(map(self.same, x, y))
        if isinstance(x, dict):
            return x.keys() == y.keys() and all(self.same(v, y[k]) for k, v in x.items())
        if isinstance(x, (float, complex, np.generic)):
            return repr(x) == repr(y)  # NaN is like NaN, and 0 is not like -0
        if isinstance(x, partial):
            return self.same((x.func, x.args, x.keywords), (y.func, y.args, y.keywords))
        if isinstance(x, FunctionType):
            return x.__code__ is y.__code__ and self.same(_held(x), _held(y))
        if isinstance(x, Plan):
            return x.op is y.op and self.same(x.attributes, y.attributes)
        return bool(x == y) if isinstance(x, _COMPARED) else True


def _call_of(row: Row) -> Any:
    # The same kernel may be called with the array module, or be a partial that holds it.
    f: Any = row.function
    args, keywords = row.arguments, dict[str, Any]()
    while isinstance(f, partial):
        f, args, keywords = f.func, [*f.args, *args], {**f.keywords, **keywords}
    return f, args, keywords


def _parts(result: Any) -> Any:
    if isinstance(result, Result):
        return [result.place, result.requires_grad, result.output]
    return result


_COMPARED = (int, str, bytes, slice, np.dtype)


def _held(f: FunctionType) -> list[Any]:
    return [cell.cell_contents for cell in f.__closure__ or ()]


def _name(f: Any) -> str:
    while isinstance(f, partial):
        f = f.args[0] if f.args and callable(f.args[0]) else f.func
    return str(getattr(f, "__name__", type(f).__name__))
