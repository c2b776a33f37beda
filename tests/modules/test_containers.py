"""Containers: they behave as the list or dict they stand for, and register what they hold."""

from __future__ import annotations

import random
from collections import OrderedDict

import pytest

import lowtide as lt
from lowtide import nn


def kinds(container) -> list[str]:
    return [type(m).__name__ for m in container]


def names(container) -> list[str]:
    return [n for n, _ in container.named_children()]


def two(cls):
    return cls(nn.ReLU(), nn.Tanh()) if cls is nn.Sequential else cls([nn.ReLU(), nn.Tanh()])


@pytest.fixture(params=[nn.Sequential, nn.ModuleList])
def cls(request):
    return request.param


# Sequential and ModuleList


def test_indices_slices_and_length(cls):
    net = two(cls)
    assert len(net) == 2
    assert type(net[0]) is nn.ReLU
    assert type(net[-1]) is nn.Tanh
    assert type(net[1:]) is cls
    assert kinds(net[1:]) == ["Tanh"]
    for k in (2, -3):
        with pytest.raises(IndexError):
            net[k]


def test_a_slice_of_a_sequential_keeps_names_and_modules():
    net = nn.Sequential(OrderedDict(a=nn.ReLU(), b=nn.Tanh(), c=nn.Sigmoid()))
    assert names(net[1:]) == ["b", "c"]
    assert net[1:][0] is net.b
    assert names(nn.ModuleList(net)[1:]) == ["0", "1"]


def test_items_are_replaced_deleted_and_popped(cls):
    net = two(cls)
    net[0] = nn.Sigmoid()
    net[-1] = nn.GELU()
    assert kinds(net) == ["Sigmoid", "GELU"]
    net.append(nn.ReLU()).append(nn.Tanh())
    del net[1]
    assert (kinds(net), names(net)) == (["Sigmoid", "ReLU", "Tanh"], ["0", "1", "2"])
    assert type(net.pop(0)) is nn.Sigmoid
    assert (kinds(net), names(net)) == (["ReLU", "Tanh"], ["0", "1"])
    del net[0:]
    assert len(net) == 0
    with pytest.raises(IndexError):
        del net[0]


def test_a_slice_is_popped(cls):
    net = two(cls).extend([nn.GELU()])
    assert kinds(net.pop(slice(0, 2))) == ["ReLU", "Tanh"]
    assert (kinds(net), names(net)) == (["GELU"], ["0"])


def test_insert_moves_the_others(cls):
    net = two(cls)
    net.insert(1, nn.GELU())
    net.insert(-1, nn.Sigmoid())
    assert kinds(net) == ["ReLU", "GELU", "Sigmoid", "Tanh"]
    assert names(net) == ["0", "1", "2", "3"]
    with pytest.raises(TypeError, match="not a Module subclass"):
        net.insert(0, 3)
    assert len(net) == 4


def test_a_sequential_inserts_within_its_length():
    with pytest.raises(IndexError):
        two(nn.Sequential).insert(3, nn.ReLU())


def test_extend_and_in_place_addition(cls):
    net = two(cls)
    before = net
    net += cls(*[nn.GELU()]) if cls is nn.Sequential else [nn.GELU()]
    assert net is before
    assert kinds(net) == ["ReLU", "Tanh", "GELU"]
    assert net.extend(net) is net  # as a list does: once, not for ever
    assert len(net) == 6


def test_addition_makes_a_new_container(cls):
    net = two(cls)
    joined = net + two(cls)
    assert kinds(joined) == ["ReLU", "Tanh"] * 2
    assert len(net) == 2
    assert joined[0] is net[0]


