"""A GPU's memory, as four sources tell it, and an estimate beside it.

For each model of ``training_models.py`` a fresh process makes two steps on the device, estimates
the third without running it, makes it, and compares the estimate's peak with the ledger's, to the
byte. Then it prints, after the step: what the ledger books, what CuPy's pool has in use and
reserves, what NVML says of this process, and what the CUDA runtime says of the whole GPU.

    python -m benchmarks.gpu_memory [--device cuda] [--only NAME,NAME] [--report] [--json FILE]
"""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import lowtide as lt
from benchmarks.training_models import MODELS, Library, training_step
from lowtide.framework.devices import backend
from lowtide.profiling import MemoryProfiler, estimate
from lowtide.profiling.record.system_memory import look


def figures(where: lt.device) -> dict[str, Any]:
    """What the ledger, the pool, the runtime and the driver say of a device, in bytes."""
    lt.synchronize(where)
    return look([backend(where)])["devices"][str(where)]


def measure(name: str, where: lt.device, report: bool) -> dict[str, Any]:
    """Estimate a step of a model, make it, and return the figures."""
    lt.ones(1, device=where)  # makes the context
    before = figures(where)
    lt.set_default_device(where)
    step = training_step(Library(lt, lt.nn.functional, lt.optim), name)
    for _ in range(2):
        step()
    gc.collect()
    (found,) = [d for d in estimate(step).devices if d.device == str(where)]
    ledger = backend(where).ledger
    ledger.reset_peak()
    made = ledger.allocations
    step()
    real = {"peak": ledger.peak, "end": ledger.live, "allocations": ledger.allocations - made}
    predicted = {
        "peak": found.peak_bytes,
        "end": found.end_bytes,
        "allocations": found.allocations,
    }
    after = figures(where)
    if report:
        with MemoryProfiler() as prof:
            step()
        print(prof, file=sys.stderr)
    return {
        "real": real,
        "predicted": predicted,
        "before": before,
        "after": after,
        "pool_peak": int(backend(where).pool.peak),
    }


def line(name: str, found: dict[str, Any]) -> str:
    """A line of the table."""
    real, predicted, after = found["real"], found["predicted"], found["after"]
    numbers = [
        real["peak"],
        predicted["peak"] - real["peak"],
        predicted["end"] - real["end"],
        after["live"],
        after["used"],
        after["reserved"],
        after.get("driver_used", 0),
        after.get("runtime_used", 0),
    ]
    return f"{name:12}" + "".join(f"{n:14,}" for n in numbers)


HEADS = ("peak", "predicted", "at the end", "live", "pool used", "reserved", "driver", "runtime")


def main() -> int:
    """Run each model in its process, print, store."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--only", default="", help="names of models, with commas between them")
    parser.add_argument("--report", action="store_true", help="print the profiler's report too")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--here", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.here:
        print(json.dumps(measure(args.here, lt.device(args.device), args.report)))
        return 0
    print(f"{'bytes':12}" + "".join(f"{h:>14}" for h in HEADS), flush=True)
    stored, wrong = {}, 0
    for name in args.only.split(",") if args.only else MODELS:
        command = [sys.executable, "-m", "benchmarks.gpu_memory", "--here", name]
        command += ["--device", args.device, *["--report"] * args.report]
        ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        if ran.returncode:
            print(f"{name:12} failed", flush=True)
            wrong = 1
            continue
        found = stored[name] = json.loads(ran.stdout)
        wrong |= found["real"] != found["predicted"]
        print(line(name, found), flush=True)
    methods = {f["after"].get("driver_method", "no driver") for f in stored.values()}
    print(f"driver: {', '.join(methods)}; predicted and at the end: difference to the ledger's")
    if args.json:
        args.json.write_text(json.dumps(stored, indent=1))
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
