"""How long a step takes that was only imagined: its kernel calls, each as long as it was measured.

An estimate notes which kernels a step calls, with which shapes and layouts. Those whose time is not
known yet are run a few times, on random floating-point numbers and on zeros for integers, in the
forked copy of the process in which the estimate ran. The step then takes the sum of its calls, the
Python between them, which an estimate runs for real, and the page faults of what the pool gives
back.
"""

from __future__ import annotations

import mmap
import time
from collections import Counter
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ...framework.kernels.runtime.errstate import run_nested
from ...framework.kernels.runtime.kernel_seconds import (
    FAULT,
    KernelSeconds,
    Times,
    layout_of,
    name_of,
)
from ...framework.memory.machine import machine
from ...framework.ops.plan import execute
from .fake_cuda import NOTHING

PATIENCE = 5.0  # seconds for all kernels of a step that are to be measured
LEAST_RUNS, MOST_RUNS = 3, 15
LONG_ENOUGH = 0.01  # seconds of runs of one kernel
CACHE = 1 << 22  # bytes written between two runs, so that operands are no longer in the fast caches
PAGES = 1 << 24  # bytes touched to find out what a page fault takes
_NO_TIME = 0.0, 0.0, 0.0
_OURS = np.ndarray, np.generic


class Seconds(NamedTuple):
    """A time: the typical one, and one as short and one as long as was measured."""

    least: float
    typical: float
    most: float


