"""Programs as PyTorch's tutorials have them, in several processes, unmodified."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from .ranks import free_port

TRAINING = """
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def main():
    dist.init_process_group(backend="nccl" if torch.cuda.is_available() else "gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    x = torch.randn(400, 10)
    y = (x.sum(1, keepdim=True) > 0).float()
    sampler = DistributedSampler(data := TensorDataset(x, y))
    loader = DataLoader(data, batch_size=20, sampler=sampler, num_workers=1)
    model = DDP(nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 1)))
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        total = torch.zeros(1)
        for a, b in loader:
            optimizer.zero_grad()
            loss = nn.functional.binary_cross_entropy_with_logits(model(a), b)
            loss.backward()
            optimizer.step()
            total += loss.detach()
        dist.all_reduce(total)
        if rank == 0:
            print("loss", total.item() / len(loader) / world)
    if rank == 0:
        torch.save(model.state_dict(), "model.pt")
    dist.barrier()
    where = {"cuda:0": f"cuda:{rank}"}
    model.load_state_dict(torch.load("model.pt", map_location=where, weights_only=True))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
"""

SPAWNING = """
import os
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel as DDP


def work(rank, world_size):
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ["MASTER_PORT"] = "12355"
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    model = DDP(torch.nn.Linear(10, 5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    loss = torch.nn.MSELoss()(model(torch.randn(20, 10)), torch.randn(20, 5))
    loss.backward()
    optimizer.step()
    weights = [torch.empty(5, 10) for _ in range(world_size)]
    dist.all_gather(weights, model.module.weight.detach())
    assert torch.equal(*weights)
    print("rank", rank, "done", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(work, args=(2,), nprocs=2, join=True)
"""

ROOT = Path(__file__).resolve().parents[2]
BLOCKS = re.findall(r"```py\n(import .*?)```", (ROOT / "docs/distributed.md").read_text(), re.S)


def run(folder: Path, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "lowtide", *words],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=folder,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.deep
def test_a_training_script_under_the_launcher(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINING)
    lines = run(tmp_path, "launch", "-n", "2", "--as-torch", "train.py").splitlines()
    losses = [float(line.split()[-1]) for line in lines]
    assert [line.partition(": ")[0] for line in lines] == ["[0]"] * 3
    assert losses[2] < 0.6 * losses[0]


@pytest.mark.deep
@pytest.mark.parametrize("module", [False, True])
def test_a_script_that_spawns_its_ranks(tmp_path: Path, module: bool) -> None:
    (tmp_path / "spawning.py").write_text(SPAWNING.replace("12355", str(free_port())))
    words = ["-m", "spawning"] if module else ["spawning.py"]
    said = run(tmp_path, "run-as-torch", *words)
    assert said.count("done") == 2


@pytest.mark.deep
@pytest.mark.parametrize("block", range(len(BLOCKS)))
def test_a_program_of_the_page_runs(block: int, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(BLOCKS[block])
    by_launcher = "dist.init_process_group()" in BLOCKS[block]
    words = ["launch", "-n", "2"] if by_launcher else ["profile", "--no-lines"]
    run(tmp_path, *words, "program.py")


def test_the_page_has_programs() -> None:
    assert len(BLOCKS) == 7
