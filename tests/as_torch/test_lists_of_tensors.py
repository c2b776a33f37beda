"""Functions of lists of tensors: lists of different lengths are refused in words of their own."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.as_torch.running import answers

FOREACH = ("add", "sub", "mul", "div", "maximum", "minimum", "copy_", "add_", "addcmul_", "addcdiv")
SETUP = """
import lowtide.as_torch
import torch
from torch._higher_order_ops.associative_scan import associative_scan

def several(n, value=None):
    return [torch.ones(4) if value is None else value.clone() for _ in range(n)]

def foreach(name, counts):
    getattr(torch, f"_foreach_{name}")(*(several(n) for n in counts))

def scan(n):
    associative_scan(lambda a, b: several(n, a[0]), [torch.ones(4), torch.ones(4)], 0)
"""


def counts(name: str, seed: int) -> list[int]:
    draw = random.Random(seed)
    found = [draw.randrange(1, 5) for _ in range(3 if name.startswith("addc") else 2)]
    if len(set(found)) == 1:
        found[-1] += 1
    return found


LISTS = [f"foreach({name!r}, {counts(name, seed)})" for name in FOREACH for seed in range(20)]
SCANS = ["scan(1)", "scan(3)"]


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    return answers(SETUP, [*LISTS, *SCANS])


def test_lists_of_tensors_of_different_lengths(found: dict[str, Any]) -> None:
    for question in LISTS:
        assert "same number of tensors" in str(found[question]), (question, found[question])
        assert "zip()" not in str(found[question])


def test_a_scan_whose_function_returns_another_number(found: dict[str, Any]) -> None:
    for question, n in zip(SCANS, (1, 3), strict=True):
        assert f"a tree like xs, of 2 tensors; got {n}" in str(found[question])
