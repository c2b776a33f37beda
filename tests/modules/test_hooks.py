"""Hooks of modules: their order, what they may change, what they see, and that nothing leaks."""

from __future__ import annotations

import copy
import pickle

import pytest

import lowtide as lt
from lowtide import nn
from lowtide.modules import hooks as module_hooks
from lowtide.modules.module import Module


class Affine(nn.Module):
    def __init__(self, factor: float = 2.0) -> None:
        super().__init__()
        self.factor = nn.Parameter(lt.tensor(factor))

    def forward(self, x, shift=0.0):
        return x * self.factor + shift


def ones(*shape: int) -> lt.Tensor:
    return lt.ones(shape, requires_grad=True)


# Forward


def test_forward_hooks_run_in_order_and_replace():
    seen = []
    net = Affine()
    net.register_forward_pre_hook(lambda m, args: (args[0] + 1,))
    net.register_forward_pre_hook(lambda m, args: seen.append(args[0].item()) or args[0] * 10)
    net.register_forward_pre_hook(lambda m, args: seen.append("first"), prepend=True)
    net.register_forward_hook(lambda m, args, out: out + 0.5)
    net.register_forward_hook(lambda m, args, out: seen.append((args[0].item(), out.item())))
    assert net(lt.tensor(3.0)).item() == 80.5
    assert seen == ["first", 4.0, (40.0, 80.5)]


def test_hooks_with_kwargs_see_and_replace_them():
    seen = []
    net = Affine()
    net.register_forward_pre_hook(
        lambda m, args, kwargs: (args, {"shift": kwargs["shift"] + 1}), with_kwargs=True
    )
    net.register_forward_hook(
        lambda m, args, kwargs, out: seen.append((kwargs, out.item())), with_kwargs=True
    )
    net.register_forward_hook(lambda m, args, out: seen.append(len(args)), prepend=True)
    assert net(lt.tensor(1.0), shift=5.0).item() == 8.0
    assert seen == [1, ({"shift": 6.0}, 8.0)]


def test_a_pre_hook_with_kwargs_returns_both_or_none():
    net = Affine()
    net.register_forward_pre_hook(lambda m, args, kwargs: args, with_kwargs=True)
    with pytest.raises(RuntimeError, match=r"tuple of \(new_args, new_kwargs\)"):
        net(lt.tensor(1.0))


def test_a_hook_that_is_always_called_runs_after_an_error():
    class Fails(nn.Module):
        def forward(self, x):
            raise ValueError("forward failed")

    seen = []
    net = Fails()
    net.register_forward_hook(lambda m, args, out: seen.append("usual"))
    net.register_forward_hook(lambda m, args, out: seen.append(out), always_call=True)
    with pytest.raises(ValueError, match="forward failed"):
        net(1)
    assert seen == [None]

    def fails_too(m, args, out):
        raise KeyError("hook")

    net.register_forward_hook(fails_too, always_call=True)
    with (
        pytest.warns(UserWarning, match="silenced"),
        pytest.raises(ValueError, match="forward failed"),
    ):
        net(1)


def test_an_always_called_hook_runs_once():
    seen = []
    net = Affine()
    net.register_forward_hook(lambda m, args, out: seen.append("once"), always_call=True)

    def fails(m, args, out):
        raise KeyError("later hook")

    net.register_forward_hook(fails)
    with pytest.raises(KeyError):
        net(lt.tensor(1.0))
    assert seen == ["once"]


def test_the_last_removed_hook_leaves_the_direct_call():
    net = Affine()
    first = net.register_forward_hook(lambda m, args, out: out + 1)
    with net.register_forward_pre_hook(lambda m, args: args[0] * 2):
        assert net(lt.tensor(1.0)).item() == 5.0
    assert net(lt.tensor(1.0)).item() == 3.0
    assert net._call_hooks is not None
    first.remove()
    first.remove()
    assert "_call_hooks" not in vars(net)
    assert net(lt.tensor(1.0)).item() == 2.0


def test_pytorchs_dicts_of_hooks_can_be_cleared():
    net = Affine()
    net.register_forward_hook(lambda m, args, out: out + 1)
    assert len(net._forward_hooks) == 1
    net._forward_hooks.clear()
    assert net(lt.tensor(1.0)).item() == 2.0
    net.register_forward_hook(lambda m, args, out: out + 1)
    net._forward_hooks = {}
    assert net(lt.tensor(1.0)).item() == 2.0
    assert not net._forward_pre_hooks
    assert not net._backward_hooks
    assert not net._backward_pre_hooks


def test_a_copied_module_has_hooks_of_its_own():
    net = Affine()
    net.register_forward_hook(add_one)
    twin = copy.deepcopy(net)
    net._forward_hooks.clear()
    assert (net(lt.tensor(1.0)).item(), twin(lt.tensor(1.0)).item()) == (2.0, 3.0)


