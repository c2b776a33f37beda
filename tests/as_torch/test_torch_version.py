"""The version compares as versions do, with texts, tuples and versions."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from tests.as_torch.running import answers

ORDERED = [
    "1.0.dev1", "1.0a1.dev2", "1.0a1", "1.0a2", "1.0b1", "1.0rc1", "1.0", "1.0+abc", "1.0+abc.1",
    "1.0+7", "1.0.post1", "1.0.1", "1.1", "1.10", "2.0.0.dev20230101", "2.0", "2.9.1",
    "2.13.0rc2", "2.13.0", "2.13.0+cpu", "2.13.0+lowtide0.1.0", "2.13.1", "3.0", "1!0.1",
]  # fmt: skip
EQUAL = [
    ("1.0", "1.0.0"),
    ("1", "1.0"),
    ("v1.2", "1.2"),
    ("1.0a", "1.0a0"),
    ("1.0-1", "1.0.post1"),
    ("1.0alpha1", "1.0a1"),
    ("1.0c1", "1.0rc1"),
    ("1.0+a-b", "1.0+a.b"),
]
SETUP = "from lowtide.as_torch.torch_version import TorchVersion as V"


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    claims = [f"V({a!r}) < {b!r} and not V({b!r}) <= {a!r}" for a, b in PAIRS]
    claims += [f"V({a!r}) == {b!r} and V({b!r}) >= {a!r}" for a, b in EQUAL]
    return answers(SETUP, [*claims, *OTHERS])


PAIRS = list(itertools.combinations(ORDERED, 2))
OTHERS = {
    "V('2.13.0') > (2, 9)": True,
    "V('2.13.0') == (2, 13, 0)": True,
    "V('2.13.0') != '2.13'": False,
    "V('2.13.0') > 2.9": True,  # a float is read as its text
    "V('2.13.0') < 'nonsense'": True,  # as text
    "hash(V('2.13')) == hash('2.13')": True,
    "V('2.13.0').split('.')": ["2", "13", "0"],
    "{'2.13.0': 1}[V('2.13.0')]": 1,
}


def test_versions_are_ordered(found: dict[str, Any]) -> None:
    wrong = [
        (a, b) for a, b in PAIRS if found[f"V({a!r}) < {b!r} and not V({b!r}) <= {a!r}"] is not True
    ]
    assert wrong == []


def test_spellings_are_equal(found: dict[str, Any]) -> None:
    wrong = [
        (a, b) for a, b in EQUAL if found[f"V({a!r}) == {b!r} and V({b!r}) >= {a!r}"] is not True
    ]
    assert wrong == []


@pytest.mark.parametrize("claim", OTHERS)
def test_other_things_compare(found: dict[str, Any], claim: str) -> None:
    assert found[claim] == OTHERS[claim]
