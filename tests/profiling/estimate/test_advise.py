"""What advice promises is what the change does under the limit when it is made for real."""

from __future__ import annotations

import copy
import gc
import json
from dataclasses import replace

import pytest

import lowtide as lt
from lowtide import nn
from lowtide.nn import functional as F
from lowtide.profiling import advise, estimate

ROOM = 60_000


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(10, 64), nn.GELU(), nn.Linear(64, 64))
        self.blocks = nn.ModuleList([nn.Linear(64, 64) for _ in range(2)])
        self.head = nn.Linear(64, 4)
        self.frozen = ""

    def forward(self, x):
        with lt.set_grad_enabled(self.frozen != "encoder"):
            x = self.encoder(x)
        for block in self.blocks:
            with lt.set_grad_enabled(self.frozen != "blocks"):
                x = block(x)
            x = F.gelu(x)
        return self.head(x)


def make():
    gc.collect()
    lt.manual_seed(0)
    net = Net()
    x, y = lt.randn(96, 10), lt.randint(0, 4, (96,))

    def step(x, y):
        F.cross_entropy(net(x), y).backward()

    step(x, y)  # gradients exist
    return net, step, x, y


@pytest.fixture
def world():
    yield make()
    lt.set_memory_limit(None)


def passes_with_exactly(peak, step, *args):
    """The step runs under a limit of ``peak`` bytes, reaches it, and fails with a byte less."""
    lt.set_memory_limit(peak)
    lt.reset_peak_memory_stats()
    step(*args)
    reached = lt.max_memory_allocated()
    lt.set_memory_limit(peak - 1)
    with pytest.raises(lt.MemoryLimitError):
        step(*args)
    lt.set_memory_limit(None)
    return reached == peak


def only(found, change):
    alone = [p for p in found.proposals if p.kind != "several"]
    (proposal,) = [p for p in alone if p.change.startswith(change)]
    return proposal


@pytest.mark.deep
def test_a_step_that_fits_needs_no_change(world):
    _, step, x, y = world
    peak = estimate(step, x, y).peak_bytes
    found = advise(step, x, y, limit=peak)
    assert found.fits
    assert found.proposals == []
    assert found.peak_bytes == peak
    assert "fits cpu" in str(found)
    assert not advise(step, x, y, limit=peak - 1).fits


@pytest.mark.deep
def test_no_grad_is_not_offered_for_what_is_trained(world):
    _, step, x, y = world
    found = advise(step, x, y, limit=lt.memory_allocated() + ROOM)
    assert not [p for p in found.proposals if p.kind == "no_grad"]
    assert "no_grad" not in str(found)


@pytest.mark.deep
def test_a_copy_that_nobody_calls_is_left_out():
    net = nn.Sequential(nn.Linear(10, 64), nn.Tanh(), nn.Linear(64, 64))
    average = copy.deepcopy(net)
    optimizer = lt.optim.SGD(net.parameters(), lr=0.1)
    x = lt.randn(96, 10)

    def step(x):
        net(x).square().mean().backward()
        optimizer.step()
        with lt.no_grad():
            for p, q in zip(average.parameters(), net.parameters(), strict=True):
                p.lerp_(q, 0.1)

    step(x)
    found = advise(step, x, limit=lt.memory_allocated() + 8_000)
    assert found.proposals
    assert "average" not in str(found)


@pytest.mark.parametrize(
    "columns", [80, *(pytest.param(n, marks=pytest.mark.deep) for n in (100, 200))]
)
def test_no_line_is_wider_than_the_terminal(world, columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    _, step, x, y = world
    found = advise(step, x, y, limit=lt.memory_allocated() + ROOM)
    many = {f"checkpoint of part {k}": f"RuntimeError: {k} " + "why " * 80 for k in range(9)}
    text = str(replace(found, untried=many))
    assert max(map(len, text.splitlines())) <= columns
    assert "not tried: 6 more, for other reasons" in text


@pytest.mark.deep
def test_the_largest_batch_fits_exactly_and_one_more_does_not():
    _net, step, x, y = make()
    limit = lt.memory_allocated() + ROOM
    found = advise(step, x, y, limit=limit)
    proposal = only(found, "batch of")
    n = proposal.batch
    assert proposal.fits
    assert 1 < n < 96
    assert proposal.change == f"batch of {n} instead of 96 (x, y)"
    assert proposal.lost == []
    images, labels = x.numpy().copy(), y.numpy().copy()
    del x, y
    small = lt.tensor(images[:n]), lt.tensor(labels[:n])
    assert passes_with_exactly(proposal.peak_bytes, step, *small)
    del small
    larger = lt.tensor(images[: n + 1]), lt.tensor(labels[: n + 1])
    lt.set_memory_limit(limit)
    with pytest.raises(lt.MemoryLimitError):
        step(*larger)
    lt.set_memory_limit(None)


@pytest.mark.deep
def test_a_batch_that_cannot_be_one_and_one_that_never_fits():
    net = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.Linear(32, 1))
    x = lt.randn(64, 8)

    def step(x):
        net(x).square().mean().backward()
        net.zero_grad()

    held = lt.memory_allocated()
    found = advise(step, x, limit=held + 6_000)
    assert only(found, "batch of").fits
    assert 2 <= only(found, "batch of").batch < 64
    never = advise(step, x, limit=held - x.nbytes)
    assert only(never, "batch of").batch == 2
    assert never.fitting == []
    assert "No change fits" in str(never)


