"""A compiled step gives the bits of the plain one, and notices whatever changes between calls."""

from __future__ import annotations

import gc
import os
import random
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import lowtide as lt
import lowtide.nn.functional as F
from lowtide import nn, optim
from lowtide.framework.device import device
from lowtide.framework.devices import backend


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 16)
        self.norm = nn.BatchNorm1d(16)
        self.drop = nn.Dropout(0.3)
        self.last = nn.Linear(16, 3)
        self.factor = 1.0
        self.hidden: Any = None

    def forward(self, x: Any) -> Any:
        h = self.drop(self.norm(self.first(x)).relu())
        return self.last(h) * self.factor


OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "adamw": lambda p: optim.AdamW(p, lr=1e-2),
    "sgd": lambda p: optim.SGD(p, lr=0.1, momentum=0.9),
    "adafactor": lambda p: optim.Adafactor(p, lr=1e-2),
    "adam8bit": lambda p: optim.Adam8bit(p, lr=1e-2),
    "muon": lambda p: optim.Muon([q for q in p if q.ndim == 2], lr=1e-2),
    "rmsprop": lambda p: optim.RMSprop(p, lr=1e-3),
}


class Setup:
    """A net, its optimizer, and whatever else a step takes."""

    def __init__(self, optimizer: str = "adamw") -> None:
        lt.manual_seed(3)
        self.net = Net()
        self.opt = OPTIMIZERS[optimizer](list(self.net.parameters()))
        self.sched = optim.lr_scheduler.StepLR(self.opt, 2, 0.5)
        self.scaler = lt.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
        self.ema = optim.swa_utils.AveragedModel(self.net)

    def state(self) -> list[bytes]:
        """All bits that a step may change."""
        found = [t.detach().numpy().tobytes() for t in self.net.state_dict().values()]
        found += [t.detach().numpy().tobytes() for t in self.ema.state_dict().values()]
        for p in self.net.parameters():
            found.append(b"" if p.grad is None else p.grad.numpy().tobytes())
            for value in self.opt.state.get(p, {}).values():
                is_tensor = isinstance(value, lt.Tensor)
                found.append(value.numpy().tobytes() if is_tensor else repr(value).encode())
        found.append(repr(self.opt.param_groups[0]["lr"]).encode())
        found.append(repr(self.scaler.state_dict()).encode())
        found.append(lt.get_rng_state().numpy().tobytes())
        return found


def plain_step(s: Setup) -> Callable[..., Any]:
    def step(x: Any, y: Any) -> Any:
        s.opt.zero_grad()
        loss = F.cross_entropy(s.net(x), y)
        loss.backward()
        s.opt.step()
        return loss

    return step


def clipped_step(s: Setup) -> Callable[..., Any]:
    def step(x: Any, y: Any) -> Any:
        loss = F.cross_entropy(s.net(x), y)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(s.net.parameters(), 0.1)
        s.opt.step()
        s.opt.zero_grad()
        s.sched.step()
        s.ema.update_parameters(s.net)
        return {"loss": loss.detach(), "norm": norm, "n": 3}

    return step


def scaled_step(s: Setup) -> Callable[..., Any]:
    def step(x: Any, y: Any) -> Any:
        s.opt.zero_grad(set_to_none=False)
        with lt.autocast("cpu", dtype=lt.bfloat16):
            loss = F.cross_entropy(s.net(x), y)
        s.scaler.scale(loss).backward()
        s.scaler.unscale_(s.opt)
        nn.utils.clip_grad_value_(s.net.parameters(), 0.05)
        s.scaler.step(s.opt)
        s.scaler.update()
        return loss

    return step


def accumulating_step(s: Setup) -> Callable[..., Any]:
    def step(x: Any, y: Any) -> Any:
        for part, want in zip(x.chunk(2), y.chunk(2), strict=True):
            (F.cross_entropy(s.net(part), want) / 2).backward()
        s.opt.step()
        s.opt.zero_grad()

    return step


def late_step(s: Setup) -> Callable[..., Any]:
    def step(x: Any, y: Any) -> Any:
        s.opt.step()  # by the gradients of the call before
        s.opt.zero_grad()
        loss = F.cross_entropy(s.net(x), y)
        loss.backward()
        return loss.detach()

    return step


def regions_step(s: Setup) -> Callable[..., Any]:
    def step(x: Any, y: Any) -> Any:
        s.opt.zero_grad()
        with lt.checkpointing():
            out = s.net(x)
        loss = F.cross_entropy(out, y)
        loss.backward()
        s.opt.step()
        return loss, out.detach().argmax(1)

    return step


