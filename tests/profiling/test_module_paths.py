"""The module that bytes belong to: paths of calls, of scopes, of parameters and their state."""

from __future__ import annotations

import inspect
import threading
import time

import pytest

import lowtide as lt
from lowtide import nn
from lowtide.framework.attribution import scopes
from lowtide.framework.attribution.frames import file_line
from lowtide.framework.memory.ledger import OPTIMIZER
from lowtide.profiling import MemoryProfiler, record_function, scope
from lowtide.profiling.record.recording import BEFORE, replay

from .owners import Attention, Tower, births


def test_paths_come_from_the_outermost_call():
    model, x = Tower(), lt.randn(3, 4)
    with MemoryProfiler() as prof:
        y = model(x)
        loss = y.exp()
    paths = {o.module for o, _ in births(prof)}
    assert paths == {
        "",
        *(f"blocks.{k}.{rest}" for k in (0, 1) for rest in ("0", "0.split", "0.split.qkv", "1")),
    }
    assert [n for _, n in births(prof, module="blocks.1.0.split.qkv")] == [3 * 12 * 4]
    assert [(o.op, n) for o, n in births(prof, module="")] == [("exp", 48)]
    assert [(o.op, n) for o, n in births(prof, module="blocks.0.1")] == [("tanh", 48)]
    del loss


def test_a_shared_module_has_the_path_of_each_call():
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            lin = nn.Linear(4, 4)
            self.a, self.b = nn.Sequential(lin), nn.Sequential(lin)
            self.towers = nn.ModuleList([Tower(lin), Tower(lin)])

        def forward(self, x):
            x = self.b(self.a(x))
            for tower in self.towers:
                x = tower(x)
            return x

    model = Both()
    with MemoryProfiler() as prof:
        model(lt.randn(2, 4))
    called = [o.module for o, _ in births(prof, op="linear") if "qkv" not in o.module]
    assert called == ["a.0", "b.0", "towers.0.shared", "towers.1.shared"]


def test_a_module_that_belongs_to_an_outer_one_has_its_path_there():
    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.tied = nn.Linear(4, 4)
            self.inner = Inner()

        def forward(self, x):
            return self.inner(x, self.tied)

    class Inner(nn.Module):
        def forward(self, x, head):
            return nn.Tanh()(head(x))

    with MemoryProfiler() as prof:
        Outer()(lt.randn(2, 4))
    assert {o.module for o, _ in births(prof, op="linear")} == {"tied"}
    assert {o.module for o, _ in births(prof, op="tanh")} == {"inner.Tanh"}


def test_several_outermost_modules_are_told_apart():
    one, two, loss = nn.Linear(3, 3), nn.Linear(3, 2), nn.MSELoss()
    three = nn.Linear(2, 2)
    with MemoryProfiler() as prof:
        loss(three(two(one(lt.randn(2, 3)))), lt.zeros(2, 2)).backward()
    assert [o.module for o, _ in births(prof, op="linear")] == ["one", "two", "three"]
    assert {o.module for o, _ in births(prof, phase="forward")} >= {"MSELoss"}
    with MemoryProfiler(modules={"generator": one, "judge": two}) as prof:
        two(one(lt.randn(2, 3)))
    assert [o.module for o, _ in births(prof, op="linear")] == ["generator", "judge"]


def test_modules_without_a_name_are_told_apart_by_their_class():
    with MemoryProfiler() as prof:
        kept = []
        for _ in range(2):
            (lambda layer: kept.append((layer(lt.randn(2, 3)), layer)))(nn.Linear(3, 3))
        nn.Linear(3, 3)(lt.randn(2, 3))
    assert [o.module for o, _ in births(prof, op="linear")] == ["layer", "layer#2", "Linear"]


def test_each_of_several_models_is_called_as_its_variable():
    teacher, student, loss = Tower(), Tower(), nn.MSELoss()
    average = lt.optim.swa_utils.AveragedModel(student)
    x = lt.randn(2, 4)
    with MemoryProfiler() as prof:
        with lt.no_grad():
            target = teacher(x)
        loss(student(x), target).backward()
    found = {o.module.partition(".")[0] for o, _ in births(prof, op="tanh")}
    assert found == {"teacher", "student"}
    held = prof.at_peak("module", role="parameter").as_dict()
    for name in ("teacher", "student", "average.module"):  # the average, though nobody called it
        assert held[f"{name}.blocks.1.0.qkv"] == 4 * 60
    assert prof.at_peak("module", role="buffer")["average"] == average.n_averaged.nbytes


