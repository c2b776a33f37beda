"""Dispatch costs at most 4 us with a graph and 2.5 us without; backward at most 6 us an op.

One 16 x 16 multiply of float32, beside ``np.multiply(out=)`` on the same arrays: the kernel with
nothing around it. Everything runs alternately in one process and the median of the rounds is
printed, with its ratio to NumPy; the ratios are what holds on a noisy machine. PyTorch runs
beside it where it is installed.

    python -m benchmarks.dispatch [--rounds N] [--json FILE]
"""

import argparse
import gc
import importlib.util
import json
import statistics
import time
import timeit
from pathlib import Path

import numpy as np

import lowtide as lt

CALLS = 2000
CHAIN = 1000


def seconds_of(function):
    """Wall time of one call."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def cases(torch=None):
    """Name -> function that returns seconds per op."""
    x = lt.ones(16, 16)
    w = lt.ones(16, 16, requires_grad=True)
    a, b, out = np.ones((16, 16), "f4"), np.ones((16, 16), "f4"), np.empty((16, 16), "f4")
    ones = lt.ones(16, 16)

    def repeat(statement, **names):
        timer = timeit.Timer(statement, globals=names)
        return lambda: timer.timeit(CALLS) / CALLS

    def chain(leaf, factor, gradient):
        y = leaf
        for _ in range(CHAIN):
            y = y * factor
        return seconds_of(lambda: y.backward(gradient)) / CHAIN

    found = {
        "np.multiply(out=)": repeat(
            "multiply(a, b, out=out)", multiply=np.multiply, a=a, b=b, out=out
        ),
        "lowtide, no graph": repeat("x * y", x=x, y=ones),
        "lowtide, graph": repeat("w * x", w=w, x=x),
        "lowtide, backward": lambda: chain(w, x, ones),
    }
    if torch is not None:
        torch.set_num_threads(1)
        tx, tw = torch.ones(16, 16), torch.ones(16, 16, requires_grad=True)
        tones = torch.ones(16, 16)
        found["torch, no graph"] = repeat("x * y", x=tx, y=tones)
        found["torch, graph"] = repeat("w * x", w=tw, x=tx)
        found["torch, backward"] = lambda: chain(tw, tx, tones)
    return found


def main():
    """Run, print, store."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch = importlib.import_module("torch") if importlib.util.find_spec("torch") else None
    functions = cases(torch)
    times = {name: [] for name in functions}
    gc.collect()
    gc.freeze()
    for _ in range(args.rounds):
        for name, function in functions.items():
            times[name].append(function())
    median = {name: statistics.median(t) for name, t in times.items()}
    base = median["np.multiply(out=)"]
    print(f"{'16 x 16 multiply':24}{'median us':>10}{'min us':>9}{'x NumPy':>9}")
    for name, t in median.items():
        print(f"{name:24}{t * 1e6:10.2f}{min(times[name]) * 1e6:9.2f}{t / base:9.2f}")
    if args.json:
        args.json.write_text(json.dumps({"median_s": median, "rounds": args.rounds}, indent=1))


if __name__ == "__main__":
    main()
