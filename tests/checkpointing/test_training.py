"""Training recipes' models, checkpointed under every ready policy: bit for bit as plain.

200 steps in the deep tier (``-m deep``), else the first 10 of them. Models,
losses and optimizers are the recipes' own, smaller; data are made up. After each step are
compared: the loss, every gradient, every buffer (batch normalization's among them) and the state of
the random generator; at the end the weights too.
"""

from __future__ import annotations

import functools
import hashlib
import runpy
from pathlib import Path

import pytest

import lowtide as lt
from lowtide import nn, optim
from lowtide.checkpointing import (
    checkpoint_name,
    offload,
    offload_to_disk,
    pack,
    policies,
    policy,
    save_every,
    save_matmuls,
)

F = nn.functional
RECIPES = Path(__file__).resolve().parents[2] / "recipes"
STEPS = [10, pytest.param(200, marks=pytest.mark.deep)]
names = policies

READY = {
    "none": None,
    "everything": names.everything,
    "save_matmuls": save_matmuls,
    "save_every": save_every(3),
    "everything_saveable": names.everything_saveable,
    "nothing_saveable": names.nothing_saveable,
    "dots_saveable": names.dots_saveable,
    "dots_with_no_batch_dims": names.dots_with_no_batch_dims,
    "offload_dot_with_no_batch_dims": names.offload_dot_with_no_batch_dims(),
    "save_only_these_names": names.save_only_these_names("region", "relu", "layer_norm.out"),
    "save_any_names_but_these": names.save_any_names_but_these("other"),
    "save_anything_except_these_names": names.save_anything_except_these_names("linear", "conv"),
    "save_from_both_policies": names.save_from_both_policies(save_every(4), names.dots_saveable),
    "save_and_offload_only_these_names": names.save_and_offload_only_these_names(
        names_which_can_be_saved=["relu"], names_which_can_be_offloaded=["linear", "conv"]
    ),
    "policy": policy({"op:linear|conv & bytes<2KiB": "save", "number<2": "pack"}),
    "by module": policy({"module:*mlp*|conv1|lstm": "save", "op:relu": "prefer_save"}),
    "pack": pack(),
    "offload": offload(),
}


@functools.cache
def recipe(name):
    return runpy.run_path(str(RECIPES / f"{name}.py"), run_name=name)


def chargpt():
    found = recipe("chargpt")
    model = found["GPT"](20, 8, width=8, depth=2, heads=2, dropout=0.1)
    text = lt.arange(300) % 7 + lt.randint(0, 2, (300,))

    def loss():
        x, y = found["windows"](text, lt.randint(len(text) - 8, (3,)), 8)
        return F.cross_entropy(model(x).flatten(0, 1), y.flatten())

    make = functools.partial(optim.AdamW, lr=2e-3, betas=(0.9, 0.98), weight_decay=0.1)
    return model, list(model.blocks), loss, make


def resnet():
    found = recipe("resnet")
    model, x, y = found["ResNet"](1, 4), lt.rand(4, 1, 12, 12), lt.randint(0, 10, (4,))
    make = functools.partial(optim.SGD, lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4)

    def loss():
        return F.cross_entropy(model(found["augment"](x)), y)

    return model, [model.norm, *model.blocks], loss, make


def vowels():
    found = recipe("vowels")
    model = found["Speaker"](4, 6, 9)
    sequences = [lt.randn(n, 4).numpy() for n in (7, 4, 9, 5)]
    spoken = found["Spoken"](sequences, lt.tensor([0, 3, 8, 5]), noise=0.3)

    def loss():
        x, lengths, labels = found["collate"]([spoken[k] for k in lt.randperm(4).tolist()])
        return F.cross_entropy(model(x, lengths), labels)

    make = functools.partial(optim.AdamW, lr=4e-3, weight_decay=0.02)
    return model, [model], loss, make


MODELS = {f.__name__: f for f in (chargpt, resnet, vowels)}


def digest(*tensors):
    found = hashlib.sha256()
    for t in tensors:
        found.update(b"none" if t is None else t.detach().contiguous().numpy().tobytes())
    return found.hexdigest()


def in_region(call, decide):
    """A module's forward, in a region of its own; what it returns has the name "region"."""

    @functools.wraps(call)
    def forward(*args):
        with lt.checkpointing(decide):
            return checkpoint_name(call(*args), "region")

    return forward


