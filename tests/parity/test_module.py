"""Modules, hooks, containers, state dicts, parametrizations and utilities beside PyTorch's.

Each case is written once, with the framework as its argument ``T``, and run in both.
"""

from __future__ import annotations

import copy
import math
from collections import OrderedDict

import numpy as np
import pytest

import lowtide as lt
from lowtide.framework.dtypes import tolerance

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.parity,
    pytest.mark.filterwarnings("ignore::FutureWarning"),  # PyTorch deprecates its older forms
    pytest.mark.filterwarnings("ignore:Full backward hook is firing"),
]
RTOL, ATOL = tolerance(lt.float64)


def shown(text: object) -> str:
    return str(text).replace("torch", "lowtide")


def agree(case, *args) -> None:
    """The case returns, or raises, the same in both frameworks."""
    found = []
    for T in (lt, torch):
        try:
            found.append(("returned", case(T, *args)))
        except Exception as error:
            found.append(("raised", error))
    (kind, ours), (expected_kind, theirs) = found
    assert kind == expected_kind, (ours, theirs)
    if kind == "raised":
        if isinstance(ours, AssertionError):
            raise ours
        assert type(ours).__mro__[-2:] == type(theirs).__mro__[-2:]
        assert isinstance(ours, type(theirs)), (type(ours), type(theirs))
        return
    compare(ours, theirs)


def compare(ours, theirs) -> None:
    if isinstance(ours, lt.Tensor):
        assert isinstance(theirs, torch.Tensor)
        assert shown(ours.dtype) == shown(theirs.dtype)
        np.testing.assert_allclose(ours.detach().numpy(), theirs.detach().numpy(), RTOL, ATOL)
    elif isinstance(ours, dict):
        assert list(ours) == list(theirs)
        compare(list(ours.values()), list(theirs.values()))
    elif isinstance(ours, list | tuple):
        assert len(ours) == len(theirs)
        for a, b in zip(ours, theirs, strict=True):
            compare(a, b)
    elif isinstance(ours, float):
        assert math.isclose(ours, theirs, rel_tol=RTOL, abs_tol=ATOL)
    else:
        assert shown(ours) == shown(theirs)


def fill(T, module):
    """Give a module the same values in both frameworks, from its names and shapes."""
    rng = np.random.default_rng(5)
    with T.no_grad():
        for _, t in sorted(module.named_parameters()):
            t.copy_(T.tensor(rng.normal(size=tuple(t.shape))))
    return module


def mlp(T):
    nn = T.nn
    net = nn.Sequential(
        OrderedDict(a=nn.Linear(3, 4), act=nn.Tanh(), b=nn.Linear(4, 2, bias=False))
    ).to(T.float64)
    return fill(T, net)


def data(T, *shape, grad=True):
    x = np.random.default_rng(7).normal(size=shape)
    return T.tensor(x, requires_grad=grad)


# Registration


def tree(T):
    nn = T.nn
    net = nn.Module()
    net.w = nn.Parameter(T.ones(2))
    net.child = nn.Linear(2, 2)
    net.register_buffer("b", T.zeros(2))
    net.register_buffer("temporary", T.zeros(1), persistent=False)
    net.twin = net.child
    net.inner = nn.Sequential(nn.ReLU(), nn.Linear(2, 2))
    net.inner[1].weight = net.child.weight
    net.register_parameter("none", None)
    net.register_module("nothing", None)
    net.register_buffer("empty", None)
    return net


WALKS = {
    "parameters": lambda T, m: [n for n, _ in m.named_parameters()],
    "all parameters": lambda T, m: [n for n, _ in m.named_parameters(remove_duplicate=False)],
    "own parameters": lambda T, m: [n for n, _ in m.named_parameters("p", recurse=False)],
    "buffers": lambda T, m: [n for n, _ in m.named_buffers()],
    "all buffers": lambda T, m: [n for n, _ in m.named_buffers("p", remove_duplicate=False)],
    "modules": lambda T, m: [n for n, _ in m.named_modules()],
    "all modules": lambda T, m: [n for n, _ in m.named_modules(remove_duplicate=False)],
    "modules after a memo": lambda T, m: [n for n, _ in m.named_modules({m.child}, "p")],
    "children": lambda T, m: [n for n, _ in m.named_children()],
    "counts": lambda T, m: [len(list(f())) for f in (m.parameters, m.buffers, m.modules)],
    "state": lambda T, m: list(m.state_dict()),
    "prefixed state": lambda T, m: list(m.state_dict(prefix="x.")),
    "dir": lambda T, m: [n for n in dir(m) if n in ("w", "child", "b", "0", "forward", "none")],
    "repr": lambda T, m: repr(m),
    "submodule": lambda T, m: repr(m.get_submodule("inner.1")),
    "parameter": lambda T, m: m.get_parameter("inner.1.weight") is m.child.weight,
    "buffer": lambda T, m: m.get_buffer("b"),
}


