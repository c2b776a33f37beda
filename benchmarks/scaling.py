"""A model of a data-parallel step's time: measured here, checked here, drawn for 8 to 1024 ranks.

    python -m benchmarks.scaling                       # measure, check, and print the table
    python -m benchmarks.scaling --plot scaling.png

Each rank has the same number of sequences whatever the number of ranks. The model is that of
``benchmarks/distributed.py``, a small GPT, and a wider one with 100 MB of gradients.

Measured, with one thread:

- the step of one process, and when in it each gradient is there;
- the processor's time of an ``all_reduce`` by bytes and by messages, of two and four processes.

A bucket of n bytes among N ranks costs a rank 3 (N - 1) messages, and 2 (N - 1) / N n bytes to
send, to receive and to sum. That is work of its processor, and adds to the step. The link moves
these bytes, bucket after bucket, while backward goes on; what is left when backward ends is waited
for.
Two processes of this machine need no link, only the time in which the system wakes them.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

import lowtide as lt
from lowtide import nn, optim
from lowtide.nn.parallel import DistributedDataParallel

from .distributed import in_ranks

CHARACTERS, CONTEXT, SEQUENCES = 96, 128, 4
MODELS = {"gpt, 13 MB": (256, 4), "gpt, 100 MB": (768, 3)}  # width, blocks
STEPS = 12
SMALL, LARGE = 4 << 10, 16 << 20  # bytes
RANKS = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
DRAWN = RANKS[2:]


class Link(NamedTuple):
    """A network: bytes a second, and seconds until a message arrives."""

    name: str
    bandwidth: float
    latency: float


LINKS = (
    Link("1 Gb/s, 100 us", 1e9 / 8, 100e-6),
    Link("10 Gb/s, 30 us", 10e9 / 8, 30e-6),
    Link("100 Gb/s, 5 us", 100e9 / 8, 5e-6),
)


class Costs(NamedTuple):
    """What communication takes of a processor.

    Attributes:
        message: Seconds of a message.
        byte: Seconds of a byte that is sent, received and summed.
        call: Seconds of a collective, whatever its size.
        wake: Seconds until a process that waits goes on.
    """

    message: float
    byte: float
    call: float
    wake: float


class Step(NamedTuple):
    """A step of one process.

    Attributes:
        seconds: All of it.
        after: From the last gradient to its end.
        buckets: (bytes, seconds from the begin of the step until its gradients are there), in the
            order in which they are reduced.
    """

    seconds: float
    after: float
    buckets: list[tuple[int, float]]


def work_of(nbytes: int, ranks: int, costs: Costs) -> float:
    """Return the processor's seconds of a reduction."""
    others = ranks - 1
    moved = 2 * others / ranks * nbytes
    return costs.call + 3 * others * costs.message + moved * costs.byte


def step_seconds(step: Step, ranks: int, costs: Costs, link: Link | None, cores: int = 0) -> float:
    """Predict a step.

    Args:
        step: Of one process.
        ranks: How many there are.
        costs: Of communication.
        link: Between them; None for processes of one machine.
        cores: Those that the ranks share; 0 if each has its own.
    """
    if ranks == 1:
        return step.seconds
    busy = 0.0  # by communication, so far
    free = 0.0  # when the link is
    for nbytes, ready in step.buckets:
        busy += work_of(nbytes, ranks, costs)
        if link is not None:
            moved = 2 * (ranks - 1) / ranks * nbytes
            free = max(free, ready + busy) + 2 * link.latency + moved / link.bandwidth
    end = step.seconds - step.after + busy
    share = max(1.0, ranks / cores) if cores else 1.0
    return (max(end, free) + step.after) * share + 3 * costs.wake


# Measured


