"""Op, phase and line of what a program allocates, forward and backward; and who saves it."""

from __future__ import annotations

import copy
import gc
import pickle

import pytest

import lowtide as lt
from lowtide import nn
from lowtide.framework.attribution import frames
from lowtide.framework.memory.ledger import SAVED
from lowtide.nn import functional as F
from lowtide.profiling import MemoryProfiler
from lowtide.profiling.record.recording import BEFORE
from tests.profiling.owners import after, births, here

# Lines


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
    assert set(of_linear) == {("LinearBackward0", "lin", one)}
    assert {key[2] for key in made} <= {one, two}
    assert {o.line for o, _ in births(prof, phase="backward")} == {one, two}
    table = prof.growth("start", "stop", ("role", "module"))
    assert table["gradient · lin"] == (4 * 6 + 6 + 3 * 4) * 4  # x.grad too


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


def test_a_function_of_the_users_is_forward_and_saves_under_its_name():
    class Square(lt.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            y = x * x
            ctx.save_for_backward(y)
            return y * 1.0

        @staticmethod
        def backward(ctx, g):
            return g * ctx.saved_tensors[0]

    x = lt.randn(20, requires_grad=True)
    with MemoryProfiler() as prof:
        line = here()
        y = Square.apply(x)
        with lt.no_grad():
            Square.apply(x)
    assert [(o.phase, o.line) for o, _ in births(prof, op="mul")] == [
        ("forward", after(line, -10)),
        ("forward", after(line, -8)),
        ("other", after(line, -10)),
        ("other", after(line, -8)),
    ]
    saved = {
        name: n for name, n in prof.saved(("op", "line")).as_dict().items() if "before" not in name
    }
    assert saved == {f"Square · {after(line, 1)}": 80}
    del y


def test_what_python_calls_has_a_name_too():
    t, u = lt.randn(9), lt.randn(8)
    stored = pickle.dumps(u)
    with MemoryProfiler() as prof:
        copies = copy.deepcopy(t), pickle.loads(stored)
    assert len(copies) == 2
    assert [(o.op, n) for o, n in births(prof)] == [("deepcopy", 36), ("rebuild", 32)]


def test_what_workers_send_is_the_data_loaders():
    data = [(lt.randn(5), k) for k in range(4)]
    with MemoryProfiler() as prof:
        line = here()
        for x, y in lt.utils.data.DataLoader(data, batch_size=2, num_workers=1):
            assert x.shape == (2, 5)
            assert y.shape == (2,)
    assert [(o.op, o.line, n) for o, n in births(prof) if n == 40] == [
        ("DataLoader", after(line, 1), 40)
    ] * 2


def test_library_code_between_does_not_hide_the_users_line():
    net = nn.Sequential(nn.Sequential(nn.Linear(3, 3)), nn.ReLU())
    with MemoryProfiler() as prof:
        line = here()
        net(lt.randn(2, 3))
    assert {o.line for o, _ in births(prof)} == {after(line, 1)}
    gc.collect()


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("lib/python3.12/site-packages/lowtide/framework/ops/shaping.py", frames.OURS),
        ("lib/python3.12/site-packages/lowtide/framework/ops/dispatch.py", frames.INSIDE),
        ("lib/python3.12/site-packages/lowtide/framework/autograd/engine.py", frames.ENGINE),
        ("lib/python3.12/site-packages/lowtide/modules/linear.py", frames.AROUND),
        ("lib/python3.12/site-packages/lowtide/framework/data/loader.py", frames.LOADER),
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


def test_without_lines_there_are_none():
    with MemoryProfiler(lines=False) as prof:
        (lt.randn(3, requires_grad=True) * 2.0).sum().backward()
    assert {o.line for o in prof.recording.owners[1:]} == {""}
    assert {"randn", "mul", "MulBackward0"} <= {o.op for o in prof.recording.owners}


# Phases


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
    assert {o.module for o, _ in births(prof, op="linear")} == {"net"}
    assert {o.phase for o, _ in births(prof, op="linear")} == {"forward", "evaluation"}
    state = births(prof, phase="optimizer")
    assert sum(n for _, n in state) >= 2 * (3 * 2 + 2) * 4
    held = prof.growth("start", "stop", ("role", "module", "op"))
    assert held["optimizer · net · step"] == 2 * (3 * 2 + 2) * 4


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


# Saved values


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
