"""The state dict: what is in it, how it is loaded, and that a bad one changes nothing."""

from __future__ import annotations

from collections import OrderedDict

import pytest

import lowtide as lt
from lowtide import nn


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1, bias=False))


def values(module: nn.Module) -> dict:
    return {n: t.tolist() for n, t in module.state_dict().items()}


class Extra(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(lt.ones(1))
        self.steps = 0

    def get_extra_state(self):
        return {"steps": self.steps}

    def set_extra_state(self, state):
        self.steps = state["steps"]


def test_the_state_dict_shares_memory_and_has_no_graph():
    model = net()
    state = model.state_dict()
    assert type(state) is OrderedDict
    assert list(state) == ["0.weight", "0.bias", "2.weight"]
    assert state["0.weight"].data_ptr() == model[0].weight.data_ptr()
    assert not state["0.weight"].requires_grad
    assert type(state["0.weight"]) is lt.Tensor
    assert model.state_dict(keep_vars=True)["0.weight"] is model[0].weight


def test_prefix_and_destination_as_keywords_or_in_pytorchs_old_order():
    destination = {}
    assert net().state_dict(destination=destination, prefix="m.") is destination
    assert list(destination) == ["m.0.weight", "m.0.bias", "m.2.weight"]
    again = {}
    assert net().state_dict(again, "m.", True) is again
    assert isinstance(again["m.0.bias"], nn.Parameter)


def test_what_is_loaded_is_copied():
    a, b = net(), net()
    weight = a[0].weight
    keys = a.load_state_dict(b.state_dict())
    assert values(a) == values(b)
    assert a[0].weight is weight
    assert a[0].weight.data_ptr() != b[0].weight.data_ptr()
    assert keys.missing_keys == []
    assert keys.unexpected_keys == []
    assert repr(keys) == "<All keys matched successfully>"


def test_loading_converts_dtypes_unless_it_assigns():
    state = {n: t.double() for n, t in net().state_dict().items()}
    model = net()
    model.load_state_dict(state)
    assert model[0].weight.dtype is lt.float32
    model[0].weight.requires_grad_(False)
    model.load_state_dict(state, assign=True)
    assert model[0].weight.dtype is lt.float64
    assert [p.requires_grad for p in model.parameters()] == [False, True, True]


def test_assigned_tied_tensors_stay_tied():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].weight = model[0].weight
    model.load_state_dict({n: t.clone() for n, t in model.state_dict().items()}, assign=True)
    assert model[1].weight is not model[0].weight  # two values were given
    model[1].weight = model[0].weight
    model.load_state_dict(model.state_dict(), assign=True)
    assert model[1].weight is model[0].weight


def test_a_strict_load_names_every_problem_at_once_and_changes_nothing():
    model = net()
    before = values(model)
    state = model.state_dict()
    bad = {
        "0.weight": lt.zeros(2, 2),
        "0.bias": lt.zeros(3),
        "z": lt.zeros(1),
        "2.q.r": lt.zeros(1),
    }
    with pytest.raises(RuntimeError) as error:
        model.load_state_dict(bad)
    assert str(error.value) == (
        "Error(s) in loading state_dict for Sequential:\n"
        '\tMissing key(s) in state_dict: "2.weight".\n'
        '\tUnexpected key(s) in state_dict: "2.q.r", "z".\n'
        "\tsize mismatch for 0.weight: copying a param with shape (2, 2) from checkpoint, the "
        "shape in current model is (3, 2)."
    )
    assert values(model) == before
    with pytest.raises(RuntimeError, match="expected a Tensor from checkpoint"):
        model.load_state_dict({**state, "0.weight": 3})
    with pytest.raises(TypeError, match="dict-like"):
        model.load_state_dict([])
    assert values(model) == before


def test_a_lenient_load_reports_keys_but_not_sizes():
    model = net()
    keys = model.load_state_dict({"0.bias": lt.zeros(3), "z": lt.zeros(1)}, strict=False)
    assert keys.missing_keys == ["0.weight", "2.weight"]
    assert keys.unexpected_keys == ["z"]
    assert keys == (["0.weight", "2.weight"], ["z"])
    assert model[0].bias.tolist() == [0.0, 0.0, 0.0]
    with pytest.raises(RuntimeError, match="size mismatch for 0.bias"):
        model.load_state_dict({"0.bias": lt.zeros(4)}, strict=False)


def test_one_element_fits_a_scalar():
    model = nn.Module()
    model.scale = nn.Parameter(lt.tensor(1.0))
    model.load_state_dict({"scale": lt.tensor([3.0])})
    assert model.scale.item() == 3.0


def test_the_given_dict_stays_as_it_was():
    class Renames(nn.Linear):
        def _load_from_state_dict(self, state_dict, prefix, *args):
            if prefix + "kernel" in state_dict:
                state_dict[prefix + "weight"] = state_dict.pop(prefix + "kernel")
            super()._load_from_state_dict(state_dict, prefix, *args)

    state = {"0.kernel": lt.ones(1, 2), "0.bias": lt.ones(1)}
    model = nn.Sequential(Renames(2, 1))
    model.load_state_dict(state)
    assert list(state) == ["0.kernel", "0.bias"]
    assert model[0].weight.tolist() == [[1.0, 1.0]]


