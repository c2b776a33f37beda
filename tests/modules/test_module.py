"""Module: registration, the tree, conversion, copies. Meta modules hold no bytes."""

from __future__ import annotations

import copy
import pickle
from collections import OrderedDict

import pytest

import lowtide as lt
from lowtide import nn
from lowtide.framework.devices import backend


def ledger(device: str):
    return backend(lt.device(device)).ledger


class Leaf(nn.Module):
    def __init__(self, n: int = 2) -> None:
        super().__init__()
        self.weight = nn.Parameter(lt.ones(n))
        self.register_buffer("count", lt.zeros(1, dtype=lt.int64))

    def forward(self, x):
        return x * self.weight


class Tree(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = Leaf()
        self.second = Leaf(3)
        self.scale = nn.Parameter(lt.tensor(2.0))
        self.register_buffer("mask", lt.ones(2), persistent=False)

    def forward(self, x):
        return self.first(x) * self.scale


# Registration


def test_attributes_are_registered_by_type_in_order():
    tree = Tree()
    assert [n for n, _ in tree.named_parameters()] == ["scale", "first.weight", "second.weight"]
    assert [n for n, _ in tree.named_buffers()] == ["mask", "first.count", "second.count"]
    assert [n for n, _ in tree.named_children()] == ["first", "second"]
    assert [n for n, _ in tree.named_modules()] == ["", "first", "second"]


def test_reassignment_keeps_the_place_in_the_order():
    net = nn.Linear(2, 2)
    net.weight = nn.Parameter(lt.zeros(2, 2))
    assert [n for n, _ in net.named_parameters()] == ["weight", "bias"]


@pytest.mark.parametrize("name", ["scale", "first", "mask"])
def test_none_takes_the_place_of_anything(name):
    tree = Tree()
    setattr(tree, name, None)
    assert getattr(tree, name) is None
    assert name not in [n.partition(".")[0] for n, _ in tree.named_parameters()]
    assert name not in [n.partition(".")[0] for n, _ in tree.named_buffers()]
    assert not [n for n in tree.state_dict() if n.startswith(name)]


def test_a_name_moves_from_one_registry_to_another():
    tree = Tree()
    tree.note = "text"
    tree.note = Leaf()
    assert "note" not in vars(tree)
    tree.note = nn.Parameter(lt.ones(1))
    assert "note" not in tree._modules
    assert tree._parameters["note"].shape == (1,)
    del tree.note
    assert not hasattr(tree, "note")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("scale", lt.ones(1), "cannot assign 'Tensor' as parameter 'scale'"),
        ("first", 3, "cannot assign 'int' as child module 'first'"),
        ("mask", "x", "cannot assign 'str' as buffer 'mask'"),
    ],
)
def test_a_registered_name_refuses_another_type(name, value, message):
    with pytest.raises(TypeError, match=message):
        setattr(Tree(), name, value)


@pytest.mark.parametrize("value", [nn.Parameter(lt.ones(1)), nn.ReLU()])
def test_assignment_before_init_says_so(value):
    class Forgot(nn.Module):
        def __init__(self):
            self.x = value

    with pytest.raises(AttributeError, match=r"before Module.__init__\(\) call"):
        Forgot()
    with pytest.raises(AttributeError, match="cannot assign buffer"):
        nn.Module.__new__(nn.Module).register_buffer("b", None)


@pytest.mark.parametrize(
    ("register", "args", "error"),
    [
        ("register_parameter", ("a.b", None), KeyError),
        ("register_parameter", ("", None), KeyError),
        ("register_parameter", ("forward", None), KeyError),
        ("register_parameter", (3, None), TypeError),
        ("register_parameter", ("w", lt.ones(1)), TypeError),
        ("register_buffer", ("a.b", None), KeyError),
        ("register_buffer", ("scale", None), KeyError),
        ("register_buffer", ("b", 3), TypeError),
        ("add_module", ("a.b", None), KeyError),
        ("add_module", ("scale", None), KeyError),
        ("add_module", ("m", 3), TypeError),
        ("register_module", (3, None), TypeError),
    ],
)
def test_registration_refuses_bad_names_and_types(register, args, error):
    tree = Tree()
    before = (dict(tree._parameters), dict(tree._buffers), dict(tree._modules))
    with pytest.raises(error):
        getattr(tree, register)(*args)
    assert (tree._parameters, tree._buffers, tree._modules) == before


