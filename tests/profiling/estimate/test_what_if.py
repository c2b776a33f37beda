"""What a comparison promises is what the change does when it is made for real, to the byte."""

from __future__ import annotations

import gc

import pytest

import lowtide as lt
from lowtide import nn, optim
from lowtide.framework.device import device
from lowtide.framework.devices import backend
from lowtide.nn import functional as F
from lowtide.profiling import compare, estimate, scope
from tests.profiling.steps import recipe


@pytest.fixture(autouse=True)
def _no_garbage():
    gc.collect()


def peak_of(step):
    ledger = backend(device("cpu")).ledger
    ledger.reset_peak()
    step()
    return ledger.peak


class Net(nn.Module):
    """An encoder and blocks; each way of the real change is an option."""

    def __init__(self, width=24):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(10, width), nn.GELU(), nn.Linear(width, width))
        self.blocks = nn.ModuleList([nn.Linear(width, width) for _ in range(3)])
        self.head = nn.Linear(width, 4)
        self.no_grad = self.detach = self.narrow = self.scoped = False

    def forward(self, x):
        with lt.set_grad_enabled(lt.is_grad_enabled() and not self.no_grad):
            x = self.encoder(x)
        for k, block in enumerate(self.blocks):
            x = x.bfloat16() if self.narrow else x
            x = block(x)
            x = x.float() if self.narrow else x
            x = x.detach() if self.detach and k == 1 else x
            x = F.gelu(x)
        with scope("ending"), lt.set_grad_enabled(lt.is_grad_enabled() and not self.scoped):
            x = x * 2 + x.exp()
        return self.head(x)


@pytest.fixture
def world():
    lt.manual_seed(0)
    net = Net()
    x, y = lt.randn(40, 10), lt.randint(0, 4, (40,))
    optimizer = optim.SGD(net.parameters(), lr=0.1)

    def step():
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimizer.step()

    step()  # gradients exist
    return net, step


ENCODER = ["encoder.0.weight", "encoder.0.bias", "encoder.2.weight", "encoder.2.bias"]
LOW = ["blocks.0.weight", "blocks.0.bias", "blocks.1.weight", "blocks.1.bias"]


@pytest.mark.quick(3)
@pytest.mark.parametrize(
    ("ask", "option", "lost"),
    [
        (lambda net: {"no_grad": "encoder"}, "no_grad", ENCODER),
        (lambda net: {"no_grad": net.encoder}, "no_grad", ENCODER),
        (lambda net: {"no_grad": "net.encoder"}, "no_grad", ENCODER),
        (lambda net: {"no_grad": ["encoder.0", "encoder.1", "encoder.2"]}, "no_grad", ENCODER),
        (lambda net: {"detach": "blocks.1"}, "detach", ENCODER + LOW),
        (lambda net: {"detach": net.blocks[1], "model": net}, "detach", ENCODER + LOW),
        (lambda net: {"no_grad": "ending"}, "scoped", None),
        (lambda net: {"no_grad": "end*"}, "scoped", None),
    ],
)
def test_equals_the_real_change(world, ask, option, lost):
    net, step = world
    found = compare(step, **ask(net))
    assert found.before.peak_bytes == peak_of(step)
    if lost is None:
        lost = [n for n, _ in net.named_parameters() if not n.startswith("head")]
    assert found.lost == lost
    setattr(net, option, True)
    assert found.after.peak_bytes == peak_of(step)
    assert found.saved_bytes == found.before.peak_bytes - found.after.peak_bytes
    assert (found.saved_bytes > 0) == (option != "scoped")  # that one is not in the peak
    assert {n for n, p in net.named_parameters() if p.grad is None} == set(lost)
    assert found.flops_added == estimate(step).flops - found.before.flops < 0