def trained(name, steps, regions=None, around=None):
    """Train; a line for each step of what can be seen after it, and the weights at the end.

    Args:
        name: Of the model.
        steps: How many.
        regions: Turns a block's forward into the one to use; None for the plain run.
        around: The same for the whole model's forward.
    """
    lt.manual_seed(11)
    model, blocks, loss_of, make = MODELS[name]()
    optimizer = make(model.parameters())
    if regions is not None:
        for block in blocks:
            block.forward = regions(block.forward)
    if around is not None:
        model.forward = around(model.forward)
    lines = []
    for _ in range(steps):
        loss = loss_of()
        optimizer.zero_grad()
        loss.backward()
        lines.append(
            (
                loss.item(),
                digest(*(p.grad for p in model.parameters())),
                digest(*model.buffers()),
                digest(lt.get_rng_state()),
            )
        )
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return lines, digest(*model.parameters())


@functools.cache
def plain(name, steps):
    return trained(name, steps)


def assert_same(found, expected):
    lines, weights = found
    what = ("loss", "gradients", "buffers", "generator")
    for step, (seen, wanted) in enumerate(zip(lines, expected[0], strict=True)):
        differ = [w for w, a, b in zip(what, seen, wanted, strict=True) if a != b]
        assert not differ, f"step {step}: {', '.join(differ)} differ"
    assert weights == expected[1]


@pytest.mark.parametrize("name", MODELS)
def test_what_is_compared_tells_runs_apart(name):
    lines, _ = plain(name, 10)
    losses, gradients, buffers, generators = zip(*lines, strict=True)
    assert len(set(losses)) == len(set(gradients)) == len(set(generators)) == 10
    assert len(set(buffers)) == (10 if name == "resnet" else 1)
    other, _ = trained(name, 2, lambda call: lambda *args: call(*args) * (1 + 1e-6))
    assert [line[1] for line in other] != list(gradients[:2])


@pytest.mark.deep
@pytest.mark.parametrize("name", MODELS)
def test_the_plain_run_learns(name):
    losses = [line[0] for line in plain(name, 200)[0]]
    assert sum(losses[-20:]) < 0.9 * sum(losses[:20])


@pytest.mark.quick(14)
@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("ready", READY)
@pytest.mark.parametrize("name", MODELS)
def test_a_region_for_each_block(name, ready, steps):
    found = trained(name, steps, lambda call: in_region(call, READY[ready]))
    assert_same(found, plain(name, steps))


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("name", MODELS)
def test_regions_in_a_region(name, steps):
    found = trained(name, steps, lambda f: in_region(f, None), lambda f: in_region(f, None))
    assert_same(found, plain(name, steps))
    inner = policy({"op:linear|conv": "prefer_save"})
    found = trained(
        name, steps, lambda f: in_region(f, inner), lambda f: in_region(f, save_matmuls)
    )
    assert_same(found, plain(name, steps))


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("name", MODELS)
def test_on_disk(name, steps, tmp_path):
    disk = offload_to_disk(tmp_path, min_bytes=0)
    found = trained(name, steps, lambda f: in_region(f, disk))
    assert_same(found, plain(name, steps))
    assert disk.used_bytes == 0
    found = trained(name, steps, lambda f: in_region(f, None), lambda f: in_region(f, disk))
    assert_same(found, plain(name, steps))
    assert disk.used_bytes == 0


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("name", MODELS)
def test_under_a_stash_outside_of_regions(name, steps):
    """``save_on_cpu`` around the whole model; its blocks recomputed, or not."""

    def sent(call):
        def forward(*args):
            with lt.autograd.graph.save_on_cpu():
                return call(*args)

        return forward

    assert_same(trained(name, steps, around=sent), plain(name, steps))
    found = trained(name, steps, lambda f: in_region(f, None), sent)
    assert_same(found, plain(name, steps))


def test_lossy_packing_is_not_among_the_equal():
    """``pack("bfloat16")`` rounds: the first loss is the same, its gradients are not."""
    found = trained("chargpt", 1, lambda call: in_region(call, pack("bfloat16")))
    expected = plain("chargpt", 10)[0][0]
    assert found[0][0][0] == expected[0]
    assert found[0][0][1] != expected[1]