def test_a_computed_tensor_is_no_parameter():
    p = nn.Parameter(lt.ones(2))
    p._node = (p * 2).grad_fn
    with pytest.raises(ValueError, match="non-leaf"):
        nn.Module().register_parameter("w", p)


def test_a_parameter_wants_a_tensor():
    with pytest.raises(TypeError, match="must be Tensor, not list"):
        nn.Parameter([1.0])
    with pytest.raises(TypeError, match="must be Tensor, not list"):
        nn.Buffer([1.0])


def test_a_buffer_is_registered_on_assignment():
    net = nn.Module()
    net.kept = nn.Buffer(lt.ones(2))
    net.lost = nn.Buffer(lt.ones(2), persistent=False)
    assert [n for n, _ in net.named_buffers()] == ["kept", "lost"]
    assert list(net.state_dict()) == ["kept"]
    net.lost = lt.zeros(2)
    assert list(net.state_dict()) == ["kept"]


def test_tied_parameters_appear_once_unless_asked():
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    net[1].weight = net[0].weight
    assert [n for n, _ in net.named_parameters()] == ["0.weight", "0.bias", "1.bias"]
    every = [n for n, _ in net.named_parameters(remove_duplicate=False)]
    assert every == ["0.weight", "0.bias", "1.weight", "1.bias"]
    assert list(net.state_dict()) == every


def test_a_shared_module_appears_once_unless_asked():
    shared = Leaf()
    net = nn.Sequential(shared, nn.ReLU(), shared)
    assert [n for n, _ in net.named_modules()] == ["", "0", "1"]
    assert [n for n, _ in net.named_modules(remove_duplicate=False)] == ["", "0", "1", "2"]
    assert len(list(net.modules())) == 3
    assert len(list(net.children())) == 2
    assert [n for n, _ in net.named_modules(prefix="net")] == ["net", "net.0", "net.1"]


def test_without_recurse_a_module_names_its_own_only():
    tree = Tree()
    assert [n for n, _ in tree.named_parameters(recurse=False)] == ["scale"]
    assert [n for n, _ in tree.named_buffers("p", recurse=False)] == ["p.mask"]
    assert len(list(tree.parameters(recurse=False))) == 1
    assert len(list(tree.buffers(recurse=False))) == 1


# Paths


def test_paths_lead_to_modules_parameters_and_buffers():
    tree = Tree()
    assert tree.get_submodule("") is tree
    assert tree.get_submodule("first") is tree.first
    assert tree.get_parameter("first.weight") is tree.first.weight
    assert tree.get_buffer("second.count") is tree.second.count
    tree.set_submodule("first", nn.ReLU())
    assert isinstance(tree.first, nn.ReLU)
    tree.set_submodule("second.inner", nn.Tanh())
    assert isinstance(tree.second.inner, nn.Tanh)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda t: t.get_submodule("third"), AttributeError),
        (lambda t: t.get_submodule("scale"), AttributeError),
        (lambda t: t.get_parameter("first.mask"), AttributeError),
        (lambda t: t.get_parameter("mask"), AttributeError),
        (lambda t: t.get_buffer("scale"), AttributeError),
        (lambda t: t.get_buffer("nothing"), AttributeError),
        (lambda t: t.set_submodule("", nn.ReLU()), ValueError),
        (lambda t: t.set_submodule("first", 3), ValueError),
        (lambda t: t.set_submodule("scale", nn.ReLU()), AttributeError),
        (lambda t: t.set_submodule("new", nn.ReLU(), strict=True), AttributeError),
        (lambda t: t.missing, AttributeError),
        (lambda t: t.train("yes"), ValueError),
        (lambda t: nn.Module()(1), NotImplementedError),
    ],
)
def test_a_wrong_path_or_mode_is_refused(call, error):
    with pytest.raises(error):
        call(Tree())


def test_dir_lists_what_is_registered_and_no_numbers():
    names = dir(nn.Sequential(nn.ReLU()))
    assert "training" in names
    assert "0" not in names
    assert {"first", "scale", "mask"} <= set(dir(Tree()))


# Modes and gradients


def test_modes_go_through_overrides():
    class Frozen(Leaf):
        def train(self, mode=True):
            return super().train(False)

    net = nn.Sequential(Frozen(), Leaf()).train()
    assert [m.training for m in net] == [False, True]
    assert not any(m.training for m in net.eval().modules())


def test_apply_goes_bottom_up():
    order = []
    tree = Tree()
    assert tree.apply(order.append) is tree
    assert order == [tree.first, tree.second, tree]