def test_a_scope_as_a_region(world):
    _net, step = world
    found = compare(step, checkpoint="ending")
    ending = Net.forward.__globals__["scope"]

    class region:  # what a user would write: two context managers
        def __init__(self, name):
            self.both = ending(name), lt.checkpointing()

        def __enter__(self):
            for one in self.both:
                one.__enter__()

        def __exit__(self, *exc):
            for one in reversed(self.both):
                one.__exit__(*exc)

    Net.forward.__globals__["scope"] = region
    try:
        assert found.after.peak_bytes == peak_of(step)
        assert found.flops_added == estimate(step).flops - found.before.flops > 0
    finally:
        Net.forward.__globals__["scope"] = ending
    assert found.lost == []
    assert str(found).startswith("checkpoint of ending ")


def test_dtype_of_a_part(world):
    net, step = world
    found = compare(
        step, dtype={"blocks.0": lt.bfloat16, "blocks.1": lt.bfloat16, "blocks.2": lt.bfloat16}
    )
    assert found.lost == []
    net.narrow = True
    net.blocks.to(lt.bfloat16)
    assert found.after.peak_bytes == peak_of(step)
    assert found.saved("role").as_dict()["parameter"] == 3 * (24 * 24 + 24) * 2


def test_dtype_of_everything():
    net, x = Net(), lt.randn(40, 10)

    def step():
        net(x.to(net.head.weight.dtype)).square().mean().backward()

    found = compare(step, dtype=lt.bfloat16)
    net.to(lt.bfloat16)
    assert found.after.peak_bytes == peak_of(step)
    assert "bfloat16 in net" in str(found)


def test_detach_of_a_tensor(world):
    net, step = world
    found = compare(step, detach=net.blocks[0].weight)
    assert found.lost == ["blocks.0.weight"]
    net.blocks[0].weight.requires_grad_(False)
    net.blocks[0].weight.grad = None
    step()
    assert found.after.devices[0].end_bytes == backend(device("cpu")).ledger.live


def test_several_changes_of_a_recipe():
    model = recipe("chargpt")["GPT"](30, 16, width=20, depth=3, heads=5)
    x, y = lt.randint(0, 30, (3, 16)), lt.randint(0, 30, (48,))

    def step():
        F.cross_entropy(model(x).flatten(0, 1), y).backward()
        model.zero_grad()

    found = compare(step, no_grad="blocks.0", detach="blocks.1.mlp")
    assert found.change == "no_grad in blocks.0 and detach of blocks.1.mlp"
    block = model.blocks[0].forward
    model.blocks[0].forward = lt.no_grad()(block)
    model.blocks[1].mlp.register_forward_hook(lambda module, args, out: out.detach())
    assert found.after.peak_bytes == peak_of(step)
    assert sum(found.saved("line").as_dict().values()) == found.saved_bytes
    assert sum(found.saved("module").as_dict().values()) == found.saved_bytes
    model.zero_grad()
    F.cross_entropy(model(x).flatten(0, 1), y).backward()
    assert found.lost == [n for n, p in model.named_parameters() if p.grad is None]
    assert "position.weight" in found.lost
    assert "blocks.1.attention.qkv.weight" not in found.lost


def test_nothing_of_the_callers_changes(world):
    net, step = world
    before = [p.detach().clone() for p in net.parameters()]
    compare(step, no_grad="encoder", detach=net.head.weight, dtype={"blocks.0": lt.float64})
    assert all((a == b).all() for a, b in zip(before, net.parameters(), strict=True))
    assert "forward" not in vars(net.encoder)
    assert net.head.weight.requires_grad
    assert net.blocks[0].weight.dtype is lt.float32
    assert not any(p._extra for p in net.parameters())


class Trainer:
    def __init__(self):
        self.model = Net()
        self.x = lt.randn(4, 10)

    def step(self):
        self.model(self.x).sum().backward()