class KernelCalls:
    """The kernel calls of a step that is imagined.

    Attributes:
        counts: How often each was called, by name and layout.
        weights: Bytes moved, or operations, by all calls of a kernel; for those not measured.
        elsewhere: Calls of kernels of other devices, whose times are not known here.
        noting: Seconds spent here, and on leaving kernels out.
        clock: Predicted seconds of the calls so far; their number, where no time is known.
        known: Times of kernels, by which the clock goes; or None.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.weights: Counter[str] = Counter()
        self.elsewhere = 0
        self.noting = 0.0
        self.clock = 0.0
        self.known: KernelSeconds | None = None
        self._keys: dict[Any, str] = {}
        self._examples: dict[str, Any] = {}

    def forget(self) -> None:
        """Count from zero again."""
        self.counts.clear()
        self.weights.clear()
        self.elsewhere = 0
        self.noting = self.clock = 0.0

    def left_out(self, seconds: float) -> None:
        """Count time that the step itself does not take."""
        self.noting += seconds

    def note(self, f: Any, name: str, args: Any, reads: Any, weight: float) -> None:
        """Count a call.

        Args:
            f: A kernel, bound to attributes or not, or a plan.
            name: Of its op, or what else it is called.
            args: What it is called with.
            reads: Of them, what it reads.
            weight: Bytes moved, or as many operations as take that long.
        """
        bound = f.args if type(f) is partial else (getattr(f, "xp", None), *args[:1])
        here = all(isinstance(a, _OURS) or not hasattr(a, "strides") for a in args)
        if not here or any(value is NOTHING for value in bound[:2]):
            self.elsewhere += 1
        else:
            form = tuple(_form(a) for a in args)
            known = self._keys.get((f, form))
            if known is None:
                attributes = f.keywords if type(f) is partial else getattr(f, "attributes", None)
                known = f"{name_of(name, reads, attributes)}\t{layout_of(args)}"
                self._keys[f, form] = known
                self._examples.setdefault(known, (f, [_form(a, keep=True) for a in args]))
            if self.known is not None:
                self.clock += self.known.times.get(known, _NO_TIME)[1]
            self.counts[known] += 1
            self.weights[known] += weight  # type: ignore[assignment]
        if self.known is None:
            self.clock += 1

    def measure(self, known: KernelSeconds, executor: Any) -> dict[str, Times]:
        """Run the kernels whose times are not known, those with most work first.

        Returns:
            Their times. A kernel that cannot be run on made-up values has none.
        """
        found: dict[str, Times] = {}
        end = time.perf_counter() + PATIENCE
        room = (machine().available() or 1 << 30) // 4
        if FAULT not in known.times:
            found[FAULT] = _page_fault()
        executor.measures = True
        try:
            for key, _ in self.weights.most_common():
                if key not in known.times and time.perf_counter() < end:
                    f, args = self._examples[key]
                    times = _run(f, args, room)
                    if times is not None:
                        found[key] = times
        finally:
            executor.measures = False
        return found


def _form(value: Any, keep: bool = False) -> Any:
    # Shape, strides and dtype of an array; a scalar as it is, where that is to be kept.
    if isinstance(value, np.ndarray):
        return value.shape, value.strides, value.dtype
    return value if keep else repr(value)


def _is_form(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 3 and isinstance(value[2], np.dtype)


def _nbytes(form: Any) -> int:
    shape, strides, dtype = form
    if 0 in shape:
        return 0
    last = sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
    return int(last + dtype.itemsize)


def _array(form: Any) -> Any:
    shape, strides, dtype = form
    nbytes = _nbytes(form)
    memory = np.zeros(-(-nbytes // 64) * 64 + 64, np.uint8)
    if dtype.kind not in "biu":  # integers may be indices: 0 is one
        numbers = memory[: nbytes // dtype.itemsize * dtype.itemsize].view(dtype)
        numbers[:] = np.random.default_rng(0).standard_normal(numbers.size).astype(dtype)
    return np.ndarray(shape, dtype, memory, 0, strides)


def _run(f: Any, args: list[Any], room: int) -> Times | None:
    if sum(_nbytes(a) for a in args if _is_form(a)) > room:
        return None
    whole = hasattr(f, "results")  # a plan
    taken: list[float] = []
    try:
        values = [_array(a) if _is_form(a) else a for a in args]
        flush = np.zeros(CACHE, np.uint8)
        call = partial(execute, f, values, None) if whole else partial(f, *values)
        run_nested(call)  # compiles, maybe
        while len(taken) < LEAST_RUNS or (len(taken) < MOST_RUNS and sum(taken) < LONG_ENOUGH):
            flush.fill(len(taken))
            began = time.perf_counter()
            run_nested(call)
            taken.append(time.perf_counter() - began)
            if len(taken) > 1 and sum(taken) > 10 * LONG_ENOUGH:
                break
    except Exception:  # made-up values need not be what a kernel takes; then its work is counted
        return None
    taken.sort()
    return taken[0], taken[len(taken) // 2], taken[3 * len(taken) // 4]


def _page_fault() -> Times:
    taken = []
    for _ in range(LEAST_RUNS):
        with mmap.mmap(-1, PAGES) as memory:
            pages = np.frombuffer(memory, np.uint8)[:: mmap.PAGESIZE]
            began = time.perf_counter()
            pages[:] = 1
            taken.append((time.perf_counter() - began) / PAGES)
            del pages
    taken.sort()
    return taken[0], taken[1], taken[2]


def seconds_of(
    counts: dict[str, int],
    weights: dict[str, float],
    python: float,
    given: int,
    known: KernelSeconds,
) -> tuple[Seconds, float]:
    """Return what a step takes, and what share of its work was measured.

    Args:
        counts: Its kernel calls.
        weights: Their work.
        python: Seconds between kernels.
        given: Bytes of pages that the pool gives back.
        known: Times of kernels.
    """
    total = [python + given * t for t in known.times.get(FAULT, (0.0, 0.0, 0.0))]
    measured = 0.0
    seconds = 0.0
    rest = 0.0
    for key, n in counts.items():
        times = known.times.get(key)
        if times is None:
            rest += weights[key]
            continue
        measured += weights[key]
        seconds += n * times[1]
        total = [t + n * s for t, s in zip(total, times, strict=True)]
    if rest and measured:  # as long as its work takes elsewhere
        more = rest * seconds / measured
        total = [t + more for t in total]
    work = measured + rest
    return Seconds(*total), measured / work if work else 0.0


__all__ = ["KernelCalls", "Seconds", "seconds_of"]
