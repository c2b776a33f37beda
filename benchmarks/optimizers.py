"""A step of each optimizer beside PyTorch's own ways: fused, foreach, and its default.

One parameter of 4 million float32 elements (Muon: 1024 x 1024), or several (``--parameters``) of as
many elements together, take the same steps with both libraries, alternately, in one process, on as
many threads. Printed are medians and
their ratio to the quickest of PyTorch's ways (below 1: lowtide is faster), and what a step takes
beyond parameters, gradients and state, at its peak, in bytes: lowtide's by its ledger. PyTorch's
fused steps exist for SGD, Adam, AdamW and Adagrad; Lion has none there.

    python -m benchmarks.optimizers [--elements N] [--parameters N] [--rounds N] [--threads N]
                                    [--only CASE] [--json FILE]
"""

import argparse
import importlib.util
import json
import os
import statistics
import time
from pathlib import Path

CASES = {
    "SGD": {"lr": 1e-3},
    "SGD momentum": {"lr": 1e-3, "momentum": 0.9},
    "Adam": {"lr": 1e-3},
    "Adam amsgrad": {"lr": 1e-3, "amsgrad": True},
    "AdamW": {"lr": 1e-3},
    "NAdam": {"lr": 1e-3},
    "RAdam": {"lr": 1e-3},
    "Adamax": {"lr": 1e-3},
    "Adagrad": {"lr": 1e-3},
    "Adadelta": {"lr": 1e-3},
    "RMSprop": {"lr": 1e-3},
    "RMSprop centered": {"lr": 1e-3, "centered": True, "momentum": 0.9},
    "Rprop": {"lr": 1e-3},
    "ASGD": {"lr": 1e-3},
    "Lion": {"lr": 1e-4},
    "Adafactor": {"lr": 1e-3},
    "Muon": {"lr": 1e-3},
}
WAYS = {"fused": {"fused": True}, "foreach": {"foreach": True}, "default": {}}
WARM = 3


def seconds_of(function):
    """Wall time of one call."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def steps(lib, case, side, values, count):
    """Name of the way -> step of ``count`` parameters, for one library."""
    name, options = case.split()[0], CASES[case]
    if not hasattr(lib.optim, name):
        return {}
    found = {}
    for way, more in ({"": {}} if lib.__name__ == "lowtide" else WAYS).items():
        params = []
        for k in range(count):
            here = slice(k * side // count, (k + 1) * side // count)
            params.append(lib.tensor(values["p"][here], requires_grad=True))
            params[-1].grad = lib.tensor(values["g"][here])
        try:
            optimizer = getattr(lib.optim, name)(params, **options, **more)
        except TypeError:  # it has no such way
            continue
        for _ in range(WARM):
            optimizer.step()
        found[way] = optimizer.step
    return found


def main():
    """Run, print, store."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--elements", type=int, default=1 << 22)
    parser.add_argument("--parameters", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", default="", help="cases whose name begins with this")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(args.threads)  # before NumPy and its BLAS are loaded
    import numpy as np

    import lowtide as lt

    torch = importlib.import_module("torch") if importlib.util.find_spec("torch") else None
    if torch is not None:
        torch.set_num_threads(args.threads)
    width = min(2048, args.elements // args.parameters)
    rows = args.elements // width
    rng = np.random.default_rng(0)
    values = {k: rng.standard_normal((rows, width)).astype(np.float32) for k in "pg"}
    stored = {}
    print(f"{'one step':20}{'ms':>9}{'peer ms':>9}{'ratio':>8}  {'peer':9}{'extra bytes':>12}")
    for case in [c for c in CASES if c.startswith(args.only)]:
        used = values
        if case == "Muon":  # cubic in its side
            used = {k: np.ascontiguousarray(v.reshape(-1, 1024)[:1024]) for k, v in values.items()}
        given = rows if case != "Muon" else 1024, used, args.parameters
        mine = steps(lt, case, *given)[""]
        peers = steps(torch, case, *given) if torch else {}
        lt.reset_peak_memory_stats()
        before = lt.memory_allocated()
        mine()
        extra = lt.max_memory_allocated() - before
        times = {name: [] for name in ("lowtide", *peers)}
        for _ in range(args.rounds):
            times["lowtide"].append(seconds_of(mine))
            for name, step in peers.items():
                times[name].append(seconds_of(step))
        median = {name: statistics.median(t) for name, t in times.items()}
        peer = min(peers, key=median.get) if peers else None
        best = median[peer] if peer else float("nan")
        print(
            f"{case:20}{median['lowtide'] * 1e3:9.2f}{best * 1e3:9.2f}"
            f"{median['lowtide'] / best:8.2f}  {peer or '-':9}{extra:12,d}",
            flush=True,
        )
        stored[case] = {"median_s": median, "extra_bytes": extra}
        del mine, peers
    if args.json:
        names = ("elements", "parameters", "rounds", "threads")
        settings = {name: getattr(args, name) for name in names}
        args.json.write_text(json.dumps({**settings, "steps": stored}, indent=1))


if __name__ == "__main__":
    main()
