"""Random programs run on lowtide and on PyTorch: values, flags, errors, gradients are the same."""

from __future__ import annotations

import warnings

import pytest

import lowtide as lt

torch = pytest.importorskip("torch", reason="PyTorch is the oracle")

from tests.faults.programs import Program, beside, make, run  # noqa: E402  # it wants torch here

pytestmark = pytest.mark.parity
SAMPLE = 20  # programs of one test; `python -m tests.faults.programs` runs thousands


@pytest.mark.parametrize("first", range(0, 120, SAMPLE))
def test_a_random_program_is_the_same_in_pytorch(first):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what a random program is warned of is not the claim
        for seed in range(first, first + SAMPLE):
            program = make(seed)
            found, _ = beside(program, torch)
            assert found == [], program.text("lowtide")


def test_a_gradient_that_differs_is_found():
    lines = ["v0 = L((3,), 1)", "v1 = v0 * v0", "v0.register_hook(lambda g: g * {})"]
    lines.append("v1.sum().backward()")
    right, wrong = (
        Program(0, "float64", [line.format(factor) for line in lines], eager=True)
        for factor in (2, 3)
    )
    assert beside(right, torch) == ([], "")
    found, _ = beside(right, torch, run(wrong, lt))
    assert found[0].startswith("3 v0.grad")
