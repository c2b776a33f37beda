"""Predictions equal what happens, to the byte."""

from __future__ import annotations

import os
from types import SimpleNamespace

import numpy as np
import pytest

import lowtide as lt
from lowtide import nn, optim
from lowtide.framework import devices
from lowtide.framework.device import device
from lowtide.framework.devices import backend
from lowtide.framework.devices.cuda import CudaStorage
from lowtide.framework.memory.ledger import Ledger
from lowtide.profiling import MemoryProfiler, estimate
from lowtide.profiling.estimate import fake_kernels
from tests.profiling.predictions import measured, predicted
from tests.profiling.steps import NEEDS_VALUES, STEPS, mlp, training


def _is_quick(name):
    """Whether the quick tier has it: no recipes' models, and of the optimizers Adam."""
    return not name.startswith(("recipe", "mlp, ")) or name == "mlp, Adam"


CASES = [
    pytest.param(
        name,
        cheap,
        id=f"{name}{'' if cheap else ', nothing computed'}",
        marks=() if cheap and _is_quick(name) else pytest.mark.deep,
    )
    for name in STEPS
    for cheap in (True, False)
    if cheap or not name.startswith(NEEDS_VALUES)
]


@pytest.mark.quick(5)
@pytest.mark.parametrize(("name", "cheap"), CASES)
def test_equals_the_real_step(name, cheap, monkeypatch):
    if not cheap:  # small models too, whose values would be known at next to no cost
        monkeypatch.setattr(fake_kernels, "CHEAP_BYTES", -1)
    lt.manual_seed(0)
    step = STEPS[name]()
    for _ in range(2):  # the first makes gradients and the optimizer's state
        assert predicted(step) == measured(step)
    assert predicted(step) == predicted(step)


def test_a_parameter_in_many_pieces():
    net = nn.Linear(1500, 1301).to(lt.bfloat16)  # 30 pieces, the last one shorter
    optimizer = optim.AdamW(net.parameters())
    for p in net.parameters():
        p.grad = lt.ones_like(p)
    for _ in range(2):
        found = predicted(optimizer.step)
        assert found == measured(optimizer.step)


@pytest.mark.parametrize(
    "name", ["recipe chargpt trains", "cnn with batch norm", "gradient penalty"]
)
def test_owners_are_those_of_the_real_step(name):
    step = STEPS[name]()
    step()
    found = estimate(step)
    with MemoryProfiler() as prof:
        step()
    assert found.peak_bytes == prof.peak_bytes == sum(found.at_peak().as_dict().values())
    for by in ("role", "module", "op", "phase"):
        assert found.at_peak(by).as_dict() == prof.at_peak(by).as_dict()
        assert found.saved(by).as_dict() == prof.saved(by).as_dict()
    assert found.recording.events.nbytes == prof.recording.events.nbytes
    assert found.recording.events.kind == prof.recording.events.kind


def test_modes_of_the_caller_hold():
    w = lt.randn(600, 600, requires_grad=True)
    before = backend(device("cpu")).ledger.by_role()["saved"]
    with lt.no_grad():
        assert estimate(lambda: (w * 2).relu()).peak_roles["saved"] == before
    assert estimate(lambda: (w * 2).relu()).peak_roles["saved"] == before + 600 * 600 // 8  # bits


def test_a_limit_is_reported_not_raised():
    x = lt.randn(100, 100)
    be = backend(device("cpu"))
    old = lt.set_memory_limit(be.ledger.live + 50_000, "cpu")
    try:
        found = estimate(lambda: x * 2 + x * 3)
        small = estimate(lambda: x * 2)
        with pytest.raises(lt.MemoryLimitError):
            x * 2 + x * 3
    finally:
        lt.set_memory_limit(old, "cpu")
    assert not found.fits
    assert small.fits
    assert found.devices[0].limit_bytes == small.devices[0].limit_bytes
    assert "does not fit" in str(found)


def test_it_prints():
    step = training(model := mlp(), lambda: model(lt.ones(600, 20)).sum(), optim.AdamW)
    text = str(estimate(step))
    assert "cpu: peak" in text
    assert "GFLOP" in text


# Devices


@pytest.mark.parametrize("where", ["meta", "sim"])
def test_other_devices(where):
    with device(where):
        model = nn.Sequential(nn.Linear(20, 64), nn.GELU(), nn.Linear(64, 5))
        x = lt.ones(32, 20)
    optimizer = optim.AdamW(model.parameters())

    def step():
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    for _ in range(2):
        found = predicted(lambda: step().item(), where)
        assert found == measured(step, where)