def test_a_handle_can_be_pickled_with_its_module():
    net = Affine()
    net.handle = net.register_forward_hook(add_one)
    for twin in (pickle.loads(pickle.dumps(net)), copy.deepcopy(net)):
        assert twin(lt.tensor(1.0)).item() == 3.0
        twin.handle.remove()
        assert twin(lt.tensor(1.0)).item() == 2.0
    assert net(lt.tensor(1.0)).item() == 3.0


def add_one(module, args, output):
    return output + 1


def test_hooks_of_every_module_run_before_its_own():
    seen = []
    net = nn.Sequential(Affine(), nn.ReLU())
    net[0].register_forward_hook(lambda m, args, out: seen.append("own"))
    a = module_hooks.register_module_forward_pre_hook(lambda m, args: seen.append(type(m).__name__))
    b = module_hooks.register_module_forward_hook(lambda m, args, out: seen.append("after"))
    net(lt.tensor(1.0))
    assert seen == ["Sequential", "Affine", "after", "own", "ReLU", "after", "after"]
    a.remove()
    b.remove()
    assert Module._call_hooks is None
    seen.clear()
    net(lt.tensor(1.0))
    assert seen == ["own"]


# Backward


def test_a_backward_hook_sees_gradients_of_inputs_and_outputs():
    seen = []
    net = Affine(3.0)
    net.register_full_backward_hook(lambda m, gi, go: seen.append((gi[0].item(), go[0].item())))
    x = ones()
    (net(x) * 5).backward()
    assert seen == [(15.0, 5.0)]
    assert (x.grad.item(), net.factor.grad.item()) == (15.0, 5.0)


def test_backward_hooks_replace_gradients():
    net = Affine(3.0)
    net.register_full_backward_pre_hook(lambda m, go: (go[0] * 10,))
    net.register_full_backward_pre_hook(lambda m, go: go[0] + 1, prepend=True)
    net.register_full_backward_hook(lambda m, gi, go: (gi[0] * 2,))
    net.register_full_backward_hook(lambda m, gi, go: gi[0] + 1, prepend=True)
    x = ones()
    net(x).backward()
    assert net.factor.grad.item() == 20.0
    assert x.grad.item() == (20.0 * 3 + 1) * 2


def test_what_needs_no_gradient_shows_as_none():
    class Both(nn.Module):
        def forward(self, x, mask, n, y):
            return x * mask * n, y * 2, mask, "text"

    seen = []
    net = Both()
    net.register_full_backward_hook(
        lambda m, gi, go: seen.append(([g is None for g in gi], [g is None for g in go]))
    )
    out = net(ones(2), lt.ones(2), 3, ones(2))
    assert out[3] == "text"
    assert out[2].requires_grad is False
    (out[0].sum() + out[1].sum()).backward()
    assert seen == [([False, True, True, False], [False, False, True, True])]


def test_a_module_without_differentiable_input_fires_at_its_output():
    seen = []
    net = Affine()
    handle = net.register_full_backward_hook(lambda m, gi, go: seen.append((gi, go[0].item())))
    with pytest.warns(UserWarning, match="no inputs require gradients"):
        net(lt.tensor(4.0)).backward()
    assert seen == [((None,), 1.0)]
    assert net.factor.grad.item() == 4.0
    handle.remove()
    net.register_full_backward_hook(lambda m, gi, go: (lt.ones(()),))
    with (
        pytest.warns(UserWarning, match="no inputs require gradients"),
        pytest.raises(RuntimeError, match="should always return None"),
    ):
        net(lt.tensor(4.0)).backward()


@pytest.mark.parametrize(
    ("register", "hook", "message"),
    [
        ("register_full_backward_hook", lambda m, gi, go: (*gi, None), "number of grad_input"),
        ("register_full_backward_pre_hook", lambda m, go: (*go, None), "number of grad_output"),
    ],
)
def test_a_hook_must_return_one_gradient_each(register, hook, message):
    net = Affine()
    getattr(net, register)(hook)
    with pytest.raises(RuntimeError, match=f"{message}, got 2, but expected 1"):
        net(ones()).backward()


def test_other_outputs_than_tensors_have_no_border():
    class Dicts(nn.Module):
        def forward(self, x):
            return {"y": x * 2}

    net = Dicts()
    net.register_full_backward_hook(lambda m, gi, go: pytest.fail("must not run"))
    x = ones()
    with pytest.warns(UserWarning, match="module output should be a Tensor or a tuple"):
        out = net(x)
    out["y"].backward()
    assert x.grad.item() == 2.0


def test_named_tuples_stay_what_they_are():
    class Maxes(nn.Module):
        def forward(self, x):
            return x.max(0)

    seen = []
    net = Maxes()
    net.register_full_backward_hook(lambda m, gi, go: seen.append([g is None for g in go]))
    out = net(ones(3))
    out.values.backward()
    assert seen == [[False, True]]