@pytest.mark.parametrize("walk", WALKS)
def test_walks_over_a_tree(walk):
    agree(lambda T: WALKS[walk](T, tree(T)))


ASSIGNMENTS = {
    "parameter by tensor": lambda T, m: setattr(m, "w", T.ones(2)),
    "parameter by none": lambda T, m: setattr(m, "w", None),
    "parameter by parameter": lambda T, m: setattr(m, "w", T.nn.Parameter(T.zeros(3))),
    "parameter by module": lambda T, m: setattr(m, "w", T.nn.ReLU()),
    "module by parameter": lambda T, m: setattr(m, "child", T.nn.Parameter(T.zeros(3))),
    "module by int": lambda T, m: setattr(m, "child", 3),
    "module by none": lambda T, m: setattr(m, "child", None),
    "buffer by tensor": lambda T, m: setattr(m, "b", T.ones(5)),
    "buffer by str": lambda T, m: setattr(m, "b", "x"),
    "buffer by parameter": lambda T, m: setattr(m, "b", T.nn.Parameter(T.ones(1))),
    "none parameter by int": lambda T, m: setattr(m, "none", 3),
    "none module by module": lambda T, m: setattr(m, "nothing", T.nn.ReLU()),
    "none buffer by tensor": lambda T, m: setattr(m, "empty", T.ones(1)),
    "a buffer": lambda T, m: setattr(m, "new", T.nn.Buffer(T.ones(1), persistent=False)),
    "delete": lambda T, m: [delattr(m, n) for n in ("w", "child", "b", "temporary")] and None,
    "delete nothing": lambda T, m: delattr(m, "zzz"),
    "register again": lambda T, m: m.register_parameter("w", T.nn.Parameter(T.ones(1))),
    "register over buffer": lambda T, m: m.register_parameter("b", None),
    "register over method": lambda T, m: m.register_buffer("forward", None),
    "register tensor": lambda T, m: m.register_parameter("new", T.ones(1)),
    "register dot": lambda T, m: m.register_buffer("a.b", None),
    "register empty": lambda T, m: m.add_module("", None),
    "register number": lambda T, m: m.add_module(3, None),
    "add int": lambda T, m: m.add_module("x", 3),
    "submodule": lambda T, m: m.set_submodule("inner.1", T.nn.Tanh()),
    "new submodule": lambda T, m: m.set_submodule("inner.x", T.nn.Tanh()),
    "strict submodule": lambda T, m: m.set_submodule("inner.x", T.nn.Tanh(), strict=True),
    "submodule at parameter": lambda T, m: m.set_submodule("w", T.nn.Tanh()),
    "submodule nowhere": lambda T, m: m.set_submodule("", T.nn.Tanh()),
    "submodule of int": lambda T, m: m.set_submodule("inner", 3),
    "no submodule": lambda T, m: m.get_submodule("inner.7") and None,
    "parameter for module": lambda T, m: m.get_parameter("inner") and None,
    "buffer for parameter": lambda T, m: m.get_buffer("w") and None,
    "train with a number": lambda T, m: m.train(1) and None,
    "to an integer dtype": lambda T, m: m.to(T.int64) and None,
    "call": lambda T, m: m(1),
}  # fmt: skip


@pytest.mark.parametrize("change", ASSIGNMENTS)
def test_assignment_and_its_errors(change):
    def case(T):
        m = tree(T)
        returned = ASSIGNMENTS[change](T, m)
        return [
            returned, repr(m), [n for n, _ in m.named_parameters(remove_duplicate=False)],
            [n for n, _ in m.named_buffers()], list(m.state_dict()),
        ]  # fmt: skip

    agree(case)


CONVERSIONS = {
    "half": lambda T, m: m.half(),
    "bfloat16": lambda T, m: m.bfloat16(),
    "double": lambda T, m: m.double(),
    "float": lambda T, m: m.float(),
    "to dtype": lambda T, m: m.to(T.float64),
    "to device and dtype": lambda T, m: m.to("cpu", T.float64),
    "to keywords": lambda T, m: m.to(device="cpu", dtype=T.float16, non_blocking=True),
    "to tensor": lambda T, m: m.to(T.zeros(1, dtype=T.float64)),
    "type": lambda T, m: m.type(T.float64),
    "to meta": lambda T, m: m.to("meta"),
    "to empty": lambda T, m: m.to("meta").to_empty(device="cpu"),
}


@pytest.mark.parametrize("name", CONVERSIONS)
def test_conversion_of_dtypes_and_devices(name):
    def case(T):
        m = tree(T)
        m.register_buffer("long", T.zeros(1, dtype=T.int64))
        if name not in ("type", *(n for n in CONVERSIONS if "to " in n)):  # made real, with a warning
            m.register_buffer("complex", T.zeros(1, dtype=T.complex64))
        CONVERSIONS[name](T, m)
        return [(str(t.dtype), t.device.type) for t in m.state_dict().values()]

    agree(case)