def model_of(width: int, depth: int) -> Any:
    """A GPT."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.attention = nn.MultiheadAttention(width, width // 64, batch_first=True)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x: Any) -> Any:
            y = self.norm1(x)
            x = x + self.attention(y, y, y, need_weights=False)[0]
            return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))

    blocks = [Block() for _ in range(depth)]
    return nn.Sequential(nn.Embedding(CHARACTERS, width), *blocks, nn.Linear(width, CHARACTERS))


def trained(width: int, depth: int, rank: int, size: int) -> dict[str, Any]:
    """Measure the steps of a rank."""
    dist = import_module("lowtide.distributed")
    lt.set_num_threads(1)
    lt.manual_seed(0)
    if size == 1:
        dist.init_process_group("fake", rank=0, world_size=1)
    model = DistributedDataParallel(model_of(width, depth))
    optimizer = optim.AdamW(model.parameters(), lr=1e-3)
    draw = np.random.default_rng(rank)
    arrived: dict[int, float] = {}
    if size == 1:
        for k, p in enumerate(model.parameters()):
            p.register_post_accumulate_grad_hook(
                lambda _, k=k: arrived.__setitem__(k, time.perf_counter())
            )
    times, ready, after = [], [], []
    for _ in range(STEPS):
        data = draw.integers(0, CHARACTERS, (SEQUENCES, CONTEXT + 1))
        x, y = lt.tensor(data[:, :-1]), lt.tensor(data[:, 1:])
        begun = time.perf_counter()
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten()).backward()
        optimizer.step()
        ended = time.perf_counter()
        times.append(ended - begun)
        if arrived:
            ready.append([arrived[k] - begun for k in range(len(arrived))])
            after.append(ended - max(arrived.values()))
    found: dict[str, Any] = {"seconds": statistics.median(times[2:])}
    if size == 1:
        at = np.median(ready[2:], 0)
        parameters = list(model.parameters())
        order = sorted(range(len(parameters)), key=lambda k: float(at[k]))
        buckets = model.reducer._cut(order)
        found["after"] = statistics.median(after[2:])
        found["buckets"] = [
            (sum(parameters[k].numel() * 4 for k in b), float(max(at[k] for k in b)))
            for b in buckets
        ]
    return found


def reduced(rank: int, size: int) -> dict[str, Any]:
    """Measure all_reduce: seconds, and those of this process's processor."""
    dist = import_module("lowtide.distributed")
    lt.set_num_threads(1)
    sockets = import_module("lowtide.framework.distributed.sockets")
    found: dict[str, Any] = {}
    for nbytes in (SMALL, LARGE):
        x = lt.ones(nbytes // 4)
        count = 200 if nbytes == SMALL else 12
        each = []
        for spin in (sockets._SPIN, 0.0):  # a process that looks again and again is no work
            sockets._SPIN = spin
            dist.all_reduce(x)
            dist.barrier()
            begun, worked = time.perf_counter(), time.process_time()
            for _ in range(count):
                dist.all_reduce(x)
            each.append((time.perf_counter() - begun, time.process_time() - worked))
        found[str(nbytes)] = each[0][0] / count, each[1][1] / count
    return found


def worker(what: str, *numbers: str) -> None:
    """Run a case as one rank; rank 0 prints what it found."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist = import_module("lowtide.distributed")
    if size > 1:
        dist.init_process_group("gloo")
    given = [int(n) for n in numbers]
    found = trained(*given, rank, size) if what == "train" else reduced(rank, size)
    if rank == 0:
        print(json.dumps(found))
    dist.destroy_process_group()


def run(size: int, *words: Any) -> dict[str, Any]:
    """Run a case in so many processes."""
    return in_ranks("benchmarks.scaling", size, 1, [str(word) for word in words])


def costs_of(two: dict[str, Any], four: dict[str, Any]) -> Costs:
    """Return the costs of communication, from all_reduce between two and four processes."""
    small2, small4 = two[str(SMALL)][1], four[str(SMALL)][1]
    message = max(small4 - small2, 0.0) / 6  # 3 messages with each of two peers more
    call = max(small2 - 3 * message, 0.0)
    moved = LARGE  # 2 (N - 1) / N of it, for two
    byte = (two[str(LARGE)][1] - small2) / moved
    wake = max(two[str(SMALL)][0] - small2, 0.0) / 3
    return Costs(message, byte, call, wake)


def measure(rounds: int) -> tuple[Costs, dict[str, Step], dict[str, dict[int, float]]]:
    """Measure in turns; return the costs, the steps, and seconds of steps by ranks."""
    reductions: dict[int, list[Any]] = {2: [], 4: []}
    steps: dict[str, list[Any]] = {name: [] for name in MODELS}
    real: dict[str, dict[int, list[float]]] = {n: {1: [], 2: [], 4: []} for n in MODELS}
    for _ in range(rounds):
        for size, into in reductions.items():
            into.append(run(size, "reduce"))
        for name, (width, depth) in MODELS.items():
            for size in real[name]:
                found = run(size, "train", width, depth)
                real[name][size].append(found["seconds"])
                if size == 1:
                    steps[name].append(found)

    def middle(found: list[Any]) -> dict[str, Any]:
        keys = found[0]
        return {k: [statistics.median(f[k][j] for f in found) for j in (0, 1)] for k in keys}

    costs = costs_of(middle(reductions[2]), middle(reductions[4]))
    chosen = {
        name: sorted(found, key=lambda f: f["seconds"])[len(found) // 2]
        for name, found in steps.items()
    }
    seconds = {n: {k: statistics.median(t) for k, t in each.items()} for n, each in real.items()}
    made = {
        n: Step(f["seconds"], f["after"], [(int(b), float(t)) for b, t in f["buckets"]])
        for n, f in chosen.items()
    }
    return costs, made, seconds


def plot(path: str, costs: Costs, steps: dict[str, Step]) -> None:
    """Draw the efficiency over the number of ranks, for each link and model."""
    from matplotlib.figure import Figure

    made = Figure(figsize=(9, 3.8), dpi=110, facecolor="white", layout="constrained")
    panels = made.subplots(1, len(steps), sharey=True)
    for axes, (name, step) in zip(panels, steps.items(), strict=True):
        for link, color in zip(LINKS, ("#d1495b", "#e3b23c", "#4477aa"), strict=True):
            each = [step.seconds / step_seconds(step, n, costs, link) for n in RANKS]
            axes.plot(RANKS, each, "o-", color=color, label=link.name, ms=3.5)
        axes.set_xscale("log", base=2)
        axes.set_xticks(RANKS, [str(n) for n in RANKS], size=8)
        axes.set_ylim(0, 1.05)
        axes.set_title(f"{name} of gradients, {step.seconds * 1e3:.0f} ms a step", size=10)
        axes.set_xlabel("ranks, one thread each", size=9)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
    panels[0].set_ylabel("throughput per rank, of one alone", size=9)
    panels[0].legend(frameon=False, fontsize=8.5, loc="lower left")
    made.savefig(path)


def main() -> None:
    """Measure, check and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, help="how often each case runs")
    parser.add_argument("--plot", metavar="FILE", help="draw the prediction (.png, .svg or .pdf)")
    parser.add_argument("--worker", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(*options.worker)
        return
    costs, steps, real = measure(options.rounds)
    print(
        f"a collective {costs.call * 1e6:.0f} us, a message {costs.message * 1e6:.1f} us, "
        f"{1e-9 / costs.byte:.2f} GB/s, waking {costs.wake * 1e6:.0f} us"
    )
    cores = os.cpu_count() or 1
    for name, step in steps.items():
        for size, seconds in real[name].items():
            said = step_seconds(step, size, costs, None, cores)
            print(
                f"{name}: {size} ranks on {cores} cores: predicted {said * 1e3:.1f} ms, "
                f"measured {seconds * 1e3:.1f} ms, ratio {said / seconds:.2f}"
            )
    for name, step in steps.items():
        for link in LINKS:
            each = [f"{step.seconds / step_seconds(step, n, costs, link):.2f}" for n in RANKS]
            print(f"{name}, {link.name}: " + " ".join(each))
    if options.plot:
        plot(options.plot, costs, steps)


if __name__ == "__main__":
    main()
