"""``--share K/N``: the shares of a run's tests are disjoint, and together they are all of them."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from itertools import chain
from pathlib import Path

import pytest

from tests.conftest import parse_share

ROOT = Path(__file__).parents[1]
SOME = "tests/test_printing.py"


def names(*options: str) -> list[str]:
    """The tests of one file that a run with these options takes."""
    command = [sys.executable, "-m", "pytest", SOME, "--collect-only", "-q", "-n", "0", *options]
    printed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [line for line in printed.splitlines() if line.startswith(SOME)]


@pytest.mark.deep
def test_shares_are_disjoint_and_complete():
    shares = [names("--share", f"{k}/3") for k in range(3)]
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    assert Counter(chain.from_iterable(shares)) == Counter(names())


@pytest.mark.parametrize("text", ["8/8", "-1/8", "0/0", "3", "a/b", "1/2/3"])
def test_what_is_no_share_is_refused(text):
    with pytest.raises(pytest.UsageError, match="--share takes K/N"):
        parse_share(text)
