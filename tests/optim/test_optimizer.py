"""What all optimizers share: groups, closures, hooks, saved state, errors."""

from __future__ import annotations

import copy
import gc
import weakref

import pytest

import lowtide as lt
from lowtide.optim import SGD, Adam, AdamW
from lowtide.optim import optimizer as base


def leaf(*shape):
    """A parameter with a gradient of ones."""
    p = lt.ones(*shape, requires_grad=True)
    p.grad = lt.ones(*shape)
    return p


def test_groups_have_options_of_their_own():
    a, b = leaf(2), leaf(2)
    optimizer = SGD([{"params": a, "lr": 0.5}, {"params": [b]}], lr=0.1)
    optimizer.step()
    assert a.tolist() == [0.5, 0.5]
    assert b.tolist() == pytest.approx([0.9, 0.9])
    assert [g["lr"] for g in optimizer.param_groups] == [0.5, 0.1]


def test_names_are_kept_in_groups_and_in_the_state_dict():
    model = lt.nn.Linear(2, 2)
    optimizer = SGD(model.named_parameters(), lr=0.1)
    assert optimizer.param_groups[0]["param_names"] == ["weight", "bias"]
    assert optimizer.state_dict()["param_groups"][0]["param_names"] == ["weight", "bias"]
    with pytest.raises(ValueError, match="with/without names"):
        optimizer.add_param_group({"params": [leaf(1)]})
    with pytest.raises(ValueError, match="with/without names"):
        SGD([("a", leaf(1)), leaf(1)])


def test_a_group_that_is_refused_changes_nothing():
    a = leaf(3)
    optimizer = SGD([a], lr=0.1)
    for bad, error in (
        ({"params": [a]}, ValueError),
        ({"params": [3]}, TypeError),
        ({"params": {leaf(1)}}, TypeError),
        ({"params": [a * 2]}, ValueError),
        ([a], TypeError),
    ):
        with pytest.raises(error):
            optimizer.add_param_group(bad)
    assert (len(optimizer.param_groups), optimizer.elements) == (1, 3)


def test_no_parameters_and_a_single_tensor_are_refused():
    with pytest.raises(ValueError, match="empty parameter list"):
        SGD([])
    with pytest.raises(TypeError, match="iterable of Tensors"):
        SGD(leaf(2))


