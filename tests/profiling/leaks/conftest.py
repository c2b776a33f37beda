"""Plain references are found with the garbage collector off; clean loops run with it on."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def collector(request: pytest.FixtureRequest) -> Iterator[None]:
    """Plain references are found with the garbage collector off; clean loops run with it on."""
    gc.unfreeze()  # else globals would hold without being seen
    if not request.node.name.startswith("test_clean"):
        gc.disable()
    yield
    gc.enable()
    gc.collect(1)  # what the test has made: all that is older would take long
    gc.freeze()