def test_multiplication_repeats_the_same_modules():
    net = two(nn.Sequential)
    assert kinds(net * 2) == kinds(2 * net) == ["ReLU", "Tanh"] * 2
    assert (net * 2)[2] is net[0]
    net *= 3
    assert len(net) == 6


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda s: s + 3, ValueError),
        (lambda s: s + nn.ModuleList(), ValueError),
        (lambda s: s * 1.5, TypeError),
        (lambda s: s * 0, ValueError),
        (lambda s: s * -1, ValueError),
        (lambda s: s.append(3), TypeError),
        (lambda s: s.extend(3), TypeError),
        (lambda s: nn.ModuleList(3), TypeError),
        (lambda s: nn.ModuleList([3]), TypeError),
        (lambda s: nn.ModuleDict(3), TypeError),
        (lambda s: nn.ModuleDict([3]), TypeError),
        (lambda s: nn.ModuleDict([(1, 2, 3)]), ValueError),
        (lambda s: nn.ModuleDict({"a": 3}), TypeError),
        (lambda s: nn.ModuleDict({"a.b": nn.ReLU()}), KeyError),
        (lambda s: nn.ModuleDict({"keys": nn.ReLU()}), KeyError),
        (lambda s: nn.ModuleDict()["a"], KeyError),
        (lambda s: nn.ModuleList()(1), NotImplementedError),
        (lambda s: nn.ParameterList(3), TypeError),
        (lambda s: nn.ParameterList(lt.ones(2)), TypeError),
        (lambda s: nn.ParameterList()[0], IndexError),
        (lambda s: nn.ParameterList()(), RuntimeError),
        (lambda s: nn.ParameterDict()(), RuntimeError),
        (lambda s: nn.ParameterDict({3: lt.ones(1)}), TypeError),
        (lambda s: nn.ParameterDict()["a"], KeyError),
        (lambda s: nn.ParameterDict().popitem(), KeyError),
    ],
)
def test_what_does_not_fit_is_refused(call, error):
    net = two(nn.Sequential)
    with pytest.raises(error):
        call(net)
    assert kinds(net) == ["ReLU", "Tanh"]


def test_a_sequential_passes_its_input_through():
    net = nn.Sequential(nn.ReLU(), nn.Sequential(), nn.Flatten(0))
    assert net(lt.tensor([[-1.0, 2.0]])).tolist() == [0.0, 2.0]


# ModuleDict


def test_a_module_dict_is_a_dict():
    net = nn.ModuleDict({"a": nn.ReLU()})
    net["b"] = nn.Tanh()
    net.update([("c", nn.GELU()), ("a", nn.Sigmoid())])
    net.update(nn.ModuleDict({"d": nn.ReLU()}))
    assert list(net) == list(net.keys()) == ["a", "b", "c", "d"]
    assert kinds(net.values()) == ["Sigmoid", "Tanh", "GELU", "ReLU"]
    assert [(k, m is net[k]) for k, m in net.items()] == [(k, True) for k in "abcd"]
    assert "b" in net
    assert type(net.pop("b")) is nn.Tanh
    assert "b" not in net
    del net["c"]
    assert len(net) == 2
    net.clear()
    assert len(net) == 0


# ParameterList and ParameterDict


def test_a_parameter_list_registers_tensors_as_parameters():
    items = nn.ParameterList([lt.ones(2), nn.Parameter(lt.zeros(1), requires_grad=False)])
    items.append("plain").extend([lt.ones(3)])
    items += [lt.ones(4)]
    assert [n for n, _ in items.named_parameters()] == ["0", "1", "3", "4"]
    assert [p.requires_grad for p in items.parameters()] == [True, False, True, True]
    assert len(items) == 5
    assert items[2] == "plain"
    assert items[-1].shape == (4,)
    assert [type(v) for v in items][:3] == [nn.Parameter, nn.Parameter, str]
    assert type(items[1:3]) is nn.ParameterList
    assert len(items[1:3]) == 2
    items[0] = lt.zeros(5)
    assert items[0].shape == (5,)
    assert list(items.state_dict()) == ["0", "1", "3", "4"]
    assert "0" not in dir(items)


