"""Programs drawn at random, with the collector on: sums, peaks and replays agree in all of them."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable

import pytest

import lowtide as lt
from lowtide import nn
from lowtide.framework.devices import backend
from lowtide.framework.memory.ledger import ROLES
from lowtide.profiling import MemoryProfiler
from lowtide.profiling.analysis.snapshots import take_snapshots
from lowtide.profiling.record.recording import replay
from lowtide.utils.checkpoint import checkpoint

N = 8


class Knot:
    """Refers to itself, so that only the collector frees what it holds."""

    def __init__(self, value):
        self.value, self.me = value, self


class Program:
    """Square matrices, a net with its optimizer, and what may be done to them."""

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        self.live = [lt.randn(N, N, requires_grad=draw.random() < 0.6) for _ in range(4)]
        self.net = nn.Sequential(nn.Linear(N, N), nn.Tanh(), nn.Linear(N, N))
        self.optimizer = lt.optim.Adam(self.net.parameters())
        self.moves: list[Callable[..., None]] = [
            lambda a, b: self.keep(a @ b),
            lambda a, b: self.keep(a * b + a),
            lambda a, b: self.keep(lt.cat([a.t()[1:5].contiguous() @ b, b[:4]])),
            lambda a, b: self.keep(self.net(a)),
            lambda a, b: self.keep(checkpoint(self.net, a, use_reentrant=False)),
            lambda a, b: self.keep(a.detach().requires_grad_()),
            lambda a, b: self.written(a),
            lambda a, b: self.backward((a.exp() * 0.01).sum()),
            lambda a, b: self.backward((a * b).sum()),
            lambda a, b: self.differentiate((a * b).sum(), a),
            lambda a, b: self.optimizer.step(),
            lambda a, b: self.optimizer.zero_grad(set_to_none=self.draw.random() < 0.5),
            lambda a, b: Knot(a) and None,
            lambda a, b: gc.collect(self.draw.randint(0, 1)) and None,
            lambda a, b: setattr(a, "grad", None),
        ]

    def keep(self, t) -> None:
        self.live.append(t)

    def written(self, a) -> None:
        copy = a.clone()
        copy[2:4] = 0
        self.keep(copy.mul_(2))

    def backward(self, loss) -> None:
        if loss.requires_grad:
            loss.backward(retain_graph=self.draw.random() < 0.5)

    def differentiate(self, loss, a) -> None:
        if loss.requires_grad and a.requires_grad:
            (g,) = lt.autograd.grad(loss, a, create_graph=self.draw.random() < 0.5)
            self.keep(g)

    def move(self) -> None:
        draw = self.draw
        try:
            draw.choice(self.moves)(draw.choice(self.live), draw.choice(self.live))
        except RuntimeError as error:  # a graph that was freed, or overwritten, by an earlier move
            assert any(
                word in str(error) for word in ("freed", "modified", "has made it version")
            ), error
        if len(self.live) > 8:
            del self.live[draw.randrange(len(self.live))]


def by_role(cells) -> list[int]:
    sums = [0] * len(ROLES)
    for (_, role), n in cells.items():
        sums[role] += n
    return sums


@pytest.mark.quick(5)
@pytest.mark.parametrize("seed", range(16))
def test_sums_peaks_and_replays_agree(seed):
    gc.collect()
    ledger, draw, said = backend(lt.device("cpu")).ledger, random.Random(seed), []
    ledger.reset_peak()
    with MemoryProfiler() as prof:
        program = Program(draw)
        for k in range(120):
            program.move()
            if draw.random() < 0.3:
                prof.mark(f"move {k}")
                said.append((ledger.live, ledger.roles[:]))
    recording = prof.recording
    cpu = recording.devices.index("cpu")
    marks = [m for m in prof.marks if m.kind == "mark"]
    assert [(m.live[cpu], m.roles[cpu]) for m in marks] == said
    peak = recording.peaks[cpu]
    assert (peak.nbytes, by_role(peak.cells)) == (ledger.peak, ledger.peak_roles)
    found = take_snapshots(recording, cpu)
    assert found.cells_at(found.peak) == peak.cells
    assert round(peak.time * 1e9) == found.times[found.peak]
    *_, (_, books) = replay(recording, cpu)
    assert books.cells == recording.cells_at(len(recording.marks) - 1, cpu)
    assert all(o.op and o.phase and o.line for o in recording.owners)