def test_zero_grad_drops_or_fills():
    net = nn.Linear(2, 1)
    net(lt.ones(1, 2)).sum().backward()
    grad = net.weight.grad
    net.zero_grad(set_to_none=False)
    assert net.weight.grad is grad
    assert grad.tolist() == [[0.0, 0.0]]
    net.zero_grad()
    assert net.weight.grad is None


def test_requires_grad_is_set_on_all():
    net = nn.Linear(2, 1).requires_grad_(False)
    assert not any(p.requires_grad for p in net.parameters())
    assert not net(lt.ones(1, 2)).requires_grad


# Conversion


@pytest.mark.parametrize(
    ("convert", "dtype"),
    [
        (lambda m: m.half(), lt.float16),
        (lambda m: m.bfloat16(), lt.bfloat16),
        (lambda m: m.double(), lt.float64),
        (lambda m: m.double().float(), lt.float32),
        (lambda m: m.to(lt.float64), lt.float64),
        (lambda m: m.to(dtype=lt.float64), lt.float64),
        (lambda m: m.to("cpu", lt.float64), lt.float64),
        (lambda m: m.to(lt.float64, non_blocking=True), lt.float64),
        (lambda m: m.to("cpu", lt.float64, True), lt.float64),
        (lambda m: m.to(device=None, dtype=lt.float64, memory_format=None), lt.float64),
        (lambda m: m.to(lt.ones(1, dtype=lt.float64)), lt.float64),
        (lambda m: m.to(tensor=lt.ones(1, dtype=lt.float64)), lt.float64),
        (lambda m: m.cpu(), lt.float32),
        (lambda m: m.to("cpu"), lt.float32),
    ],
)
def test_a_dtype_applies_to_floating_tensors_only(convert, dtype):
    tree = Tree()
    tree(lt.ones(2)).sum().backward()
    parameters, tied = list(tree.parameters()), tree.first.weight
    assert convert(tree) is tree
    assert all(a is b for a, b in zip(tree.parameters(), parameters, strict=True))
    assert {p.dtype for p in tree.parameters()} == {dtype}
    assert tree.mask.dtype is dtype
    assert tree.first.count.dtype is lt.int64
    assert tied.grad.dtype is dtype
    assert tied.grad.tolist() == [2.0, 2.0]


def test_type_converts_everything():
    tree = Tree().type(lt.float64)
    assert {t.dtype for t in (*tree.parameters(), *tree.buffers())} == {lt.float64}


def test_to_refuses_an_integer_dtype():
    with pytest.raises(TypeError, match="only accepts floating point or complex"):
        Tree().to(lt.int64)


def test_conversion_goes_through_overrides_of_apply():
    class Watched(Leaf):
        calls = 0

        def _apply(self, fn, recurse=True):
            self.calls += 1
            return super()._apply(fn, recurse)

    net = nn.Sequential(Watched())
    net.double()
    assert net[0].calls == 1


def test_conversion_counts_each_byte_and_keeps_no_old_one(leak_check):
    live = ledger("cpu").live
    net = nn.Linear(8, 4)
    assert ledger("cpu").live - live == 4 * (32 + 4)
    net.double()
    assert ledger("cpu").live - live == 8 * (32 + 4)
    assert ledger("cpu").by_role()["parameter"] >= 8 * 36
    del net


def test_an_optimizer_follows_a_conversion():
    net = nn.Linear(2, 1)
    sgd = lt.optim.SGD(net.parameters(), lr=1.0)
    net.double()
    before = net.weight.detach().clone()
    net(lt.ones(1, 2, dtype=lt.float64)).sum().backward()
    sgd.step()
    assert (before - net.weight).tolist() == [[1.0, 1.0]]


# Meta


def test_a_module_on_meta_holds_no_bytes_and_is_materialized(leak_check):
    cpu, meta = ledger("cpu").live, ledger("meta").live
    with lt.device("meta"):
        net = nn.Sequential(nn.Linear(1000, 1000), nn.ReLU(), Leaf())
    assert ledger("cpu").live == cpu
    parameters = list(net.parameters())
    assert {p.device.type for p in parameters} == {"meta"}
    with pytest.raises(NotImplementedError, match="to_empty"):
        net.to("cpu")
    assert net.to_empty(device="cpu") is net
    assert list(map(id, net.parameters())) == list(map(id, parameters))
    assert ledger("cpu").live - cpu == 4 * (1000 * 1000 + 1000 + 2) + 8
    assert ledger("meta").live == meta
    del net, parameters


