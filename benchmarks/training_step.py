"""A training step is no slower than PyTorch's, and its process is smaller, idle or busy.

Thirteen models (``training_models.py``), each written once and run with both libraries from the
same weights and batch. Each library has a process of its own for each model; they take turns of a
few steps. Printed are, for lowtide and its peer, the median of a step; the ratio of medians and of
minima (below 1: lowtide is faster; minima say more on a machine that is not idle); the peak of the
whole process (VmHWM) and its ratio; the peak of lowtide's ledger; the first step, with imports
before it left out. The last line has geometric means.

``--busy N``: in every second round N processes that do nothing but compute run beside it, as
loaders do. Printed too is how much slower a step is then: the ratio of means, for a step that waits
for a thread which the system has not scheduled is rare and long.

``--cold``: lowtide's kernels are kept in an empty folder, so its first step compiles them.

``--only llama,flow,diffusion``: models whose layers are written as ops (``models_in_ops.py``).

``--compiled``: lowtide's step is ``lowtide.compile(step)``; the step as it is written has a process
too, and two columns more: its median, and the ratio of medians, compiled over written.

``--mkl``: lowtide multiplies with MKL where that is installed; here a second process of it does not
(``LOWTIDE_MKL=0``), and the two columns compare with that one.

``--autocast``: both libraries run the step under ``autocast("cpu", dtype=bfloat16)``.

``--torch-compile``: PyTorch's step is ``torch.compile(step)``.

``--device cuda``: the models train on a GPU. A turn ends when the GPU is idle, and a step's time is
the turn's divided by its steps, for steps are queued. The peaks printed are the GPU's: the highest
sum of live tensors and the highest number of bytes reserved from the driver, for both libraries.
PyTorch keeps its defaults: TF32 in convolutions, not in products.

    python -m benchmarks.training_step [--rounds N] [--threads N] [--busy N] [--only NAME,NAME]
                                       [--device cpu|cuda] [--cold] [--compiled]
                                       [--mkl] [--autocast] [--torch-compile] [--json FILE]
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import multiprocessing
import os
import signal
import statistics
import tempfile
import time
from math import exp, log
from pathlib import Path
from typing import Any

from benchmarks.models_in_ops import IN_OPS
from benchmarks.training_models import MODELS, Library, training_step

WARM = 4  # steps before anything is measured
TURN = 0.25  # seconds of steps in a turn, at least
PAUSE_S = 0.05  # between turns, until idle threads sleep


def serve(
    pipe: Any, name: str, case: str, threads: int, device: str, autocast: bool = False
) -> None:
    """Run in a process of its own: build a case, then time steps when told to."""
    name, _, kind = name.partition(" ")
    if kind == "openblas":
        os.environ["LOWTIDE_MKL"] = "0"
    module = importlib.import_module(name)
    if name == "torch":
        module.set_num_threads(threads)
    if device != "cpu":
        serve_gpu(pipe, module, case, device)
        return
    functional = importlib.import_module(f"{name}.nn.functional")
    step = training_step(Library(module, functional, module.optim), case, MODELS | IN_OPS)
    if autocast:
        step = under_autocast(module, step)
    if kind == "compiled":
        step = module.compile(step, fullgraph=name == "lowtide")
    start = time.perf_counter()
    losses = [float(step().detach())]
    first = time.perf_counter() - start
    losses += [float(step().detach()) for _ in range(WARM)]
    start = time.perf_counter()
    step()
    count = max(3, int(TURN / (time.perf_counter() - start)))
    pipe.send({"losses": losses, "first_s": first})
    while pipe.recv() is not None:
        pipe.send([seconds_of(step) for _ in range(count)])
    ledger = 0
    if name == "lowtide":
        module.reset_peak_memory_stats()
        step()
        ledger = module.max_memory_allocated()
    pipe.send({"ledger_bytes": ledger, "process_bytes": process_peak()})


def under_autocast(module: Any, step: Any) -> Any:
    """Return a step that computes in bfloat16 where autocast does."""

    def run() -> Any:
        with module.autocast("cpu", dtype=module.bfloat16):
            return step()

    return run


def serve_gpu(pipe: Any, module: Any, case: str, device: str) -> None:
    """Do what :func:`serve` does, with the model on a GPU."""
    functional = importlib.import_module(f"{module.__name__}.nn.functional")
    module.set_default_device(device)
    step = training_step(Library(module, functional, module.optim), case, MODELS | IN_OPS)
    cuda = module.cuda
    start = time.perf_counter()
    losses = [float(step().detach())]
    first = time.perf_counter() - start
    losses += [float(step().detach()) for _ in range(WARM)]

    def turn(count: int) -> float:
        cuda.synchronize()
        start = time.perf_counter()
        for _ in range(count):
            step()
        cuda.synchronize()
        return (time.perf_counter() - start) / count

    count = max(3, int(TURN / turn(3)))
    pipe.send({"losses": losses, "first_s": first})
    cuda.reset_peak_memory_stats()
    while pipe.recv() is not None:
        pipe.send([turn(count)])
    pipe.send(
        {
            "ledger_bytes": cuda.max_memory_allocated(),
            "process_bytes": cuda.max_memory_reserved(),
        }
    )


def seconds_of(step: Any) -> float:
    """Wall time of one step."""
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def process_peak() -> int:
    """Bytes that the process had resident at most."""
    text = Path("/proc/self/status").read_text()
    return int(text.partition("VmHWM:")[2].split()[0]) * 1024


def spin() -> None:
    """Keep a core busy."""
    while True:
        pass


def measure(case: str, names: list[str], args: argparse.Namespace, spinning: list[Any]) -> Any:
    """Return what was found of a case, for each library."""
    context = multiprocessing.get_context("spawn")
    pipes = []
    for name in names:
        here, there = context.Pipe()
        arguments = (there, name, case, args.threads, args.device, args.autocast)
        context.Process(target=serve, args=arguments, daemon=True).start()
        pipes.append([here])
        if args.device == "cpu":  # one after the other: they would disturb each other
            pipes[-1].append(here.recv())
    if args.device != "cpu":
        for pair in pipes:
            pair.append(pair[0].recv())
    idle: list[list[float]] = [[] for _ in names]
    busy: list[list[float]] = [[] for _ in names]
    for turn in range(args.rounds * (2 if spinning else 1)):
        times = busy if spinning and turn % 2 else idle
        signal_all(spinning, signal.SIGCONT if times is busy else signal.SIGSTOP)
        for k, (pipe, _) in enumerate(pipes):
            pipe.send("go")
            times[k] += pipe.recv()
            time.sleep(PAUSE_S)
    signal_all(spinning, signal.SIGSTOP)
    found = []
    for k, (pipe, began) in enumerate(pipes):
        pipe.send(None)
        about = began | pipe.recv()
        about |= {"median_s": statistics.median(idle[k]), "least_s": min(idle[k])}
        if spinning:
            about["slowdown"] = statistics.fmean(busy[k]) / statistics.fmean(idle[k])
        found.append(about)
    return found


def signal_all(processes: list[Any], number: int) -> None:
    """Stop or continue processes."""
    for p in processes:
        os.kill(p.pid, number)


def row(found: list[Any]) -> list[float]:
    """The numbers of a line."""
    ours, theirs = found[0], found[-1]
    line = [f["median_s"] * 1e3 for f in (ours, theirs)]
    line += [ours[key] / theirs[key] for key in ("median_s", "least_s")]
    line += [f["process_bytes"] / 2**20 for f in (ours, theirs)]
    line += [ours["process_bytes"] / theirs["process_bytes"], ours["ledger_bytes"] / 2**20]
    line += [f["first_s"] for f in (ours, theirs)]
    line += [f["slowdown"] for f in (ours, theirs)] if "slowdown" in ours else []
    if "base_s" in ours:
        line += [ours["base_s"] * 1e3, ours["median_s"] / ours["base_s"]]
    return line


HEADS = (
    "ms",
    "peer ms",
    "median",
    "least",
    "MiB",
    "peer MiB",
    "ratio",
    "ledger",
    "first s",
    "peer s",
)
RATIOS = (2, 3, 6)  # of which geometric means are told


def main() -> None:
    """Run, print, store."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--busy", type=int, default=0, help="processes that compute, half the time")
    parser.add_argument("--only", default="", help="names of cases, with commas between them")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--cold", action="store_true", help="compile kernels anew")
    parser.add_argument("--compiled", action="store_true", help="lowtide's step is compiled")
    parser.add_argument("--mkl", action="store_true", help="beside lowtide without MKL")
    parser.add_argument("--autocast", action="store_true", help="steps in bfloat16")
    parser.add_argument("--torch-compile", action="store_true", help="PyTorch's step is compiled")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(args.threads)  # the processes started below inherit it
    names = ["lowtide compiled"] if args.compiled else []
    names += ["lowtide", "lowtide openblas"] if args.mkl and not args.compiled else ["lowtide"]
    if importlib.util.find_spec("torch"):
        names.append("torch compiled" if args.torch_compile else "torch")
    context = multiprocessing.get_context("spawn")
    spinning = [context.Process(target=spin, daemon=True) for _ in range(args.busy)]
    for p in spinning:
        p.start()
    signal_all(spinning, signal.SIGSTOP)
    heads = HEADS + (("busy/idle", "peer's") if args.busy else ())
    heads += ("base ms", "of it") if args.compiled or args.mkl else ()
    blas = importlib.import_module("lowtide.framework.kernels.runtime.blas")  # not in PyTorch's
    print(f"NumPy's BLAS: kernels for {blas.kernels()}")
    print(f"{'training step':14}" + "".join(f"{h:>10}" for h in heads))
    stored: dict[str, Any] = {}
    lines = []
    only = args.only.split(",") if args.only else [*MODELS]
    for case in [c for c in MODELS | IN_OPS if c in only]:
        with tempfile.TemporaryDirectory() as folder:
            if args.cold:
                os.environ["LOWTIDE_CACHE_DIR"] = folder
            found = measure(case, names, args, spinning)
        stored[case] = dict(zip(names, found, strict=True))
        if args.compiled or args.mkl:
            found[0]["base_s"] = found[1]["median_s"]
        lines.append(row(found))
        print(f"{case:14}" + "".join(f"{v:10.2f}" for v in lines[-1]), flush=True)
        ours, theirs = found[0]["losses"], found[-1]["losses"]
        if any(abs(a - b) > 1e-2 * abs(b) for a, b in zip(ours, theirs, strict=True)):
            print(f"  losses differ: {ours} and {theirs}")
    means = [
        exp(statistics.fmean(log(line[k]) for line in lines))
        if k in RATIOS or k >= len(HEADS)
        else None
        for k in range(len(heads))
    ]
    print(f"{'geometric mean':14}" + "".join(f"{m:10.2f}" if m else " " * 10 for m in means))
    for p in spinning:
        p.kill()  # a stopped process does not see the end that Python asks of it
    if args.json:
        args.json.write_text(json.dumps(stored, indent=1))


if __name__ == "__main__":
    main()