def test_a_model_beside_layers_and_parts_of_it_is_the_only_one():
    model, head = Tower(), nn.Linear(4, 1)
    part, wrapped = model.blocks[0], nn.Sequential(model)
    with MemoryProfiler() as prof:
        head(model(lt.randn(2, 4)))
    assert {o.module for o, _ in births(prof, op="tanh")} == {"blocks.0.1", "blocks.1.1"}
    assert len(wrapped) + len(part) == 3


class Agent:
    """No module, but it has some."""

    def __init__(self):
        self.policy = [nn.Sequential(nn.Linear(4, 4)) for _ in range(2)]
        self.value = nn.Linear(4, 1)
        self.heads = {"left": nn.Linear(4, 2)}

    def act(self, x):
        for part in self.policy:
            x = part(x)
        return self.value(x), self.heads["left"](x)


def test_modules_in_lists_dicts_and_attributes_are_called_so():
    agent, layers = Agent(), [nn.Linear(4, 4), nn.Linear(4, 4)]
    experts = nn.ModuleList([nn.Linear(4, 4) for _ in range(2)])

    def step(x):
        y = sum([e(x) for e in experts])
        for layer in layers:
            y = layer(y)
        a, b = agent.act(y)
        (a.sum() + b.sum()).backward()

    x = lt.randn(3, 4)
    with MemoryProfiler() as prof:
        step(x)
    called = ["experts.0", "experts.1", "layers.0", "layers.1"]
    called += ["agent.policy.0.0", "agent.policy.1.0", "agent.value", "agent.heads.left"]
    assert [o.module for o, _ in births(prof, op="linear")] == called
    assert prof.growth("start", "stop", "module").as_dict().keys() == set(called)  # gradients
    found = lt.profiling.estimate(step, x).at_peak(("role", "module")).as_dict()
    assert {f"parameter · {path}" for path in called} <= found.keys()
    saved = lt.profiling.saved_tensors(lambda: layers[1](layers[0](x).tanh()))
    assert {entry.module for entry in saved} == {"", "layers.0", "layers.1"}


def test_a_module_has_one_path_in_all_threads(monkeypatch):
    net, meet = nn.Sequential(nn.Linear(4, 4)), threading.Barrier(3)
    asked = scopes._has_parameters

    def slowly(module):
        time.sleep(0.02)
        return asked(module)

    def work():
        meet.wait()
        net(lt.randn(2, 4))

    monkeypatch.setattr(scopes, "_has_parameters", slowly)
    with MemoryProfiler() as prof:
        threads = [threading.Thread(target=work) for _ in range(3)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    assert [o.module for o, _ in births(prof, op="linear")] == ["0"] * 3


def test_parts_of_a_model_that_is_not_called_have_their_paths_in_it():
    class Autoencoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = nn.Sequential(nn.Linear(4, 2), nn.Tanh())
            self.decoder = nn.Sequential(nn.Linear(2, 4))

    model, judge = Autoencoder(), nn.Linear(4, 1)
    with MemoryProfiler() as prof:
        judge(model.decoder(model.encoder(lt.randn(3, 4))))
    assert [o.module for o, _ in births(prof, op="linear")] == ["encoder.0", "decoder.0", "judge"]
    assert prof.at_peak("module", role="parameter")["decoder.0"] == 4 * (2 * 4 + 4)


def test_parts_called_alone_have_their_path_in_the_model_that_was_given():
    model = Tower()
    with MemoryProfiler(modules=model) as prof:
        model.blocks[1](lt.randn(2, 4))
    assert {o.module for o, _ in births(prof, op="tanh")} == {"blocks.1.1"}
    held = prof.at_peak("module", role="parameter").as_dict()
    held.pop(f"({BEFORE})", None)  # of layers that other test files made when they were imported
    assert held == {f"blocks.{k}.0.qkv": (4 + 1) * 12 * 4 for k in (0, 1)}


def test_models_built_inside_get_their_names_when_called():
    with MemoryProfiler() as prof:
        net = Tower()
        net(lt.randn(2, 4))
    line, first = inspect.getsourcelines(Attention.__init__)
    assert "nn.Linear" in line[2]
    made = file_line(inspect.getsourcefile(Attention), first + 2)
    table = prof.growth("start", "stop", ("role", "module", "line"))
    assert table.as_dict() == {f"parameter · blocks.{k}.0.qkv · {made}": 240 for k in (0, 1)}


def test_scopes_name_parts_and_models_and_decorate():
    @record_function("helper")
    def helper(x):
        return x * 2.0

    @scope("numbers")
    def numbers():
        for k in range(2):
            yield lt.ones(k + 1)

    model = nn.Sequential(nn.Linear(4, 4))
    with MemoryProfiler() as prof:
        with scope("teacher"), lt.no_grad():
            model(lt.randn(2, 4))
        with scope("outer"), scope("inner"):
            lt.zeros(5)
            helper(lt.zeros(7))
        for x in numbers():
            lt.zeros_like(x)
    assert {o.module for o, _ in births(prof, op="linear")} == {"teacher.0"}
    assert [n for _, n in births(prof, module="outer.inner")] == [20, 28]
    assert [n for _, n in births(prof, module="outer.inner.helper")] == [28]
    assert [n for _, n in births(prof, module="numbers")] == [4, 8]
    with pytest.raises(TypeError, match="non-empty string"):
        scope("")


def test_a_scope_left_open_by_a_generator_does_not_stay():
    def halfway():
        with scope("inside"):
            yield lt.ones(1)
            yield lt.ones(2)

    with MemoryProfiler() as prof:
        g = halfway()
        next(g)
        with scope("consumer"):
            g.close()
            lt.ones(3)
        lt.ones(4)
    assert [(o.module, n) for o, n in births(prof)] == [
        ("inside", 4),
        ("inside.consumer", 12),
        ("", 16),
    ]
    assert scopes.current() is None


def test_a_part_that_runs_again_is_where_it_was_and_recomputes():
    class Again(lt.autograd.Function):
        """Runs a module again in backward, as activation checkpointing would."""

        @staticmethod
        def forward(ctx, x, module):
            ctx.module, ctx.scoped = module, scopes.current()
            ctx.save_for_backward(x)
            with lt.no_grad():
                return module(x)

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            x = x.detach().requires_grad_()
            with lt.enable_grad(), scopes.resume_scope(ctx.scoped, "recompute"):
                y = ctx.module(x)
            lt.autograd.backward(y, g)
            return x.grad, None

    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])

        def forward(self, x):
            for part in self.parts:
                x = Again.apply(x, part)
            return x

    model = Checkpointed()
    with MemoryProfiler() as prof:
        model(lt.randn(3, 4, requires_grad=True)).sum().backward()
    forward = [o.module for o, _ in births(prof, phase="forward", op="linear")]
    again = [o.module for o, _ in births(prof, phase="recompute")]
    assert forward == ["parts.0", "parts.1"]
    assert again == ["parts.1", "parts.0"]
    inner = {o.module for o, _ in births(prof, phase="backward", op="LinearBackward0")}
    assert inner == {"parts.0", "parts.1"}
    assert scopes.current() is None


