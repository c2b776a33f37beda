"""Compiled functions and what they are compared by: bits, passes, bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import lowtide as lt
from lowtide.framework.capture.passes.tiled_pass import TiledPass


def bits(x: Any) -> Any:
    if isinstance(x, (list, tuple)):
        return [bits(y) for y in x]
    return None if x is None else np.ascontiguousarray(x.detach().numpy()).tobytes()


def compiled(f: Callable[..., Any], *args: Any) -> Any:
    """The function, recorded with these arguments."""
    found = lt.compile(f, fullgraph=True)
    for _ in range(4):
        found(*args)
    assert found.replays
    return found


def passes(found: Any) -> list[int]:
    """How many kernel calls each pass of a compiled function stands for."""
    kind = next(iter(found._kinds.values()))
    rows = kind.recordings[0].replay.program.rows
    return [r.function.count for r in rows if isinstance(r.function, TiledPass)]


def small_bytes(found: Any) -> int:
    """Of the block of small values, which lives as long as a call."""
    kind = next(iter(found._kinds.values()))
    return kind.recordings[0].replay.arena_bytes if found.replays else 0


def same(f: Callable[..., Any], *args: Any) -> list[int]:
    """Compare all bits with the function as written, for several arguments; return the passes."""
    found = compiled(f, *args)
    for k in range(3):
        given = [a.clone() if k == 0 else lt.randn_like(a) for a in args]
        written = [a.clone() for a in given]
        assert bits(found(*given)) == bits(f(*written))
        assert bits(given) == bits(written)
    return passes(found)


def gelu_in_ops(h: Any) -> Any:
    return 0.5 * h * (1 + lt.tanh(0.8 * (h + 0.044 * h * h * h)))


def peak_of(call: Callable[[], Any]) -> int:
    """The highest sum of bytes in a call, beyond what is there before."""
    out = call()
    del out
    before = lt.memory_allocated()
    lt.reset_peak_memory_stats()
    out = call()
    del out
    return lt.max_memory_allocated() - before
