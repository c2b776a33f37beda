"""Random programs: run twice they are equal bit for bit, also checkpointed, and leave nothing."""

from __future__ import annotations

import warnings

import pytest

import lowtide as lt
from tests.faults.programs import Program, alone, differences, make, run, shrunk

SAMPLE = 20  # programs of one test; `python -m tests.faults.programs --alone` runs thousands


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what a random program is warned of is not the claim
        yield


@pytest.mark.quick(2)
@pytest.mark.parametrize("first", range(0, 120, SAMPLE))
def test_a_random_program_is_the_same_twice_and_checkpointed_and_leaves_nothing(first):
    for seed in range(first, first + SAMPLE):
        program = make(seed, noisy=True)
        assert alone(program) == [], program.text("lowtide")


def test_a_program_is_the_same_for_its_seed():
    assert make(3) == make(3)
    assert make(3).statements != make(4).statements


def of(*statements):
    return Program(0, "float64", list(statements), eager=True)


def test_the_comparison_sees_values_flags_errors_and_gradients():
    first = run(of("v0 = L((3,), 1)", "v1 = v0 * 2", "v1.sum().backward()"), lt)
    for other in (
        of("v0 = L((3,), 1)", "v1 = v0 * 2.001", "v1.sum().backward()"),
        of("v0 = L((3,), 1)", "v1 = v0.detach() * 2", "v1.sum().backward()"),
        of("v0 = L((3,), 1)", "v1 = v0 * 2", "v1.backward()"),
        of("v0 = L((3,), 1)", "v1 = v0 * 2", "(v1 * v1).sum().backward()"),
    ):
        assert differences(first, run(other, lt), other)


def test_bytes_that_a_program_leaves_are_seen():
    kept = []
    program = of("v0 = L((3,), 1)", "T.kept.append(v0.detach() * 2)")
    lt.kept = kept
    try:
        assert "24 bytes are left" in alone(program)
    finally:
        del lt.kept


def test_a_program_that_differs_is_shrunk_to_what_differs():
    program = of("v0 = N((3,), 1)", "v1 = v0 + 1", "v2 = v0 * 2", "v3 = v2 - v1", "v4 = v3 * 1")

    def check(p):
        return ["v2 is made: |"] if "v2 = v0 * 2" in p.statements else []

    assert shrunk(program, check).statements == ["v2 = v0 * 2"]