def test_layers_in_a_plain_list_are_named_as_the_usual_cause_of_no_parameters():
    class Net(lt.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = [lt.nn.Linear(2, 2)]

    with pytest.raises(ValueError, match=r"layers in a plain list .* \(use nn.ModuleList"):
        SGD(Net().parameters())


def test_a_parameter_listed_twice_warns():
    p = leaf(1)
    with pytest.warns(UserWarning, match="duplicate parameters"):
        SGD([p, p])


def test_an_option_without_a_default_is_asked_for():
    class Needy(lt.optim.Optimizer):
        pass

    with pytest.raises(ValueError, match="required optimization parameter rate"):
        Needy([leaf(1)], {"rate": base.required})


def test_zero_grad_drops_gradients_or_fills_them():
    p = leaf(2)
    optimizer = SGD([p])
    held = p.grad
    optimizer.zero_grad(set_to_none=False)
    assert p.grad.tolist() == held.tolist() == [0.0, 0.0]
    optimizer.zero_grad()
    assert p.grad is None


def test_a_parameter_without_a_gradient_stays():
    p, q = leaf(2), lt.ones(2, requires_grad=True)
    Adam([p, q], lr=0.1).step()
    assert q.tolist() == [1.0, 1.0]


def test_a_closure_runs_with_gradients_on_and_its_loss_is_returned():
    p = leaf(2)
    optimizer = SGD([p], lr=0.5)

    def closure():
        assert lt.is_grad_enabled()
        optimizer.zero_grad()
        loss = (p * p).sum()
        loss.backward()
        return loss

    with lt.no_grad():
        assert optimizer.step(closure).item() == 2.0
    assert p.tolist() == [0.0, 0.0]


def test_a_rate_that_is_a_tensor_is_read_at_each_step():
    p, rate = leaf(1), lt.tensor(0.25)
    optimizer = Adam([p], lr=rate)
    optimizer.step()
    first = 1 - p.item()
    assert first == pytest.approx(0.25)
    rate.fill_(0.5)
    optimizer.step()
    assert 1 - first - p.item() == pytest.approx(0.5)
    with pytest.raises(ValueError, match="1-element"):
        SGD([p], lr=lt.ones(2))


def test_repr_lists_the_options_of_each_group():
    text = repr(SGD([leaf(1)], lr=0.1))
    assert text == (
        "SGD (\nParameter Group 0\n    dampening: 0\n    differentiable: False\n    foreach: None\n"
        "    fused: None\n    lr: 0.1\n    maximize: False\n    momentum: 0\n    nesterov: False\n"
        "    weight_decay: 0\n)"
    )


# Hooks


def test_step_hooks_run_around_the_step_and_may_change_its_arguments():
    p, seen = leaf(1), []
    optimizer = SGD([p], lr=0.1)

    def before(opt, args, kwargs):
        seen.append(("before", p.item()))
        assert opt is optimizer is args[0]
        return (optimizer, lambda: "loss"), {}

    first = optimizer.register_step_pre_hook(before)
    optimizer.register_step_post_hook(lambda opt, args, kwargs: seen.append(("after", p.item())))
    assert optimizer.step() == "loss"
    assert seen == [("before", 1.0), ("after", pytest.approx(0.9))]
    first.remove()
    assert optimizer.step() is None
    assert len(seen) == 3


def test_a_step_hook_that_returns_something_else_is_refused():
    optimizer = SGD([leaf(1)])
    optimizer.register_step_pre_hook(lambda *_: 3)
    with pytest.raises(RuntimeError, match="new_args, new_kwargs"):
        optimizer.step()
    assert optimizer.step.__name__ == "step"


def test_hooks_hold_for_a_step_written_by_a_user_and_run_once():
    class Mine(SGD):
        def step(self, closure=None):
            return super().step(closure)

    calls = []
    optimizer = Mine([leaf(1)], lr=0.1)
    optimizer.register_step_post_hook(lambda *_: calls.append(1))
    with base.register_optimizer_step_pre_hook(lambda opt, *_: calls.append(opt)):
        optimizer.step()
    optimizer.step()
    assert calls == [optimizer, 1, 1]


def test_an_optimizer_of_pytorch_style_works():
    class Plain(lt.optim.Optimizer):
        def __init__(self, params, lr=0.1):
            super().__init__(params, {"lr": lr})

        @lt.no_grad()
        def step(self, closure=None):
            for group in self.param_groups:
                for p in group["params"]:
                    state = self.state[p]
                    state["step"] = state.get("step", 0) + 1
                    p.add_(p.grad, alpha=-group["lr"] * state["step"])

    p = leaf(1)
    optimizer = Plain([p])
    optimizer.step()
    optimizer.step()
    assert p.item() == pytest.approx(0.7)
    assert optimizer.state_dict()["state"] == {0: {"step": 2}}


def test_state_dict_hooks_see_and_may_replace_the_dict():
    optimizer, seen = SGD([leaf(1)]), []
    optimizer.register_state_dict_pre_hook(lambda opt: seen.append("pre"))
    optimizer.register_state_dict_post_hook(lambda opt, d: {**d, "more": 1})
    optimizer.register_load_state_dict_pre_hook(
        lambda opt, d: {k: v for k, v in d.items() if k != "more"}
    )
    optimizer.register_load_state_dict_post_hook(lambda opt: seen.append("loaded"))
    optimizer.register_load_state_dict_post_hook(lambda opt: seen.append("first"), prepend=True)
    saved = optimizer.state_dict()
    assert saved["more"] == 1
    optimizer.load_state_dict(saved)
    assert seen == ["pre", "first", "loaded"]


# Saved state


def test_state_is_numbered_in_the_order_of_groups():
    a, b, c = leaf(1), leaf(2), leaf(3)
    optimizer = Adam([{"params": [a, b]}, {"params": [c]}])
    optimizer.step()
    saved = optimizer.state_dict()
    assert [g["params"] for g in saved["param_groups"]] == [[0, 1], [2]]
    assert {k: v["exp_avg"].shape for k, v in saved["state"].items()} == {0: (1,), 1: (2,), 2: (3,)}
    assert saved["state"][0]["step"] == 1


def test_loaded_state_keeps_its_dtype_counts_as_optimizer_state_and_is_a_copy():
    p = leaf(4)
    source = Adam([p])
    source.step()
    saved = source.state_dict()
    saved["state"][0]["exp_avg"] = saved["state"][0]["exp_avg"].to(lt.bfloat16)
    target = Adam([p])
    before = lt.memory_stats("cpu")["by_role"]["optimizer"]
    target.load_state_dict(saved)
    state = target.state[p]
    assert state["exp_avg"].dtype is lt.bfloat16
    assert lt.memory_stats("cpu")["by_role"]["optimizer"] - before == 4 * (2 + 4)
    target.step()
    assert state["exp_avg"].dtype is lt.bfloat16
    assert saved["state"][0]["exp_avg"].tolist() != state["exp_avg"].tolist()


def test_a_state_dict_that_does_not_fit_is_refused_and_changes_nothing():
    p = leaf(1)
    optimizer = Adam([p], lr=0.3)
    optimizer.step()
    two = Adam([leaf(1), leaf(1)]).state_dict()
    groups = Adam([{"params": leaf(1)}, {"params": leaf(1)}]).state_dict()
    with pytest.raises(ValueError, match="doesn't match the size"):
        optimizer.load_state_dict(two)
    with pytest.raises(ValueError, match="different number of parameter groups"):
        optimizer.load_state_dict(groups)
    assert optimizer.param_groups[0]["lr"] == 0.3
    assert optimizer.state[p]["step"] == 1


def test_a_parameter_on_another_device_gets_its_state_there():
    source = AdamW([leaf(3)])
    source.step()
    p = lt.ones(3, requires_grad=True, device="meta")
    target = AdamW([p])
    target.load_state_dict(source.state_dict())
    assert target.state[p]["exp_avg"].device.type == "meta"


def test_an_optimizer_can_be_copied_and_freed():
    model = lt.nn.Linear(2, 2)
    both = {"model": model, "optimizer": SGD(model.parameters(), lr=0.1, momentum=0.9)}
    model(lt.ones(1, 2)).sum().backward()
    both["optimizer"].step()
    twin = copy.deepcopy(both)
    p = twin["model"].weight
    assert twin["optimizer"].param_groups[0]["params"][0] is p
    assert twin["optimizer"].state[p]["momentum_buffer"].tolist() == [[1.0, 1.0], [1.0, 1.0]]
    gone = weakref.ref(both["optimizer"])
    gc.disable()
    try:
        del both
        assert gone() is None, "an optimizer is part of no cycle"
    finally:
        gc.enable()


def test_lbfgs_takes_one_group_and_needs_a_closure():
    with pytest.raises(ValueError, match="per-parameter options"):
        lt.optim.LBFGS([{"params": [leaf(1)]}, {"params": [leaf(1)]}])
    with pytest.raises(TypeError, match="closure"):
        lt.optim.LBFGS([leaf(1)]).step()
    wrong = lt.optim.LBFGS([leaf(1)], line_search_fn="armijo")
    with pytest.raises(RuntimeError, match="strong_wolfe"):
        wrong.step(lambda: leaf(1).sum())


def test_muon_takes_matrices_only():
    with pytest.raises(ValueError, match="2D parameters"):
        lt.optim.Muon([leaf(2, 2), leaf(3)])
    optimizer = lt.optim.Muon([leaf(2, 2)])
    with pytest.raises(ValueError, match="2D parameters"):
        optimizer.add_param_group({"params": [leaf(2, 2), leaf(3)]})
    assert (len(optimizer.param_groups), optimizer.elements) == (1, 4)


def test_complex_parameters_are_refused_where_they_have_no_meaning():
    p = lt.ones(2, 2, dtype=lt.complex64).requires_grad_()
    p.grad = lt.ones(2, 2, dtype=lt.complex64)
    for name in ("Adafactor", "Muon"):
        with pytest.raises(RuntimeError, match="complex"):
            getattr(lt.optim, name)([p]).step()


def test_loading_drops_what_a_scheduler_noted_since():
    optimizer = SGD([leaf(2)], lr=0.1)
    saved = copy.deepcopy(optimizer.state_dict())
    lt.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1.0, total_steps=5)
    optimizer.load_state_dict(saved)
    assert optimizer.param_groups[0].keys() == saved["param_groups"][0].keys()
