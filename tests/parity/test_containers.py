"""Containers of modules and parameters beside PyTorch's: contents, repr, errors."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
from tests.parity.alike import agree  # noqa: E402  # it imports torch

pytestmark = [
    pytest.mark.parity,
]


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
    "add list": lambda T, c, o: c.__add__([o]),
    "add int": lambda T, c, o: c + 3,
    "add in place": lambda T, c, o: c.__iadd__(
        type(c)(*([o] if type(c) is T.nn.Sequential else [[o]]))
    ),
    "multiply": lambda T, c, o: c * 2,
    "multiply from the left": lambda T, c, o: 2 * c,
    "multiply by zero": lambda T, c, o: c * 0,
    "multiply by a float": lambda T, c, o: c * 1.5,
    "multiply in place": lambda T, c, o: c.__imul__(2),
    "length": lambda T, c, o: len(c),
    "contains": lambda T, c, o: [o in list(c), c[0] in list(c)],
}


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
    "get nothing": lambda T, c, v: [c[k] for k in ("z",) if k in c],
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