# Hooks


def log_of(log, T):
    def record(tag):
        def describe(x):
            if isinstance(x, T.Tensor):
                return x.detach().clone()
            if isinstance(x, tuple | list):
                return [describe(v) for v in x]
            if isinstance(x, dict):
                return {k: describe(v) for k, v in x.items()}
            return str(x)

        def hook(module, *args):
            log.append((tag, type(module).__name__, describe(args)))

        return hook

    return record


def test_hooks_run_in_the_same_order_with_the_same_arguments():
    def case(T):
        log = []
        record = log_of(log, T)
        net = mlp(T)
        for name, m in net.named_modules():
            m.register_forward_pre_hook(record(f"{name} pre"))
            m.register_forward_pre_hook(record(f"{name} pre kwargs"), with_kwargs=True)
            m.register_forward_pre_hook(record(f"{name} first pre"), prepend=True)
            m.register_forward_hook(record(f"{name} after"))
            m.register_forward_hook(record(f"{name} first after"), prepend=True, with_kwargs=True)
            m.register_full_backward_pre_hook(record(f"{name} back pre"))
            m.register_full_backward_hook(record(f"{name} back"))
            m.register_full_backward_hook(record(f"{name} first back"), prepend=True)
        x = data(T, 5, 3)
        (net(x) ** 2).sum().backward()
        return [log, x.grad, {n: p.grad for n, p in net.named_parameters()}]

    agree(case)


def test_hooks_replace_arguments_results_and_gradients():
    def case(T):
        net = mlp(T)
        net.a.register_forward_pre_hook(lambda m, args: args[0] * 2)
        net.act.register_forward_pre_hook(lambda m, a, k: ((a[0] + 1,), k), with_kwargs=True)
        net.act.register_forward_hook(lambda m, args, out: out * args[0])
        net.b.register_full_backward_pre_hook(lambda m, go: (go[0] * 3,))
        net.b.register_full_backward_hook(lambda m, gi, go: (gi[0] + go[0].sum(),))
        net.a.register_full_backward_hook(lambda m, gi, go: (gi[0] * 5,))
        x = data(T, 5, 3)
        y = net(x)
        (y**2).sum().backward()
        return [y, x.grad, {n: p.grad for n, p in net.named_parameters()}]

    agree(case)


def many(T):
    class Many(T.nn.Module):
        def forward(self, x, mask, n, y, z, *, scale=1.0):
            return x * mask * n * scale, (y * 2).detach(), y * 3, "text"

    return Many()


def test_backward_hooks_with_several_inputs_and_outputs():
    def case(T, used):
        log = []
        net = many(T)
        net.register_full_backward_pre_hook(log_of(log, T)("pre"))
        net.register_full_backward_hook(log_of(log, T)("full"))
        x, y, z = data(T, 3), data(T, 3), data(T, 3)
        out = net(x, data(T, 3, grad=False), 2, y, z, scale=3.0)
        sum(out[k].sum() for k in used).backward()
        return [log, x.grad, y.grad, z.grad, [type(o).__name__ for o in out]]

    for used in ([0, 2], [0], [2]):
        agree(case, used)


def test_backward_hooks_without_a_differentiable_input():
    def case(T):
        log = []
        net = mlp(T)
        net.a.register_full_backward_hook(log_of(log, T)("full"))
        net.a.register_full_backward_pre_hook(log_of(log, T)("pre"))
        net(data(T, 5, 3, grad=False)).sum().backward()
        return [log, {n: p.grad for n, p in net.named_parameters()}]

    agree(case)


BAD_HOOKS = {
    "full, too many": ("register_full_backward_hook", lambda m, gi, go: (*gi, None)),
    "pre, too many": ("register_full_backward_pre_hook", lambda m, go: (*go, None)),
    "pre-hook returns one": (
        "register_forward_pre_hook", lambda m, a, k: a, {"with_kwargs": True},
    ),
    "forward hook raises": ("register_forward_hook", lambda m, a, out: {}["x"]),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_HOOKS)
def test_bad_hooks_raise_alike(name):
    register, hook, *options = BAD_HOOKS[name]

    def case(T):
        net = mlp(T)
        getattr(net.a, register)(hook, **(options[0] if options else {}))
        net(data(T, 5, 3)).sum().backward()

    agree(case)


def test_hooks_that_are_always_called():
    def case(T):
        log = []
        net = mlp(T)
        net.act.register_forward_pre_hook(lambda m, args: {}["missing"])
        net.act.register_forward_hook(lambda m, a, out: log.append("usual"))
        net.act.register_forward_hook(lambda m, a, out: log.append(out), always_call=True)
        net.register_forward_hook(lambda m, a, k, out: log.append((k, out)), always_call=True,
                                  with_kwargs=True)  # fmt: skip
        with pytest.raises(KeyError):
            net(data(T, 5, 3))
        return log

    agree(case)


