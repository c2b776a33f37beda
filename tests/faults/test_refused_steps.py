"""What writes parameters, state, gradients or averages does so whole, or not at all."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import lowtide as lt
from lowtide.framework.devices import backend
from lowtide.framework.interrupts import defer_interrupts
from lowtide.framework.modes import local
from tests.faults.refusals import OPTIMIZERS, Refusal, sample
from tests.optim.cases import CASES, OPTIONS, identity

ALL_AT_ONCE = ("Adafactor", "Muon", "Adam8bit", "AdamW8bit")  # these take workspace
STEADY = [c for c in CASES if c[0] not in ALL_AT_ONCE]


@pytest.mark.quick(6)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_refused_allocation_leaves_nothing_half_done(name):
    found = [(run.refuse(at), run.model, run.iteration, at) for run, at in sample(name, 4)]
    assert [(stage, *where) for (stage, wrong), *where in found if wrong] == []
    assert len(found) == 20


@pytest.fixture(autouse=True)
def _no_garbage_of_earlier_tests():
    gc.collect()  # its end would be seen in live bytes


def parameters(kind, device="cpu"):
    dtype = getattr(lt, kind) if "float" in kind else lt.float32
    side = 160 if kind == "large" else 12
    ps = []
    for k in range(3):
        p = lt.tensor(np.cos(np.arange(side * side) + k).reshape(side, side)).to(dtype)
        p = (p.T if kind == "strided" else p).detach().to(device).requires_grad_()
        p.grad = p.detach() * 0.5
        ps.append(p)
    return ps


def values(ps, optimizer):
    tensors = [*ps, *[t for p in ps for t in optimizer.state.get(p, {}).values()]]
    return [t.detach().float().tolist() if isinstance(t, lt.Tensor) else t for t in tensors]


@pytest.mark.quick(200)
@pytest.mark.parametrize("kind", ["large", "float32", "float64", "bfloat16", "float16", "strided"])
@pytest.mark.parametrize("case", STEADY, ids=identity)
def test_a_step_allocates_nothing_once_its_state_exists(case, kind):
    name, options = case
    ps = parameters(kind)
    optimizer = getattr(lt.optim, name)(ps, **options)
    optimizer.step()
    ledger = backend(ps[0].device).ledger
    before = ledger.allocations
    optimizer.step()
    assert ledger.allocations == before


@pytest.mark.parametrize("kind", ["float32", "large", "bfloat16"])
@pytest.mark.parametrize("name", OPTIONS)
def test_what_is_refused_for_the_last_parameter_leaves_the_first_and_the_ledger(name, kind):
    ps = parameters(kind)
    options = {**OPTIONS[name][-1], **({"min_8bit_size": 0} if "8bit" in name else {})}
    optimizer = getattr(lt.optim, name)(ps, **options)
    other, counted = getattr(lt.optim, name)(parameters(kind), **options), Refusal()
    with counted.armed():
        other.step()
    before, live = values(ps, optimizer), lt.memory_allocated()
    with Refusal(counted.count).armed(), pytest.raises(lt.MemoryLimitError):
        optimizer.step()
    assert values(ps, optimizer) == before
    assert len(optimizer.state) == 0
    assert lt.memory_allocated() == live


@pytest.mark.parametrize("name", OPTIONS)
def test_ctrl_c_within_a_step_comes_after_it(name, monkeypatch):
    ends = []
    for interrupted in (False, True):
        ps = parameters("float32")
        optimizer = getattr(lt.optim, name)(ps, **OPTIONS[name][0])
        prepare = optimizer.prepare

        def with_signal(p, g, state, group, prepare=prepare):
            run, *arguments = prepare(p, g, state, group)

            def call():
                import _thread

                run(*arguments)
                _thread.interrupt_main()

            return (call,)

        if interrupted:
            optimizer.prepare = with_signal
            with pytest.raises(KeyboardInterrupt):
                optimizer.step()
        else:
            optimizer.step()
        assert not optimizer._in_step
        assert local.state.grad
        assert local.state.phase is None
        ends.append(values(ps, optimizer))
    assert ends[0] == ends[1]


def test_an_interrupt_before_the_first_write_leaves_no_state():
    ps = parameters("float32")
    optimizer = lt.optim.Adam(ps)
    before, live = values(ps, optimizer), lt.memory_allocated()

    seen = []
    start = optimizer.start

    def started(p, group):
        seen.append(p)
        if len(seen) == 3:
            raise KeyboardInterrupt
        return start(p, group)

    optimizer.start = started
    with pytest.raises(KeyboardInterrupt):
        optimizer.step()
    assert len(seen) == 3
    assert values(ps, optimizer) == before
    assert lt.memory_allocated() == live


def test_an_update_of_the_users_is_called_as_ever():
    class Own(lt.optim.Optimizer):
        def update(self, p, g, state, group):
            state["step"] = state.get("step", 0) + 1
            p.sub_(g)

    class Halved(lt.optim.SGD):
        def update(self, p, g, state, group):
            super().update(p, g * 0.5, state, group)

    p, q = (lt.ones(2).requires_grad_() for _ in range(2))
    p.grad, q.grad = lt.ones(2), lt.ones(2)
    optimizer = Own([p], {})
    optimizer.step()
    Halved([q], lr=1.0).step()
    assert (p.tolist(), q.tolist()) == ([0.0, 0.0], [0.5, 0.5])
    assert optimizer.state[p] == {"step": 1}


def test_a_parameter_that_is_listed_twice_is_stepped_twice():
    ends = []
    for times in (1, 2):
        p = lt.ones(3).requires_grad_()
        with pytest.warns(UserWarning, match="duplicate") if times == 2 else defer_interrupts():
            optimizer = lt.optim.Adafactor([p] * times)
        p.grad = lt.ones(3)
        for _ in range(2 // times):
            optimizer.step()
        ends.append((p.tolist(), optimizer.state[p]["step"]))
    assert ends[0] == ends[1]


@pytest.mark.parametrize("name", [n for n in OPTIMIZERS if n != "LBFGS"])
def test_a_refused_load_leaves_state_and_options(name):
    ps = parameters("float32")
    optimizer = getattr(lt.optim, name)(ps, **OPTIMIZERS[name])
    optimizer.step()
    saved = optimizer.state_dict()
    saved["param_groups"][0]["lr"] = 77.0
    before, live = values(ps, optimizer), lt.memory_allocated()
    counted = Refusal()
    with counted.armed():
        getattr(lt.optim, name)(ps, **OPTIMIZERS[name]).load_state_dict(saved)
    for at in range(1, counted.count + 1):
        with Refusal(at).armed(), pytest.raises(lt.MemoryLimitError):
            optimizer.load_state_dict(saved)
        assert values(ps, optimizer) == before
        assert optimizer.param_groups[0]["lr"] == OPTIMIZERS[name]["lr"]
        assert lt.memory_allocated() == live
    assert counted.count >= 3


def test_muon_keeps_its_buffer_and_the_gradient_of_bfloat16_parameters():
    p, q = (lt.ones(4, 3, dtype=kind).requires_grad_() for kind in (lt.bfloat16, lt.float32))
    for t in (p, q):
        t.grad = lt.full((4, 3), 0.5, dtype=t.dtype)
        optimizer = lt.optim.Muon([t], momentum=0.5, nesterov=t is p)
        optimizer.step()
        assert (t.grad == 0.5).all()
        optimizer = lt.optim.Muon([t], momentum=0.5, nesterov=False)
        optimizer.step()
        assert (optimizer.state[t]["momentum_buffer"] == 0.25).all()


def test_lbfgs_goes_back_when_its_closure_raises():
    p = lt.tensor([1.0, 2.0]).requires_grad_()
    optimizer = lt.optim.LBFGS([p], lr=0.1, max_iter=4)
    calls = []

    def closure():
        calls.append(1)
        if len(calls) == 8:
            raise ValueError("the user's")
        optimizer.zero_grad()
        loss = (p**4).sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    state = {k: str(v) for k, v in optimizer.state[p].items()}
    before = p.tolist()
    with pytest.raises(ValueError, match="the user's"):
        optimizer.step(closure)
    assert p.tolist() == before
    assert {k: str(v) for k, v in optimizer.state[p].items()} == state


# Gradients


@pytest.mark.parametrize("dtypes", [(lt.float32, lt.bfloat16), (lt.bfloat16, lt.float64)])
@pytest.mark.parametrize("clip", ["clip_grad_norm_", "clip_grad_value_"])
def test_refused_clipping_scales_all_gradients_or_none(clip, dtypes):
    ps = [lt.ones(300, dtype=d).requires_grad_() for d in dtypes]
    run = getattr(lt.nn.utils, clip)

    def reset():
        for p in ps:
            p.grad = lt.full((300,), 3.0, dtype=p.dtype)

    reset()
    counted = Refusal()
    with counted.armed():
        run(ps, 0.5)
    clipped = [p.grad.tolist() for p in ps]
    for at in range(1, counted.count + 1):
        reset()
        with Refusal(at).armed(), pytest.raises(lt.MemoryLimitError):
            run(ps, 0.5)
        assert all((p.grad == 3.0).all() for p in ps)
        run(ps, 0.5)
        assert [p.grad.tolist() for p in ps] == clipped
    assert counted.count > 0 or clip == "clip_grad_value_"


def scaled(dtypes=(lt.float32, lt.bfloat16)):
    ps = [lt.ones(5, dtype=d).requires_grad_() for d in dtypes]
    scaler = lt.amp.GradScaler("cpu", init_scale=4.0)
    return ps, scaler, lt.optim.SGD(ps, lr=1.0, momentum=0.9)


def backward(ps, scaler):
    scaler.scale(sum((p.float() * 0.5).sum() for p in ps)).backward()


def test_a_refused_unscale_can_be_tried_again_and_divides_once():
    ps, scaler, optimizer = scaled()
    backward(ps, scaler)
    with Refusal(1).armed(), pytest.raises(lt.MemoryLimitError):
        scaler.unscale_(optimizer)
    assert [p.grad.tolist() for p in ps] == [[2.0] * 5] * 2
    scaler.unscale_(optimizer)
    assert [p.grad.tolist() for p in ps] == [[0.5] * 5] * 2


def test_a_refused_step_of_a_scaler_can_be_tried_again_and_divides_once():
    ps, scaler, optimizer = scaled()
    backward(ps, scaler)
    with Refusal(2).armed(), pytest.raises(lt.MemoryLimitError):  # the first finds infinities
        scaler.step(optimizer)
    assert [p.tolist() for p in ps] == [[1.0] * 5] * 2
    scaler.step(optimizer)
    assert [p.tolist() for p in ps] == [[0.5] * 5] * 2


def test_after_a_refused_step_new_gradients_are_unscaled_too():
    ps, scaler, optimizer = scaled()
    backward(ps, scaler)
    with Refusal(2).armed(), pytest.raises(lt.MemoryLimitError):
        scaler.step(optimizer)
    optimizer.zero_grad()
    backward(ps, scaler)
    scaler.step(optimizer)
    assert [p.tolist() for p in ps] == [[0.5] * 5] * 2


def test_infinities_of_half_and_strided_gradients_are_found_without_memory():
    for p in (lt.ones(5, dtype=lt.bfloat16), lt.ones(3, 5).T):
        p = p.detach().requires_grad_()
        scaler, optimizer = lt.amp.GradScaler("cpu"), lt.optim.SGD([p], lr=1.0)
        scaler.scale(p.float().sum()).backward()
        p.grad[0] = float("inf")
        counted = Refusal()
        with counted.armed():
            scaler.step(optimizer)
        assert (p == 1).all(), "the step was skipped"
        assert counted.count == 1, "the number for the device"


# Averages and schedules


def test_a_refused_average_moves_nothing():
    model = lt.nn.Sequential(lt.nn.Linear(3, 4), lt.nn.BatchNorm1d(4))
    for functions in (
        {"avg_fn": lt.optim.swa_utils.get_ema_avg_fn(0.5)},
        {"use_buffers": True},
        {"use_buffers": True, "multi_avg_fn": lt.optim.swa_utils.get_ema_multi_avg_fn(0.5)},
    ):
        ema = lt.optim.swa_utils.AveragedModel(model, **functions)
        ema.update_parameters(model)
        with lt.no_grad():
            for p in model.parameters():
                p.add_(1)
        before = [t.tolist() for t in ema.state_dict().values()]
        counted = Refusal()
        with counted.armed():
            lt.optim.swa_utils.AveragedModel.update_parameters(ema, model)
        after = [t.tolist() for t in ema.state_dict().values()]
        for at in range(1, counted.count + 1):
            other = lt.optim.swa_utils.AveragedModel(model, **functions)
            other.load_state_dict(dict(zip(ema.state_dict(), map(lt.tensor, before), strict=True)))
            with Refusal(at).armed(), pytest.raises(lt.MemoryLimitError):
                other.update_parameters(model)
            assert [t.tolist() for t in other.state_dict().values()] == before
            other.update_parameters(model)
            assert [t.tolist() for t in other.state_dict().values()] == after


def test_an_average_of_the_default_kind_takes_no_memory():
    model = lt.nn.Sequential(lt.nn.Linear(30, 400), lt.nn.Linear(400, 3).to(lt.bfloat16))
    ema = lt.optim.swa_utils.AveragedModel(model)
    ema.update_parameters(model)
    counted = Refusal()
    with counted.armed():
        ema.update_parameters(model)
    assert counted.count == 0


def test_update_bn_that_raises_leaves_the_statistics():
    model = lt.nn.BatchNorm1d(3)
    model(lt.randn(5, 3))
    before = {k: v.tolist() for k, v in model.state_dict().items()}

    def batches():
        yield lt.randn(5, 3)
        raise OSError("the disk")

    with pytest.raises(OSError, match="the disk"):
        lt.optim.swa_utils.update_bn(batches(), model.eval())
    assert {k: v.tolist() for k, v in model.state_dict().items()} == before
    assert (model.training, model.momentum) == (False, 0.1)


def test_a_scheduler_whose_function_raises_stays_where_it_was():
    optimizer = lt.optim.SGD([lt.ones(1)], lr=1.0)
    scheduler = lt.optim.lr_scheduler.LambdaLR(optimizer, lambda k: [1.0, 0.5][k])
    optimizer.step()
    scheduler.step()
    before = (scheduler.state_dict()["last_epoch"], scheduler._step_count)
    with pytest.raises(IndexError):
        scheduler.step()
    assert (scheduler.state_dict()["last_epoch"], scheduler._step_count) == before
    assert optimizer.param_groups[0]["lr"] == 0.5


def test_a_module_is_loaded_whole_or_not_at_all():
    with lt.inference_mode():
        frozen = lt.ones(2)
    model = lt.nn.Linear(2, 2)
    model.register_buffer("frozen", frozen)
    before = model.weight.tolist()
    state = {"weight": lt.ones(2, 2), "bias": lt.ones(2), "frozen": lt.zeros(2)}
    with pytest.raises(RuntimeError, match="inference tensor"):
        model.load_state_dict(state)
    assert model.weight.tolist() == before


def test_loading_a_module_takes_no_memory_between_writes():
    model = lt.nn.Sequential(lt.nn.Linear(20, 30), lt.nn.Linear(30, 2)).to(lt.bfloat16)
    state = {k: v.float() for k, v in model.state_dict().items()}
    counted = Refusal()
    with counted.armed():
        model.load_state_dict(state)
    assert counted.count == 0


def test_gradients_are_zeroed_without_memory():
    ps = parameters("bfloat16")
    optimizer = lt.optim.SGD(ps, lr=1.0)
    counted = Refusal()
    with counted.armed():
        optimizer.zero_grad(set_to_none=False)
    assert counted.count == 0
    assert all((p.grad == 0).all() for p in ps)


@pytest.mark.parametrize("name", OPTIONS)
def test_a_refused_update_in_backward_leaves_that_parameter_whole(name):
    p = parameters("float32")[0]
    optimizer = getattr(lt.optim, name)([p], **OPTIONS[name][-1])
    handle = lt.optim.fuse_into_backward(optimizer)
    before = p.tolist()
    refusal = Refusal(1)
    p.register_hook(lambda g: setattr(refusal, "count", 0))  # what follows is the update
    with refusal.armed(), pytest.raises(lt.MemoryLimitError):
        p.backward(lt.ones(12, 12))
    assert p.tolist() == before
    assert not optimizer.state[p]
    handle.remove()
