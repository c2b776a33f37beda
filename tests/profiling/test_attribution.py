"""Module path, op, phase and line of what a program allocates, forward and backward."""

from __future__ import annotations

import gc
import inspect
import threading
import weakref

import pytest

import lowtide as lt
from lowtide import nn
from lowtide.framework import frames, scopes
from lowtide.framework.memory.ledger import OPTIMIZER, SAVED
from lowtide.nn import functional as F
from lowtide.profiling import MemoryProfiler, record_function, scope
from lowtide.profiling.recording import ALLOC, BEFORE, replay


def here() -> str:
    """``file:line`` of the caller, as a profiler shows it."""
    frame = inspect.currentframe().f_back
    return scopes.shown(frame.f_code.co_filename, frame.f_lineno)


def after(line: str, n: int) -> str:
    name, _, number = line.rpartition(":")
    return f"{name}:{int(number) + n}"


def births(prof, **wanted):
    """(owner, bytes) of the allocations whose owner has these fields."""
    prof.settle()
    events, owners = prof.recording.events, prof.recording.owners
    found = [
        (owners[o], n)
        for kind, o, n in zip(events.kind, events.owner, events.nbytes, strict=True)
        if kind == ALLOC
    ]
    return [
        (o, n) for o, n in found if all(getattr(o, name) == value for name, value in wanted.items())
    ]


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(4, 12)

    def forward(self, x):
        with scope("split"):
            q, k, v = (t.contiguous() for t in self.qkv(x).split(4, -1))
        return q * k + v


class Tower(nn.Module):
    def __init__(self, shared=None):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Sequential(Attention(), nn.Tanh()) for _ in range(2)])
        self.shared = shared

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x if self.shared is None else self.shared(x)


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
    assert [o.module for o, _ in births(prof, op="linear")] == ["Linear", "Linear", "Linear#2"]
    assert {o.module for o, _ in births(prof, phase="forward")} >= {"MSELoss"}
    with MemoryProfiler(modules={"generator": one, "judge": two}) as prof:
        two(one(lt.randn(2, 3)))
    assert [o.module for o, _ in births(prof, op="linear")] == ["generator", "judge"]


def test_parts_called_alone_have_their_path_in_the_model_that_was_given():
    model = Tower()
    with MemoryProfiler(modules=model) as prof:
        model.blocks[1](lt.randn(2, 4))
    assert {o.module for o, _ in births(prof, op="tanh")} == {"blocks.1.1"}
    held = prof.at_peak("module", role="parameter").as_dict()
    held.pop(f"({BEFORE})", None)  # of layers that other test files made when they were imported
    assert held == {f"blocks.{k}.0.qkv": (4 + 1) * 12 * 4 for k in (0, 1)}


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


def test_backward_belongs_to_the_module_and_line_of_the_forward_op():
    lin, x = nn.Linear(4, 6), lt.randn(3, 4, requires_grad=True)
    with MemoryProfiler() as prof:
        y = lin(x).exp()
        line = here()
        y.sum().backward()
    made = {(o.op, o.module, o.line): n for o, n in births(prof, phase="backward") if n > 24}
    one, two = after(line, -1), after(line, 1)
    assert made[("ExpBackward0", "", one)] == 3 * 6 * 4
    of_linear = {key: n for key, n in made.items() if key[0] == "LinearBackward0"}
    assert set(of_linear) == {("LinearBackward0", "Linear", one)}
    assert {key[2] for key in made} <= {one, two}
    assert {o.line for o, _ in births(prof, phase="backward")} == {one, two}
    table = prof.growth("start", "stop", ("role", "module"))
    assert table["gradient · Linear"] == (4 * 6 + 6 + 3 * 4) * 4  # x.grad too