STEPS = {
    "plain": plain_step, "clipped": clipped_step, "scaled": scaled_step,
    "accumulating": accumulating_step, "regions": regions_step, "late": late_step,
}  # fmt: skip


def batches(n: int, size: int = 8) -> list[Any]:
    g = np.random.default_rng(5)
    return [
        (
            lt.tensor(g.standard_normal((size, 6)), dtype=lt.float32),
            lt.tensor(g.integers(3, size=size)),
        )
        for _ in range(n)
    ]


def bits(result: Any) -> Any:
    if isinstance(result, lt.Tensor):
        return result.requires_grad, result.dtype, result.detach().numpy().tobytes()
    if isinstance(result, tuple | list):
        return [bits(x) for x in result]
    if isinstance(result, dict):
        return {k: bits(x) for k, x in result.items()}
    return result


def equal_runs(make: Any, compiled: Any, n: int = 8, change: Any = None, optimizer="adamw") -> Any:
    """Run plain and compiled side by side; ``change(setup, k)`` comes before call ``k``."""
    plain, other = Setup(optimizer), Setup(optimizer)
    run, replayed = make(plain), compiled(make(other))
    seeds = []
    for k, (x, y) in enumerate(batches(n)):
        found = []
        for s, f in ((plain, run), (other, replayed)):
            if change is not None:
                change(s, k)
            lt.manual_seed(k)
            found.append((bits(f(x.clone(), y.clone())), s.state()))
        assert found[0] == found[1], f"call {k}"
        seeds.append(k)
    return replayed


@pytest.mark.parametrize("name", STEPS)
def test_a_step_is_equal_bit_for_bit(name: str) -> None:
    step = equal_runs(STEPS[name], lambda f: lt.compile(f, fullgraph=True))
    if name == "scaled":  # the scale changes every second step
        assert step.replays >= 2
    else:
        assert (step.recordings, step.replays) == (1, 6)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_steps_anew(name: str) -> None:
    step = equal_runs(plain_step, lambda f: lt.compile(f, fullgraph=True), optimizer=name)
    assert step.replays == 6


def set_training(s: Setup, k: int) -> None:
    s.net.train(k % 3 != 2)


def set_rate(s: Setup, k: int) -> None:
    s.opt.param_groups[0]["lr"] = 0.01 * (k + 1)


def set_factor(s: Setup, k: int) -> None:
    s.net.factor = 1.0 + (k > 4)


def freeze(s: Setup, k: int) -> None:
    s.net.first.weight.requires_grad_(k < 5)


def clear(s: Setup, k: int) -> None:
    if k % 2:
        for p in s.net.parameters():
            p.grad = None


def replace(s: Setup, k: int) -> None:
    if k == 5:
        s.net.last.weight.data = lt.full((3, 16), 0.1)


def load(s: Setup, k: int) -> None:
    if k == 5:
        s.net.load_state_dict({n: t + 0.5 if t.is_floating_point() else t
                               for n, t in s.net.state_dict().items()})  # fmt: skip


def swap_layer(s: Setup, k: int) -> None:
    if k == 5:
        s.net.drop = nn.Identity()


def forward_hook(s: Setup, k: int) -> None:
    if k == 5:
        s.net.first.register_forward_hook(lambda m, a, out: out * 2)


def tensor_hook(s: Setup, k: int) -> None:
    if k == 5:
        s.net.first.weight.register_hook(lambda g: g * 3)


def accumulate_hook(s: Setup, k: int) -> None:
    if k == 5:
        s.net.first.weight.register_post_accumulate_grad_hook(lambda p: p.grad.mul_(2))


def default_dtype(s: Setup, k: int) -> None:
    s.net.norm.momentum = 0.1 if k < 5 else 0.2


def saved_hooks(s: Setup, k: int) -> None:
    if k == 4:
        s.opt.add_param_group({"params": [nn.Parameter(lt.ones(2))]})


CHANGES = (set_training, set_rate, set_factor, freeze, clear, replace, load, swap_layer,
           forward_hook, tensor_hook, accumulate_hook, default_dtype, saved_hooks)  # fmt: skip


@pytest.mark.parametrize("change", CHANGES, ids=lambda f: f.__name__)
def test_a_change_between_calls_is_noticed(change: Any) -> None:
    step = equal_runs(plain_step, lambda f: lt.compile(f, fullgraph=True), 12, change)
    assert step.replays >= 5


