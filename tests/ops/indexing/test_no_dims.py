"""gather and scatter of tensors without dims beside others with one: they count as one element."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

import lowtide as lt
from lowtide.framework import testing

SHAPES = list(itertools.product([(), (1,), (3,)], [(), (1,)], [(), (1,), (2,)]))
SCATTERS = ["scatter", "scatter_add", "scatter_reduce"]


def given(shape: Any, at: Any, more: Any) -> tuple[Any, Any, Any]:
    x = lt.arange(1.0, 1 + (shape[0] if shape else 1)).double().reshape(shape)
    index = lt.full(at, x.numel() - 1)
    src = lt.arange(10.0, 10 + (more[0] if more else 1)).double().reshape(more)
    return x, index, src


@pytest.mark.parametrize(("shape", "at", "more"), SHAPES)
@pytest.mark.parametrize("name", SCATTERS)
def test_a_scatter_changes_one_element(name: str, shape: Any, at: Any, more: Any) -> None:
    x, index, src = given(shape, at, more)
    options = ("prod",) if name == "scatter_reduce" else ()
    last = float(x.reshape(-1)[-1])
    new = {"scatter": 10.0, "scatter_add": last + 10, "scatter_reduce": last * 10}[name]
    expected = [*x.reshape(-1).tolist()[:-1], new]
    found = getattr(x, name)(0, index, src, *options)
    assert (tuple(found.shape), found.reshape(-1).tolist()) == (shape, expected)
    written = x.clone()
    assert getattr(written, f"{name}_")(0, index, src, *options) is written
    assert written.reshape(-1).tolist() == expected


@pytest.mark.parametrize(("shape", "at", "more"), SHAPES)
@pytest.mark.parametrize("name", SCATTERS)
def test_its_gradients(name: str, shape: Any, at: Any, more: Any) -> None:
    x, index, src = given(shape, at, more)
    options = ("prod",) if name == "scatter_reduce" else ()
    x.requires_grad_()
    src.requires_grad_()
    testing.check_gradient(lambda p: (getattr(p[0], name)(0, index, p[1], *options),), [x, src])


@pytest.mark.parametrize(("shape", "at"), sorted({s[:2] for s in SHAPES}))
def test_gather_takes_one_element(shape: Any, at: Any) -> None:
    x, index, _ = given(shape, at, ())
    found = x.gather(0, index)
    assert (tuple(found.shape), found.reshape(-1).tolist()) == (at, [float(x.numel())])
    testing.check_gradient(lambda p: (p[0].gather(0, index),), [x.requires_grad_()])


def test_dims_that_differ_are_refused() -> None:
    with pytest.raises(RuntimeError, match="same number of dimensions"):
        lt.zeros(2, 2).gather(0, lt.tensor(0))
    with pytest.raises(RuntimeError, match="same number of dimensions"):
        lt.zeros(2, 2).scatter(0, lt.tensor(0), lt.ones(2))
    with pytest.raises(RuntimeError, match=r"out of bounds|out of range"):
        lt.zeros(2).gather(0, lt.tensor(2))
