"""Every op on its samples and every layer on its cases takes what was estimated, to the byte.

One estimate goes through them all, and brings out of the copy what each took.
"""

from __future__ import annotations

import gc

import pytest

import lowtide as lt
from lowtide.framework import testing
from lowtide.framework.devices import backend
from lowtide.framework.dtypes import float32
from lowtide.framework.ops.registry import OPS
from lowtide.framework.tensor import Tensor
from lowtide.profiling import estimate
from tests.modules import table

MOST = 3  # samples of an op
# Backward writes into a leaf, or whose rows are looked up depends on what was computed.
LEFT_OUT = ("inplace=True", "AdaptiveLogSoftmaxWithLoss")


class Told(Exception):
    """Brings out of the copy what the step found."""


def total(outputs):
    return sum(abs(o).float().sum() for o in outputs)


def op_step(name, number):
    op = OPS[name]
    inputs, attributes = testing.samples(op, testing.Make(float32))[number]
    inputs = testing.place(inputs, "cpu", op)

    def step():
        given = [
            x.detach().clone().requires_grad_(x.requires_grad) if isinstance(x, Tensor) else x
            for x in inputs
        ]
        outputs = [o for o in testing.call(op, given, attributes) if o.requires_grad]
        leaves = [x for x in given if isinstance(x, Tensor) and x.requires_grad]
        if outputs and leaves:
            gradients = lt.autograd.grad(
                total(outputs), leaves, create_graph=True, allow_unused=True
            )
            again = [g for g in gradients if g is not None and g.requires_grad]
            if again:
                total(again).backward()

    return step


def layer_step(case, mode):
    layer = table.build(lt, case, float32)
    getattr(layer, mode)()
    made, _ = table.inputs(lt, case, float32)

    def step():
        outputs = [o for o in table.call(lt, case, layer, made) if o.requires_grad]
        if outputs:
            total(outputs).backward()

    return step


def steps_of(what):
    found = {}
    if what == "ops":
        for name in sorted(OPS):
            for number in range(min(MOST, len(testing.samples(OPS[name], testing.Make())))):
                found[f"{name}-{number}"] = op_step(name, number)
    else:
        for case in table.all_cases():
            if not any(left in case.id for left in LEFT_OUT):
                for mode in case.modes:
                    found[f"{case.id} {mode}"] = layer_step(case, mode)
    return found


def taken(steps):
    """What each step takes: bytes at its peak, allocations, bytes that stay."""
    ledger = backend(lt.device("cpu")).ledger
    found = {}
    for name, step in steps.items():
        live, made = ledger.live, ledger.allocations
        ledger.reset_peak()
        step()
        found[name] = (ledger.peak - live, ledger.allocations - made, ledger.live - live)
    return found


@pytest.mark.deep
@pytest.mark.parametrize("what", ["ops", "layers"])
def test_each_takes_what_was_estimated(what):
    def told():
        raise Told(taken(steps))

    lt.manual_seed(0)
    steps = steps_of(what)
    gc.collect()
    gc.disable()  # cycles die at other moments where nothing is computed
    try:
        with pytest.raises(Told) as caught:
            estimate(told)
        predicted = caught.value.args[0]
        del caught
        real = taken(steps)
    finally:
        gc.enable()
    assert len(real) > 300
    different = {n: (predicted[n], real[n]) for n in real if predicted[n] != real[n]}
    assert different == {}
