"""What a fresh process holds under a budget: run as a script, prints its findings as JSON.

    python -m tests.budget.physical CASE LIMIT [ADDRESSES]

ADDRESSES are bytes that the process may map beyond what it has before the pool is made.
"""

from __future__ import annotations

import json
import math
import resource
import sys
from itertools import pairwise
from typing import Any

import lowtide as lt
from lowtide import nn, optim
from lowtide.framework.devices import backend
from lowtide.framework.memory.machine import machine
from lowtide.profiling.record.system_memory import process

F = nn.functional

if len(sys.argv) > 3 and __name__ == "__main__":
    with open("/proc/self/statm", encoding="ascii") as file:
        mapped = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + int(sys.argv[3]),) * 2)
CPU = backend(lt.device("cpu"))


def model() -> Any:
    """A step of layers whose results have several sizes, with dropout and Adam."""
    lt.manual_seed(0)
    widths = [256, 768, 128, 512, 256, 1024, 256, 640, 256, 384, 256, 896, 128, 256]
    layers: list[nn.Module] = []
    for a, b in pairwise(widths):
        layers += [nn.Linear(a, b), nn.GELU(), nn.Dropout(0.1)]
    net = nn.Sequential(*layers)
    optimizer, x = optim.Adam(net.parameters()), lt.randn(1024, 256)

    def step() -> float:
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        return float(loss.item())

    return step


def resident() -> int:
    """Bytes of the cpu pool's mapping in memory, as the kernel counts them."""
    begin = CPU.ledger.base
    end, found, inside = begin + CPU.pool.capacity, 0, False
    with open("/proc/self/smaps", encoding="ascii") as file:
        for line in file:
            name = line.split(None, 1)[0]
            if "-" in name and not name.endswith(":"):
                first, last = (int(part, 16) for part in name.split("-"))
                inside = begin <= first < end and last <= end
            elif inside and name == "Rss:":
                found += int(line.split()[1]) * 1024
    return found


class Watch:
    """Compares what is booked with what the kernel says, at each hundredth allocation."""

    def __init__(self) -> None:
        self.seen, self.worst, self.most = 0, -math.inf, 0

    def __call__(self, *event: Any) -> None:
        self.seen += 1
        if self.seen % 100 == 0:
            now = resident()
            self.worst = max(self.worst, now - CPU.pool.held)
            self.most = max(self.most, now)


def main() -> None:
    """Train, and print what was found."""
    case, limit = sys.argv[1], int(sys.argv[2])
    step = model()
    found: dict[str, Any] = {"capacity": CPU.pool.capacity}
    if case == "plain":
        found["losses"] = [step() for _ in range(3)]
        print(json.dumps(found | {"peak": lt.max_memory_allocated()}))
        return
    watch = Watch()
    if case == "watched":
        CPU.ledger.observers = (watch,)
    with lt.memory_budget(limit, of=case if case in ("process", "tensors") else "pages") as budget:
        found["losses"] = [step() for _ in range(3)]
        found["limit"] = CPU.ledger.limit
    CPU.ledger.observers = ()
    found |= {
        "peak": lt.max_memory_allocated(),
        "held": CPU.pool.peak,
        "given": CPU.pool.given,
        "top": CPU.pool.top,
        "evictions": budget.evictions,
        "process": process()["peak_rss"],
        "others": machine().resident() - CPU.pool.held,
        "worst": watch.worst,
        "resident": watch.most,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
