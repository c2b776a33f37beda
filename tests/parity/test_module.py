"""Modules and their state dicts beside PyTorch's: registration, walks, conversion, loading."""

from __future__ import annotations

import inspect

import pytest

import lowtide as lt

torch = pytest.importorskip("torch")
from tests.parity.alike import agree, mlp  # noqa: E402  # it imports torch

pytestmark = [
    pytest.mark.parity,
]


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
}


@pytest.mark.parametrize("change", ASSIGNMENTS)
def test_assignment_and_its_errors(change):
    def case(T):
        m = tree(T)
        returned = ASSIGNMENTS[change](T, m)
        return [
            returned,
            repr(m),
            [n for n, _ in m.named_parameters(remove_duplicate=False)],
            [n for n, _ in m.named_buffers()],
            list(m.state_dict()),
        ]

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
        if name not in (
            "type",
            *(n for n in CONVERSIONS if "to " in n),
        ):  # made real, with a warning
            m.register_buffer("complex", T.zeros(1, dtype=T.complex64))
        CONVERSIONS[name](T, m)
        return [(str(t.dtype), t.device.type) for t in m.state_dict().values()]

    agree(case)


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
        return [
            keys.missing_keys,
            keys.unexpected_keys,
            repr(keys).strip("_"),
            net.state_dict(),
            [p.requires_grad for p in net.parameters()],
        ]

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


# Names

LEFT_OUT = {
    "Module": {
        "ipu",
        "mtia",
        "xpu",  # devices that lowtide does not have
        "T_destination",
        "call_super_init",
        "dump_patches",
        "register_backward_hook",  # old
    },
    "nn.utils": {
        "convert_conv2d_weight_memory_format",
        "convert_conv3d_weight_memory_format",
        "stateless",  # a module, where functional_call() was
    },
    "nn.utils.parametrize": {"transfer_parametrizations_and_params"},
}
RENAMED = {"Sequential.extend", "ParameterDict.__call__", "Module.forward"}
CLASSES = ["Module", "Sequential", "ModuleList", "ModuleDict", "ParameterList", "ParameterDict"]


def public(home) -> list[str]:
    return [n for n in dir(home) if not n.startswith("_")]


@pytest.mark.parametrize("name", CLASSES)
def test_every_method_is_there_with_its_arguments(name):
    ours, theirs = getattr(lt.nn, name), getattr(torch.nn, name)
    assert set(public(theirs)) - set(public(ours)) == LEFT_OUT["Module"]
    for method in public(ours):
        if f"{name}.{method}" in RENAMED or method not in vars(theirs):
            continue
        if callable(getattr(theirs, method)):
            expected = list(inspect.signature(getattr(theirs, method)).parameters)
            assert list(inspect.signature(getattr(ours, method)).parameters) == expected, method


@pytest.mark.parametrize(
    "path", ["nn.init", "nn.utils", "nn.utils.parametrize", "nn.utils.parametrizations"]
)
def test_every_function_is_there_with_its_arguments(path):
    ours, theirs = lt, torch
    for part in path.split("."):
        ours, theirs = getattr(ours, part), getattr(theirs, part)
    names = getattr(theirs, "__all__", None) or [
        n
        for n in public(theirs)
        if getattr(getattr(theirs, n), "__module__", "").startswith(theirs.__name__)
        or isinstance(getattr(theirs, n), type(torch))
    ]
    names = [n for n in names if n not in ("torch", "math", "warnings", "collections", "copyreg")]
    if path == "nn.init":  # without the older names, which have no underscore at their end
        names = [n for n in names if n.endswith("_") or n == "calculate_gain"]
    assert {n for n in names if not hasattr(ours, n)} == LEFT_OUT.get(path, set())
    for name in names:
        if hasattr(ours, name) and inspect.isfunction(getattr(theirs, name)):
            assert arguments(getattr(ours, name)) == arguments(getattr(theirs, name)), name


def arguments(function) -> list[tuple]:
    found = inspect.signature(function).parameters.values()
    return [(p.name, p.kind, p.default) for p in found]