def test_state_dict_hooks_run_in_the_same_order():
    def case(T):
        log = []
        net = T.nn.Sequential(T.nn.Linear(1, 1), T.nn.Sequential(T.nn.Linear(1, 1)))
        for name, m in net.named_modules():
            m.register_state_dict_pre_hook(
                lambda m, prefix, keep, name=name: log.append(("pre", name, prefix, keep))
            )
            m.register_state_dict_post_hook(
                lambda m, s, prefix, meta, name=name: log.append(("post", name, prefix, list(s)))
            )
            m.register_load_state_dict_pre_hook(
                lambda m, s, prefix, meta, strict, missing, unexpected, errors, name=name: (
                    log.append(("load", name, prefix, list(s), strict, list(missing), errors[:]))
                )
            )
        state = net.state_dict()
        net.load_state_dict(state, strict=False)
        return log

    agree(case)


def test_hooks_after_loading_forgive():
    def case(T, forgive):
        net = T.nn.Sequential(T.nn.Linear(1, 1), T.nn.Linear(1, 1))
        log = []

        def after(m, keys):
            log.append((type(m).__name__, list(keys.missing_keys), list(keys.unexpected_keys)))
            if forgive:
                keys.missing_keys.clear()

        net[1].register_load_state_dict_post_hook(after)
        net.register_load_state_dict_post_hook(after)
        state = {"0.weight": T.ones(1, 1), "0.bias": T.ones(1), "1.weight": T.ones(1, 1)}
        return [tuple(net.load_state_dict(state)), log]

    for forgive in (True, False):
        agree(case, forgive)


# State dicts

STATES = {
    "whole": lambda T, s: s,
    "missing": lambda T, s: {k: v for k, v in s.items() if "bias" not in k},
    "unexpected": lambda T, s: {**s, "z": T.ones(1), "a.q": T.ones(1), "a.weight.x": T.ones(1)},
    "extra state": lambda T, s: {**s, "a._extra_state": 3},
    "of another size": lambda T, s: {**s, "a.bias": T.ones(7)},
    "of another dtype": lambda T, s: {k: v.to(T.float16).double() for k, v in s.items()},
    "no tensor": lambda T, s: {**s, "a.bias": 3.0},
    "no dict": lambda T, s: list(s.items()),
    "empty": lambda T, s: {},
}


@pytest.mark.parametrize("assign", [False, True])
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("name", STATES)
def test_loading_reports_alike(name, strict, assign):
    def case(T):
        net, source = mlp(T), mlp(T)
        with T.no_grad():
            for p in source.parameters():
                p.add_(1)
        keys = net.load_state_dict(STATES[name](T, source.state_dict()), strict, assign)
        return [keys.missing_keys, keys.unexpected_keys, repr(keys).strip("_"), net.state_dict(),
                [p.requires_grad for p in net.parameters()]]  # fmt: skip

    agree(case)


def test_overrides_of_saving_and_loading_are_called_alike():
    def case(T):
        log, extra = [], []

        class Own(T.nn.Linear):
            def state_dict(self, *args, **kwargs):
                log.append(sorted(kwargs))
                return super().state_dict(*args, **kwargs)

            def _save_to_state_dict(self, destination, prefix, keep_vars):
                log.append((prefix, keep_vars))
                super()._save_to_state_dict(destination, prefix, keep_vars)

            def _load_from_state_dict(
                self, state_dict, prefix, local_metadata, strict, missing, unexpected, errors
            ):
                log.append((sorted(state_dict), prefix, strict))
                super()._load_from_state_dict(
                    state_dict, prefix, local_metadata, strict, missing, unexpected, errors
                )

            def get_extra_state(self):
                return 5

            def set_extra_state(self, state):
                extra.append(state)  # ours come at the end, when all is known to fit

        net = T.nn.Sequential(Own(1, 1), T.nn.Sequential(Own(1, 1)))
        net.load_state_dict(net.state_dict())
        return [log, extra]

    agree(case)


# Containers

