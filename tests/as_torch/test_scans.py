"""Associative scans: what a loop over the elements gives, with gradients."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import numpy as np
import pytest

import lowtide as lt
from tests.as_torch.running import answers

CALL = """
import lowtide.as_torch
import torch
from torch._higher_order_ops.associative_scan import associative_scan

def linear(a, b):  # y = a0 x + a1, then b: the recurrence of a state space
    return a[0] * b[0], a[1] * b[0] + b[1]

def run(n, dim, reverse):
    x = torch.arange(1.0, 2 * n + 1, dtype=torch.float64) / n
    x = (x.view(2, n) if dim else x.view(n, 2)).requires_grad_()
    y = (x * 0.5 + 1).detach()
    found = associative_scan(linear, (x, y), dim, reverse)
    (found[0].sum() + found[1].sum()).backward()
    return [[f.tolist() for f in found], x.grad.tolist()]

def wrong():
    return associative_scan(torch.add, [torch.ones(2), torch.ones(3)], 0)
"""
CASES = [(n, dim, reverse) for n in (1, 2, 3, 7, 8) for dim in (0, 1) for reverse in (False, True)]


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    return answers(CALL, [*[f"run{case}" for case in CASES], "wrong()"])


@pytest.mark.parametrize("case", CASES)
def test_a_scan_is_a_loop(found: dict[str, Any], case: tuple[int, int, bool]) -> None:
    n, dim, reverse = case
    x = lt.arange(1.0, 2 * n + 1, dtype=lt.float64) / n
    x = (x.view(2, n) if dim else x.view(n, 2)).requires_grad_()
    y = (x * 0.5 + 1).detach()
    parts = list(zip(x.unbind(dim), y.unbind(dim), strict=True))
    steps = list(
        accumulate(
            reversed(parts) if reverse else parts,
            lambda a, b: (a[0] * b[0], a[1] * b[0] + b[1]),
        )
    )
    steps = steps[::-1] if reverse else steps
    expected = [lt.stack(list(one), dim) for one in zip(*steps, strict=True)]
    (expected[0].sum() + expected[1].sum()).backward()
    values, gradient = found[f"run{case}"]
    for a, b in zip(values, expected, strict=True):
        np.testing.assert_allclose(np.array(a), b.detach().numpy(), rtol=1e-12)
    np.testing.assert_allclose(np.array(gradient), x.grad.numpy(), rtol=1e-12)


def test_sizes_that_differ_are_refused(found: dict[str, Any]) -> None:
    kind, text = found["wrong()"]
    assert kind == "ValueError"
    assert "got [2, 3]" in text