@pytest.mark.deep
def test_models_are_found_where_the_step_has_them():
    import functools

    trainer = Trainer()
    assert compare(trainer.step, no_grad="encoder").lost == ENCODER
    assert compare(trainer.step, no_grad="model.encoder").lost == ENCODER

    def step(model, x):
        model(x).sum().backward()

    assert compare(step, trainer.model, x=trainer.x, no_grad="encoder").lost == ENCODER
    given = functools.partial(step, trainer.model, trainer.x)
    assert compare(given, no_grad="encoder").lost == ENCODER
    assert compare(lambda: trainer.step(), no_grad="encoder", model=trainer.model).lost == ENCODER


def test_functions_of_code_that_belongs_to_no_module_are_looked_into():
    names = {"__name__": None, "model": Net(), "x": lt.randn(4, 10)}
    exec("def forward():\n    return model(x)\ndef step():\n    forward().sum().backward()", names)
    assert names["forward"].__module__ is None
    assert compare(names["step"], no_grad="encoder").lost == ENCODER


def test_two_models():
    one, two, x = nn.Linear(4, 4), nn.Linear(4, 4), lt.randn(3, 4)

    def step():
        two(one(x)).sum().backward()

    assert compare(step, no_grad="one").lost == ["one.weight", "one.bias"]
    assert compare(step, detach="one").lost == ["one.weight", "one.bias"]
    with pytest.raises(ValueError, match="needs to know the model; the step reaches: "):
        compare(step, dtype=lt.float64)
    pair = {"a": Net(), "b": Net()}
    with pytest.raises(ValueError, match="'encoder' is a module of 2 models"):
        compare(step, no_grad="encoder", model=pair)


def test_mistakes_say_what_to_do(world):
    _net, step = world
    with pytest.raises(ValueError, match="needs a change"):
        compare(step)
    with pytest.raises(ValueError, match="reaches no module 'decoder', and enters no scope .* It"):
        compare(step, checkpoint="decoder")
    with pytest.raises(ValueError, match="no module 'decoder', and enters no scope of that name"):
        compare(step, no_grad="decoder")
    with pytest.raises(ValueError, match="reaches no module 'decoder'. It reaches net: encoder"):
        compare(step, detach="decoder")
    with pytest.raises(TypeError, match="a part is a module"):
        compare(step, no_grad=3)
    with pytest.raises(TypeError, match="takes a floating dtype; got lowtide.int64"):
        compare(step, dtype=lt.int64)
    attention = nn.MultiheadAttention(8, 2)
    x = lt.randn(3, 2, 8)
    with pytest.raises(ValueError, match="the step never called it"):
        compare(lambda: attention(x, x, x)[0].sum().backward(), detach="out_proj")


def test_it_prints(world):
    _net, step = world
    text = str(compare(step, no_grad="encoder"))
    first, second, *_ = text.splitlines()
    assert first.startswith("no_grad in encoder saves ")
    assert "GFLOP" in first
    assert second == f"4 parameters lose their gradient: {', '.join(ENCODER)}."
    assert "Saved by module:" in text
    assert "Saved by line:" in text
    assert "All 12 parameters that receive a gradient still do." in str(
        compare(step, dtype={"head": lt.float64})
    )


def test_operations_added_are_those_that_run_again():
    n, inner, width = 11, 70, 30
    net = nn.ModuleList(
        [nn.Sequential(nn.Linear(width, inner), nn.GELU(), nn.Linear(inner, width))] * 3
    )
    x = lt.randn(n, width)

    def step():
        y = x
        for block in net:
            y = block(y)
        y.sum().backward()

    found = compare(step, checkpoint="net")
    before, after = found.before.flops_by_op, found.after.flops_by_op
    again = {op: after[op] - before.get(op, 0) for op in after if after[op] != before.get(op, 0)}
    # Backward wants what goes into gelu and what comes out, and nothing of the second product.
    assert again == {"linear": 3 * n * inner * (2 * width + 1), "gelu": before["gelu"]}
    assert found.flops_added == sum(again.values())
