"""Interrupts at every place where CPython raises one, and what must hold after each.

An interrupt is raised in the main thread at the entry of a function, after a call, and where a loop
jumps back. :class:`Interrupting` counts these places with a trace function and, at the n-th, does
what the interpreter does: it calls the handler of SIGINT with the frame. After each interrupt the
books are compared with what lives, byte by byte, and the same step is run again and compared with
that of a run without interrupts, bit by bit.

    python -m tests.faults.interrupts --count 20000 --seed 0     # injected, spread over scenarios
    python -m tests.faults.interrupts --real 2000                # real signals at random instants
"""

from __future__ import annotations

import _weakrefset
import argparse
import collections
import dis
import gc
import logging
import os
import random
import signal
import sys
import threading
import time
import weakref
from typing import Any

import numpy as np

import lowtide as lt
from lowtide.framework.autograd.saved import Held, Pin
from lowtide.framework.devices import backend
from lowtide.framework.memory.ledger import ROLES
from lowtide.framework.modes import local
from lowtide.framework.storage import Storage

from .scenarios import SCENARIOS

# Not the scenarios' own lines; nor weakref's callbacks, of which Python only prints that it ignores
# an interrupt there (lowtide has it raised again); nor logging, whose lock stays taken by an
# interrupt in its hook of a fork.
HERE = (
    __file__,
    SCENARIOS[0].__init__.__code__.co_filename,
    weakref.__file__,
    _weakrefset.__file__,
    logging.__file__,
)


_PROCESS = os.getpid()


class Interrupting:
    """Counts the places of a block at which an interrupt can be, and interrupts at the n-th.

    Args:
        at: Which place; None only counts.

    Attributes:
        places: How many were passed.
        where: File, line and function of the interrupt.
        outcome: "interrupted", "not reached", or "lost": nobody raised it.
    """

    outcome = ""

    def __init__(self, at: int | None = None) -> None:
        self.at = at
        self.places = 0
        self.where: str | None = None
        self._last: dict[Any, int] = {}  # by frame: the instruction before, if it was a call

    def __enter__(self) -> Interrupting:
        sys.settrace(self._call)
        return self

    def __exit__(self, *exc: object) -> None:
        sys.settrace(None)
        self._last.clear()

    def _call(self, frame: Any, event: str, _: Any) -> Any:
        if os.getpid() != _PROCESS:  # a worker, which ignores Ctrl-C
            sys.settrace(None)
            return None
        if frame.f_code.co_filename in HERE:
            return None
        if frame.f_lasti <= _entry(frame.f_code):  # a generator may be entered to be closed
            self._place(frame)
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        return self._step

    def _step(self, frame: Any, event: str, _: Any) -> Any:
        if event == "opcode":
            code, here = frame.f_code, frame.f_lasti
            before = self._last.pop(frame, None)
            if before is not None and _handler(code, before) == _handler(code, here):
                self._place(frame)
            kind = _kinds(code).get(here)
            if kind == "call":
                self._last[frame] = here
            elif kind == "back":
                self._place(frame)
        return self._step

    def _place(self, frame: Any) -> None:
        self.places += 1
        if self.places == self.at:
            sys.settrace(None)
            code = frame.f_code
            self.where = f"{os.path.basename(code.co_filename)}:{frame.f_lineno} {code.co_name}"
            signal.getsignal(signal.SIGINT)(signal.SIGINT, frame)


class interrupted(Interrupting):
    """Interrupts the block at a place, waits until that has been raised, and goes on behind it."""

    def wait(self) -> None:
        """Stop tracing, and wait inside the block for an interrupt that a hook of a fork deferred.

        Another thread raises such an interrupt at any later instant. One that comes while the block
        is left could pass ``__exit__`` by, so a block that forks ends with this call.
        """
        sys.settrace(None)
        for _ in range(1000 if self.where else 0):
            time.sleep(0.002)

    def __exit__(self, kind: Any = None, *exc: object) -> bool:
        try:
            super().__exit__()
            if kind is None:
                self.outcome = "not reached" if self.where is None else "lost"
                self.wait()  # one in a finalizer is raised soon
        except KeyboardInterrupt:
            kind = kind or KeyboardInterrupt  # an error of the block is not hidden
        if kind is KeyboardInterrupt:
            self.outcome = "interrupted"
        return kind is KeyboardInterrupt


_known: dict[Any, tuple[dict[int, str], list[Any], int]] = {}


