"""A training loop: no byte is left over, the peak repeats, meta foretells both, a seed repeats it.

An MLP with dropout, trained by AdamW, with everything a script does around it: ``zero_grad``, a
clipped norm, a running mean of the loss, an evaluation under ``no_grad`` every few steps.
"""

from __future__ import annotations

import gc
from typing import Any, NamedTuple

import pytest

import lowtide as lt
from lowtide import nn
from lowtide.nn import functional as F

STEPS = 100


class Step(NamedTuple):
    """What one step shows."""

    live: dict[str, int]
    peak: dict[str, int]
    peak_bytes: int
    loss: Any


class Net(nn.Module):
    def __init__(self, device: str) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(12, 32), nn.GELU(), nn.Linear(32, 32), nn.ReLU())
        self.head = nn.Linear(32, 4)
        self.register_buffer("seen", lt.zeros(1))
        self.to(device)

    def forward(self, x: lt.Tensor) -> lt.Tensor:
        self.seen.add_(x.shape[0])
        return self.head(F.dropout(self.body(x), 0.2, self.training))


def checked(device: str) -> dict[str, Any]:
    """The device's statistics, after checking that the books are even."""
    stats = lt.memory_stats(device)
    assert sum(stats["by_role"].values()) == stats["live_bytes"]
    assert sum(stats["peak_by_role"].values()) == stats["peak_bytes"]
    assert min(stats["by_role"].values()) >= 0
    return stats


def optimizer_of(name: str, net: nn.Module) -> lt.optim.Optimizer:
    if name == "AdamW":
        return lt.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=0.01)
    return lt.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)


def train(device: str, name: str = "AdamW", to_none: bool = True, steps: int = STEPS) -> list[Step]:
    """Train with the collector off; what is live is counted from what was live before."""
    lt.manual_seed(7)
    gc.collect()
    gc.disable()
    try:
        before = checked(device)["by_role"]
        x = lt.randn(64, 12).to(device)
        y = (lt.arange(64) % 4).to(device)
        net = Net(device)
        optimizer = optimizer_of(name, net)
        mean = 0.0
        found = []
        for k in range(steps):
            lt.reset_peak_memory_stats(device)
            optimizer.zero_grad(set_to_none=to_none)
            loss = F.cross_entropy(net(x), y)
            loss.backward()
            norm = sum((p.grad * p.grad).sum() for p in net.parameters()).sqrt()
            for p in net.parameters():
                p.grad.mul_(1 / (norm + 1.0))
            optimizer.step()
            del norm, p
            value = None if device == "meta" else loss.item()
            del loss
            if value is not None:
                mean += (value - mean) / (k + 1)
            if k % 10 == 9:
                net.eval()
                with lt.no_grad():
                    net(x).argmax(-1)
                net.train()
            stats = checked(device)
            live = {role: n - before[role] for role, n in stats["by_role"].items()}
            peak = {role: n - before[role] for role, n in stats["peak_by_role"].items()}
            found.append(Step(live, peak, sum(peak.values()), value))
        del x, y, net, optimizer
        assert checked(device)["by_role"] == before, "the end of training frees everything"
        return found
    finally:
        gc.enable()


@pytest.fixture(autouse=True)
def warm():
    """Plans, imports and caches are made before anything is measured."""
    for device in ("cpu", "meta"):
        train(device, steps=1)
        train(device, "SGD", steps=1)


@pytest.mark.parametrize("name", ["AdamW", "SGD"])
@pytest.mark.parametrize("to_none", [True, False])
def test_a_hundred_steps_leave_not_one_byte_more_than_the_first(name, to_none):
    steps = train("cpu", name, to_none)
    assert [s.live for s in steps] == [steps[0].live] * STEPS
    assert [s.peak for s in steps[1:]] == [steps[1].peak] * (STEPS - 1)


@pytest.mark.parametrize("name", ["AdamW", "SGD"])
def test_meta_foretells_live_and_peak_bytes_of_each_role(name):
    real, foretold = train("cpu", name, steps=12), train("meta", name, steps=12)
    assert [s.live for s in real] == [s.live for s in foretold]
    assert [s.peak for s in real] == [s.peak for s in foretold]


def test_each_byte_has_the_role_of_what_it_is_for():
    live = train("cpu", steps=2)[1].live
    weights = 4 * (12 * 32 + 32 + 32 * 32 + 32 + 32 * 4 + 4)
    assert live == {
        "temporary": 4 * 64 * 12 + 8 * 64,  # x and y
        "saved": 0,
        "parameter": weights,
        "gradient": weights,
        "optimizer": 2 * weights,
        "buffer": 4,
        "input": 0,
        "workspace": 0,
        "communication": 0,
    }


def test_the_loss_falls_and_a_seed_repeats_it_bit_by_bit():
    first, again = train("cpu"), train("cpu")
    losses = [s.loss for s in first]
    assert losses == [s.loss for s in again]
    assert losses[-1] < 0.5 * losses[0]