@pytest.mark.deep
def test_an_evaluation_that_forgot_no_grad_loses_nothing(world):
    net, _, x, _ = world
    found = advise(lambda: net(x), limit=lt.memory_allocated() + ROOM)
    proposal = only(found, "no_grad in net")
    assert (proposal.lost, proposal.cost) == ([], "no parameter loses its gradient")
    with lt.no_grad():
        assert passes_with_exactly(proposal.peak_bytes, lambda: net(x))


@pytest.mark.deep
def test_variables_of_the_step_are_its_batch_if_it_has_no_arguments(world):
    _, step, x, y = world
    limit = lt.memory_allocated() + ROOM
    given = only(advise(step, x, y, limit=limit), "batch of")
    closed = only(advise(lambda: step(x, y), limit=limit), "batch of")
    assert (closed.batch, closed.peak_bytes) == (given.batch, given.peak_bytes)
    assert x.shape == (96, 10)  # it did not happen


@pytest.mark.deep
def test_defaults_of_arguments_are_the_batch_too(world):
    _, step, x, y = world
    limit = lt.memory_allocated() + ROOM

    def plain(x=x, *, y=y):
        step(x, y)

    given = only(advise(step, x, y, limit=limit), "batch of")
    default = only(advise(plain, limit=limit), "batch of")
    assert (default.batch, default.peak_bytes) == (given.batch, given.peak_bytes)
    assert x.shape == (96, 10)


def test_a_model_that_is_a_default_is_found(world):
    net, _, x, _ = world

    def evaluate(model=net):
        return model(x)

    assert "no_grad in model" in {p.change for p in advise(evaluate, limit=1).proposals}


@pytest.mark.deep
def test_bfloat16_of_a_part_is_the_real_change(world):
    net, step, x, y = world
    found = advise(step, x, y, limit=lt.memory_allocated() + ROOM)
    proposal = only(found, "bfloat16 in encoder")
    assert proposal.lost == []
    net.encoder.to(lt.bfloat16)
    plain = net.encoder.forward
    net.encoder.forward = lambda x: plain(x.to(lt.bfloat16)).float()
    assert passes_with_exactly(proposal.peak_bytes, step, x, y)


@pytest.mark.deep
def test_layers_alike_are_a_region_each_however_deep():
    gc.collect()
    layer = nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True)
    net = nn.ModuleDict({"body": nn.TransformerEncoder(layer, 4), "head": nn.Linear(16, 4)})
    x = lt.randn(8, 20, 16)

    def step(x):
        net["head"](net["body"](x)).square().mean().backward()
        net.zero_grad()

    found = advise(step, x, limit=estimate(step, x).peak_bytes - 1)
    each = only(found, "checkpoint of each of body.layers")
    assert each.peak_bytes < only(found, "checkpoint of body, head").peak_bytes
    for each_layer in net["body"].layers:
        each_layer.set_checkpointing()
    assert passes_with_exactly(each.peak_bytes, step, x)


@pytest.mark.deep
def test_the_table_and_json_say_the_same(world, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")
    _, step, x, y = world
    lt.set_memory_limit(lt.memory_allocated() + ROOM)
    found = advise(step, x, y)
    assert found.limit_bytes == lt.get_memory_limit()
    stored = json.loads(json.dumps(found.to_dict()))
    assert [p["peak_bytes"] for p in stored["proposals"]] == [p.peak_bytes for p in found.proposals]
    text = str(found)
    assert "does not fit cpu" in text
    assert all(p.change in text for p in found.proposals)
    fits = [p.fits for p in found.proposals]
    assert fits == sorted(fits, reverse=True)
    assert len(found.fitting) == sum(fits) > 0


def test_a_limit_must_be_known(world):
    _, step, x, y = world
    with pytest.raises(ValueError, match="limit=bytes"):
        advise(step, x, y)
    with pytest.raises(ValueError, match="uses no cuda"):
        advise(step, x, y, limit=1, device="cuda:3")


def test_a_model_on_meta():
    with lt.device("meta"):
        net, x = nn.Linear(1 << 10, 1 << 10), lt.empty(1 << 20, 1 << 10)
    limit = lt.memory_allocated("meta") - x.nbytes + (1 << 30)
    found = advise(lambda x: net(x).sum().backward(), x, limit=limit)
    proposal = only(found, "batch of")
    # The batch, its results, and the gradients of the sum and of each result.
    assert (found.device, proposal.fits) == ("meta", True)
    assert 1 << 16 < proposal.batch < 1 << 18
    assert 0 <= limit - proposal.peak_bytes < 3 * 4 << 10


@pytest.mark.deep
def test_nothing_changes(world):
    net, step, x, y = world
    before = [p.detach().clone() for p in net.parameters()]
    held = lt.memory_allocated()
    advise(step, x, y, limit=held + ROOM)
    assert lt.memory_allocated() == held
    assert all(bool((a == b).all()) for a, b in zip(before, net.parameters(), strict=True))
    assert net.encoder[0].weight.dtype is lt.float32
