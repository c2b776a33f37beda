"""What a process holds under a byte budget: pages of the pool, and the kernel's own figure.

Each row is a fresh process that builds a model and trains under a budget from its first step on.
``held`` is the most that the pool holds, ``process`` is VmHWM less what stood before the model,
both as a share of the budget; ``given back`` are the bytes of a step, and ``time`` is the process
time of a step as a ratio to one whose pool gives nothing back (``held`` of that is in brackets).

    python -m benchmarks.budget_pages [--only NAME ...] [--shares 0.8 ...] [--steps N] [--json F]

``--of process`` budgets the whole process: ``process`` is VmHWM as a share of that.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import lowtide as lt
from benchmarks.budget import MODELS, imagine
from lowtide.framework.devices import backend
from lowtide.framework.memory.ledger import format_bytes
from lowtide.framework.memory.machine import machine
from lowtide.framework.memory.pool import NO_CAP
from lowtide.profiling.record.system_memory import process

SHARES = (0.8, 0.6, 0.5, 0.4)


def one(name: str, share: float, steps: int, pages: bool, of: str) -> dict[str, Any]:
    """A row, in this process."""
    a = lt.randn(256, 256)
    (a @ a).sum().item()  # threads and workspace of BLAS
    del a
    be = backend(lt.device("cpu"))
    base = machine().resident() - be.pool.held
    lt.manual_seed(0)
    model = MODELS[name]()
    plain = imagine(model, None)
    limit = int(plain["start"] + share * (plain["peak"] - plain["start"]))
    if of == "process":
        limit += machine().resident() - be.pool.held + (4 << 20)
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM begins anew
    seconds = []
    for _ in range(steps):
        given, began = be.pool.given, time.process_time()
        with lt.memory_budget(limit, of=of):
            if not pages:
                be.pool.cap = NO_CAP
            try:
                model.step()
            except lt.MemoryLimitError:
                return {"limit": limit, "refused": True}
        seconds.append(time.process_time() - began)
    return {
        "model": name,
        "share": share,
        "limit": limit,
        "over": max(0, lt.max_memory_allocated() - limit),
        "held": be.pool.peak / limit,
        "process": (process()["peak_rss"] - (0 if of == "process" else base)) / limit,
        "given": be.pool.given - given,
        "seconds": min(seconds),
    }


def fresh(*args: Any) -> dict[str, Any]:
    """A row, in a process of its own."""
    call = [sys.executable, "-m", "benchmarks.budget_pages", "--one", *map(str, args)]
    out = subprocess.run(call, check=True, capture_output=True, text=True).stdout
    return json.loads(out.splitlines()[-1])  # type: ignore[no-any-return]


def rows(name: str, shares: list[float], steps: int, of: str) -> list[dict[str, Any]]:
    """The rows of a model."""
    print(f"\n{name}: {MODELS[name].__doc__}")
    print(
        f"  {'share':>6} {'budget':>11} {'held':>15} {'process':>8} {'given back':>11} {'time':>5}"
    )
    found = []
    for share in shares:
        without = fresh(name, share, steps, "without", of)
        row = fresh(name, share, steps, "with", of)
        if "refused" in row or "refused" in without:
            print(f"  {share:>6.0%} {format_bytes(row['limit']):>11} refused")
            continue
        row["without"], row["time"] = without["held"], row["seconds"] / without["seconds"]
        found.append(row)
        print(
            f"  {share:>6.0%} {format_bytes(row['limit']):>11} {row['held']:>7.4f} "
            f"({row['without']:.3f}) {row['process']:>8.3f} {format_bytes(row['given']):>11} "
            f"{row['time']:>5.2f}{'  OVER' if row['over'] else ''}",
            flush=True,
        )
    return found


def main() -> None:
    """Print a table for each model."""
    if sys.argv[1:2] == ["--one"]:
        name, share, steps, pages, of = sys.argv[2:]
        print(json.dumps(one(name, float(share), int(steps), pages == "with", of)))
        return
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="*", choices=MODELS, default=list(MODELS))
    parser.add_argument("--shares", nargs="*", type=float, default=list(SHARES))
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--of", choices=["pages", "process"], default="pages")
    parser.add_argument("--json", type=Path, help="write all figures here")
    args = parser.parse_args()
    found = [row for name in args.only for row in rows(name, args.shares, args.steps, args.of)]
    if args.json:
        args.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