def test_values_assigned_to_a_module_on_meta_are_taken_over(leak_check):
    state = nn.Linear(30, 20).state_dict()
    cpu = ledger("cpu").live
    with lt.device("meta"):
        net = nn.Linear(30, 20)
    assert str(net.load_state_dict(state, assign=True)) == "<All keys matched successfully>"
    assert ledger("cpu").live == cpu
    assert isinstance(net.weight, nn.Parameter)
    assert net.weight.data_ptr() == state["weight"].data_ptr()
    assert net(lt.ones(1, 30)).shape == (1, 20)
    del net, state


def test_copying_values_into_meta_warns():
    with lt.device("meta"):
        net = nn.Linear(2, 2)
    with pytest.warns(UserWarning, match="assign=True"):
        net.load_state_dict(nn.Linear(2, 2).state_dict())
    assert net.weight.is_meta


def test_values_on_meta_cannot_be_copied():
    with lt.device("meta"):
        state = nn.Linear(2, 2).state_dict()
    net = nn.Linear(2, 2)
    before = net.weight.tolist()
    with pytest.raises(RuntimeError, match="on meta and has no values"):
        net.load_state_dict(state)
    assert net.weight.tolist() == before


def test_skip_init_takes_memory_but_draws_nothing():
    offset = lt.default_generator.get_offset()
    net = nn.utils.skip_init(nn.Linear, 5, 3, bias=False, dtype=lt.float64)
    assert lt.default_generator.get_offset() == offset
    assert (net.weight.device.type, net.weight.dtype, net.bias) == ("cpu", lt.float64, None)
    with pytest.raises(RuntimeError, match="Expected a Module"):
        nn.utils.skip_init(list)
    with pytest.raises(RuntimeError, match="'device' arg"):
        nn.utils.skip_init(nn.ReLU)


# Copies


def test_a_deep_copy_shares_nothing_and_ties_what_was_tied():
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    net[1].weight = net[0].weight
    net(lt.ones(1, 2)).sum().backward()
    net[0].weight.tag = ["kept"]
    twin = copy.deepcopy(net)
    assert twin[0].weight is twin[1].weight
    assert isinstance(twin[0].weight, nn.Parameter)
    assert twin[0].weight.tag == ["kept"]
    assert twin[0].weight.grad is None
    with lt.no_grad():
        twin[0].weight.fill_(7)
    assert 7.0 not in net[0].weight.flatten().tolist()


def test_a_pickle_keeps_values_ties_and_modes():
    net = nn.Sequential(OrderedDict(a=nn.Linear(2, 2), b=nn.Linear(2, 2))).eval()
    net.b.weight = net.a.weight
    net.a.bias.requires_grad_(False)
    twin = pickle.loads(pickle.dumps(net))
    assert not twin.b.training
    assert twin.b.weight is twin.a.weight
    assert not twin.a.bias.requires_grad
    assert {n: t.tolist() for n, t in twin.state_dict().items()} == {
        n: t.tolist() for n, t in net.state_dict().items()
    }


def test_compile_and_share_memory_change_nothing():
    net = nn.Linear(2, 1)
    assert net.compile() is None
    assert net.share_memory() is net
    assert net(lt.ones(1, 2)).shape == (1, 1)


# repr


class Two(nn.Module):
    def __init__(self, child=None):
        super().__init__()
        if child:
            self.child = child

    def extra_repr(self):
        return "a=1\nb=2"


@pytest.mark.parametrize(
    ("module", "text"),
    [
        (nn.ReLU(), "ReLU()"),
        (nn.Linear(2, 3), "Linear(in_features=2, out_features=3, bias=True)"),
        (Two(), "Two(\n  a=1\n  b=2\n)"),
        (Two(nn.ReLU()), "Two(\n  a=1\n  b=2\n  (child): ReLU()\n)"),
        (
            nn.Sequential(Two(nn.ReLU())),
            "Sequential(\n  (0): Two(\n    a=1\n    b=2\n    (child): ReLU()\n  )\n)",
        ),
    ],
)
def test_repr_nests(module, text):
    assert repr(module) == text


def test_a_submodule_may_take_a_name_of_the_class():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.parameters = []
            self.parameters = nn.ParameterList([nn.Parameter(lt.ones(2))])

    net = Net()
    assert [name for name, _ in net.named_parameters()] == ["parameters.0"]
    assert len(list(net.parameters())) == 1  # the method
    with pytest.raises(KeyError, match="already exists"):
        net.add_module("children", nn.Linear(1, 1))