def test_double_backward_belongs_to_the_forward_line_too():
    x = lt.randn(5, requires_grad=True)
    with MemoryProfiler() as prof:
        y = (x * x * x).sum()
        line = here()
        (g,) = lt.autograd.grad(y, x, create_graph=True)
        z = (g * g).sum()
        z.backward()
    lines = {o.line for o, _ in births(prof, phase="backward")}
    assert lines == {after(line, k) for k in (-1, 1, 2, 3)}
    assert {o.phase for o, _ in births(prof)} == {"forward", "backward"}


def test_what_was_recorded_before_is_named_so():
    x = lt.randn(5, requires_grad=True)
    y = x.exp().sum()
    with MemoryProfiler() as prof:
        y.backward()
    of_nodes = [o for o, _ in births(prof) if o.op.endswith("Backward0")]
    assert of_nodes
    assert all(o.line == BEFORE for o in of_nodes)


def test_hooks_and_functions_in_backward_belong_to_the_node():
    class Scale(lt.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 3.0

        @staticmethod
        def backward(ctx, g):
            return g * lt.full((7,), 3.0)

    x = lt.randn(7, requires_grad=True)
    with MemoryProfiler() as prof:
        y = Scale.apply(x)
        line = here()
        y.sum().backward()
    made = [(o.line, n) for o, n in births(prof, op="ScaleBackward")]
    assert made == [(after(line, -1), 28)] * 2


def test_phases():
    net = nn.Linear(3, 2)
    optimizer = lt.optim.Adam(net.parameters())
    with MemoryProfiler() as prof:
        x = lt.randn(4, 3)
        loss = F.mse_loss(net(x), lt.zeros(4, 2))
        loss.backward()
        optimizer.step()
        with lt.no_grad():
            net(x)
            loss * 2.0
    assert {o.op for o, _ in births(prof, phase="other")} == {"randn", "zeros", "mul"}
    assert {o.module for o, _ in births(prof, op="linear")} == {"Linear"}
    assert {o.phase for o, _ in births(prof, op="linear")} == {"forward"}
    state = births(prof, phase="optimizer")
    assert sum(n for _, n in state) >= 2 * (3 * 2 + 2) * 4
    held = prof.growth("start", "stop", ("role", "module", "op"))
    assert held["optimizer · Linear · step"] == 2 * (3 * 2 + 2) * 4


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
            with lt.enable_grad(), scopes.resumed(ctx.scoped, "recompute"):
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


def test_a_closure_in_a_step_is_forward_and_backward():
    net = nn.Linear(3, 1)
    optimizer = lt.optim.LBFGS(net.parameters(), max_iter=2)
    x = lt.randn(4, 3)

    def closure():
        optimizer.zero_grad()
        loss = net(x).square().sum()
        loss.backward()
        return loss

    with MemoryProfiler() as prof:
        optimizer.step(closure)
    by_op = {o.op: o.phase for o, _ in births(prof)}
    assert by_op["linear"] == by_op["square"] == "forward"
    assert by_op["LinearBackward0"] == "backward"
    assert "optimizer" in set(by_op.values())


def test_an_optimizer_inside_a_hook_is_the_optimizer_phase():
    x = lt.randn(6, requires_grad=True)
    optimizer = lt.optim.SGD([x], lr=0.1, momentum=0.9)
    x.register_post_accumulate_grad_hook(lambda _: optimizer.step())
    with MemoryProfiler() as prof:
        (x * x).sum().backward()
    assert prof.growth("start", "stop", ("role", "phase"))["optimizer · optimizer"] == 24
    assert [m.name for m in prof.marks] == ["start", "step 1", "stop"]


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
    for k in (0, 1):
        for role in ("parameter", "gradient"):
            assert table[f"{role} · blocks.{k}.0.qkv"] == 240
        assert table[f"optimizer · blocks.{k}.0.qkv"] == 480  # before it made a step here
    assert prof.at_peak("role")["parameter"] >= parameters
    before = [o for o in prof.recording.owners if o.op == "before"]
    assert {o.line for o in before} == {BEFORE}
    assert data.nbytes == 400


def test_models_built_inside_get_their_names_when_called():
    with MemoryProfiler() as prof:
        net = Tower()
        net(lt.randn(2, 4))
    line, first = inspect.getsourcelines(Attention.__init__)
    assert "nn.Linear" in line[2]
    made = f"{here().rpartition(':')[0]}:{first + 2}"
    table = prof.growth("start", "stop", ("role", "module", "line"))
    assert table.as_dict() == {f"parameter · blocks.{k}.0.qkv · {made}": 240 for k in (0, 1)}


def test_saved_says_who_saves_and_who_holds():
    x = lt.randn(50, requires_grad=True)
    with MemoryProfiler() as prof:
        h = x * 2.0
        line = here()
        y = h.sin()
        z = y.exp()
        z.sum()

    def saves(by, **how):  # graphs that were there may hold something too
        found = prof.saved(by, **how).as_dict()
        return {name: n for name, n in found.items() if "before" not in name}

    assert saves("line") == {after(line, 1): 200, after(line, 2): 200}
    assert saves("op") == {"sin": 200, "exp": 200}
    assert saves("op", holder=True) == {"mul": 200, "exp": 200}
    before = prof.marks[0].roles[prof.recording.devices.index("cpu")][SAVED]
    assert prof.saved("role").total == 400 + before
    del h, y, z


def test_a_value_is_saved_exactly_while_the_graph_holds_it():
    x = lt.randn(50, requires_grad=True)
    with MemoryProfiler() as prof:
        y = x.exp()
        prof.mark("kept")
        z = y.sum()
        z.backward()
        prof.mark("freed")
        with lt.no_grad():
            w = x.exp()
        prof.mark("no graph")
    held = [
        prof.growth("start", name, "role").as_dict().get("saved", 0)
        for name in ("kept", "freed", "no graph")
    ]
    assert held == [200, 0, 0]
    del y, z, w


def test_a_crash_still_gives_the_report_up_to_it():
    prof = MemoryProfiler()

    def crash():
        with prof:
            kept.append(lt.ones(1000))
            raise ZeroDivisionError

    kept = []
    with pytest.raises(ZeroDivisionError):
        crash()
    assert prof.growth("start", "stop", "op")["ones"] == 4000
    assert "ones" in str(prof.at_peak("op"))
    assert not scopes.listening()
    assert scopes.current() is None


def test_a_crash_inside_a_module_leaves_no_scope_open():
    class Bad(nn.Module):
        def forward(self, x):
            raise KeyError("inside")

    with MemoryProfiler() as prof:
        with pytest.raises(KeyError):
            nn.Sequential(Bad())(lt.ones(2))
        lt.ones(3)
    assert [(o.module, n) for o, n in births(prof)] == [("", 8), ("", 12)]


def test_a_profiler_keeps_nothing_alive(leak_check):
    def profiled():
        net = Tower()
        optimizer = lt.optim.Adam(net.parameters())
        prof = MemoryProfiler(modules=net)
        with prof:
            local = Local()
            loss = net(lt.randn(2, 4)).sum()
            loss.backward()
            optimizer.step()
        return prof, weakref.ref(net), weakref.ref(local), weakref.ref(optimizer)

    class Local:
        """Stands for the frame: it dies with it."""

    prof, *references = profiled()
    assert [r() for r in references] == [None] * 3
    assert prof.peak_bytes > 0


def test_while_recording_it_keeps_nothing_alive_either(leak_check):
    with MemoryProfiler() as prof:
        net = Tower()
        reference = weakref.ref(net)
        net(lt.randn(2, 4)).sum().backward()
        live = prof.growth("start", None, "role").total if prof.marks[1:] else 0
        del net
        assert reference() is None
        prof.mark("gone")
    assert live == 0
    assert prof.growth("start", "gone").as_dict() == {}


def test_nothing_is_left_behind_when_the_last_one_stops():
    plain, init = nn.Module.__call__, lt.framework.autograd.node.OpNode.__init__
    held = lt.framework.autograd.saved.Held.__init__
    with MemoryProfiler(), MemoryProfiler():
        assert nn.Module.__call__ is not plain
    assert nn.Module.__call__ is plain
    assert lt.framework.autograd.node.OpNode.__init__ is init
    assert lt.framework.autograd.saved.Held.__init__ is held
    x = lt.ones(2, requires_grad=True) * 2.0
    assert not hasattr(x.grad_fn, "_site")


def test_a_profiler_in_a_thread_and_devices_met_later():
    found = []

    def work():
        with MemoryProfiler("meta") as prof:
            lt.ones(10, device="meta")
            lt.ones(10)
        found.append(prof)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found[0].recording.devices == ["meta"]
    assert found[0].peak_bytes >= 40
    with pytest.raises(ValueError, match="no device 'cpu'"):
        found[0].at_peak(device="cpu")


def test_profilers_of_several_threads_come_and_go():
    errors, peaks = [], []

    def work():
        try:
            for _ in range(5):
                with MemoryProfiler("cpu") as prof:
                    Tower()(lt.randn(2, 4)).sum().backward()
                peaks.append(prof.at_peak().total)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert errors == []
    assert min(peaks) > 480
    assert not scopes.listening()
    assert not lt.framework.devices.backend(lt.device("cpu")).ledger.observers


def test_a_device_that_is_not_there_leaves_nothing_behind():
    prof = MemoryProfiler("cuda:77")
    with pytest.raises(RuntimeError):
        prof.start()
    prof.stop()
    assert not scopes.listening()


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("lib/python3.12/site-packages/lowtide/framework/ops/shaping.py", frames.OURS),
        ("lib/python3.12/site-packages/lowtide/framework/ops/dispatch.py", frames.INSIDE),
        ("lib/python3.12/site-packages/lowtide/framework/autograd/engine.py", frames.ENGINE),
        ("lib/python3.12/site-packages/lowtide/modules/linear.py", frames.AROUND),
        ("lib/python3.12/site-packages/lowtide/optim/adam.py", frames.STEP),
        ("lib/python3.12/site-packages/lowtide/nn/functional.py", frames.OURS),
        ("lib/python3.12/site-packages/lowtide/recipes/digits.py", frames.USER),
        ("lib/python3.12/site-packages/numpy/core.py", frames.USER),
        ("lib/python3.12/contextlib.py", frames.LIBRARY),
        ("home/me/train.py", frames.USER),
    ],
)
def test_whose_file_it_is_where_lowtide_is_installed(path, kind, monkeypatch):
    root = "/lib/python3.12/site-packages/lowtide/"
    folders = tuple(root + n + "/" for n in ("framework", "modules", "optim", "profiling"))
    monkeypatch.setattr(frames, "_FRAMEWORK", root + "framework/")
    monkeypatch.setattr(frames, "_FOLDERS", folders)
    monkeypatch.setattr(frames, "_STANDARD", ("/lib/python3.12/",))
    assert frames.kind_of("/" + path) == kind


def test_it_records_once():
    prof = MemoryProfiler()
    with prof:
        pass
    with pytest.raises(RuntimeError, match="records once"):
        prof.start()
    prof.stop()


def test_without_lines_there_are_none():
    with MemoryProfiler(lines=False) as prof:
        (lt.randn(3, requires_grad=True) * 2.0).sum().backward()
    assert {o.line for o in prof.recording.owners[1:]} == {""}
    assert {"randn", "mul", "MulBackward0"} <= {o.op for o in prof.recording.owners}


def test_library_code_between_does_not_hide_the_users_line():
    net = nn.Sequential(nn.Sequential(nn.Linear(3, 3)), nn.ReLU())
    with MemoryProfiler() as prof:
        line = here()
        net(lt.randn(2, 3))
    assert {o.line for o, _ in births(prof)} == {after(line, 1)}
    gc.collect()