def test_new_shapes_are_recorded_anew() -> None:
    s, t = Setup(), Setup()
    step, plain = lt.compile(plain_step(s), fullgraph=True), plain_step(t)
    for size in (8, 8, 4, 8, 4, 4, 8, 4):
        ((x, y),) = batches(1, size)
        found = []
        for f, who in ((plain, t), (step, s)):
            lt.manual_seed(size)
            found.append((bits(f(x, y)), who.state()))
        assert found[0] == found[1]
    assert (step.recordings, step.replays) == (2, 4)


def test_arguments_that_share_memory_are_told_apart() -> None:
    def add(a: Any, b: Any) -> Any:
        a.add_(b)
        b.mul_(2)
        return a + b

    f = lt.compile(add, fullgraph=True)
    for k in range(8):
        a = lt.arange(4.0)
        b = a if k % 2 else lt.arange(4.0) + 1
        c = a.clone()
        assert bits(f(a, b)) == bits(add(c, c if k % 2 else lt.arange(4.0) + 1))
    assert f.replays == 4


def test_views_and_foreign_memory_are_taken() -> None:
    f = lt.compile(lambda a: a.sum(0) + a[1], fullgraph=True)
    for k in range(6):
        array = np.random.default_rng(k).standard_normal((4, 5)).astype(np.float32)
        for x in (lt.from_numpy(array), lt.tensor(array), lt.tensor(array.T.copy()).t(),
                  lt.tensor(np.vstack([array, array]))[2:6]):  # fmt: skip
            assert bits(f(x)) == bits(x.sum(0) + x[1])
    assert f.replays >= 12


