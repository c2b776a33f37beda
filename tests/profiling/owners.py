"""Owners and lines of what a profiler saw; and a model whose parts have telling paths."""

from __future__ import annotations

import inspect

from lowtide import nn
from lowtide.framework.attribution.frames import file_line
from lowtide.profiling import scope
from lowtide.profiling.record.recording import ALLOC


def here() -> str:
    """``file:line`` of the caller, as a profiler shows it."""
    frame = inspect.currentframe().f_back
    return file_line(frame.f_code.co_filename, frame.f_lineno)


def after(line: str, n: int) -> str:
    """The line ``n`` below ``line``."""
    name, _, number = line.rpartition(":")
    return f"{name}:{int(number) + n}"


def births(prof, **wanted):
    """(owner, bytes) of the allocations whose owner has these fields."""
    prof.settle()
    events, owners = prof.recording.events, prof.recording.owners
    found = [
        (owners[o], n)
        for kind, o, n in zip(events.kind, events.owner, events.nbytes, strict=True)
        if kind == ALLOC
    ]
    return [
        (o, n) for o, n in found if all(getattr(o, name) == value for name, value in wanted.items())
    ]


class Attention(nn.Module):
    """One layer, and a scope within its forward."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(4, 12)

    def forward(self, x):
        with scope("split"):
            q, k, v = (t.contiguous() for t in self.qkv(x).split(4, -1))
        return q * k + v


class Tower(nn.Module):
    """Two blocks, and after them a layer that others may share."""

    def __init__(self, shared=None):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Sequential(Attention(), nn.Tanh()) for _ in range(2)])
        self.shared = shared

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x if self.shared is None else self.shared(x)
