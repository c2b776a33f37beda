"""A GPT that takes 3.4 GB trains where addresses end at its budget and constants (``ulimit -v``).

A fresh process for each: plain without a limit, plain within it (refused), and in a budget within
it. The limit is ``ADDRESSES`` times the budget, what the process had mapped before the pool was
made, and 128 MiB, which the pool leaves to stacks, to workspace and to Python.

    python -m benchmarks.budget_large [--share 0.4] [--steps N] [--only plain refused budget]
"""

from __future__ import annotations

import argparse
import hashlib
import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import lowtide as lt
from benchmarks import checkpointing
from lowtide import optim
from lowtide.framework.memory.ledger import format_bytes

SHAPE = (12, 512, 8, 15, 512, 4096)  # blocks, width, heads, batch, length, vocabulary
PEAK, START = 3_476_000_000, 168_243_200  # bytes of the plain step, and of what lives before it
ADDRESSES = 1.1
OTHERS = 1 << 27


def status(name: str) -> int:
    """A figure of this process, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise KeyError(name)


def one(kind: str, budget: int, steps: int) -> dict[str, Any]:
    """Train in this process."""
    before = status("VmSize")
    limit = before + int(ADDRESSES * budget) + OTHERS
    if kind != "plain":
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    lt.manual_seed(0)
    net, blocks, start, loss = checkpointing.gpt(lt, *SHAPE)
    optimizer = optim.AdamW(net.parameters())

    def step() -> None:
        optimizer.zero_grad()
        h = start()
        for block in blocks:
            h = block(h)
        loss(h).backward()
        optimizer.step()

    found: dict[str, Any] = {"limit": limit if kind != "plain" else None, "before": before}
    seconds = []
    try:
        for _ in range(steps):
            began = time.perf_counter()
            if kind == "budget":
                with lt.memory_budget(budget):
                    step()
            else:
                step()
            seconds.append(time.perf_counter() - began)
    except lt.OutOfMemoryError as error:
        return found | {"refused": str(error).splitlines()[0]}
    digest = hashlib.sha256()
    for p in net.parameters():
        digest.update(p.detach().numpy().tobytes())
    return found | {
        "peak": lt.max_memory_allocated(),
        "process": status("VmHWM"),
        "addresses": status("VmPeak"),
        "seconds": min(seconds),
        "digest": digest.hexdigest(),
    }


def main() -> None:
    """Print what each process took."""
    if sys.argv[1:2] == ["--one"]:
        print(json.dumps(one(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))))
        return
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--share", type=float, default=0.4, help="of the plain step's activations")
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--only", nargs="*", default=["plain", "refused", "budget"])
    args = parser.parse_args()
    budget = int(START + args.share * (PEAK - START))
    print(f"budget {format_bytes(budget)}")
    bits = set()
    for kind in args.only:
        call = [sys.executable, "-m", "benchmarks.budget_large", "--one", kind]
        out = subprocess.run(
            [*call, str(budget), str(args.steps)], check=True, capture_output=True, text=True
        ).stdout
        found = json.loads(out.splitlines()[-1])
        within = "" if found["limit"] is None else f" within {format_bytes(found['limit'])}"
        if "refused" in found:
            print(f"{kind}{within}: {found['refused']}", flush=True)
            continue
        bits.add(found["digest"])
        print(
            f"{kind}{within}: tensors {format_bytes(found['peak'])}, in memory "
            f"{format_bytes(found['process'])}, mapped {format_bytes(found['addresses'])} "
            f"({format_bytes(found['before'])} before), {found['seconds']:.1f} s a step",
            flush=True,
        )
    print("same bits" if len(bits) == 1 else "OTHER BITS")


if __name__ == "__main__":
    main()
