"""Sets each dim of each op's and layer's inputs to 0, in memory full of garbage.

What has no elements is often left to a loop that runs no times, or to a product whose inner dim is
0: then nothing writes a result that does have elements. Each call is made twice, forward and
backward, in memory that was filled with other bytes; results and gradients must be the same.

A call may be refused, in words of the op. What says that arithmetic or NumPy failed is a fault.

    python -m tests.faults.zero_dims             # every op and layer: what was run, and faults
    python -m tests.faults.zero_dims lstm LSTM   # those with one of the words in their name
"""

from __future__ import annotations

import argparse
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import lowtide as lt
from lowtide.framework import testing
from lowtide.framework.autograd.engine import grad
from lowtide.framework.distributions.sampling import implicit_gradients as _draws  # noqa: F401 - and its ops
from lowtide.framework.dtypes import dtype, float64
from lowtide.framework.ops.registry import OPS, Op
from tests.modules.table import Case, Draw, all_cases, family, run
from tests.samples import fresh_start

GARBAGE = (0xFF, 0x7F, 0x01)  # NaN and -1, huge numbers, tiny numbers
REFUSALS = (
    RuntimeError,
    ValueError,
    IndexError,
    TypeError,
    NotImplementedError,
    AssertionError,
    ZeroDivisionError,
)
# Their results are whatever the memory held.
UNFILLED = {"empty", "empty_like", "new_empty", "empty_strided", "empty_permuted"}
UNFILLED |= {"as_strided"}  # reads any part of its storage: the function checks that it is inside
# Ops that only gradient rules call, with operands that fit: they are reached by what they serve.
OF_RULES = ("_grad", "slope", "backward")
Place = tuple[int, int]  # number of an input, and of its dim


# Which dims


def cuts(shapes: dict[int, tuple[int, ...]]) -> list[frozenset[Place]]:
    """Sets of dims to make 0: each alone, those of one size, and those in one place.

    A dim that several inputs share is among the latter.
    """
    places = {(k, d): n for k, shape in shapes.items() for d, n in enumerate(shape) if n}
    groups: dict[Any, set[Place]] = {}
    for (k, d), n in places.items():
        back = d - len(shapes[k])
        for key in (
            (k, d),
            ("size", n),
            ("from the front", d),
            ("from the back", back),
            ("front", d, n),
            ("back", back, n),
            ("all", k),
        ):
            groups.setdefault(key, set()).add((k, d))
    return list(dict.fromkeys(frozenset(g) for g in groups.values()))


def alike(shapes: dict[int, tuple[int, ...]]) -> list[frozenset[Place]]:
    """Only those sets of :func:`cuts` that have all dims of a size."""
    sizes = {n for shape in shapes.values() for n in shape if n}
    return [
        frozenset((k, d) for k, shape in shapes.items() for d, m in enumerate(shape) if m == n)
        for n in sorted(sizes)
    ]


def cut(array: Any, dims: list[int]) -> Any:
    """The array without elements along some dims."""
    return array[tuple(slice(0, 0) if d in dims else slice(None) for d in range(array.ndim))]


def _dims(places: frozenset[Place], k: int) -> list[int]:
    return [d for i, d in places if i == k]


# What is run


def of_op(op: Op, made_in: dtype = float64) -> Iterator[tuple[str, Callable[[], list[Any]]]]:
    """Each call of an op with zeros among its sizes: what it is, and a function that makes it."""
    if op.name.strip("_") in UNFILLED or any(word in op.name for word in OF_RULES):
        return
    for number, (inputs, attributes) in enumerate(testing.samples(op, testing.Make(made_in))):
        shapes = {k: tuple(x.shape) for k, x in enumerate(inputs) if _dense(x)}
        private = op.name.startswith("_")  # its callers make operands fit, and it trusts them
        for places in alike(shapes) if private else cuts(shapes):
            with lt.no_grad():
                changed = tuple(
                    cut(x, _dims(places, k)).clone() if k in shapes else x
                    for k, x in enumerate(inputs)
                )

            def call(changed: Any = changed, attributes: Any = attributes) -> list[Any]:
                return _forward_and_backward(op, changed, attributes)

            yield f"{op.name}, sample {number}: {testing.describe(changed, attributes)}", call


def _dense(x: Any) -> bool:
    return isinstance(x, lt.Tensor) and x.layout is lt.strided and x.ndim > 0


def _forward_and_backward(op: Op, inputs: Any, attributes: Any) -> list[Any]:
    inputs = testing.place(inputs, op=op)
    outputs = testing.call(op, inputs, attributes)
    found = [*outputs]
    sources = [x for x in testing.differentiable(op, inputs) if x.requires_grad]
    ends = [o for o in outputs if o.requires_grad]
    if sources and ends:
        found += grad(ends, sources, [lt.ones_like(o) for o in ends], allow_unused=True)
    return [None if t is None else _bytes(t) for t in found]


