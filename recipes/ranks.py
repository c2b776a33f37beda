"""The processes of a run: one, or those that ``lowtide launch -n 2 --recipe chargpt`` started.

They train one model together. Rank 0 prints and writes what the run leaves. All write their parts
of a checkpoint, so that a run goes on bit for bit.
"""

from __future__ import annotations

import os
from typing import Any

from rich.console import Console

import lowtide as lt
import lowtide.distributed as dist
from lowtide import nn
from lowtide.nn.parallel import DistributedDataParallel


class Ranks:
    """The processes of this run, connected.

    Attributes:
        rank: Which of them this is.
        size: How many there are.
    """

    def __init__(self) -> None:
        self.size = int(os.environ.get("WORLD_SIZE", "1"))
        if self.size > 1 and not dist.is_initialized():
            dist.init_process_group()
        self.rank = dist.get_rank() if self.size > 1 else 0

    def console(self) -> Console:
        """Return where this process prints; all but rank 0 print nothing."""
        return Console(quiet=self.rank > 0)

    def share(self, model: nn.Module) -> nn.Module:
        """Return the model to call in training, whose backward averages gradients."""
        return DistributedDataParallel(model) if self.size > 1 else model

    def part(self, batch_size: int) -> int:
        """Return how many examples of a batch are this process's.

        Raises:
            SystemExit: They cannot be shared out evenly.
        """
        if batch_size % self.size:
            raise SystemExit(
                f"A batch of {batch_size} cannot be shared out evenly among {self.size} processes. "
                "Pass another --batch-size."
            )
        return batch_size // self.size

    def rows(self, *tensors: lt.Tensor) -> list[lt.Tensor]:
        """Return the examples that are this process's: as many as those of any other."""
        even = len(tensors[0]) - len(tensors[0]) % self.size
        return [t[self.rank : even : self.size] for t in tensors]

    def draw_apart(self, seed: int) -> None:
        """Seed the generators, so that each process draws other numbers from here on."""
        if self.size > 1:
            lt.manual_seed(seed + self.rank)

    def same(self, value: Any) -> Any:
        """Return rank 0's value, in all processes."""
        if self.size == 1:
            return value
        values = [value]
        dist.broadcast_object_list(values)
        return values[0]

    def any(self, flag: bool) -> bool:
        """Return whether a flag is set in any process."""
        if self.size == 1:
            return flag
        found = lt.tensor(int(flag))
        dist.all_reduce(found, dist.ReduceOp.MAX)
        return bool(found)

    def mean(self, value: float) -> float:
        """Return the mean of a number over the processes."""
        if self.size == 1:
            return value
        found = lt.tensor(value, dtype=lt.float64)
        dist.all_reduce(found, dist.ReduceOp.AVG)
        return found.item()


def one_process(name: str) -> Ranks:
    """Return the processes of a recipe that trains in one.

    Raises:
        SystemExit: There are several.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise SystemExit(
            f"{name} trains in one process: `lowtide run {name}`. In several processes train "
            "chargpt and resnet."
        )
    return Ranks()