class FakeGpu:
    """As much of CUDA's backend as tensors made before a fork need; its arrays do nothing."""

    xp = None
    kernel_key = "cuda"

    def __init__(self):
        self.device = device("cuda:0")
        self.ledger = Ledger(self.device)
        self.pool = SimpleNamespace(used=0, reset_peak=lambda: None)
        self.reserved_bytes = lambda: 0
        self.top = 1 << 40

    def empty(self, spec, role=0):
        self.top += 512 * (1 + spec.nbytes // 512)
        storage = CudaStorage(self.ledger, SimpleNamespace(ptr=self.top), spec.nbytes, role)
        strides = np.empty(spec.shape, np.int8).strides
        array = SimpleNamespace(
            data=SimpleNamespace(ptr=self.top),
            owner=storage,
            shape=spec.shape,
            dtype=spec.np_dtype,
            strides=[s * spec.dtype.itemsize for s in strides],
        )
        return storage, array


def test_a_gpu_is_not_touched(monkeypatch):
    gpu = FakeGpu()
    monkeypatch.setitem(devices._backends, gpu.device, gpu)
    w = lt.empty(30, 40, device="cuda:0", requires_grad=True)
    x = lt.empty(8, 30, device="cuda:0")
    before = gpu.ledger.live

    def step():
        out = (x @ w).relu()
        loss = out[:, 3:].T.square().mean()
        loss.backward()
        out = out.cpu()
        return loss.item(), lt.ones(3).to("cuda:0"), bool(out.any())

    found = {d.device: d for d in estimate(step).devices}["cuda:0"]
    assert (gpu.ledger.live, w.grad) == (before, None)
    assert found.start_bytes == before == (30 * 40 + 8 * 30) * 4
    assert found.end_bytes == before + 30 * 40 * 4  # w.grad
    with device("meta"):
        w, x = lt.empty(30, 40, requires_grad=True), lt.empty(8, 30)

    def same():
        out = (x @ w).relu()
        loss = out[:, 3:].T.square().mean()
        loss.backward()

    as_meta = {d.device: d for d in estimate(same).devices}["meta"]
    assert found.peak_bytes >= before + 8 * 40 * 4 + 30 * 40 * 4
    assert found.peak_bytes - found.start_bytes == as_meta.peak_bytes - as_meta.start_bytes


# Operations


def test_operations_of_a_matrix_product():
    a = lt.randn(30, 40)
    assert estimate(lambda: a @ a.T).flops_by_op == {"matmul": 2 * 30 * 40 * 30}


def test_operations_in_many_pieces():
    def flops(elements):
        net = lt.ones(elements, dtype=lt.bfloat16, requires_grad=True)
        net.grad = lt.ones_like(net)
        return estimate(optim.AdamW([net]).step).flops_by_op

    one, many = flops(1 << 16), flops(40 << 16)
    assert many == {op: 40 * n for op, n in one.items()}


def test_meta_and_cpu_count_the_same_operations():
    def flops(where):
        with device(where):
            model, x = mlp(), lt.ones(64, 20)
        return estimate(lambda: model(x).sum().backward()).flops_by_op

    assert flops("meta") == flops("cpu")


# Values


def test_what_was_there_is_known_and_what_is_computed_is_not():
    w = lt.full((600, 600), 0.5)
    seen = []

    def step():
        big = w @ w
        seen.append((w[3, 4].item(), big[0, 0].item(), bool(big.sum()), big[0, :2].tolist()))
        seen.append((w.numpy()[0, 0].item(), big.numpy().any().item(), f"{float(big.max())}"))
        w.mul_(2)
        seen.append((w[3, 4].item(), w.detach().clone().sum().item()))
        raise KeyError(seen)

    with pytest.raises(KeyError) as caught:
        estimate(step)
    assert caught.value.args[0] == [
        (0.5, 1.0, True, [1.0, 1.0]),
        (0.5, True, "1.0"),
        (1.0, 1.0),
    ]


def test_guesses_name_the_lines():
    w = lt.randn(600, 600, requires_grad=True)

    def step():
        loss = (w @ w).sum()
        for _ in range(3):
            loss.item()

    (where,) = estimate(step).guesses.items()
    line = step.__code__.co_firstlineno + 3
    assert where == (f"item() at {os.path.relpath(__file__)}:{line}", 3)


def test_small_values_are_computed():
    lengths = lt.tensor([3, 1, 2])

    def step():
        n = int((lengths * 2).max())
        return lt.empty(n, lengths.sum().item(), 1000)

    found = estimate(step)
    assert found.guesses == {}
    assert found.peak_bytes - found.devices[0].start_bytes == 6 * 6 * 1000 * 4


def test_a_shape_that_depends_on_known_values():
    mask = lt.arange(100_000) % 3 == 0

    def step():
        return mask.nonzero()

    found = estimate(step)
    assert found.peak_bytes - found.devices[0].start_bytes == 33_334 * 8


@pytest.mark.parametrize(
    ("name", "op"),
    [
        ("nonzero", lambda x: x.nonzero()),
        ("masked_select", lambda x: x.masked_select(x > 0)),
        ("unique", lambda x: x.unique()),
        ("index", lambda x: x[x > 0]),
        ("one_hot", lambda x: lt.nn.functional.one_hot(x.argmax(1))),
        ("repeat_interleave", lambda x: lt.repeat_interleave(x, x.argmax(1), dim=0)),
    ],
)
def test_a_shape_that_depends_on_unknown_values(name, op):
    w = lt.randn(600, 600)
    with pytest.raises(NotImplementedError, match="depends on values") as caught:
        estimate(lambda: op(w @ w))
    assert "Compute it before the step" in str(caught.value)
