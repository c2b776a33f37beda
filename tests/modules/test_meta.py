"""Layers on meta: no bytes are held, and shapes and dtypes are those of the real run."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import lowtide as lt
from tests.modules.table import all_cases, call, combine, construct, inputs

CASES = all_cases()
by_case = pytest.mark.parametrize("case", CASES, ids=lambda c: c.id)


def kind(t: lt.Tensor) -> tuple[tuple[int, ...], str]:
    return tuple(t.shape), t.dtype.name


@by_case
def test_a_layer_built_on_meta_holds_no_bytes(case):
    real = construct(lt, case)
    gc.disable()  # or bytes of earlier tests, left in cycles, may go just now
    try:
        before = lt.memory_allocated("cpu")
        with lt.device("meta"):
            layer = construct(lt, case)
        held = lt.memory_allocated("cpu") - before
    finally:
        gc.enable()
    assert held == 0
    state = layer.state_dict()
    assert {n: kind(t) for n, t in state.items()} == {
        n: kind(t) for n, t in real.state_dict().items()
    }
    assert {t.device.type for t in (*state.values(), *layer.buffers())} <= {"meta"}


@by_case
def test_results_and_gradients_have_the_same_shapes_on_meta(case):
    if not case.meta:
        pytest.skip("its shapes depend on values")
    kinds = []
    for device in ("cpu", "meta"):
        with lt.device(device):
            layer = construct(lt, case).to(lt.float32)
            made, leaves = inputs(lt, case, lt.float32, device=device)
            if case.kwargs.get("inplace"):
                made = tuple(m * 1 for m in made)
            outs = call(lt, case, layer, made)
            leaves |= {n: p for n, p in layer.named_parameters() if p.requires_grad}
            loss = combine(lt, case, "out", outs)
            grads = {}
            if loss is not None and leaves:
                found = lt.autograd.grad(loss, list(leaves.values()), allow_unused=True)
                grads = {n: g for n, g in zip(leaves, found, strict=True) if g is not None}
        floating = [t for t in outs if t.is_floating_point()]  # sizes of a packed batch stay
        assert {t.device.type for t in (*floating, *grads.values())} <= {device}
        kinds.append(([kind(t) for t in outs], {n: kind(g) for n, g in grads.items()}))
    assert kinds[0] == kinds[1]


def test_a_layer_built_on_meta_takes_a_state_dict():
    with lt.device("meta"):
        layer = lt.nn.BatchNorm1d(3)
    source = lt.nn.BatchNorm1d(3)
    layer.load_state_dict(source.state_dict(), assign=True)
    out = layer(lt.tensor(np.eye(3, dtype=np.float32)))
    assert out.device.type == "cpu"
    assert layer.num_batches_tracked.item() == 1