SEQUENCES = {
    "index": lambda T, c, o: c[1],
    "negative index": lambda T, c, o: c[-1],
    "no such index": lambda T, c, o: c[5],
    "slice": lambda T, c, o: c[1:],
    "steps": lambda T, c, o: c[::-1],
    "set": lambda T, c, o: c.__setitem__(1, o),
    "set nothing": lambda T, c, o: c.__setitem__(9, o),
    "set int": lambda T, c, o: c.__setitem__(1, 3),
    "delete": lambda T, c, o: c.__delitem__(0),
    "delete slice": lambda T, c, o: c.__delitem__(slice(0, 2)),
    "delete nothing": lambda T, c, o: c.__delitem__(8),
    "append": lambda T, c, o: c.append(o),
    "append int": lambda T, c, o: c.append(3),
    "insert": lambda T, c, o: c.insert(1, o) and None,
    "insert at the end": lambda T, c, o: c.insert(3, o) and None,
    "extend": lambda T, c, o: c.extend([o, o]),
    "extend int": lambda T, c, o: c.extend(3),
    "pop": lambda T, c, o: c.pop(1),
    "pop slice": lambda T, c, o: c.pop(slice(0, 2)),
    "pop nothing": lambda T, c, o: c.pop(7),
    "add": lambda T, c, o: c + type(c)(*([o] if type(c) is T.nn.Sequential else [[o]])),
    "add list": lambda T, c, o: c + [o],
    "add int": lambda T, c, o: c + 3,
    "add in place": lambda T, c, o: c.__iadd__(type(c)(*([o] if type(c) is T.nn.Sequential
                                                         else [[o]]))),
    "multiply": lambda T, c, o: c * 2,
    "multiply from the left": lambda T, c, o: 2 * c,
    "multiply by zero": lambda T, c, o: c * 0,
    "multiply by a float": lambda T, c, o: c * 1.5,
    "multiply in place": lambda T, c, o: c.__imul__(2),
    "length": lambda T, c, o: len(c),
    "contains": lambda T, c, o: [o in list(c), c[0] in list(c)],
}  # fmt: skip


@pytest.mark.parametrize("kind", ["Sequential", "ModuleList"])
@pytest.mark.parametrize("op", SEQUENCES)
def test_lists_of_modules(op, kind):
    def case(T):
        nn = T.nn
        items = [nn.ReLU(), nn.ReLU(), nn.Linear(2, 2)]
        c = nn.Sequential(*items) if kind == "Sequential" else nn.ModuleList(items)
        returned = SEQUENCES[op](T, c, nn.Tanh())
        return [returned, c, [n for n, _ in c.named_modules(remove_duplicate=False)]]

    agree(case)


DICTS = {
    "get": lambda T, c, v: c["a"],
    "get nothing": lambda T, c, v: c["z"] if "z" in c else "nothing",
    "set": lambda T, c, v: c.__setitem__("z", v),
    "replace": lambda T, c, v: c.__setitem__("a", v),
    "set a number": lambda T, c, v: c.__setitem__(3, v),
    "set a dot": lambda T, c, v: c.__setitem__("a.b", v),
    "delete": lambda T, c, v: c.__delitem__("a"),
    "delete nothing": lambda T, c, v: c.__delitem__("z"),
    "pop": lambda T, c, v: c.pop("a"),
    "clear": lambda T, c, v: c.clear(),
    "update": lambda T, c, v: c.update({"y": v, "a": v}),
    "update pairs": lambda T, c, v: c.update([("y", v)]),
    "update with itself": lambda T, c, v: c.update(c),
    "update bad pairs": lambda T, c, v: c.update([("y", v, v)]),
    "update int": lambda T, c, v: c.update(3),
    "keys": lambda T, c, v: list(c.keys()),
    "iterate": lambda T, c, v: [list(c), len(c), "a" in c, "z" in c],
    "values": lambda T, c, v: [type(x).__name__ for x in c.values()],
    "items": lambda T, c, v: [(k, type(x).__name__) for k, x in c.items()],
}


@pytest.mark.parametrize("kind", ["ModuleDict", "ParameterDict"])
@pytest.mark.parametrize("op", DICTS)
def test_dicts_of_modules_and_parameters(op, kind):
    def case(T):
        nn = T.nn
        if kind == "ModuleDict":
            c, v = nn.ModuleDict({"a": nn.ReLU(), "b": nn.Linear(2, 2)}), nn.Tanh()
        else:
            c, v = nn.ParameterDict({"a": T.ones(2), "b": 3}), T.zeros(1)
        returned = DICTS[op](T, c, v)
        return [returned, c, list(c.state_dict())]

    agree(case)


MORE_OF_PARAMETER_DICTS = {
    "get": lambda T, c: [c.get("a"), c.get("z"), c.get("z", 5)],
    "setdefault": lambda T, c: [c.setdefault("a", 5), c.setdefault("z", 5)],
    "popitem": lambda T, c: c.popitem(),
    "popitem of nothing": lambda T, c: T.nn.ParameterDict().popitem(),
    "reversed": lambda T, c: list(reversed(c)),
    "copy": lambda T, c: [c.copy(), c.copy()["a"] is c["a"]],
    "fromkeys": lambda T, c: c.fromkeys(["x", "y"], 3),
    "or": lambda T, c: c | T.nn.ParameterDict({"z": T.ones(3)}),
    "in-place or": lambda T, c: c.__ior__(T.nn.ParameterDict({"z": T.ones(3)})),
    "empty": lambda T, c: T.nn.ParameterDict(),
    "of one": lambda T, c: T.nn.ParameterDict({"a": T.ones(2, 3)}),
    "of pairs": lambda T, c: T.nn.ParameterDict([("x", T.ones(1)), ("y", T.ones(2).double())]),
    "of dtypes": lambda T, c: T.nn.ParameterDict({"x": T.ones(1).half(), "y": T.ones(()).double()}),
}