def test_a_parameter_dict_is_a_dict():
    items = nn.ParameterDict({"a": lt.ones(1), "b": 3})
    items["c"] = nn.Parameter(lt.ones(2))
    assert [n for n, _ in items.named_parameters()] == ["a", "c"]
    assert list(items) == list(items.keys()) == ["a", "b", "c"]
    assert list(reversed(items)) == ["c", "b", "a"]
    assert [k for k, _ in items.items()] == ["a", "b", "c"]
    assert [type(v) for v in items.values()] == [nn.Parameter, int, nn.Parameter]
    assert items.get("x", 5) == 5
    assert items.get("b") == 3
    assert items.setdefault("b", 4) == 3
    assert items.setdefault("d", 4) == 4
    assert "d" in items
    assert items.pop("d") == 4
    twin = items.copy()
    assert twin["a"] is items["a"]
    assert items.popitem()[0] == "c"
    assert list(twin) == ["a", "b", "c"]
    assert list((twin | nn.ParameterDict({"e": 1})).keys()) == ["a", "b", "c", "e"]
    assert list(({"e": 1} | items).keys()) == ["e", "a", "b"]
    twin |= {"z": 1}
    assert len(twin) == 4
    assert items.fromkeys(["p", "q"], 0)["q"] == 0
    del items["a"]
    assert [n for n, _ in items.named_parameters()] == []
    items.clear()
    assert len(items) == 0


# repr


@pytest.mark.parametrize(
    ("container", "text"),
    [
        (nn.Sequential(), "Sequential()"),
        (nn.ModuleList(), "ModuleList()"),
        (
            nn.ModuleList([nn.ReLU(), nn.ReLU(), nn.Tanh(), nn.ReLU()]),
            "ModuleList(\n  (0-1): 2 x ReLU()\n  (2): Tanh()\n  (3): ReLU()\n)",
        ),
        (
            nn.ModuleList([nn.Sequential(nn.ReLU())] * 2),
            "ModuleList(\n  (0-1): 2 x Sequential(\n    (0): ReLU()\n  )\n)",
        ),
        (nn.ModuleDict({"a": nn.ReLU()}), "ModuleDict(\n  (a): ReLU()\n)"),
        (
            nn.ParameterList([lt.ones(2, 3), 1]),
            "ParameterList(\n    (0): Parameter containing: [lowtide.float32 of size 2x3]\n"
            "    (1): Object of type: int\n)",
        ),
        (
            nn.ParameterDict({"a": lt.ones(2), "b": lt.ones(())}),
            "ParameterDict(\n    (a): Parameter containing: [lowtide.FloatTensor of size 2]\n"
            "    (b): Parameter containing: [lowtide.FloatTensor of size ]\n)",
        ),
    ],
)
def test_repr_shows_the_contents(container, text):
    assert repr(container) == text


@pytest.mark.parametrize("seed", range(40))
def test_a_parameter_dict_sorts_the_keys_of_a_plain_dict_as_pytorch_does(seed):
    rng = random.Random(seed)
    keys = rng.sample([f"{a}{b}" for a in "zBa" for b in (10, 2, "")], rng.randrange(1, 9))
    plain = {key: lt.ones(k + 1) for k, key in enumerate(keys)}
    kept = (OrderedDict(plain), list(plain.items()), nn.ParameterDict(list(plain.items())))
    assert list(nn.ParameterDict(plain)) == sorted(keys)
    for given in kept:
        assert list(nn.ParameterDict(given)) == keys
        assert list(nn.ParameterDict(given).copy()) == keys
    grown = nn.ParameterDict([("m", lt.ones(1))])
    grown.update(plain)
    assert [name for name, _ in grown.named_parameters()] == ["m", *sorted(keys)]
    assert [p.numel() for p in list(grown.parameters())[1:]] == [
        plain[key].numel() for key in sorted(keys)
    ]