def test_attributes_that_are_looked_up_by_strings_are_compared() -> None:
    class Config:
        def __init__(self) -> None:
            self.factor_a = 1.0

    config = Config()
    f = lt.compile(lambda x: x * getattr(config, "factor_" + "ab"[0]), fullgraph=True)
    for k in range(6):
        config.factor_a = float(k // 3)
        assert f(lt.ones(1)).item() == k // 3
    assert f.replays == 3


def test_a_write_that_the_first_call_did_not_make_is_an_error() -> None:
    made = {"calls": 0}

    @lt.compiler.disable
    def writes() -> bool:
        made["calls"] += 1
        return made["calls"] > 1

    def f(x: Any) -> Any:
        return x.mul_(2).sin() if writes() else x.sin()

    compiled = lt.compile(f)
    w = lt.ones(3, requires_grad=True)
    compiled(w * 1)
    with pytest.raises(RuntimeError, match="written to an argument that requires grad"):
        compiled(w * 1)


def test_a_parameter_in_another_order_of_the_same_memory_is_noticed() -> None:
    w = nn.Parameter(lt.arange(9.0).reshape(3, 3))
    f = lt.compile(lambda x: (x @ w).detach(), fullgraph=True)
    x = lt.rand(2, 3)
    for _ in range(3):
        f(x)
    w.data = w.data.t()
    assert bits(f(x)) == bits((x @ w).detach())


def test_memory_of_others_is_let_go_after_a_call() -> None:
    f = lt.compile(lambda x: x * 2, fullgraph=True)
    for k in range(4):
        array = np.full(1000, float(k), np.float32)
        gone = weakref.ref(array)
        assert f(lt.from_numpy(array))[0].item() == 2.0 * k
        del array
        assert gone() is None
    assert f.replays == 2


# What cannot be recorded


GLOBAL = {"factor": 1.0}
COUNT = 0
GENERATOR = random.Random(0)


def reads_value(x: Any) -> Any:
    return x * 2 if x.sum().item() > 0 else x


def reads_truth(x: Any) -> Any:
    return x * 2 if (x > 0).all() else x


def reads_array(x: Any) -> Any:
    return lt.tensor(x.numpy() * 2)


def shape_of_values(x: Any) -> Any:
    return x[x > 0].sum()


def python_random(x: Any) -> Any:
    return x * random.random()


def own_random(x: Any) -> Any:
    return x * GENERATOR.random()


def numpy_random(x: Any) -> Any:
    return x * float(np.random.rand())  # noqa: NPY002


def counts(x: Any) -> Any:
    global COUNT
    COUNT += 1
    return x * COUNT


KEPT: list[Any] = []


def keeps(x: Any) -> Any:
    KEPT.append(x * 2)
    return x


def seeds(x: Any) -> Any:
    lt.manual_seed(0)
    return x + lt.rand(3)


def iterates(x: Any) -> Any:
    return x * next(ITERATOR)


ITERATOR = iter(range(100))


def prints(x: Any) -> Any:
    str(x)
    return x * 2


@lt.compiler.disable
def kept_out(x: Any) -> Any:
    return x * 2


def calls_kept_out(x: Any) -> Any:
    return kept_out(x)


REFUSED = {
    reads_value: "reads a tensor's value", reads_truth: "reads a tensor's value",
    reads_array: "reads a tensor's value", shape_of_values: "depends on values",
    python_random: "random generator", own_random: "random generator",
    numpy_random: "random generator", counts: "COUNT", keeps: "kept somewhere else",
    seeds: "state of a random generator", iterates: "iterator", prints: "reads a tensor's value",
    calls_kept_out: "compiler.disable",
}  # fmt: skip


@pytest.mark.parametrize("function", REFUSED, ids=lambda f: f.__name__)
def test_what_cannot_be_repeated_runs_as_it_is_written(function: Any) -> None:
    f = lt.compile(function)
    with pytest.warns(lt.CaptureWarning, match=REFUSED[function]) as caught:
        first = [f(lt.tensor([1.0, -2.0, 3.0 + k])) for k in range(6)]
    assert len(caught) == 1
    assert f.replays == 0
    assert len({tuple(np.atleast_1d(t.numpy()).tolist()) for t in first}) == 6
    strict = lt.compile(function, fullgraph=True)
    with pytest.raises(lt.CaptureError, match=REFUSED[function]):
        [strict(lt.ones(3)) for _ in range(4)]


def test_the_line_that_ends_a_recording_is_named() -> None:
    text = lt.compiler.explain(reads_value, lt.ones(3))
    assert "Python reads a tensor's value (item) at" in text
    assert "test_compile.py:" in text


def test_a_global_that_changes_is_noticed() -> None:
    f = lt.compile(lambda x: x * GLOBAL["factor"], fullgraph=True)
    for k in range(10):
        GLOBAL["factor"] = float(k // 4)
        assert f(lt.ones(1)).item() == k // 4
    assert f.replays == 6


def test_too_many_recordings_end_in_plain_calls() -> None:
    f = lt.compile(lambda x: x * GLOBAL["factor"])
    found = []
    for k in range(20):
        GLOBAL["factor"] = float(k)
        if k == 9:
            with pytest.warns(lt.CaptureWarning, match=r"recorded 8 times: GLOBAL.factor changes"):
                found.append(f(lt.ones(1)).item())
        else:
            found.append(f(lt.ones(1)).item())
    assert found == list(range(20))


# Memory and state around calls


def live() -> int:
    return lt.memory_allocated()


def test_between_calls_nothing_is_held_and_a_call_peaks_no_higher() -> None:
    s, t = Setup(), Setup()
    step, plain = lt.compile(plain_step(s), fullgraph=True), plain_step(t)
    ((x, y),) = batches(1, 8192)
    peaks = {}
    for f in (plain, step):
        for _ in range(4):
            f(x, y)
        before = live()
        lt.reset_peak_memory_stats()
        f(x, y)
        peaks[f] = lt.max_memory_allocated() - before
        assert live() == before
    assert peaks[step] <= peaks[plain] * 1.01


def test_storages_without_bytes_do_not_hide_others() -> None:
    def f(x: Any) -> Any:
        found = []
        for _ in range(40):  # the pool's first block is among them
            x = x * 1
            found.append(x)
            x[:0].clone()
        return sum(found)

    gc.collect()
    compiled = lt.compile(f, fullgraph=True)
    for k in range(5):
        assert compiled(lt.full((3,), float(k))).tolist() == [40.0 * k] * 3
    assert compiled.replays == 3


def test_a_gradient_that_a_graph_keeps_is_guarded() -> None:
    w = lt.ones(3, requires_grad=True)
    f = lt.compile(lambda x: (w * x).sum().backward(), fullgraph=True)
    for _ in range(4):
        f(lt.ones(3))
    assert f.replays == 2
    scale = lt.ones(3, requires_grad=True)
    kept = (scale * w.grad).sum()
    f(lt.ones(3))
    with pytest.raises(lt.GradientError, match="modified by an inplace"):
        kept.backward()


def test_results_have_memory_of_their_own() -> None:
    f = lt.compile(lambda x: (x * 2, x + 1), fullgraph=True)
    found = [f(lt.full((3,), float(k))) for k in range(6)]
    assert [a[0].item() for a, _ in found] == [2.0 * k for k in range(6)]
    assert [b[0].item() for _, b in found] == [1.0 + k for k in range(6)]


def test_a_loss_whose_graph_is_freed_says_so() -> None:
    s = Setup()
    step = lt.compile(plain_step(s))
    ((x, y),) = batches(1)
    losses = [step(x, y) for _ in range(4)]
    for loss in losses:
        assert loss.requires_grad
        assert loss.grad_fn.name() == losses[0].grad_fn.name()
        with pytest.raises(lt.GradientError, match="second time"):
            loss.backward()


def test_an_error_in_a_kernel_is_that_of_the_plain_call() -> None:
    table = lt.arange(12.0).reshape(4, 3)
    f = lt.compile(lambda i: F.embedding(i, table).sum(), fullgraph=True)
    good, bad = lt.tensor([0, 3]), lt.tensor([0, 4])
    for _ in range(3):
        f(good)
    before = live()
    with pytest.raises(IndexError) as replayed:
        f(bad)
    with pytest.raises(IndexError) as plain:
        F.embedding(bad, table)
    assert str(replayed.value) == str(plain.value)
    del replayed, plain
    assert live() == before
    assert f(good).item() == table[[0, 3]].sum().item()


def test_profilers_regions_and_budgets_see_the_plain_call() -> None:
    s = Setup()
    step = lt.compile(plain_step(s), fullgraph=True)
    ((x, y),) = batches(1)
    for _ in range(3):
        step(x, y)
    replays = step.replays
    with lt.profiling.MemoryProfiler() as prof:
        step(x, y)
    with lt.memory_budget("1GiB"):
        step(x, y)
    assert step.replays == replays
    assert prof.at_peak("role")["parameter"] > 0
    step(x, y)
    assert step.replays == replays + 1


def test_methods_have_recordings_of_their_own() -> None:
    class Scale:
        def __init__(self, factor: float) -> None:
            self.factor = factor

        @lt.compile
        def times(self, x: Any) -> Any:
            return x * self.factor

    a, b = Scale(2.0), Scale(3.0)
    for _ in range(4):
        assert (a.times(lt.ones(1)).item(), b.times(lt.ones(1)).item()) == (2.0, 3.0)


def test_reset_forgets_and_disable_returns_the_function() -> None:
    def double(x: Any) -> Any:
        return x + x

    assert lt.compile(double, disable=True) is double
    f = lt.compile(double)
    for _ in range(3):
        f(lt.ones(1))
    assert f.replays == 1
    lt.compiler.reset()
    for _ in range(2):
        f(lt.ones(1))
    assert f.replays == 1


def test_recordings_of_a_model_that_is_replaced_are_let_go() -> None:
    holder = {"net": Net()}
    f = lt.compile(lambda x: holder["net"].first(x).detach())
    with lt.no_grad():
        for _ in range(3):
            f(lt.ones(2, 6))
        old = weakref.ref(holder["net"])
        holder["net"] = Net()
        f(lt.ones(2, 6))
    assert f.replays == 1
    assert old() is None


def test_the_ledger_is_as_before_when_a_compiled_function_is_gone() -> None:
    gc.collect()
    before = live()

    def run() -> None:
        s = Setup()
        step = lt.compile(plain_step(s))
        ((x, y),) = batches(1)
        for _ in range(4):
            step(x, y)

    run()
    gc.collect()
    assert live() == before
    assert backend(device("cpu")).ledger.observers == ()


def test_warnings_name_the_function() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        f = lt.compile(reads_value)
        for _ in range(3):
            f(lt.ones(2))
    assert [str(w.message).partition(" runs")[0] for w in caught] == ["compile: reads_value"]
    assert caught[0].filename == __file__


# Checking


@pytest.mark.parametrize("name", STEPS)
def test_checked_replays_are_equal(name: str) -> None:
    step = equal_runs(STEPS[name], lambda f: lt.compile(f, fullgraph=True, check=2))
    assert step.replays >= 2


def test_a_check_finds_what_recordings_do_not_compare(monkeypatch: Any) -> None:
    def f(x: Any) -> Any:
        return x * float(os.environ["LOWTIDE_TEST_FACTOR"])

    monkeypatch.setenv("LOWTIDE_TEST_FACTOR", "1")
    compiled = lt.compile(f, check=3)
    assert [compiled(lt.ones(1)).item() for _ in range(4)] == [1.0] * 4
    monkeypatch.setenv("LOWTIDE_TEST_FACTOR", "2")
    with pytest.raises(AssertionError, match="differ in what it returns"):
        compiled(lt.ones(1))


def test_a_checked_module_is_equal() -> None:
    net = lt.compile(Net(), fullgraph=True, check=1)
    for _ in range(5):
        net(lt.randn(8, 6)).square().mean().backward()
    assert net._compiled.replays == 3
    assert net.norm.num_batches_tracked.item() == 5
