"""Names, order and defaults of arguments are PyTorch's: of constructors, forward and functions."""

from __future__ import annotations

import inspect

import pytest

import lowtide as lt

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.parity


def layers():
    for name, theirs in vars(torch.nn).items():
        if isinstance(theirs, type) and issubclass(theirs, torch.nn.Module):
            mine = getattr(lt.nn, name, None)
            if mine is not None and theirs.__module__.startswith("torch.nn.modules."):
                yield name


LAYERS = sorted(layers())
OPAQUE = {"Module", "Sequential", "RNN", "LSTM", "GRU", "ParameterList", "ParameterDict"}


def arguments(function):
    found = list(inspect.signature(function).parameters.values())
    return [(p.name, p.kind, default(p.default)) for p in found if p.name != "self"]


def default(value):
    return getattr(value, "__name__", value)  # a function is as good as its namesake


@pytest.mark.parametrize("name", [n for n in LAYERS if n not in OPAQUE])
def test_constructors_have_the_same_arguments(name):
    mine, theirs = getattr(lt.nn, name), getattr(torch.nn, name)
    found = arguments(mine)
    if any(kind is inspect.Parameter.VAR_POSITIONAL for _, kind, _ in found):
        pytest.skip("it passes its arguments on")
    expected = arguments(theirs)
    if [a[0] for a in expected] == ["args", "kwargs"]:
        expected = []
    assert found == expected


@pytest.mark.parametrize("name", [n for n in LAYERS if n not in OPAQUE])
def test_forward_has_the_same_arguments(name):
    mine, theirs = (getattr(nn, name).forward for nn in (lt.nn, torch.nn))
    expected = arguments(theirs)
    if any(kind is inspect.Parameter.VAR_POSITIONAL for _, kind, _ in expected):
        pytest.skip("PyTorch's has no names")
    assert [(n, d) for n, _, d in arguments(mine)][: len(expected)] == [
        (n, d) for n, _, d in expected
    ]


ABSENT = {
    "conv_tbc": "an old layout",
    "grouped_mm": "for one kind of GPU",
    "native_channel_shuffle": "channel_shuffle is the same",
    "scaled_grouped_mm": "for one kind of GPU",
    "scaled_mm": "for one kind of GPU",
}
TOOLS = {
    "assert_int_or_pair",
    "boolean_dispatch",
    "handle_torch_function",
    "has_torch_function",
    "has_torch_function_unary",
    "has_torch_function_variadic",
}


def functions():
    for name, theirs in vars(torch.nn.functional).items():
        module = getattr(theirs, "__module__", None) or ""
        public = name[0] != "_" and callable(theirs) and not isinstance(theirs, type)
        if public and not module.startswith("typing") and name not in TOOLS:
            yield name


def test_no_function_is_missing():
    missing = {n for n in functions() if not hasattr(lt.nn.functional, n)}
    assert missing - {"Optional", "Union", "Callable"} == set(ABSENT)


@pytest.mark.parametrize("name", sorted(functions()))
def test_functions_have_the_same_arguments(name):
    mine, theirs = getattr(lt.nn.functional, name, None), getattr(torch.nn.functional, name)
    if mine is None:
        pytest.skip(ABSENT.get(name, "no function"))
    if inspect.isbuiltin(theirs) or not inspect.isfunction(theirs):
        pytest.skip("it has no signature to read")
    expected = arguments(theirs)
    if [a[0] for a in expected] == ["args", "kwargs"]:
        pytest.skip("it has no signature to read")
    assert [(n, d) for n, _, d in arguments(mine)][: len(expected)] == [
        (n, d) for n, _, d in expected
    ]
