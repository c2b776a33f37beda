"""Every op of the registry runs once inside a region, and gives the same bits as outside of one.

The samples are those that the ops declare (``tests/ops/test_generated.py``). All their tensors are
made inside the region from leaves, by ops, so that backward finds none of them and must replay
them; results are used further inside, so that they must be replayed too. A result without a
gradient (indices, comparisons, sizes that depend on data) weighs a leaf of its own.
"""

from __future__ import annotations

import gc

import numpy as np
import pytest

import lowtide as lt
from lowtide.framework import testing
from lowtide.framework.dtypes import float32
from lowtide.framework.ops.registry import OPS
from lowtide.framework.tensor import Tensor
from tests.checkpointing.twice import bits, live

GROUPS = 8  # tests; a failure names the ops

each_group = pytest.mark.parametrize("group", range(GROUPS))


def names_of(group):
    return sorted(OPS)[group::GROUPS]


def again(x, scattered):
    """The same values, made by ops; ``scattered``: with the dims in another order in memory."""
    if not isinstance(x, Tensor):
        return x
    order = list(range(x.ndim))[::-1]
    return x.permute(order).clone().permute(order) if scattered else x.clone()


def used(out, weight):
    """A number that depends on every element of a result, through ops that keep it."""
    if out.dtype.is_complex:
        out = out.abs()
    if not out.dtype.is_differentiable:
        return (weight * out.to(float32).nan_to_num()).sum()
    return (out * out * weight.to(out.dtype)).nan_to_num().sum()


class Run:
    """Forward of one sample, plain or in a region; ``finish`` is its backward."""

    def __init__(self, name, number, checkpointed, scattered=False):
        op = OPS[name]
        lt.manual_seed(1)
        inputs, attributes = testing.samples(op, testing.Make())[number]
        self.leaves = testing.place(inputs, "cpu", op)
        self.weight = lt.ones((), requires_grad=True)
        before = live()
        if checkpointed:
            with lt.checkpointing():
                self._forward(op, attributes, scattered)
        else:
            self._forward(op, attributes, scattered)
        self.kept = live() - before - self.total.nbytes - sum(o.nbytes for o in self.copies)

    def _forward(self, op, attributes, scattered):
        outs = testing.call(op, [again(x, scattered) for x in self.leaves], attributes)
        total = self.weight * 1.0
        for out in outs:
            total = total + used(out, self.weight)
        self.total, self.copies = total, [o.detach().clone() for o in outs]

    def finish(self):
        """The bits of results and gradients."""
        self.total.backward()
        leaves = [self.weight, *[x for x in self.leaves if isinstance(x, Tensor)]]
        return [bits(self.total), bits(self.copies), *[bits(x.grad) for x in leaves]]

    def second(self):
        """The bits of first and second gradients."""
        leaves = [self.weight, *[x for x in self.leaves if getattr(x, "requires_grad", False)]]
        firsts = lt.autograd.grad(self.total, leaves, create_graph=True, allow_unused=True)
        again = self.weight * 0
        for g in firsts:
            if g is not None and g.requires_grad:
                again = again + used(g, self.weight)
        return bits([*firsts, *lt.autograd.grad(again, leaves, allow_unused=True)])


def differences(name, number, scattered):
    with np.errstate(all="ignore"):
        expected = Run(name, number, False, scattered).finish()
        found = Run(name, number, True, scattered).finish()
    return [k for k, (e, f) in enumerate(zip(expected, found, strict=True)) if e != f]


@pytest.mark.quick(2)
@each_group
def test_every_op_gives_the_same_bits(group):
    different = {}
    for name in names_of(group):
        for number, (_, attributes) in enumerate(testing.samples(OPS[name], testing.Make())):
            # A view has no other order of memory; a sparse gradient cannot be put in another.
            one_way = OPS[name].view or attributes.get("sparse")
            for scattered in (False, True)[: 1 if one_way else 2]:
                wrong = differences(name, number, scattered)
                if wrong:
                    different[name, number, scattered] = wrong
    assert different == {}


@pytest.mark.quick(2)
@each_group
def test_every_op_keeps_nothing_and_leaves_nothing(group):
    kept, left = {}, {}
    gc.collect()
    gc.disable()
    try:
        for name in names_of(group):
            Run(name, 0, True).finish()
            before = live()
            run = Run(name, 0, True)
            if run.kept:
                kept[name] = run.kept
            run.finish()
            del run
            if live() != before:
                left[name] = live() - before
    finally:
        gc.enable()
    assert (kept, left) == ({}, {})


@pytest.mark.quick(2)
@each_group
def test_second_gradients_are_the_same(group):
    different = [
        name
        for name in names_of(group)
        if Run(name, 0, False).second() != Run(name, 0, True).second()
    ]
    assert different == []
