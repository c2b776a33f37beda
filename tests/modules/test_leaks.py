"""Results, graph and gradients go with the last name of them; no cycle keeps a byte."""

from __future__ import annotations

import gc

import pytest

import lowtide as lt
from tests.modules.table import FAMILIES, build, call, combine, family, inputs


def step(case, layer):
    """Forward and backward, and the gradients dropped."""
    made, _ = inputs(lt, case, lt.float32)
    if case.kwargs.get("inplace"):
        made = tuple(m * 1 for m in made)
    loss = combine(lt, case, "out", call(lt, case, layer, made))
    if loss is not None and loss.requires_grad:
        loss.backward()
    layer.zero_grad()


@pytest.mark.quick(4)
@pytest.mark.parametrize("name", FAMILIES)
def test_a_step_of_each_layer_leaves_no_bytes(name):
    gc.collect()
    gc.disable()
    left = {}
    try:
        for case in family(name).CASES:
            layer = build(lt, case, lt.float32)
            step(case, layer)  # what is made once is there from now on
            before = lt.memory_allocated("cpu")
            step(case, layer)
            left[case.id] = lt.memory_allocated("cpu") - before
    finally:
        gc.enable()
    assert {i: n for i, n in left.items() if n} == {}
    assert left