@pytest.mark.parametrize("op", MORE_OF_PARAMETER_DICTS)
def test_more_of_parameter_dicts(op):
    def case(T):
        c = T.nn.ParameterDict({"a": T.ones(2), "b": 3})
        returned = MORE_OF_PARAMETER_DICTS[op](T, c)
        return [returned, c]

    agree(case)


PARAMETER_LISTS = {
    "index": lambda T, c: c[-1],
    "slice": lambda T, c: c[1:],
    "set": lambda T, c: c.__setitem__(0, T.zeros(7)),
    "set nothing": lambda T, c: c.__setitem__(9, T.zeros(7)),
    "append": lambda T, c: c.append(T.ones(1)),
    "extend": lambda T, c: c.extend([T.ones(1), 5]),
    "extend itself": lambda T, c: c.extend(c),
    "extend tensor": lambda T, c: c.extend(T.ones(2)),
    "extend int": lambda T, c: c.extend(3),
    "add in place": lambda T, c: c.__iadd__([T.ones(1)]),
    "iterate": lambda T, c: [type(v).__name__ for v in c] + [len(c)],
    "call": lambda T, c: c(),
    "empty": lambda T, c: T.nn.ParameterList(),
    "nested": lambda T, c: T.nn.ModuleList([c, c]),
}


@pytest.mark.parametrize("op", PARAMETER_LISTS)
def test_lists_of_parameters(op):
    def case(T):
        c = T.nn.ParameterList([T.ones(2, 3), T.nn.Parameter(T.ones(()).double()), "text"])
        returned = PARAMETER_LISTS[op](T, c)
        return [returned, c, list(c.state_dict()), [n for n, _ in c.named_parameters()]]

    agree(case)


# Parametrizations


def linear(T):
    return T.nn.Linear(4, 3, dtype=T.float64)


def transposed(T):
    return T.nn.ConvTranspose2d(4, 3, 2, dtype=T.float64)


PARAMETRIZED = {
    "weight norm": (lambda T, p: p.weight_norm(linear(T)), (5, 4)),
    "weight norm, dim 1": (lambda T, p: p.weight_norm(linear(T), dim=1), (5, 4)),
    "weight norm, no dim": (lambda T, p: p.weight_norm(linear(T), dim=None), (5, 4)),
    "weight norm of both": (
        lambda T, p: p.weight_norm(p.weight_norm(linear(T)), "bias"), (5, 4),
    ),
    "weight norm, transposed": (lambda T, p: p.weight_norm(transposed(T), dim=1), (2, 4, 3, 3)),
    "older weight norm": (lambda T, p: T.nn.utils.weight_norm(linear(T)), (5, 4)),
    "older weight norm, no dim": (lambda T, p: T.nn.utils.weight_norm(linear(T), dim=None), (5, 4)),
    "spectral norm": (lambda T, p: p.spectral_norm(linear(T)), (5, 4)),
    "spectral norm of a vector": (lambda T, p: p.spectral_norm(linear(T), "bias"), (5, 4)),
    "spectral norm, transposed": (
        lambda T, p: p.spectral_norm(transposed(T), n_power_iterations=2), (2, 4, 3, 3),
    ),
    "older spectral norm": (lambda T, p: T.nn.utils.spectral_norm(linear(T)), (5, 4)),
    "older spectral norm, transposed": (
        lambda T, p: T.nn.utils.spectral_norm(transposed(T), n_power_iterations=3), (2, 4, 3, 3),
    ),
    "both": (lambda T, p: p.weight_norm(p.spectral_norm(linear(T)), "bias"), (5, 4)),
}  # fmt: skip


def states_of(module):
    return {k: v.detach().numpy().copy() for k, v in module.state_dict().items()}


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", PARAMETRIZED)
def test_normalized_weights(name, training):
    # Keys, repr, three forwards and backwards, and the vectors of the power iteration after them.
    make, shape = PARAMETRIZED[name]
    start = states_of(make(torch, torch.nn.utils.parametrizations))

    def case(T):
        net = make(T, T.nn.utils.parametrizations)
        net.load_state_dict({k: T.tensor(v) for k, v in start.items()})
        net.train(training)
        outputs = []
        for _ in range(3):
            x = data(T, *shape)
            y = net(x)
            (y * y).sum().backward()
            outputs += [y, x.grad]
        return [
            net, outputs, net.weight, net.state_dict(),
            {n: p.grad for n, p in net.named_parameters()},
        ]  # fmt: skip

    agree(case)


