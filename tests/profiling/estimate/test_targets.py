"""What a change may name: paths, patterns, variables, tensors, wherever the step has them."""

from __future__ import annotations

import dataclasses
import gc

import pytest

import lowtide as lt
from lowtide import nn, optim
from lowtide.framework.device import device
from lowtide.framework.devices import backend
from lowtide.nn import functional as F
from lowtide.profiling import advise, compare, estimate


class Block(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.norm, self.mlp = nn.LayerNorm(width), nn.Sequential(nn.Linear(width, 64), nn.GELU())
        self.out = nn.Linear(64, width)

    def forward(self, x):
        return x + self.out(self.mlp(self.norm(x)))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.place = nn.Parameter(lt.randn(16))
        self.blocks = nn.ModuleList([Block() for _ in range(3)])
        self.head = nn.Linear(16, 4)

    def forward(self, x):
        x = x + self.place
        for block in self.blocks:
            x = block(x)
        return self.head(x)


@pytest.fixture
def world():
    gc.collect()
    net = Net()
    x, y = lt.randn(40, 16), lt.randint(0, 4, (40,))

    def step():
        net.zero_grad()
        F.cross_entropy(net(x), y).backward()

    step()
    return net, step


def peak_of(step):
    ledger = backend(device("cpu")).ledger
    ledger.reset_peak()
    step()
    return ledger.peak


def without_gradients(module):
    module.forward = lt.no_grad()(module.forward)


def detached(module):
    module.register_forward_hook(lambda module, args, out: out.detach())


def narrow(module):
    plain = module.to(lt.bfloat16).forward
    module.forward = lambda x: plain(x.bfloat16()).float()


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("change", "words", "really"),
    [
        ({"no_grad": "blocks"}, "no_grad in each of blocks", without_gradients),
        ({"no_grad": "blocks.*"}, "blocks.2", without_gradients),
        ({"detach": "net.blocks"}, "detach of each of net.blocks", detached),
        ({"checkpoint": "block?.*"}, "checkpoint of blocks.0", nn.Module.set_checkpointing),
        ({"dtype": {"blocks": lt.bfloat16}}, "bfloat16 in each of blocks", narrow),
    ],
)
def test_a_list_and_a_pattern_mean_each(world, change, words, really):
    net, step = world
    gc.collect()
    found = compare(step, **change)
    assert words in found.change
    for block in net.blocks:
        really(block)
    assert found.before.peak_bytes > found.after.peak_bytes
    gc.collect()
    assert found.after.peak_bytes == peak_of(step)
    assert found.after.flops == estimate(step).flops


def test_a_pattern_has_as_many_segments_as_what_it_means(world):
    _, step = world
    found = compare(step, checkpoint="*.*.mlp")
    assert found.change == " and ".join(f"checkpoint of blocks.{k}.mlp" for k in range(3))
    with pytest.raises(ValueError, match=r"no module 'blocks.\*.m',.*mean 'blocks"):
        compare(step, checkpoint="blocks.*.m")


def test_a_whole_model_by_its_name(world):
    net, step = world
    found = compare(step, checkpoint="net")
    net.set_checkpointing()
    assert found.change == "checkpoint of net"
    assert found.after.peak_bytes == peak_of(step)
    assert compare(step, dtype={"net": lt.float64}).after.peak_bytes > found.before.peak_bytes


def test_parameters_and_variables_by_name(world):
    net, _ = world
    w = lt.randn(4, 4, requires_grad=True)

    def step():
        net.zero_grad()
        w.grad = None
        (net(lt.ones(40, 16)) @ w).square().mean().backward()

    assert compare(step, detach="place").lost == ["place"]
    assert compare(step, detach="net.blocks.1.out.weight").lost == ["blocks.1.out.weight"]
    found = compare(step, detach="w")
    w.requires_grad_(False)
    assert (found.change, found.after.peak_bytes) == ("detach of w", peak_of(step))


def test_a_variable_that_holds_a_part(world):
    net, _ = world
    blocks, last, x = net.blocks, net.head, lt.ones(40, 16)

    def step():
        (net(x).square().mean() + 0 * last.weight.sum() + 0 * blocks[0].norm.bias.sum()).backward()

    lost = [f"blocks.{k}.out.weight" for k in range(3)]
    assert compare(step, detach="last.weight").lost == ["head.weight"]
    assert compare(step, no_grad="last").lost[-2:] == ["blocks.2.out.bias", "head.bias"]
    assert set(lost) <= set(compare(step, no_grad="blocks.?.out").lost)


def test_a_list_of_no_parts_is_no_change(world):
    _, step = world
    for nothing in ({"no_grad": []}, {"dtype": {}}, {"checkpoint": {}}):
        with pytest.raises(ValueError, match="needs a change"):
            compare(step, **nothing)


def test_a_name_nearly_right_is_asked_back(world):
    _, step = world
    with pytest.raises(ValueError, match="Do you mean 'head'"):
        compare(step, detach="haed")
    with pytest.raises(ValueError, match="no scope of that name. It reaches net: blocks") as caught:
        compare(step, no_grad="blocs.0")
    assert "'blocks.0'" in str(caught.value)
    assert "and 8 more" in str(caught.value)  # of 20 modules


# Where models are


@dataclasses.dataclass
class Setup:
    models: dict
    data: lt.Tensor


class Trainer:
    def __init__(self):
        self.net = Net()
        self.optimizer = optim.SGD(self.net.parameters(), lr=0.1)
        self.x = lt.randn(40, 16)

    def step(self):
        self.optimizer.zero_grad()
        self.net(self.x).square().mean().backward()
        self.optimizer.step()

    def __call__(self):
        self.step()


@pytest.mark.deep
def test_in_what_the_step_holds():
    setup = Setup({"first": nn.Sequential(nn.Linear(16, 16)), "second": Net()}, lt.randn(8, 16))
    pair = [nn.Linear(16, 16), nn.Linear(16, 16)]
    trainer = Trainer()

    def step():
        x = setup.models["first"](pair[0](setup.data))
        setup.models["second"](x).sum().backward()

    lost = [f"setup.models.first.0.{p}" for p in ("weight", "bias")]
    assert compare(step, no_grad="first").lost[-2:] == lost
    assert compare(step, no_grad="setup.models.first.0").lost[-2:] == lost
    assert len(compare(step, detach="second.blocks.0").lost) > 4
    assert compare(step, no_grad="pair.0").lost == ["pair.0.weight", "pair.0.bias"]
    for way in (trainer.step, trainer, lambda: trainer.step(), lambda: trainer()):
        found = compare(way, no_grad="blocks.2")
        assert found.before.peak_bytes - found.after.peak_bytes == found.saved_bytes > 0


@pytest.mark.deep
def test_advice_finds_them_too():
    trainer = Trainer()
    trainer.step()
    limit = estimate(trainer.step).peak_bytes - 1
    found = advise(lambda: trainer.step(), limit=limit)
    assert "checkpoint of each of blocks" in [p.change for p in found.proposals]