def test_an_override_called_by_hand_writes_at_once():
    model = nn.Linear(1, 1)
    state = {"p.weight": lt.tensor([[5.0]]), "p.bias": lt.tensor([6.0]), "p.x": lt.ones(1)}
    missing, unexpected, errors = [], [], []
    model._load_from_state_dict(state, "p.", {}, True, missing, unexpected, errors)
    assert (missing, unexpected, errors) == ([], ["p.x"], [])
    assert (model.weight.item(), model.bias.item()) == (5.0, 6.0)


def test_what_a_module_saves_can_be_overridden():
    class Cast(nn.Linear):
        def _save_to_state_dict(self, destination, prefix, keep_vars):
            super()._save_to_state_dict(destination, prefix, keep_vars)
            destination[prefix + "version"] = lt.tensor(2)

    assert list(nn.Sequential(Cast(1, 1)).state_dict()) == ["0.weight", "0.bias", "0.version"]


def test_extra_state_is_saved_and_loaded():
    a, b = nn.Sequential(Extra()), nn.Sequential(Extra())
    a[0].steps = 7
    state = a.state_dict()
    assert state["0._extra_state"] == {"steps": 7}
    b.load_state_dict(state)
    assert b[0].steps == 7
    del state["0._extra_state"]
    with pytest.raises(RuntimeError, match=r'Missing key\(s\) in state_dict: "0._extra_state"'):
        b.load_state_dict(state)
    with pytest.raises(RuntimeError, match=r'Unexpected key\(s\) in state_dict: "_extra_state"'):
        nn.ReLU().load_state_dict({"_extra_state": 3})
    with pytest.raises(RuntimeError, match="Define get_extra_state and set_extra_state"):
        nn.ReLU().set_extra_state(1)


def test_a_failed_load_sets_no_extra_state():
    model = nn.Sequential(Extra(), nn.Linear(1, 1))
    with pytest.raises(RuntimeError, match="Missing"):
        model.load_state_dict({"0.w": lt.zeros(1), "0._extra_state": {"steps": 3}})
    assert (model[0].steps, model[0].w.item()) == (0, 1.0)


# Hooks


def test_hooks_run_around_saving():
    model, seen = net(), []
    model.register_state_dict_pre_hook(lambda m, prefix, keep: seen.append((prefix, keep)))
    model.register_state_dict_post_hook(
        lambda m, state, prefix, meta: state.update({prefix + "more": 1})
    )
    handle = model[0].register_state_dict_post_hook(lambda m, s, prefix, meta: seen.append(prefix))
    assert list(model.state_dict(prefix="a."))[-1] == "a.more"
    assert seen == [("a.", False), "a.0."]
    handle.remove()
    model.state_dict()
    assert seen[2:] == [("", False)]


def test_a_public_post_hook_may_not_replace_the_dict():
    model = net()
    handle = model.register_state_dict_post_hook(lambda m, state, prefix, meta: {})
    with pytest.raises(RuntimeError, match="must return None"):
        model.state_dict()
    handle.remove()
    model._register_state_dict_hook(lambda m, state, prefix, meta: {"only": 1})
    assert model.state_dict() == {"only": 1}


def test_hooks_before_loading_may_rename_keys():
    def rename(module, state, prefix, meta, strict, missing, unexpected, errors):
        assert (module is model[0], strict, errors) == (True, True, [])
        state[prefix + "weight"] = state.pop(prefix + "old")

    model = nn.Sequential(nn.Linear(1, 1, bias=False))
    model[0].register_load_state_dict_pre_hook(rename)
    model.load_state_dict({"0.old": lt.tensor([[3.0]])})
    assert model[0].weight.item() == 3.0
    calls = []
    model[0]._register_load_state_dict_pre_hook(lambda *args: calls.append(len(args)))
    model.load_state_dict({"0.old": lt.tensor([[4.0]])})
    assert calls == [7]


def test_hooks_after_loading_see_the_values_and_may_forgive():
    def forgive(module, keys):
        assert module[0].bias.tolist() == [9.0, 9.0, 9.0]
        keys.missing_keys.clear()

    model = net()
    model.register_load_state_dict_post_hook(forgive)
    state = {**model.state_dict(), "0.bias": lt.full((3,), 9.0)}
    del state["2.weight"]
    assert model.load_state_dict(state).missing_keys == []
    model[0].register_load_state_dict_post_hook(lambda m, keys: 3)
    with pytest.raises(RuntimeError, match="not expected to return new values"):
        model.load_state_dict(state)


def test_loading_leaves_nothing_behind(leak_check):
    model = net()
    for assign in (False, True):
        model.load_state_dict(net().state_dict(), assign=assign)
    del model