def test_storages_from_before_are_owned():
    net, data = Tower(), lt.randn(100)
    net(lt.randn(2, 4)).sum().backward()
    optimizer = lt.optim.Adam(net.parameters())
    optimizer.step()
    parameters = sum(p.nbytes for p in net.parameters())
    with MemoryProfiler("cpu") as prof:
        with lt.no_grad():
            net(lt.randn(2, 4))
        table = prof.at_peak(("role", "module"))
    assert prof.growth("start", "stop", "module").as_dict() == {}  # a name is no growth
    assert prof.recording.cells_at(0, prof.recording.devices.index("cpu")).keys() >= {
        cell for cell in prof.peak("cpu").cells if prof.recording.owners[cell[0]].op == "before"
    }
    for k in (0, 1):
        for role in ("parameter", "gradient"):
            assert table[f"{role} · blocks.{k}.0.qkv"] == 240
        assert table[f"optimizer · blocks.{k}.0.qkv"] == 480  # before it made a step here
    assert prof.at_peak("role")["parameter"] >= parameters
    before = [o for o in prof.recording.owners if o.op == "before"]
    assert {o.line for o in before} == {BEFORE}
    assert data.nbytes == 400


@pytest.mark.parametrize(
    "kind", ["SGD", "Adam", "Adagrad", "Rprop", "Adafactor", "Muon", "Adam8bit"]
)
def test_state_is_on_its_parameters_module_at_every_instant_of_the_first_step(kind):
    net = nn.Sequential(nn.Linear(40, 30, bias=False), nn.Tanh(), nn.Linear(30, 20, bias=False))
    options = {"momentum": 0.9} if kind == "SGD" else {}
    optimizer = getattr(lt.optim, kind)(net.parameters(), lr=0.1, **options)
    with MemoryProfiler() as prof:
        net(lt.randn(2, 40)).sum().backward()
        optimizer.step()
        optimizer.load_state_dict(optimizer.state_dict())
    recording, held = prof.recording, set()
    for _, books in replay(recording, recording.devices.index("cpu")):
        held |= {owner for owner, role in books.cells if role == OPTIMIZER and owner}
    assert {recording.owners[owner].module for owner in held} == {"0", "2"}