def test_writing_in_place_across_the_border_keeps_gradients_right():
    seen = []
    net = nn.Sequential(Affine(3.0), nn.ReLU(inplace=True), Affine(2.0))
    for module in net:
        module.register_full_backward_hook(
            lambda m, gi, go: seen.append((gi[0].tolist(), go[0].tolist()))
        )
    x = lt.tensor([1.0, -1.0], requires_grad=True)
    net(x).sum().backward()
    assert seen == [([2.0, 2.0], [1.0, 1.0]), ([2.0, 0.0], [2.0, 2.0]), ([6.0, 0.0], [2.0, 0.0])]
    assert x.grad.tolist() == [6.0, 0.0]


def test_no_border_is_drawn_without_recording():
    net = Affine()
    net.register_full_backward_hook(lambda m, gi, go: None)
    with lt.no_grad():
        assert not net(ones()).requires_grad
    assert net(ones()).grad_fn.name() == "BackwardHookFunctionBackward"


def test_each_pass_and_each_call_is_seen():
    seen = []
    net = Affine(3.0)
    net.register_full_backward_hook(lambda m, gi, go: seen.append(go[0].item()))
    x = ones()
    loss = net(net(x) * 2)
    loss.backward(retain_graph=True)
    loss.backward()
    assert seen == [1.0, 6.0, 1.0, 6.0]


def test_a_second_derivative_goes_through_the_border():
    net = Affine(3.0)
    net.register_full_backward_hook(lambda m, gi, go: (gi[0] * 2,))
    x = lt.tensor(2.0, requires_grad=True, dtype=lt.float64)
    (g,) = lt.autograd.grad(net(x) ** 2, x, create_graph=True)
    assert g.item() == 2 * 6.0 * 3.0 * 2
    (gg,) = lt.autograd.grad(g, x)
    assert gg.item() == 2 * 3.0 * 3.0 * 2 * 2  # the hook doubles the inner gradient as well


def test_gradients_of_parameters_alone_pass_the_output_only():
    seen = []
    net = Affine()
    net.register_full_backward_pre_hook(lambda m, go: seen.append("pre"))
    net.register_full_backward_hook(lambda m, gi, go: seen.append("full"))
    lt.autograd.grad(net(ones()), net.factor)
    assert seen == ["pre"]


def test_global_backward_hooks_see_every_module():
    seen = []
    a = module_hooks.register_module_full_backward_hook(
        lambda m, gi, go: seen.append(type(m).__name__)
    )
    b = module_hooks.register_module_full_backward_pre_hook(lambda m, go: seen.append("pre"))
    try:
        nn.Sequential(nn.Linear(2, 2), nn.Tanh())(ones(1, 2)).sum().backward()
    finally:
        a.remove()
        b.remove()
    assert seen == ["pre", "pre", "Tanh", "pre", "Linear", "Sequential"]


# Leaks


def hooked() -> nn.Module:
    net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(inplace=True), nn.Linear(8, 1))
    for module in net.modules():
        module.register_forward_pre_hook(lambda m, args: None)
        module.register_forward_hook(lambda m, args, out: None)
        module.register_full_backward_pre_hook(lambda m, go: None)
        module.register_full_backward_hook(lambda m, gi, go: None)
    return net


def forward_only(net):
    net(ones(4, 8))


def whole(net):
    net(ones(4, 8)).sum().backward()


def parameters_only(net):
    lt.autograd.grad(net(ones(4, 8)).sum(), list(net.parameters()))


def twice(net):
    x = ones(4, 8)
    (g,) = lt.autograd.grad(net(x).sum(), x, create_graph=True)
    g.sum().backward()


def failing(net):
    handle = net[0].register_full_backward_pre_hook(lambda m, go: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        net(ones(4, 8)).sum().backward()
    handle.remove()


@pytest.mark.parametrize("run", [forward_only, whole, parameters_only, twice, failing])
def test_hooks_keep_no_graph_alive(run, leak_check):
    net = hooked()
    run(net)
    del net


def test_hooks_on_the_output_keep_no_gradient_while_the_graph_lives(leak_check):
    net = hooked()
    loss = net(ones(4, 8)).sum()
    live = lt.memory_stats("cpu")["by_role"]
    for _ in range(2):  # the note of a gradient goes with the pass
        lt.autograd.grad(loss, net[2].weight, retain_graph=True)
        assert lt.memory_stats("cpu")["by_role"] == live
    del net, loss


def test_only_what_a_full_backward_hook_is_to_see_costs_bytes():
    # A layer's grad_output, here (4, 8), lives until its grad_input is known.
    peaks = []
    for kinds in ((), ("forward_pre", "forward", "full_backward_pre"), ("full_backward",)):
        net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(inplace=True), nn.Linear(8, 1))
        for module in net.modules():
            for kind in kinds:
                getattr(module, f"register_{kind}_hook")(lambda *args: None)
        for _ in range(2):  # the first step makes gradients and plans
            net.zero_grad()
            x = ones(4, 8)
            lt.reset_peak_memory_stats("cpu")
            live = lt.memory_allocated("cpu")
            net(x).sum().backward()
            peak = lt.max_memory_allocated("cpu") - live
            del x
        peaks.append(peak)
    assert peaks == [peaks[0], peaks[0], peaks[0] + 4 * 8 * 4]
