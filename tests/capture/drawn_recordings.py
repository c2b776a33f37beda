"""Recordings made without a function: drawn at random, and by hand."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from lowtide.framework.capture.passes import joining, members
from lowtide.framework.capture.passes.tiled_pass import pass_of
from lowtide.framework.capture.program import (
    ARENA,
    FRESH,
    OUTSIDE,
    Place,
    Row,
    StepProgram,
    Value,
)
from lowtide.framework.kernels.cpu.tiled_tape import TILE
from lowtide.framework.ops.registry import OPS


def join_small_calls(monkeypatch: Any) -> list[Any]:
    """Join small calls, too, and arrays with short dims; return the passes that are made."""
    monkeypatch.setattr(members, "LEAST", 1)
    monkeypatch.setattr(members, "SHORTEST", 1)
    found: list[Any] = []

    def noted(*args: Any) -> Any:
        found.append(pass_of(*args))
        return found[-1]

    monkeypatch.setattr(joining, "pass_of", noted)
    return found


def reversed_copy(out: Any, x: Any) -> None:
    out[...] = x.reshape(-1)[: out.size][::-1].reshape(out.shape).copy()


MANY = 4 * TILE + 100  # numbers of a value


class DrawnProgram:
    """A recording on values of some tiles, of which the first two are one memory from outside."""

    def __init__(self, seed: int) -> None:
        self.r = r = random.Random(seed)
        kinds = [OUTSIDE, OUTSIDE, *r.choices([ARENA, ARENA, FRESH], k=5)]
        self.program = StepProgram()
        self.program.values = [Value(n, 4 * MANY, kind) for n, kind in enumerate(kinds)]
        self.program.tensors = [None, None]
        filled = {0, 1}
        for k in range(r.randrange(4, 14)):
            free = [n for n in range(2, 7) if n not in filled]
            if free and (r.random() < 0.5 or k < 2):
                target = r.choice(free)  # filled completely: no place of it is read before
                source = self.all_of(r.choice([*filled]))
                self.add(OPS["mul"].plain, [np, self.all_of(target), source, 0.5])
                filled.add(target)
                continue
            shape = r.choice([(6000,), (6000,), (2, 3000), (60, 50)])
            sources = [self.place(r.choice([*filled]), shape) for _ in range(2)]
            target = r.choice([*filled] if r.random() < 0.2 else [*(filled - {0, 1})] or [0])
            out = r.choice([s for s in sources if s.value == target] or [self.place(target, shape)])
            if r.random() < 0.25:
                self.add(reversed_copy, [out, sources[0]])
            elif r.random() < 0.3:
                self.add(OPS["neg"].plain, [np, out, sources[0]])
            else:
                name = r.choice(["mul", "_add", "_sub"])
                self.add(OPS[name].plain, [np, out, sources[0], r.choice([sources[1], 1.5])])

    def all_of(self, value: int) -> Place:
        return Place(value, 0, (MANY,), np.dtype(np.float32), (4,))

    def place(self, value: int, shape: tuple[int, ...]) -> Place:
        offset = 4 * self.r.choice([0, 0, 0, 2000, MANY - 6000])
        strides = {1: (4,), 2: (24_000 // shape[0], 4)}[len(shape)]  # rows of 50 lie apart
        return Place(value, offset, shape, np.dtype(np.float32), strides)

    def add(self, function: Any, arguments: list[Any]) -> None:
        k = len(self.program.entries)
        places = [a for a in arguments if isinstance(a, Place)]
        self.program.entries.append(Row(function, arguments, [places[0].value]))
        for p in places:
            value = self.program.values[p.value]
            value.first, value.last = k if value.first < 0 else value.first, k


def ran(program: StepProgram) -> list[bytes]:
    """Make its calls; return what is there afterwards of values that outlive them."""
    random_numbers = np.random.default_rng(0).standard_normal(MANY).astype(np.float32)
    memory = [np.full(MANY, np.nan, np.float32) for _ in program.values]
    memory[0][:] = random_numbers
    if program.values[1].kind == OUTSIDE:
        memory[1] = memory[0]
    for k, row in enumerate(program.rows):
        arrays = [
            np.ndarray(a.shape, a.dtype, memory[a.value], a.offset, a.strides)
            if isinstance(a, Place)
            else a
            for a in row.arguments
        ]
        row.function(*arrays)
        for m, v in zip(memory, program.values, strict=True):
            if v.kind == ARENA and v.last == k:
                m[:] = np.nan  # another value may lie there
    return [m.tobytes() for m, v in zip(memory, program.values, strict=True) if v.kind != ARENA]


def every(program: StepProgram, row: Row) -> bool:
    """All memory is aligned."""
    return True


def by_hand(*between: Any) -> StepProgram:
    """``y = x * 2``; some entries; ``z = y + 1``, of x from outside."""
    program = StepProgram(tensors=[None])
    program.values = [Value(0, 4 * MANY, OUTSIDE), Value(1, 4 * MANY, ARENA)]
    program.values += [Value(n, 4 * MANY, FRESH) for n in (2, 3)]
    x, y, z, other = (Place(n, 0, (MANY,), np.dtype(np.float32), (4,)) for n in range(4))
    rows = {
        "reads y": Row(reversed_copy, [other, y], [3]),
        "writes x": Row(reversed_copy, [x, other], [0]),
        "reads x": Row(reversed_copy, [other, x], [3]),
    }
    program.entries = [
        Row(OPS["mul"].plain, [np, y, x, 2.0], [1]),
        Row(reversed_copy, [other, x], [3]),
        *[rows[e] if isinstance(e, str) else e for e in between],
        Row(OPS["_add"].plain, [np, z, y, 1.0], [2]),
    ]
    for k, row in enumerate(program.entries):
        for p in [a for a in getattr(row, "arguments", []) if isinstance(a, Place)]:
            value = program.values[p.value]
            value.first, value.last = k if value.first < 0 else value.first, k
    return program