def _facts(code: Any) -> tuple[dict[int, str], list[Any], int]:
    # Of its instructions: which are calls and jumps back, the table of handlers, the entry.
    if code not in _known:
        kinds, entries = {}, []
        for i in dis.get_instructions(code):
            if i.opname == "RESUME":
                entries.append(i.offset)
            if i.opname.startswith("CALL"):
                kinds[i.offset] = "call"
            elif i.opname == "JUMP_BACKWARD":
                kinds[i.offset] = "back"
        _known[code] = kinds, dis._parse_exception_table(code), min(entries, default=0)
    return _known[code]


def _entry(code: Any) -> int:
    return _facts(code)[2]


def _kinds(code: Any) -> dict[int, str]:
    return _facts(code)[0]


def _handler(code: Any, offset: int) -> Any:
    # Which `except` or `finally` an exception at an instruction leads to: the interpreter raises
    # after a call, as if by it.
    for entry in _facts(code)[1]:
        if entry.start <= offset < entry.end:
            return entry.target
    return None


# What must hold


def broken(modes: dict[str, Any], older: list[Any]) -> list[str]:
    """What does not hold of the books and of the modes of this thread.

    Args:
        modes: As they should be.
        older: Storages that the garbage collector does not know any more.
    """
    found = []
    young = [s for s in gc.get_objects() if issubclass(type(s), Storage)]
    living = [s for s in older + young if hasattr(s, "ledger")]
    for name in ("cpu", "meta"):
        be = backend(lt.device(name))
        mine = [s for s in living if s.ledger is be.ledger]
        found += [f"{name}: {what}" for what in _books(be, mine)]
    pins: collections.Counter[int] = collections.Counter()
    for x in gc.get_objects():
        if issubclass(type(x), Held | Pin) and hasattr(x, "storage"):  # no dead weakref.proxy
            pins[id(x.storage)] += 1
    wrong = [s for s in young if hasattr(s, "ledger") and s.pins != pins[id(s)]]
    if wrong:
        found.append(f"{len(wrong)} storages count pins that are not there")
    found += [
        f"mode {k} is {v!r}, was {modes[k]!r}" for k, v in modes_now().items() if v != modes[k]
    ]
    return found


