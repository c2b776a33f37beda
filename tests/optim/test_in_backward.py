"""A step fused into backward: the same numbers, and one gradient at a time."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

import lowtide as lt
from lowtide import nn
from lowtide.framework.devices import backend
from lowtide.framework.kernels.runtime import thresholds
from lowtide.framework.memory.events import observe
from lowtide.framework.memory.ledger import GRADIENT
from lowtide.optim import SGD, AdamW, fuse_into_backward, lr_scheduler
from lowtide.utils.checkpoint import checkpoint
from tests.optim.cases import CASES, OPTIONS, ROUNDED, identity
from tests.optim.runs import parameters

SIDE = 64
WEIGHT = SIDE * SIDE * 4  # bytes of a layer of the model below


def loss_of(params: Any) -> Any:
    """A bowl with ripples, in which every element has a gradient of its own."""
    return sum((p * p + (3 * p).sin()).sum() for p in params)


def train(params: Any, optimizer: Any, steps: Any) -> None:
    """The loop as everyone writes it."""
    for _ in range(steps):
        optimizer.zero_grad()
        loss_of(params).backward()
        optimizer.step()


def all_bytes(value: Any) -> Any:
    """Nested state with the bytes of every tensor, to compare bit for bit."""
    if isinstance(value, dict):
        return {k: all_bytes(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [all_bytes(v) for v in value]
    return value.detach().numpy().tobytes() if isinstance(value, lt.Tensor) else value


def model() -> nn.Sequential:
    """Four layers, 64 x 64 each."""
    lt.manual_seed(1)
    return nn.Sequential(*[nn.Linear(SIDE, SIDE, bias=False) for _ in range(4)])


def gradient_bytes(device: str, run: Any) -> tuple[int, int]:
    """The most bytes of role gradient that ``run`` had alive at once, and what it left of them."""
    ledger = backend(lt.device(device)).ledger
    before = ledger.roles[GRADIENT]
    seen = [before]
    with observe(ledger, lambda *event: seen.append(ledger.roles[GRADIENT])):
        run()
    return max(seen) - before, ledger.roles[GRADIENT] - before


# The same numbers


@pytest.mark.quick(40)
@pytest.mark.parametrize("road", ["compiled", "plain"])
@pytest.mark.parametrize("case", [*CASES, *ROUNDED], ids=identity)
def test_every_optimizer_makes_the_same_steps(case, road, monkeypatch):
    monkeypatch.setattr(thresholds, "COMPILED_STEP", 0 if road == "compiled" else 1 << 60)
    name, options = case
    ends = []
    for in_backward in (False, True):
        params = list(parameters(lt, name, np.float32).values())
        optimizer = getattr(lt.optim, name)(params, **options)
        if in_backward:
            fuse_into_backward(optimizer)
        train(params, optimizer, 4)
        assert all((p.grad is None) is in_backward for p in params)
        ends.append(all_bytes([params, optimizer.state_dict()]))
    assert ends[0] == ends[1]


def test_groups_and_a_schedule():
    ends = []
    for in_backward in (False, True):
        a, b = lt.linspace(-1, 1, 5).requires_grad_(), lt.ones(3, requires_grad=True)
        optimizer = AdamW([{"params": [a], "lr": 0.3}, {"params": [b], "weight_decay": 0.5}])
        scheduler = lr_scheduler.ExponentialLR(optimizer, 0.5)
        if in_backward:
            fuse_into_backward(optimizer)
        for _ in range(3):
            train([a, b], optimizer, 1)
            scheduler.step()
        ends.append(all_bytes([a, b, optimizer.state_dict(), scheduler.state_dict()]))
    assert ends[0] == ends[1]


def test_a_schedule_does_not_miss_a_step_that_nobody_called():
    p = lt.ones(2, requires_grad=True)
    optimizer = SGD([p], lr=1.0)
    scheduler = lr_scheduler.StepLR(optimizer, 1, 0.5)
    fuse_into_backward(optimizer)
    loss_of([p]).backward()
    scheduler.step()  # warns, and warnings are errors, if no step was made before
    assert optimizer.param_groups[0]["lr"] == 0.5


def test_a_tied_parameter_is_updated_once_by_its_whole_gradient():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(4, 4, bias=False)
            self.second = nn.Linear(4, 4, bias=False)
            self.second.weight = self.first.weight

        def forward(self, x):
            return self.second(self.first(x).tanh())

    ends = []
    for in_backward in (False, True):
        lt.manual_seed(3)
        net = Tied()
        optimizer = AdamW(net.parameters(), lr=0.1)
        if in_backward:
            fuse_into_backward(optimizer)
        for _ in range(3):
            optimizer.zero_grad()
            net(lt.ones(2, 4)).square().sum().backward()
            optimizer.step()
        assert optimizer.state[net.first.weight]["step"] == 3
        ends.append(all_bytes([net.first.weight, optimizer.state_dict()]))
    assert ends[0] == ends[1]


def test_a_parameter_listed_twice_is_stepped_twice_as_ever():
    ends = []
    for in_backward in (False, True):
        p = lt.ones(2, requires_grad=True)
        with pytest.warns(UserWarning, match="duplicate parameters"):
            optimizer = SGD([p, p], lr=0.1, momentum=0.9)
        if in_backward:
            fuse_into_backward(optimizer)
        train([p], optimizer, 2)
        ends.append(all_bytes([p, optimizer.state_dict()]))
    assert ends[0] == ends[1]


def test_a_parameter_without_a_gradient_stays_and_gets_no_state():
    p, q, frozen = (lt.ones(2, requires_grad=k < 2) for k in range(3))
    optimizer = AdamW([p, q, frozen], lr=0.1)
    fuse_into_backward(optimizer)
    train([p], optimizer, 1)
    assert q.tolist() == frozen.tolist() == [1.0, 1.0]
    assert set(optimizer.state) == {p}
    frozen.requires_grad_()  # thawed later: it is updated like the others
    train([p, frozen], optimizer, 1)
    assert set(optimizer.state) == {p, frozen}
    assert frozen.grad is None


def test_a_gradient_that_was_there_before_is_part_of_the_first_step():
    ends = []
    for in_backward in (False, True):
        p = lt.ones(2, requires_grad=True)
        optimizer = SGD([p], lr=0.1)
        loss_of([p]).backward()
        if in_backward:
            fuse_into_backward(optimizer)
        loss_of([p]).backward()
        optimizer.step()
        ends.append(all_bytes(p))
    assert ends[0] == ends[1]


def test_chosen_inputs_are_updated_and_no_others():
    p, q = lt.ones(2, requires_grad=True), lt.ones(2, requires_grad=True)
    optimizer = SGD([p, q], lr=0.5)
    fuse_into_backward(optimizer)
    (p * q).sum().backward(inputs=[p])
    assert (p.tolist(), q.tolist(), p.grad) == ([0.5, 0.5], [1.0, 1.0], None)


def test_gradients_can_be_clamped_one_at_a_time():
    ends = []
    for in_backward in (False, True):
        params = [lt.linspace(-3, 3, 7).requires_grad_() for _ in range(2)]
        optimizer = AdamW(params, lr=0.1)
        if in_backward:
            fuse_into_backward(optimizer)
            for p in params:
                p.register_hook(lambda g: g.clamp(-1, 1))
        for _ in range(3):
            optimizer.zero_grad()
            loss_of(params).backward()
            nn.utils.clip_grad_value_(params, 1.0)
            optimizer.step()
        ends.append(all_bytes([params, optimizer.state_dict()]))
    assert ends[0] == ends[1]


def test_half_precision_parameters():
    ends = []
    for in_backward in (False, True):
        p = lt.linspace(-1, 1, 9).to(lt.bfloat16).requires_grad_()
        optimizer = AdamW([p], lr=0.1)
        if in_backward:
            fuse_into_backward(optimizer)
        train([p], optimizer, 3)
        ends.append(all_bytes([p.detach().float(), optimizer.state[p]["exp_avg"].float()]))
    assert ends[0] == ends[1]


def test_autocast():
    ends = []
    for in_backward in (False, True):
        net = model()
        optimizer = SGD(net.parameters(), lr=0.1)
        if in_backward:
            fuse_into_backward(optimizer)
        for _ in range(2):
            optimizer.zero_grad()
            with lt.autocast("cpu", lt.bfloat16):
                loss = net(lt.ones(3, SIDE)).float().square().mean()
            loss.backward()
            optimizer.step()
        ends.append(all_bytes(list(net.parameters())))
    assert ends[0] == ends[1]


@pytest.mark.parametrize("name", OPTIONS)
def test_a_run_that_stops_goes_on_from_its_state_dict(name):
    whole = list(parameters(lt, name, np.float32).values())
    optimizer = getattr(lt.optim, name)(whole, **OPTIONS[name][0])
    fuse_into_backward(optimizer)
    train(whole, optimizer, 2)
    saved = copy.deepcopy(optimizer.state_dict())
    resumed = [p.detach().clone().requires_grad_() for p in whole]
    train(whole, optimizer, 2)
    again = getattr(lt.optim, name)(resumed)
    fuse_into_backward(again)
    again.load_state_dict(saved)
    train(resumed, again, 2)
    assert all_bytes([whole, optimizer.state_dict()]) == all_bytes([resumed, again.state_dict()])


def test_checkpointed_regions():
    ends = []
    for in_backward in (False, True):
        net = model()
        optimizer = AdamW(net.parameters(), lr=0.1)
        if in_backward:
            fuse_into_backward(optimizer)
        for _ in range(3):
            optimizer.zero_grad()
            h = lt.ones(3, SIDE)
            for k in (0, 2):
                part = nn.Sequential(net[k], nn.Tanh(), nn.Dropout(0.5), net[k + 1])
                h = checkpoint(part, h, use_reentrant=False)
            h.square().mean().backward()
            optimizer.step()
        ends.append(all_bytes(list(net.parameters())))
    assert ends[0] == ends[1]


# One gradient at a time


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_gradients_take_the_bytes_of_the_largest_parameter_only(device):
    found = {}
    for way in ("step", "backward"):
        net = model().to(device)
        optimizer = SGD(net.parameters(), lr=0.1)
        if way == "backward":
            fuse_into_backward(optimizer)
        loss = net(lt.ones(2, SIDE, device=device)).sum()
        found[way] = gradient_bytes(device, loss.backward)
        del net, optimizer, loss
    assert found == {"step": (4 * WEIGHT, 4 * WEIGHT), "backward": (WEIGHT, 0)}


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_the_peak_of_backward_falls_by_all_gradients_but_one(device):
    peaks = []
    for in_backward in (False, True):
        net = model().to(device)
        optimizer = SGD(net.parameters(), lr=0.1)
        if in_backward:
            fuse_into_backward(optimizer)
        loss = net(lt.ones(2, SIDE, device=device)).sum()
        lt.reset_peak_memory_stats(device)
        before = lt.memory_allocated(device)
        loss.backward()
        peaks.append(lt.max_memory_allocated(device) - before)
        del net, optimizer, loss
    # The step: all gradients, when the first layer's is made last; the loss's gradient of 4 bytes
    # is still there, and inputs of layers have gone. In backward: the last layer's, beside the
    # loss's, spread to the output's shape, and the gradient of its own input.
    row = 2 * SIDE * 4
    assert peaks == [4 * WEIGHT - 2 * row + 4, WEIGHT + 2 * row + 4]


def test_an_estimate_foretells_the_peak():
    net = model()
    optimizer = AdamW(net.parameters(), lr=0.1)
    fuse_into_backward(optimizer)

    def step():
        net(lt.ones(2, SIDE)).sum().backward()
        optimizer.step()

    foretold = lt.profiling.estimate(step)
    lt.reset_peak_memory_stats()
    step()
    assert foretold.peak_bytes == lt.max_memory_allocated()


def test_nothing_is_part_of_a_cycle(leak_check):
    net = model()
    handle = fuse_into_backward(AdamW(net.parameters(), lr=0.1))
    net(lt.ones(2, SIDE)).sum().backward()
    assert handle.optimizer.state
    del net, handle


def test_updates_belong_to_the_phase_optimizer():
    net = model()
    optimizer = AdamW(net.parameters(), lr=0.1)
    fuse_into_backward(optimizer)
    with lt.profiling.MemoryProfiler() as prof:
        net(lt.ones(2, SIDE)).sum().backward()
        optimizer.step()
    grown = prof.growth("start", "stop", ("role", "phase"))
    assert grown["optimizer · optimizer"] == 4 * 2 * WEIGHT


# The loop around it


def test_step_runs_its_hooks_and_updates_what_has_a_gradient_from_elsewhere():
    p, q = lt.ones(2, requires_grad=True), lt.ones(2, requires_grad=True)
    optimizer, calls = SGD([p, q], lr=0.5), []
    optimizer.register_step_pre_hook(lambda *_: calls.append(p.tolist()))
    optimizer.register_step_post_hook(lambda *_: calls.append(q.tolist()))
    fuse_into_backward(optimizer)
    p.sum().backward()
    assert calls == []
    q.grad = lt.ones(2)
    optimizer.step()
    assert calls == [[0.5, 0.5], [0.5, 0.5]]
    assert optimizer.step(lambda: "loss") == "loss"


def test_it_can_be_undone():
    p = lt.ones(2, requires_grad=True)
    optimizer = SGD([p], lr=0.5)
    with fuse_into_backward(optimizer) as handle:
        assert handle.optimizer is optimizer
        p.sum().backward()
    assert p.tolist() == [0.5, 0.5]
    p.sum().backward()
    assert p.tolist() == [0.5, 0.5]
    assert p.grad.tolist() == [1.0, 1.0]
    again = fuse_into_backward(optimizer)
    handle.remove()  # an old handle does not touch a new one's hooks
    p.sum().backward()
    assert p.tolist() == [-0.5, -0.5]
    again.remove()
    optimizer.zero_grad()
    p.sum().backward()
    optimizer.step()
    assert p.tolist() == [-1.0, -1.0]


def test_a_group_added_later_is_fused_too():
    p, q = lt.ones(2, requires_grad=True), lt.ones(2, requires_grad=True)
    optimizer = SGD([p], lr=0.5)
    handle = fuse_into_backward(optimizer)
    optimizer.add_param_group({"params": [q], "lr": 0.25})
    (p + q).sum().backward()
    assert (p.tolist(), q.tolist()) == ([0.5, 0.5], [0.75, 0.75])
    with pytest.raises(ValueError, match="more than one parameter group"):
        optimizer.add_param_group({"params": [q]})
    handle.remove()
    (p + q).sum().backward()
    assert q.grad.tolist() == [1.0, 1.0]


def test_a_copy_of_the_model_and_its_optimizer_is_not_fused():
    net = model()
    both = {"net": net, "optimizer": SGD(net.parameters(), lr=0.1)}
    fuse_into_backward(both["optimizer"])
    twin = copy.deepcopy(both)
    before = all_bytes([list(net.parameters()), list(twin["net"].parameters())])
    twin["net"](lt.ones(1, SIDE)).sum().backward()
    assert all_bytes([list(net.parameters()), list(twin["net"].parameters())]) == before
    assert all(p.grad is not None for p in twin["net"].parameters())
    twin["optimizer"].step()
    assert all_bytes(list(twin["net"].parameters())) != before[1]


# What cannot work


def test_an_optimizer_that_needs_all_gradients_is_refused():
    class Own(SGD):
        def step(self, closure=None):
            return super().step(closure)

    p = lt.ones(2, requires_grad=True)
    with pytest.raises(ValueError, match="LBFGS defines step"):
        fuse_into_backward(lt.optim.LBFGS([p]))
    with pytest.raises(ValueError, match="Own defines step"):
        fuse_into_backward(Own([p]))
    with pytest.raises(TypeError, match="takes an Optimizer; got list"):
        fuse_into_backward([p])
    p.sum().backward()
    assert p.grad.tolist() == [1.0, 1.0], "what was refused left no hook"


def test_a_parameter_has_one_optimizer_in_backward():
    p, q = lt.ones(2, requires_grad=True), lt.ones(2, requires_grad=True)
    first, second = SGD([p], lr=0.5), SGD([q, p])
    handle = fuse_into_backward(first)
    with pytest.raises(RuntimeError, match="fused already"):
        fuse_into_backward(first)
    with pytest.raises(RuntimeError, match="by another SGD already"):
        fuse_into_backward(second)
    other = SGD([q])
    fuse_into_backward(other)
    with pytest.raises(RuntimeError, match="by another SGD already"):
        other.add_param_group({"params": [p]})
    assert len(other.param_groups) == 1
    (p + q).sum().backward()
    assert p.tolist() == [0.5, 0.5]
    handle.remove()
    other.add_param_group({"params": [p]})


def test_a_tensor_that_is_no_leaf_is_refused():
    p = lt.ones(2, requires_grad=True)
    made = p * 2
    made.retain_grad()
    with pytest.raises(ValueError, match="no leaf"):
        fuse_into_backward(SGD([p, made]))
    p.sum().backward()
    assert p.grad is not None


def test_an_optimizer_that_is_gone_is_missed_once():
    p, q = lt.ones(2, requires_grad=True), lt.ones(2, requires_grad=True)
    fuse_into_backward(SGD([p, q], lr=0.5))
    with pytest.raises(RuntimeError, match="is gone.*Keep the optimizer, or the handle"):
        (p + q).sum().backward()
    p.grad = q.grad = None
    (p + q).sum().backward()
    assert p.grad.tolist() == q.grad.tolist() == [1.0, 1.0]
    fuse_into_backward(SGD([p], lr=0.5))
    kept = SGD([p], lr=0.5)
    fuse_into_backward(kept)  # takes the place of the one that is gone
    p.sum().backward()
    assert p.grad is None


def test_a_graph_of_the_gradient_is_refused_before_anything_is_written():
    p = lt.ones(2, requires_grad=True)
    handle = fuse_into_backward(SGD([p], lr=0.5))
    with pytest.raises(RuntimeError, match="create_graph=True"):
        (p * p).sum().backward(create_graph=True)
    assert p.tolist() == [1.0, 1.0]
    p.grad = None
    handle.remove()


def test_clipping_by_a_common_norm_and_unscaling_are_refused():
    p = lt.ones(2, requires_grad=True)
    optimizer = SGD([p], lr=0.5)
    handle = fuse_into_backward(optimizer)
    scaler = lt.amp.GradScaler("cpu")
    with pytest.raises(RuntimeError, match="clip_grad_norm_ needs all gradients at once"):
        nn.utils.clip_grad_norm_([p], 1.0)
    scaler.scale(p.sum()).backward()
    for way in (scaler.unscale_, scaler.step):
        with pytest.raises(RuntimeError, match="GradScaler cannot unscale"):
            way(optimizer)
    handle.remove()
    p.grad = lt.ones(2)
    assert nn.utils.clip_grad_norm_([p], 1.0).item() == pytest.approx(2**0.5)


def test_a_graph_that_holds_a_parameter_by_another_name_notices_the_update():
    p, x = lt.ones(2, requires_grad=True), lt.ones(2, requires_grad=True)
    handle = fuse_into_backward(SGD([p], lr=0.5))
    held = x * p.detach()  # the graph cannot know that p is read here
    loss = (held * 1).sum() + (p * 2).sum()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    assert p.tolist() == [0.0, 0.0], "its own gradient was whole"
    handle.remove()


@pytest.mark.parametrize("steps", [1, 3])
def test_once_refuses_a_second_pass_before_the_step(steps: int) -> None:
    net = model()
    optimizer = SGD(net.parameters(), lr=0.1)
    handle = fuse_into_backward(optimizer, once=True)
    x = lt.ones(2, SIDE)
    for _ in range(steps):
        net(x).sum().backward()
        optimizer.step()
    net(x).sum().backward()
    before = all_bytes(list(net.parameters()))
    with pytest.raises(RuntimeError, match="a second backward pass came before its step"):
        net(x).sum().backward()
    assert all_bytes(list(net.parameters())) == before
    optimizer.step()
    net(x).sum().backward()  # each has a step of its own again
    handle.remove()
    optimizer.zero_grad()
    for _ in range(2):
        net(x).sum().backward()
    assert net[0].weight.grad is not None
