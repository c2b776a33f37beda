"""What tests of recipes share: a way to files of the package index."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest

# Recipes are run, never imported; their way to files is what is used here.
fetch = importlib.import_module("lowtide.recipes.data.fetch")


@pytest.fixture
def files() -> Callable[..., list[bytes]]:
    """Read members of an archive; out of reach, the test skips and says what was tried."""

    def read(name: str, archive: Any, *members: str) -> list[bytes]:
        tried: list[str] = []
        try:
            return fetch.find(name, members, archive, None, tried.append).files
        except fetch.Unreachable:
            pytest.skip(f"{name} is not within reach: {'; '.join(tried)}")

    return read
