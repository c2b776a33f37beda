"""Data-parallel steps and all_reduce between processes, beside PyTorch's gloo.

    python -m benchmarks.distributed                  # two processes on this machine
    python -m benchmarks.distributed --rounds 5

Every case runs in processes of its own, and the cases take turns. The model is a small GPT
(3.2 million parameters, 13 MB of gradients), trained by AdamW on 8 sequences of 128 characters: in
one process with one thread and with two, in two processes with one thread and half of the
sequences each, by DistributedDataParallel and by fully_shard. PyTorch is optional: without it its
cases are left out.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

WIDTH, DEPTH, HEADS, CONTEXT, CHARACTERS, BATCH = 256, 4, 4, 128, 96, 8
SIZES = (4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20)  # bytes of an all_reduce
STEPS = 12


def model_of(T: Any) -> Any:
    """The GPT, in lowtide or in PyTorch."""
    nn, F = T.nn, T.nn.functional

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
            self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
            self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

        def forward(self, x: Any) -> Any:
            n, t, _ = x.shape
            parts = self.qkv(self.norm1(x)).split(WIDTH, dim=2)
            q, k, v = (p.view(n, t, HEADS, WIDTH // HEADS).transpose(1, 2) for p in parts)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.proj(y.transpose(1, 2).reshape(n, t, WIDTH))
            return x + self.down(F.gelu(self.up(self.norm2(x))))

    class GPT(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.token = nn.Embedding(CHARACTERS, WIDTH)
            self.position = nn.Embedding(CONTEXT, WIDTH)
            self.blocks = nn.Sequential(*[Block() for _ in range(DEPTH)])
            self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CHARACTERS)

        def forward(self, tokens: Any) -> Any:
            x = self.token(tokens) + self.position(T.arange(CONTEXT))
            return self.head(self.norm(self.blocks(x)))

    return GPT()


def train(T: Any, threads: int, rank: int, size: int, shards: bool = False) -> dict[str, float]:
    """Seconds of a step, the median, on this rank's part of the batch."""
    import numpy as np

    T.set_num_threads(threads)
    T.manual_seed(0)
    model = model_of(T)
    if shards:
        fully_shard = import_module(f"{T.__name__}.distributed.fsdp").fully_shard
        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)
    elif size > 1:
        model = T.nn.parallel.DistributedDataParallel(model)
    optimizer = T.optim.AdamW(model.parameters(), lr=1e-3)
    draw = np.random.default_rng(rank)
    times = []
    for _ in range(STEPS):
        data = draw.integers(0, CHARACTERS, (BATCH // size, CONTEXT + 1))
        x, y = T.tensor(data[:, :-1]), T.tensor(data[:, 1:])
        begun = time.perf_counter()
        optimizer.zero_grad()
        loss = T.nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
        loss.backward()
        optimizer.step()
        loss.item()
        times.append(time.perf_counter() - begun)
    return {"step": statistics.median(times[2:])}


def shard(T: Any, threads: int, rank: int, size: int) -> dict[str, float]:
    """The same with parameters, gradients and optimizer state in parts."""
    return train(T, threads, rank, size, shards=True)


def reduce(T: Any, threads: int, rank: int, size: int) -> dict[str, float]:
    """Seconds of an all_reduce by its bytes, the median of several, in rank 0's clock."""
    found = {}
    T.set_num_threads(threads)
    for nbytes in SIZES:
        t = T.ones(nbytes // 4)
        times = []
        for _ in range(8 if nbytes > 1 << 20 else 60):
            T.distributed.barrier()
            begun = time.perf_counter()
            T.distributed.all_reduce(t)
            times.append(time.perf_counter() - begun)
        found[str(nbytes)] = statistics.median(times)
    return found


WORK: dict[str, Callable[..., dict[str, float]]] = {
    "train": train,
    "shard": shard,
    "reduce": reduce,
}
CASES = [  # (what, framework, backend, processes, threads of each)
    ("train", "lowtide", "", 1, 1),
    ("train", "lowtide", "", 1, 2),
    ("train", "lowtide", "gloo", 2, 1),
    ("train", "torch", "", 1, 2),
    ("train", "torch", "gloo", 2, 1),
    ("shard", "lowtide", "gloo", 2, 1),
    ("shard", "torch", "gloo", 2, 1),
    ("reduce", "lowtide", "gloo", 2, 1),
    ("reduce", "torch", "gloo", 2, 1),
]


def worker(what: str, framework: str, backend: str, threads: int) -> None:
    """Run one case as one rank; rank 0 prints the result."""
    T = import_module(framework)
    size = int(os.environ["WORLD_SIZE"])
    if size > 1:
        import_module(f"{framework}.distributed")
        T.distributed.init_process_group(backend)
    rank = int(os.environ["RANK"])
    found = WORK[what](T, threads, rank, size)
    if size > 1:
        T.distributed.destroy_process_group()
    if rank == 0:
        print(json.dumps(found))


def in_ranks(module: str, size: int, threads: int, words: list[str]) -> dict[str, Any]:
    """Run a benchmark in so many processes; return what rank 0 prints last, which is JSON."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    place = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    place |= {"OMP_NUM_THREADS": str(threads)}
    command = [sys.executable, "-W", "ignore", "-m", module, "--worker", *words]
    ranks = [
        subprocess.Popen(
            command,
            env=os.environ | place | {"RANK": str(rank)},
            text=True,
            stdout=subprocess.PIPE,
        )
        for rank in range(size)
    ]
    told = [rank.communicate(timeout=300)[0] for rank in ranks]
    found: dict[str, Any] = json.loads(told[0].splitlines()[-1])
    return found


def run(case: tuple[str, str, str, int, int]) -> dict[str, float]:
    """Run one case in processes of its own."""
    what, framework, backend, processes, threads = case
    words = [what, framework, backend, str(threads)]
    return in_ranks("benchmarks.distributed", processes, threads, words)


def main() -> None:
    """Take turns, and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, help="how often each case runs")
    parser.add_argument("--worker", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        what, framework, backend, threads = options.worker
        worker(what, framework, backend, int(threads))
        return
    cases = [c for c in CASES if c[1] == "lowtide" or find_spec(c[1]) is not None]
    found: dict[Any, list[dict[str, float]]] = {case: [] for case in cases}
    for _ in range(options.rounds):
        for case in cases:
            found[case].append(run(case))
    for case, rounds in found.items():
        what, framework, _, processes, threads = case
        where = f"processes {processes}, threads {threads}"
        for key in rounds[0]:
            each = [r[key] for r in rounds]
            steps = {"train": "step", "shard": "step, fully_shard"}
            label = steps[what] if what in steps else f"all_reduce of {int(key) >> 10} KiB"
            middle, least = statistics.median(each) * 1e3, min(each) * 1e3
            print(f"{framework:8} {where:24} {label:24} median {middle:8.3f} ms  least {least:.3f}")


if __name__ == "__main__":
    main()