@pytest.mark.parametrize("trivialized", [True, False])
@pytest.mark.parametrize("shape", [(4, 4), (4, 3), (3, 4)])
@pytest.mark.parametrize("name", ["matrix_exp", "cayley", "householder"])
def test_orthogonal_weights(name, shape, trivialized):
    def make(T):
        net = T.nn.Linear(*shape, dtype=T.float64)
        if not trivialized:  # something that is orthogonal, the same in both
            with T.no_grad():
                net.weight.copy_(T.eye(*net.weight.shape))
        return T.nn.utils.parametrizations.orthogonal(
            net, orthogonal_map=name, use_trivialization=trivialized
        )

    start = states_of(make(torch))
    rng = np.random.default_rng(2)
    key = "parametrizations.weight.original"
    noise = rng.normal(size=start[key].shape)
    tall = noise.shape[0] >= noise.shape[1]
    start[key] += np.tril(noise, -1) if tall else np.triu(noise, 1)

    def case(T):
        net = make(T)
        net.load_state_dict({k: T.tensor(v) for k, v in start.items()})
        y = net(data(T, 5, shape[0]))
        (y**3).sum().backward()
        return [net, y, net.weight, net.state_dict(), {n: p.grad for n, p in net.named_parameters()}]

    agree(case)


def test_an_orthogonal_square_weight_starts_the_same():
    def case(T):
        net = fill(T, linear(T))
        net = fill(T, T.nn.Linear(4, 4, dtype=T.float64))
        T.nn.utils.parametrizations.orthogonal(net)
        return [net.weight, net.state_dict()]

    agree(case)


def symmetric(T):
    class Symmetric(T.nn.Module):
        def forward(self, x):
            return x.triu() + x.triu(1).transpose(-1, -2)

        def right_inverse(self, a):
            return a.triu()

    return Symmetric()


def shrinks(T):
    class Shrinks(T.nn.Module):
        def forward(self, x):
            return x[:1]

    return Shrinks()


PARAMETRIZATIONS = {
    "register": lambda T, P, m: m.weight,
    "assign": lambda T, P, m: setattr(m, "weight", T.eye(3, dtype=T.float64) * 2),
    "assign parameter": lambda T, P, m: setattr(m, "weight", T.nn.Parameter(T.eye(3))),
    "again": lambda T, P, m: P.register_parametrization(m, "weight", symmetric(T)) and None,
    "shrinking": lambda T, P, m: P.register_parametrization(m, "weight", shrinks(T)),
    "shrinking, new": lambda T, P, m: P.register_parametrization(m, "bias", shrinks(T)),
    "shrinking, unsafe": lambda T, P, m: P.register_parametrization(
        m, "bias", shrinks(T), unsafe=True).bias,
    "of nothing": lambda T, P, m: P.register_parametrization(m, "zzz", symmetric(T)),
    "is": lambda T, P, m: [P.is_parametrized(m), P.is_parametrized(m, "weight"),
                           P.is_parametrized(m, "bias"), P.is_parametrized(T.nn.ReLU())],
    "remove": lambda T, P, m: P.remove_parametrizations(m, "weight") and m.weight,
    "remove and restore": lambda T, P, m: P.remove_parametrizations(
        m, "weight", leave_parametrized=False).weight,
    "remove nothing": lambda T, P, m: P.remove_parametrizations(m, "bias"),
    "copy": lambda T, P, m: copy.deepcopy(m).weight,
    "type": lambda T, P, m: P.type_before_parametrizations(m).__name__,
    "half": lambda T, P, m: m.half().weight,
    "state": lambda T, P, m: m.load_state_dict(
        {k: v + 1 for k, v in m.state_dict().items()}) and m.weight,
    "missing": lambda T, P, m: m.load_state_dict({"bias": T.ones(3), "weight": T.ones(3, 3)}),
    "pickle": lambda T, P, m: __import__("pickle").dumps(m),
}  # fmt: skip


@pytest.mark.parametrize("name", PARAMETRIZATIONS)
def test_parametrizations(name):
    def case(T):
        P = T.nn.utils.parametrize
        m = fill(T, T.nn.Linear(3, 3, dtype=T.float64))
        P.register_parametrization(m, "weight", symmetric(T))
        returned = PARAMETRIZATIONS[name](T, P, m)
        return [returned, m, m.state_dict(), [n for n, _ in m.named_parameters()]]

    agree(case)


# Gradients and vectors