def _bytes(t: Any) -> tuple[Any, ...]:
    if t.layout is not lt.strided:
        t = t.to_dense()
    a = np.asarray(t.detach().array if not t.is_conj() else t.detach().resolve_conj().array)
    return tuple(t.shape), t.dtype.name, np.ascontiguousarray(a).tobytes()


def of_case(case: Case) -> Iterator[tuple[str, Case, str]]:
    """A layer's case with zeros among the sizes of its inputs and its arguments."""
    draws = list(_draws_in(case.x))
    shapes = {k: d.make(np.random.default_rng(0)).shape for k, d in enumerate(draws)}
    sizes = {n for shape in shapes.values() for n in shape}
    variants = [(places, case.args) for places in cuts(shapes)]
    for k, n in enumerate(case.args):
        if type(n) is int and n in sizes:
            same = frozenset(
                (i, d) for i, shape in shapes.items() for d, m in enumerate(shape) if m == n
            )
            zeroed = tuple(0 if i == k else a for i, a in enumerate(case.args))
            variants += [(p, zeroed) for p in {same, *(frozenset({q}) for q in same)}]
        elif type(n) is int:
            variants.append(
                (frozenset(), tuple(0 if i == k else a for i, a in enumerate(case.args)))
            )
    for places, args in variants:
        x = _with_cuts(case.x, places, iter(range(len(draws))))
        changed = replace(case, args=args, x=x, note=f"{case.note} zero")
        what = ", ".join(f"input {k} dim {d}" for k, d in sorted(places))
        for mode in case.modes:
            yield f"{case.id} in {mode}, args {args}, 0 at {what}", changed, mode


def _draws_in(values: Any) -> Iterator[Draw]:
    for v in values:
        if isinstance(v, tuple):
            yield from _draws_in(v)
        elif isinstance(v, Draw):
            yield v


def _with_cuts(values: Any, places: frozenset[Place], count: Iterator[int]) -> tuple[Any, ...]:
    found: list[Any] = []
    for v in values:
        if isinstance(v, tuple):
            found.append(_with_cuts(v, places, count))
        elif isinstance(v, Draw):
            dims = _dims(places, next(count))
            found.append(Draw(lambda rng, v=v, dims=dims: cut(v.make(rng), dims), v.grad))
        else:
            found.append(v)
    return tuple(found)


def _of_layer(case: Case) -> Iterator[tuple[str, Callable[[], list[Any]]]]:
    for what, changed, mode in of_case(case):

        def call(changed: Case = changed, mode: str = mode) -> list[Any]:
            found = run(lt, changed, mode, dtype=lt.float32, second=changed.second)
            return [(n, a.shape, a.tobytes()) for n, a in found.items()]

        yield what, call


def of_family(name: str) -> Iterator[tuple[str, Callable[[], list[Any]]]]:
    """All calls of the layers of a file in ``tests/modules/cases``."""
    for case in family(name).CASES:
        yield from _of_layer(case)


def calls(names: list[str]) -> Iterator[tuple[str, Callable[[], list[Any]]]]:
    """All calls of the ops and layers with one of the words in their name; of all without any."""

    def asked(name: str) -> bool:
        return not names or any(n in name for n in names)

    for name, op in OPS.items():
        if asked(name):
            yield from of_op(op)
    for case in all_cases():
        if asked(case.layer):
            yield from _of_layer(case)


# Whether it is right


def judged(what: str, call: Callable[[], list[Any]]) -> str:
    """Say "agree" or "refused" if the call is right; else what is wrong."""
    found: list[Any] = []
    for byte in GARBAGE:
        with fresh_start(), warnings.catch_warnings(), testing.poisoned(byte=byte):
            warnings.simplefilter("ignore")
            try:
                found.append(call())
            except REFUSALS as error:
                return "refused" if what.startswith("_") else _refusal(error)
            except Exception as error:
                return f"{type(error).__name__}: {error}"
    if all(f == found[0] for f in found):
        return "agree"
    wrong = [k for k, same in enumerate(zip(*found, strict=True)) if len(set(same)) > 1]
    return f"results {wrong} are what the memory held"


def _refusal(error: Exception) -> str:
    # Raised by a line that says so, not by arithmetic or NumPy below it.
    last = traceback.extract_tb(error.__traceback__)[-1]
    line = last.line or ""
    here = Path(last.filename).parts
    if "numpy" in here or ("raise" not in line and "error" not in line):
        return f"{type(error).__name__} at {here[-1]}:{last.lineno}: {error}"
    return "refused"


def main() -> int:
    """Run all; print how many agree, are refused, and each fault."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", help="words of names of ops and layers")
    options = parser.parse_args()
    counts: Counter[str] = Counter()
    for what, call in calls(options.names):
        outcome = judged(what, call)
        counts[outcome if outcome in ("agree", "refused") else "faults"] += 1
        if outcome not in ("agree", "refused"):
            print(f"{what}\n    {outcome}", flush=True)
    print(f"{sum(counts.values())} calls: {dict(counts)}")
    return 1 if counts["faults"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