def _books(be: Any, living: list[Any]) -> list[str]:
    ledger, pool = be.ledger, be.pool
    found = []
    roles = [0] * len(ROLES)
    for s in living:
        roles[s.role] += s.nbytes
    if ledger.live != sum(roles) or ledger.roles != roles:
        found.append(f"the ledger has {ledger.live} {ledger.roles}, living are {roles}")
    taken = [(s.offset, -(-s.nbytes // 64) * 64) for s in living if s.nbytes]
    free = [(o, n) for n, stack in pool.bins.items() if n for o in stack]
    free += pool._at.items()
    free += [(o, pool._loose_size) for o in pool._loose]
    end = 0
    for offset, size in sorted(taken + free):
        if offset != end:
            found.append(f"{'a hole' if offset > end else 'two blocks'} at {min(offset, end)}")
            break
        end = offset + size
    else:
        if end != pool.top:
            found.append(f"blocks end at {end}, the pool at {pool.top}")
    if pool.used != sum(n for _, n in taken):
        found.append(f"the pool says {pool.used} are used, living are {sum(n for _, n in taken)}")
    if pool._busy:
        found.append("the pool is busy")
    return found


def modes_now() -> dict[str, Any]:
    """The modes of this thread, by name; a scope that was left counts as gone."""
    state = local.state
    found = {n: getattr(state, n) for n in state.__slots__ if n != "run_kernel"}
    scope = found["scope"]
    while scope is not None and scope.closed:
        scope = scope.outer
    return {**found, "scope": scope, "handler": signal.getsignal(signal.SIGINT)}


class Trial:
    """One scenario, interrupted again and again.

    Attributes:
        outcomes: How many interrupts ended how.
        failures: What did not hold: place, and what.
    """

    def __init__(self, kind: Any) -> None:
        gc.unfreeze()
        gc.collect()
        self.older = [s for s in gc.get_objects() if issubclass(type(s), Storage)]
        gc.freeze()  # what is older is not gone through after each interrupt
        self.scenario = kind()
        for _ in range(2):  # plans, imports, state
            self.scenario.step()
            self.scenario.restore()
        self.expected = self.scenario.step()
        self.after = self.scenario.values()
        self.scenario.restore()
        self.before = self.scenario.values()
        self.modes = modes_now()
        for _ in range(2):  # a first traced step may do more
            with Interrupting() as counted:
                self.scenario.step()
            self.places = counted.places
            self.scenario.restore()
        self.start = backend(lt.device("cpu")).ledger.live
        self.outcomes: collections.Counter[str] = collections.Counter()
        self.failures: list[tuple[str, list[str]]] = []

    def interrupted_at(self, place: int) -> None:
        """Interrupt the step at a place, then see that all is well."""
        wrong = []
        try:
            with interrupted(place) as tracer:
                self.scenario.step()
        except Exception as error:
            tracer.outcome = "another error"
            wrong.append(repr(error))
        self.check(tracer.outcome, tracer.where, wrong)

    def check(self, outcome: str, where: str | None, wrong: list[str] | None = None) -> None:
        """Compare the books with what lives, and a step with one that nobody interrupted."""
        self.outcomes[outcome] += 1
        wrong = [*(wrong or []), *broken(self.modes, self.older)]
        if outcome == "lost":
            wrong.append("nobody raised the interrupt")
        now = self.scenario.values()
        if self.scenario.whole and not (same(now, self.before) or same(now, self.after)):
            wrong.append("a step is half applied")
        del now
        left = getattr(self.scenario, "left", None)
        wrong += left() if left is not None else []
        self.scenario.restore()
        again = self.scenario.step()
        if not same(again, self.expected) or not same(self.scenario.values(), self.after):
            wrong.append("the next step differs from an untouched run's")
        del again
        self.scenario.restore()
        live = backend(lt.device("cpu")).ledger.live
        if live != self.start:
            gc.collect()
            then = backend(lt.device("cpu")).ledger.live
            wrong.append(f"{live - self.start} bytes stay live, {then - self.start} after gc")
            self.start = then
        if wrong:
            self.failures.append((str(where), wrong))


def same(a: Any, b: Any) -> bool:
    """Bitwise equal, all arrays of two lists."""
    return len(a) == len(b) and all(
        np.array_equal(x, y, equal_nan=True) for x, y in zip(a, b, strict=True)
    )


def real(kind: Any, count: int, seed: int) -> Trial:
    """Send real SIGINT at random instants until so many have come."""
    trial = Trial(kind)
    rng = random.Random(seed)
    start = time.perf_counter()
    trial.scenario.step()
    length = time.perf_counter() - start
    trial.scenario.restore()
    main = threading.main_thread().ident
    assert main is not None

    def shoot(delay: float) -> None:
        time.sleep(delay)
        signal.pthread_kill(main, signal.SIGINT)

    while sum(trial.outcomes.values()) < count:
        gun = threading.Thread(target=shoot, args=(rng.uniform(0, 1.2 * length),))
        outcome = "after the step"
        try:
            try:
                gun.start()
                trial.scenario.step()
            finally:
                gun.join()
            for _ in range(1000):  # one in a finalizer is raised soon
                time.sleep(0.002)
            outcome = "lost"
        except KeyboardInterrupt:
            outcome = "interrupted"
        except Exception as error:
            outcome = repr(error)
        gun.join()
        trial.check(outcome, None, [] if outcome == "interrupted" else [outcome])
    return trial


def sample(kind: Any, count: int, seed: int) -> Trial:
    """Interrupt a scenario at ``count`` of its places, spread evenly; all if there are fewer."""
    trial = Trial(kind)
    places = list(range(1, trial.places + 1))
    if count < len(places):
        offset = random.Random(seed).random()
        step = len(places) / count
        places = sorted({min(int((k + offset) * step) + 1, len(places)) for k in range(count)})
    for place in places:
        trial.interrupted_at(place)
    return trial


def main() -> int:
    """Run, print, say by the exit status whether anything was found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=0, help="injected interrupts, in all")
    parser.add_argument("--real", type=int, default=0, help="real signals, in all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", help="scenarios whose name contains this")
    args = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    chosen = [s for s in SCENARIOS if not args.only or args.only in s.__name__]
    total: collections.Counter[str] = collections.Counter()
    bad = 0
    for kind in chosen:
        for way, count in (("injected", args.count), ("real", args.real)):
            if not count:
                continue
            each = -(-count // len(chosen))
            start = time.perf_counter()
            trial = (sample if way == "injected" else real)(kind, each, args.seed)
            total.update({f"{way}, {k}": v for k, v in trial.outcomes.items()})
            bad += len(trial.failures)
            print(
                f"{kind.__name__:<12} {way:<9} {trial.places:>7} places  {dict(trial.outcomes)}  "
                f"{len(trial.failures)} failures  {time.perf_counter() - start:.0f} s",
                flush=True,
            )
            for where, wrong in trial.failures[:8]:
                print(f"    {where}: {'; '.join(wrong)}", flush=True)
    print(f"{sum(total.values())} interrupts: {dict(total)}; {bad} failures")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
