"""Recurrent layers beside PyTorch's eager mode: time of forward and backward, and bytes kept.

Two layers of 256 units over 64 steps of 32 sequences, from the same weights, on one thread unless
told otherwise. The two take turns. Printed are medians, the ratio of medians and of minima (below
1: lowtide is faster), and what the forward pass keeps until backward: for lowtide the growth of its
ledger, for PyTorch the storages behind the tensors that its graph saved, parameters and the input
left out. PyTorch's LSTM on the CPU is one call of oneDNN; its GRU is made of ops.

    python -m benchmarks.recurrent [--rounds N] [--threads N] [--only NAME] [--json FILE]
"""

import argparse
import json
import os
import statistics
import time
from pathlib import Path

STEPS, BATCH, HIDDEN, LAYERS = 64, 32, 256, 2
WARM = 2  # steps before anything is measured
KINDS = {
    "lstm": ("LSTM", {}),
    "lstm both ways": ("LSTM", {"bidirectional": True}),
    "gru": ("GRU", {}),
    "rnn": ("RNN", {}),
}


def build(T, kind, options):
    """The layer and its input."""
    import numpy as np

    layer = getattr(T.nn, kind)(HIDDEN, HIDDEN, LAYERS, **options)
    rng = np.random.default_rng(0)
    state = layer.state_dict()
    values = {k: rng.uniform(-1 / 16, 1 / 16, tuple(v.shape)) for k, v in state.items()}
    layer.load_state_dict({k: T.tensor(v.astype(np.float32)) for k, v in values.items()})
    return layer, T.tensor(rng.standard_normal((STEPS, BATCH, HIDDEN)).astype(np.float32))


def step(layer, x):
    """Forward and backward."""
    layer.zero_grad(set_to_none=True)
    layer(x)[0].sum().backward()


def kept_by_lowtide(lt, layer, x):
    """Bytes that the ledger gains in forward."""
    before = lt.memory_allocated("cpu")
    out = layer(x)
    grown = lt.memory_allocated("cpu") - before
    del out
    return grown


def kept_by_torch(torch, layer, x):
    """Bytes of what the graph saves, and of the results."""
    known = {t.untyped_storage().data_ptr() for t in (x, *layer.parameters())}
    found = {}

    def pack(t):
        found[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        out, last = layer(x)
    for t in (out, *(last if isinstance(last, tuple) else (last,))):
        pack(t)
    return sum(n for p, n in found.items() if p not in known)


def measure(name, rounds):
    """Seconds of each library's steps, in turns, and bytes."""
    import torch

    import lowtide as lt

    kind, options = KINDS[name]
    sides = {"lowtide": build(lt, kind, options), "torch": build(torch, kind, options)}
    times = {"lowtide": [], "torch": []}
    for _ in range(WARM):
        for side in sides.values():
            step(*side)
    for _ in range(rounds):
        for label, side in sides.items():
            start = time.perf_counter()
            step(*side)
            times[label].append(time.perf_counter() - start)
    layer, x = sides["lowtide"]
    layer.zero_grad(set_to_none=True)
    return {
        "seconds": {k: statistics.median(v) for k, v in times.items()},
        "ratio": statistics.median(times["lowtide"]) / statistics.median(times["torch"]),
        "ratio_of_minima": min(times["lowtide"]) / min(times["torch"]),
        "kept_bytes": {
            "lowtide": kept_by_lowtide(lt, layer, x),
            "torch": kept_by_torch(torch, *sides["torch"]),
        },
    }


def main():
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", choices=KINDS)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    # NumPy and PyTorch read it when they are imported, which is after this.
    os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = str(options.threads)
    import torch

    torch.set_num_threads(options.threads)
    print(f"{LAYERS} layers of {HIDDEN}, {STEPS} steps, batch {BATCH}, {options.threads} thread(s)")
    found = {}
    for name in [options.only] if options.only else KINDS:
        r = found[name] = measure(name, options.rounds)
        ms = {k: 1e3 * v for k, v in r["seconds"].items()}
        mib = {k: v / 2**20 for k, v in r["kept_bytes"].items()}
        print(
            f"{name:15s} lowtide {ms['lowtide']:6.1f} ms  torch {ms['torch']:6.1f} ms  ratio "
            f"{r['ratio']:.2f} ({r['ratio_of_minima']:.2f})  kept {mib['lowtide']:.1f} MiB, torch "
            f"{mib['torch']:.1f} MiB"
        )
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
