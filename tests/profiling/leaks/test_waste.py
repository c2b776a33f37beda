"""Warnings of bytes that bought nothing: once, at the line, of exactly as many bytes."""

from __future__ import annotations

import inspect
import re
import warnings

import pytest

import lowtide as lt
from lowtide import nn
from lowtide.framework.autograd.node import Node
from lowtide.profiling import (
    MemoryProfiler,
    MemoryWarning,
    RetainedGraphWarning,
    UnusedGraphWarning,
    UnusedParameterWarning,
    estimate,
)

ROWS = 4096  # of 64 float32: a mebibyte


def told(program, **options):
    """The memory warnings of a program, as (category, message, line of this file)."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with MemoryProfiler("cpu", **options):
            program()
    assert all(issubclass(w.category, MemoryWarning) for w in caught), [str(w) for w in caught]
    assert all(w.filename.endswith("test_waste.py") for w in caught)
    return [(w.category, str(w.message), w.lineno) for w in caught]


def line_of(function, text):
    lines, first = inspect.getsourcelines(function)
    return first + next(k for k, line in enumerate(lines) if text in line)


@pytest.fixture
def w():
    return lt.ones(64, 64, requires_grad=True)


def test_a_forward_without_a_backward_is_told_once_with_its_bytes(w):
    x = lt.ones(ROWS, 64)

    def evaluate():
        for _ in range(3):
            y = (x @ w).exp().tanh().exp().sum()  # x is kept anyway: three results are not
            del y

    ((category, message, line),) = told(evaluate)
    assert category is UnusedGraphWarning
    assert "this forward saved 3.00 MiB for backward, which no backward used" in message
    assert "no_grad" in message
    assert line == line_of(evaluate, "tanh()")


def test_what_a_value_of_the_loss_pins_as_well_is_not_counted(w):
    def step():
        y = (lt.ones(ROWS, 64) @ w).exp()  # exp keeps its result, whoever else does
        extra = y.square()  # keeps y too: nothing more
        del extra
        y.sum().backward()

    assert told(step) == []


@pytest.mark.deep
def test_a_branch_for_the_log_alone_is_told(w):
    def train():
        for _ in range(3):
            y = lt.ones(ROWS, 64) @ w
            log = y.softmax(-1).mean()  # keeps a mebibyte that no backward reads
            y.sum().backward()
            del log

    ((category, message, line),) = told(train)
    assert category is UnusedGraphWarning
    assert "saved 1.00 MiB" in message
    assert line == line_of(train, "softmax")


def test_a_graph_that_was_retained_for_nobody_is_told_at_the_backward(w):
    def train():
        for _ in range(4):
            loss = (x @ w).exp().sum()
            loss.backward(retain_graph=True)
            del loss

    x = lt.ones(ROWS, 64)
    ((category, message, line),) = told(train)
    assert category is RetainedGraphWarning
    assert "retain_graph=True kept 1.00 MiB" in message
    assert line == line_of(train, "retain_graph")


@pytest.mark.deep
def test_small_graphs_are_not_worth_a_warning(w):
    assert told(lambda: [(w * w).exp() for _ in range(5)]) == []


def clean_step(w, x):
    (x @ w).exp().sum().backward()


def retained_for_two(w, x):
    y = (x @ w).exp()
    for k in range(3):
        y.sum().backward(retain_graph=k < 2)


def sometimes_needed(w, x):
    for k in range(6):
        loss = (x @ w).exp().sum()
        loss.backward(retain_graph=True)
        if k == 1:
            loss.backward()
        del loss


def gradient_penalty(w, x):
    x.requires_grad_()
    (g,) = lt.autograd.grad((x @ w).exp().sum(), x, create_graph=True)
    (g.square().sum()).backward()


def gradient_of_the_input_alone(w, x):
    x.requires_grad_()
    lt.autograd.grad(((x @ w).exp() @ w).exp().sum(), x)


def under_no_grad(w, x):
    with lt.no_grad():
        (x @ w).exp().tanh()


def recomputed(w, x):
    lt.checkpoint(lambda x: (x @ w).exp().tanh().exp(), x).sum().backward()


def custom(w, x):
    class Twice(lt.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g * 2 + 0 * ctx.saved_tensors[0]

    Twice.apply((x @ w).exp()).sum().backward()


CLEAN = [
    clean_step,
    retained_for_two,
    sometimes_needed,
    gradient_penalty,
    under_no_grad,
    gradient_of_the_input_alone,
    recomputed,
    custom,
]


@pytest.mark.quick(1)
@pytest.mark.parametrize("program", CLEAN, ids=lambda f: f.__name__)
def test_programs_that_waste_nothing_hear_nothing(w, program):
    assert told(lambda: program(w, lt.ones(ROWS, 64))) == []


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.idle = nn.Linear(4, 2), nn.Linear(4, 256)

    def forward(self, x):
        return self.used(x)


def trained(model, parameters, steps, optimizer=lt.optim.SGD):
    optimizer = optimizer(parameters, lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(lt.ones(3, 4)).sum().backward()
        optimizer.step()


@pytest.mark.parametrize("kind", [lt.optim.SGD, lt.optim.AdamW])
def test_a_parameter_without_a_gradient_is_named(kind):
    model = TwoHeads()
    ((category, message, line),) = told(lambda: trained(model, model.parameters(), 4, kind))
    assert category is UnusedParameterWarning
    assert "no gradient ever came to idle.weight, idle.bias (5.00 KiB) in 4 steps" in message
    assert line == line_of(trained, "optimizer.step()")


@pytest.mark.deep
def test_frozen_and_late_parameters_are_not_idle():
    model = TwoHeads()
    model.idle.requires_grad_(False)
    assert told(lambda: trained(model, model.parameters(), 4)) == []
    late = TwoHeads()

    def program():
        optimizer = lt.optim.SGD(late.parameters(), lr=0.1)
        for k in range(4):
            (late.idle if k == 3 else late)(lt.ones(3, 4)).sum().backward()
            optimizer.step()

    assert told(program) == []
    fused = TwoHeads()

    def in_backward():
        optimizer = lt.optim.SGD(fused.parameters(), lr=0.1)
        lt.optim.fuse_into_backward(optimizer)
        for _ in range(4):
            fused(lt.ones(3, 4)).sum().backward()
            optimizer.step()

    ((_, message, _),) = told(in_backward)  # gradients are gone before the step; state tells
    assert "fused.idle.weight, fused.idle.bias (5.00 KiB)" in message


def test_the_category_can_be_filtered_and_the_warnings_left_out(w):
    x = lt.ones(ROWS, 64)

    def program():
        (x @ w).exp().sum()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnusedGraphWarning)
        with MemoryProfiler("cpu"):
            program()
    assert told(program, warn=False) == []
    assert told(program, lines=False) == []  # it could not say where
    with pytest.warns(MemoryWarning, match=re.escape("1.00 MiB")), MemoryProfiler("cpu"):
        program()


@pytest.mark.deep
def test_a_warning_that_is_an_error_leaves_no_profiler_behind(w):
    with pytest.raises(UnusedGraphWarning), MemoryProfiler("cpu"):
        (lt.ones(ROWS, 64) @ w).exp()
    assert "__del__" not in vars(Node)
    lt.ones(3)


def test_outside_of_profilers_nodes_have_no_finalizer(w):
    with MemoryProfiler("cpu"):
        with MemoryProfiler("cpu"):
            assert "__del__" in vars(Node)
        assert "__del__" in vars(Node)
    assert "__del__" not in vars(Node)


@pytest.mark.deep
def test_an_estimate_warns_of_nothing(w):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        estimate(lambda: (lt.ones(ROWS, 64) @ w).exp())
    assert caught == []
