"""The head and its loss as one op beside the plain pair: bytes and time.

``linear_cross_entropy`` against ``cross_entropy(linear(...))``, forward and backward, float32. The
bound is what nobody can do without: input, weight, target, loss, and the two gradients. Bytes are
the ledger's peaks, on meta, where they are those of the CPU, also for heads that do not fit here.
Times are medians over alternating rounds, in one process, of the ratio to lowtide's pair in the
same round: of the fused op, and, where PyTorch is installed, of its pair and of its chunked path
(``options``). With one thread it is process time, which other programs disturb less.

    python -m benchmarks.linear_cross_entropy [--rounds N] [--threads N] [--only HEAD]
"""

import argparse
import gc
import importlib
import importlib.util
import json
import os
import statistics
import time
from pathlib import Path

# Tokens, features, classes
HEADS = {
    "small": (2048, 128, 32768),
    "medium": (1024, 256, 16384),
    "wide": (1024, 768, 16384),
    "GPT-2": (8192, 768, 50257),
    "Gemma-2 2B": (8192, 2304, 256000),
}
TIMED = ("small", "medium", "wide")


def losses(lib, F, x, w, target):
    """Name -> a function that computes the loss, for one library."""
    found = {"pair": lambda: F.cross_entropy(F.linear(x, w), target)}
    if lib.__name__ == "lowtide":
        found["fused"] = lambda: F.linear_cross_entropy(x, w, target)
    elif hasattr(F, "linear_cross_entropy"):
        options = lib.nn.LinearCrossEntropyOptions()
        found["chunked"] = lambda: F.linear_cross_entropy(x, w, target, options=options)
    return found


def peaks(head):
    """(bound, peak of the pair, peak of the fused op) in bytes, on meta."""
    import lowtide as lt
    from lowtide.nn import functional as F

    tokens, features, classes = HEADS[head]
    found = []
    for name in ("pair", "fused"):
        x, w = (lt.empty(n, features, device="meta") for n in (tokens, classes))
        x, w = x.requires_grad_(), w.requires_grad_()
        target = lt.empty(tokens, dtype=lt.int64, device="meta")
        lt.reset_peak_memory_stats("meta")
        losses(lt, F, x, w, target)[name]().backward()
        found.append(lt.max_memory_allocated("meta"))
        bound = 2 * (x.nbytes + w.nbytes) + target.nbytes + 4
        del x, w, target
        gc.collect()
    return bound, *found


def steps(head, threads):
    """Name -> one forward and backward, of both libraries, on the same numbers."""
    import numpy as np

    tokens, features, classes = HEADS[head]
    rng = np.random.default_rng(0)
    x = rng.standard_normal((tokens, features), dtype=np.float32)
    w = rng.standard_normal((classes, features), dtype=np.float32) / features**0.5
    target = rng.integers(0, classes, tokens)
    found = {}
    names = ["lowtide", *(["torch"] if importlib.util.find_spec("torch") else [])]
    for name in names:
        lib = importlib.import_module(name)
        F = importlib.import_module(f"{name}.nn.functional")
        if name == "torch":
            lib.set_num_threads(threads)
        leaves = [lib.tensor(a, requires_grad=True) for a in (x, w)]
        for way, loss in losses(lib, F, *leaves, lib.tensor(target)).items():
            found[way if name == "lowtide" else f"{name} {way}"] = step_of(loss, leaves, threads)
    return found


def step_of(loss, leaves, threads):
    """Forward and backward; the gradients of the step before are dropped first."""
    clock = time.process_time if threads == 1 else time.perf_counter

    def step():
        for leaf in leaves:
            leaf.grad = None
        start = clock()
        loss().backward()
        return clock() - start

    return step


def main():
    """Run, print, store."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", choices=TIMED, help="time this head alone")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(args.threads)  # before anything reads it
    stored = {}
    print(f"{'':12}{'bound MiB':>11}{'pair x':>9}{'fused x':>9}")
    for head in HEADS:
        bound, pair, fused = peaks(head)
        stored[head] = {"bound_bytes": bound, "pair_bytes": pair, "fused_bytes": fused}
        print(f"{head:12}{bound / 2**20:11.1f}{pair / bound:9.3f}{fused / bound:9.3f}", flush=True)
    for head in [args.only] if args.only else TIMED:
        ways = steps(head, args.threads)
        for step in ways.values():
            step()
        times = {name: [] for name in ways}
        for _ in range(args.rounds):
            for name, step in ways.items():
                times[name].append(step())
        stored[head]["seconds"] = times
        ratios = {
            name: statistics.median(a / b for a, b in zip(t, times["pair"], strict=True))
            for name, t in times.items()
        }
        words = "".join(f"  {name} {ratio:.2f}" for name, ratio in ratios.items())
        print(
            f"{head:12} pair {statistics.median(times['pair']) * 1e3:.0f} ms, x:{words}", flush=True
        )
        del ways, step
        gc.collect()
    if args.json:
        args.json.write_text(json.dumps(stored, indent=1))


if __name__ == "__main__":
    main()
