"""What tests of the byte budget share."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Run a test with the cyclic collector off: what it would free shows up as live bytes."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()
