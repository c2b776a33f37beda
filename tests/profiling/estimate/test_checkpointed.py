"""The profiler and activation checkpointing: predicted to the byte, attributed, compared."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import lowtide as lt
from lowtide import nn, optim
from lowtide.framework.device import device
from lowtide.framework.devices import backend
from lowtide.nn import functional as F
from lowtide.profiling import MemoryProfiler, advise, compare, estimate


class Block(nn.Module):
    """A block of a transformer, with dropout."""

    def __init__(self, width=32, heads=4):
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.drop, self.heads = nn.Dropout(0.1), heads

    def forward(self, x):
        n, t, width = x.shape
        parts = self.qkv(self.first(x)).view(n, t, 3, self.heads, -1).transpose(1, 3).unbind(2)
        y = F.scaled_dot_product_attention(*parts, is_causal=True)
        x = x + self.drop(self.out(y.transpose(1, 2).reshape(n, t, width)))
        return x + self.drop(self.down(F.gelu(self.up(self.second(x)))))


class Model(nn.Module):
    """Blocks, each called through ``around``: plain, or in a region."""

    def __init__(self):
        super().__init__()
        self.read = nn.Embedding(50, 32)
        self.blocks = nn.ModuleList(Block() for _ in range(4))
        self.head = nn.Linear(32, 50)
        self.way = "plain"

    def forward(self, tokens):
        x = self.read(tokens)
        if self.way == "sequential":
            x = lt.checkpointing.checkpoint_sequential(self.blocks, 2, x)
        elif self.way == "nested":
            x = lt.checkpoint(self._each, x)
        elif self.way == "each":
            x = self._each(x)
        else:
            for block in self.blocks:
                x = block(x)
        return self.head(x)

    def _each(self, x):
        for block in self.blocks:
            x = lt.checkpoint(block, x)
        return x


def training():
    lt.manual_seed(0)
    model = Model()
    optimizer = optim.AdamW(model.parameters())
    tokens = lt.randint(0, 50, (4, 24))

    def step():
        optimizer.zero_grad()
        F.cross_entropy(model(tokens).reshape(-1, 50), tokens.reshape(-1)).backward()
        optimizer.step()

    step()
    gc.collect()
    return model, step


def peak_of(step):
    ledger = backend(device("cpu")).ledger
    ledger.reset_peak()
    step()
    return ledger.peak


@pytest.mark.parametrize("way", ["plain", "each", "sequential", "nested"])
def test_estimate_is_exact(way):
    model, step = training()
    model.way = way
    found = estimate(step)
    values = [p.detach().numpy().copy() for p in model.parameters()]
    with MemoryProfiler() as prof:
        step()
    assert found.peak_bytes == prof.peak_bytes
    (mine,) = [d for d in found.devices if d.device == "cpu"]
    assert mine.peak_bytes == peak_of(step)
    assert not all(map(np.array_equal, values, [p.detach().numpy() for p in model.parameters()]))


def test_estimate_is_exact_for_gradients_of_gradients_and_for_accumulation():
    model, _ = training()
    x = lt.randn(3, 8, 32)

    def twice():
        y = lt.checkpoint(model.blocks[0], lt.checkpoint(model.blocks[1], x)).square().mean()
        grads = lt.autograd.grad(y, list(model.blocks[0].parameters()), create_graph=True)
        sum(g.square().sum() for g in grads).backward()

    def accumulated():
        for _ in range(2):
            lt.checkpoint(model.blocks[0], x).sum().backward()

    for step in (twice, accumulated):
        model.zero_grad()
        step()
        assert estimate(step).peak_bytes == peak_of(step)


def test_what_is_made_again_belongs_to_the_module_and_line_of_its_forward():
    model, step = training()
    model.way = "each"
    with MemoryProfiler(modules=model) as prof:
        step()
    modules = prof.at_peak("module", phase="recompute").as_dict()
    assert modules
    assert all(m.startswith("blocks.") for m in modules)
    lines = prof.at_peak("line", phase="recompute").as_dict()
    assert all("test_checkpointed.py:" in line for line in lines)
    assert sum(lines.values()) == sum(modules.values())


@pytest.mark.parametrize("part", ["blocks", ["blocks.0", "blocks.1", "blocks.2", "blocks.3"]])
def test_compare_says_what_a_region_for_each_block_saves(part):
    model, step = training()
    found = compare(step, checkpoint=part)
    assert found.before.peak_bytes == peak_of(step)
    assert found.saved_bytes > 0
    assert found.lost == []
    for block in model.blocks:
        block.forward = lt.checkpointing()(block.forward)
    assert found.after.peak_bytes == peak_of(step)
    assert found.flops_added == estimate(step).flops - found.before.flops > 0


def test_compare_takes_policies():
    _, step = training()
    keep = lambda value: "save" if value.op == "linear" else "recompute"  # noqa: E731
    some = compare(step, checkpoint={"blocks": keep})
    every = compare(step, checkpoint={"blocks": None})
    assert 0 < some.saved_bytes < every.saved_bytes
    assert some.flops_added < every.flops_added
    assert "checkpoint of each of blocks saves" in str(every)


@pytest.mark.deep
def test_advise_proposes_it_after_a_budget():
    _, step = training()
    peak = estimate(step).peak_bytes
    found = advise(step, limit=peak - 100_000)
    budget, best, *_ = found.proposals
    assert (budget.kind, budget.fits, budget.lost) == ("budget", True, [])
    assert (best.kind, best.change, best.fits, best.lost) == (
        "checkpoint",
        "checkpoint of each of blocks",
        True,
        [],
    )
    assert best.cost.endswith("% more operations")
    assert best.peak_bytes == compare(step, checkpoint="blocks").after.peak_bytes