@pytest.mark.parametrize("norm_type", [1, 2.0, 3, math.inf, "inf"])
@pytest.mark.parametrize("max_norm", [0.5, 100.0, 0])
def test_clipping_by_norm(norm_type, max_norm):
    def case(T):
        net = mlp(T)
        net(data(T, 5, 3)).sum().backward()
        total = T.nn.utils.clip_grad_norm_(net.parameters(), max_norm, norm_type)
        whole = T.nn.utils.get_total_norm([p.grad for p in net.parameters()], norm_type)
        return [total, whole, {n: p.grad for n, p in net.named_parameters()}]

    agree(case)


def test_clipping_by_value_and_edges():
    def case(T):
        net = mlp(T)
        net(data(T, 5, 3)).sum().backward()
        net.a.bias.grad = None
        T.nn.utils.clip_grad_value_(net.parameters(), 0.3)
        T.nn.utils.clip_grad_value_(net.b.weight, 0.1)
        nothing = T.nn.utils.clip_grad_norm_([net.a.bias], 1.0)
        return [nothing, {n: p.grad for n, p in net.named_parameters()}]

    agree(case)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("strict", [True, False])
def test_clipping_of_what_is_not_finite(bad, strict):
    def case(T):
        p = T.nn.Parameter(T.ones(2))
        p.grad = T.tensor([1.0, bad])
        return [T.nn.utils.clip_grad_norm_(p, 1.0, error_if_nonfinite=strict), p.grad]

    agree(case)


def test_vectors():
    def case(T):
        net = mlp(T)
        vector = T.nn.utils.parameters_to_vector(net.parameters())
        T.nn.utils.vector_to_parameters(vector * 2, net.parameters())
        return [vector, net.state_dict()]

    agree(case)


def test_skipped_initialization():
    def case(T):
        net = T.nn.utils.skip_init(T.nn.Linear, 3, 2, bias=False, dtype=T.float64)
        return [repr(net), [(tuple(p.shape), p.device.type) for p in net.parameters()]]

    agree(case)
    agree(lambda T: T.nn.utils.skip_init(T.nn.ReLU))
    agree(lambda T: T.nn.utils.skip_init(dict))


# Initial values that do not depend on the random stream

INITS = {
    "eye": lambda T, i: i.eye_(T.empty(3, 5)),
    "eye of a vector": lambda T, i: i.eye_(T.empty(3)),
    "dirac": lambda T, i: i.dirac_(T.empty(4, 2, 3, 4)),
    "dirac, groups": lambda T, i: i.dirac_(T.empty(6, 2, 3), 3),
    "dirac, even": lambda T, i: i.dirac_(T.empty(2, 2, 2, 2, 2)),
    "dirac of a matrix": lambda T, i: i.dirac_(T.empty(2, 2)),
    "dirac, odd groups": lambda T, i: i.dirac_(T.empty(5, 2, 2), groups=2),
    "constant": lambda T, i: i.constant_(T.empty(2), 0.3),
    "fans": lambda T, i: [i._calculate_fan_in_and_fan_out(T.empty(*s))
                          for s in ((3, 4), (3, 4, 5), (3, 4, 5, 6), (0, 4))],
    "fans of a vector": lambda T, i: i._calculate_fan_in_and_fan_out(T.empty(3)),
    "fan": lambda T, i: [i._calculate_correct_fan(T.empty(3, 4, 5), m)
                         for m in ("fan_in", "fan_out", "FAN_IN")],
    "no fan": lambda T, i: i._calculate_correct_fan(T.empty(3, 4), "fan"),
    "gains": lambda T, i: [float(i.calculate_gain(n)) for n in (
        "linear", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d",
        "conv_transpose3d", "sigmoid", "tanh", "relu", "leaky_relu", "selu")],
    "slopes": lambda T, i: [float(i.calculate_gain("leaky_relu", a)) for a in (0, 0.2, 1, -3.0)],
    "no gain": lambda T, i: i.calculate_gain("gelu"),
    "no slope": lambda T, i: i.calculate_gain("leaky_relu", "x"),
    "normal, no deviation": lambda T, i: i.normal_(T.empty(3), 2.0, 0.0),
    "negative deviation": lambda T, i: i.normal_(T.empty(3), 2.0, -1.0),
    "uniform, reversed": lambda T, i: i.uniform_(T.empty(3), 2.0, 1.0),
    "orthogonal vector": lambda T, i: i.orthogonal_(T.empty(3)),
    "orthogonal nothing": lambda T, i: i.orthogonal_(T.empty(0, 3)),
    "sparse volume": lambda T, i: i.sparse_(T.empty(3, 3, 3), 0.5),
    "all sparse": lambda T, i: i.sparse_(T.empty(3, 3), 1.0),
    "xavier vector": lambda T, i: i.xavier_normal_(T.empty(3)),
    "kaiming of nothing": lambda T, i: i.kaiming_uniform_(T.empty(0, 3)),
}  # fmt: skip


@pytest.mark.parametrize("name", INITS)
@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_initial_values(name):
    agree(lambda T: INITS[name](T, T.nn.init))
