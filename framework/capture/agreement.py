"""Whether two recordings of a call agree: only then a third call is replayed.

What a function computes with may come from where no comparison of variables looks: a clock, a file,
a generator of random numbers inside a library. Then two recordings differ in a number or in the
contents of a tensor that Python has made.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import FunctionType
from typing import Any

import numpy as np

from ..ops.plan import Plan
from .program import GIVEN, OUTSIDE, Draw, Effects, LiveCall, Row, StepProgram, Value


def disagreement(a: StepProgram, b: StepProgram) -> str | None:
    """Return why the recordings of two calls do not stand for a third one; None if they agree."""
    if [type(e) for e in a.entries] != [type(e) for e in b.entries]:
        return "it runs other kernels in each call"
    for x, y in zip(a.entries, b.entries, strict=True):
        if not _ENTRIES[type(x)](x, y):
            where = f" of {_name(x.function)}" if isinstance(x, Row) else ""
            return f"an argument{where} differs from call to call, and no variable tells why"
    if len(a.values) != len(b.values) or not all(map(_same_value, a.values, b.values)):
        return "it makes a tensor from values that differ from call to call"
    if not _same(a.results, b.results) or a.structure != b.structure:
        return "what it returns beside tensors differs from call to call"
    return None


def _same_row(x: Row, y: Row) -> bool:
    return x.written == y.written and _same((x.function, x.arguments), (y.function, y.arguments))


def _same_draw(x: Draw, y: Draw) -> bool:
    return x.generator is y.generator and x.words == y.words


def _same_live(x: LiveCall, y: LiveCall) -> bool:
    return x.owner is y.owner and _same((x.method, x.args, x.kwargs), (y.method, y.args, y.kwargs))


def _same_effects(x: Effects, y: Effects) -> bool:
    return x.gradients == y.gradients and x.versions == y.versions


_ENTRIES: dict[type, Callable[[Any, Any], bool]] = {
    Row: _same_row, Draw: _same_draw, LiveCall: _same_live, Effects: _same_effects,
}  # fmt: skip


def _same_value(x: Value, y: Value) -> bool:
    if (x.kind, x.tensor) != (y.kind, y.tensor):
        return False
    if x.kind in (OUTSIDE, GIVEN):  # of a view, these are the bytes of its base
        return True
    if x.nbytes != y.nbytes or x.contents is None or y.contents is None:
        return x.nbytes == y.nbytes and x.contents is y.contents
    return bool(x.contents.tobytes() == y.contents.tobytes())


def _same(x: Any, y: Any) -> bool:
    # Objects without a rule here are equal if they are of one type: kernels and array modules.
    if x is y:
        return True
    if type(x) is not type(y):
        return False
    if isinstance(x, (list, tuple)):
        return len(x) == len(y) and all(map(_same, x, y))
    if isinstance(x, dict):
        return x.keys() == y.keys() and all(_same(v, y[k]) for k, v in x.items())
    if isinstance(x, (float, complex, np.generic)):
        return repr(x) == repr(y)  # NaN is like NaN, and 0 is not like -0
    if isinstance(x, partial):
        return _same((x.func, x.args, x.keywords), (y.func, y.args, y.keywords))
    if isinstance(x, FunctionType):
        return x.__code__ is y.__code__ and _same(_held(x), _held(y))
    if isinstance(x, Plan):
        return x.op is y.op and _same(x.attributes, y.attributes)
    return bool(x == y) if isinstance(x, _COMPARED) else True


_COMPARED = (int, str, bytes, slice, np.dtype)


def _held(f: FunctionType) -> list[Any]:
    return [cell.cell_contents for cell in f.__closure__ or ()]


def _name(f: Any) -> str:
    while isinstance(f, partial):
        f = f.args[0] if f.args and callable(f.args[0]) else f.func
    return str(getattr(f, "__name__", type(f).__name__))
