"""What it costs to keep a GPU's activations on the host: time and bytes of a GPT's step.

Forward and backward of GPT blocks (``benchmarks/checkpointing.py`` has the model): plain, with all
saved values in host memory, with recomputed blocks, and with recomputed blocks whose inputs are on
the host. Schemes take turns, a step each; time is that of the wall, from an idle device to an idle
device, and printed is the median over rounds, and of the ratio to the plain step of the same round.
Before anything is measured, each scheme's gradients are compared to the plain ones, bit for bit.

Columns: highest live bytes on the device and on the host above what lived before the step; of the
device's, what the graph keeps when forward ends; milliseconds; ratio to plain; GB/s of copies to
and from the host, if the step consisted of nothing else.

On ``sim`` and ``cpu`` there is nothing to run beside: there only bytes mean something.

    python -m benchmarks.offload [--device cuda] [--rounds N] [--size small|large] [--json FILE]
"""

import argparse
import contextlib
import json
import statistics
import time
from pathlib import Path

import lowtide as lt
from benchmarks.checkpointing import WARM, gpt, plain, steps_of
from lowtide.checkpointing import offload

SIZES = {
    "small": {"depth": 4, "width": 128, "heads": 4, "batch": 4, "length": 64, "vocabulary": 256},
    "large": {
        "depth": 12,
        "width": 1024,
        "heads": 16,
        "batch": 8,
        "length": 1024,
        "vocabulary": 8192,
    },
}


def around(make):
    """A scheme: ``make()`` around all blocks."""

    def run(blocks, state):
        with make():
            return plain(blocks, state)

    return run


def recomputed(make):
    """A scheme: each block is recomputed; ``make()`` around all."""

    def run(blocks, state):
        with make():
            for block in blocks:
                state = lt.checkpoint(block, state)
            return state

    return run


SCHEMES = {
    "plain": plain,
    "offload(ahead=0)": around(lambda: offload(ahead=0)),
    "offload(ahead=2)": around(lambda: offload(ahead=2)),
    "offload(ahead=8)": around(lambda: offload(ahead=8)),
    "offload, not pinned": around(lambda: offload(pin_memory=False)),
    "recompute": recomputed(contextlib.nullcontext),
    "recompute, inputs offloaded": recomputed(lambda: offload(ahead=2)),
}


def check(steps):
    """Compare gradients bit for bit with those of the plain step."""
    expected = None
    for name, step in steps.items():
        lt.manual_seed(1)
        step()
        found = [p.grad for p in step.model.parameters()]
        expected = expected or found
        for k, (a, b) in enumerate(zip(found, expected, strict=True)):
            if not lt.equal(a, b):
                raise SystemExit(f"{name}: the gradient of parameter {k} is not the plain one's.")
        if found is not expected:
            step.model.zero_grad()


def bytes_of(step, device):
    """(Peak on the device, peak on the host, kept on the device when forward ends)."""
    step.model.zero_grad()
    places = [device] if device.type == "cpu" else [device, lt.device("cpu")]
    before = [lt.memory_allocated(p) for p in places]
    for p in places:
        lt.reset_peak_memory_stats(p)
    step()
    peaks = [lt.max_memory_allocated(p) - b for p, b in zip(places, before, strict=True)]
    step.model.zero_grad()
    loss = step.forward()
    kept = lt.memory_allocated(device) - before[0]
    del loss
    return peaks[0], peaks[1] if len(peaks) > 1 else 0, kept


def times(steps, device, rounds):
    """Seconds of each step in each round, schemes taking turns."""
    for step in steps.values():
        for _ in range(WARM):
            step()
    found = {name: [] for name in steps}
    for k in range(rounds):
        names = list(steps)
        for name in names[k % len(names) :] + names[: k % len(names)]:
            lt.synchronize(device)
            start = time.perf_counter()
            steps[name]()
            lt.synchronize(device)
            found[name].append(time.perf_counter() - start)
    return found


def main():
    """Run, print, store."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if lt.cuda.is_available() else "sim")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--size", choices=list(SIZES), help="large on a GPU, else small")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    device = lt.device(args.device)
    size = SIZES[args.size or ("large" if device.type == "cuda" else "small")]
    with device:
        steps = steps_of(lt, SCHEMES, lambda lib: gpt(lib, **size))
        if device.type != "meta":
            check(steps)
        figures = {name: bytes_of(step, device) for name, step in steps.items()}
        timed = times(steps, device, args.rounds)
    print(f"GPT on {device}: " + ", ".join(f"{k} {v}" for k, v in size.items()))
    heads = ("device MiB", "host MiB", "kept MiB", "ms", "ratio", "GB/s")
    print(f"{'':28}" + "".join(f"{h:>11}" for h in heads))
    stored = {}
    for name, (peak, host, kept) in figures.items():
        seconds = statistics.median(timed[name])
        ratio = statistics.median(t / p for t, p in zip(timed[name], timed["plain"], strict=True))
        stored[name] = {
            "peak_bytes": peak,
            "host_bytes": host,
            "kept_bytes": kept,
            "seconds": seconds,
            "ratio": ratio,
        }
        rate = 2 * host / seconds / 1e9 if name != "plain" else 0.0
        cells = (peak / 2**20, host / 2**20, kept / 2**20, 1e3 * seconds, ratio, rate)
        print(f"{name:28}" + "".join(f"{c:11.2f}" for c in cells))
    if args.json:
        args.json.write_text(json.dumps({"device": str(device), **size, "schemes": stored}))


if __name__ == "__main__":
    main()
