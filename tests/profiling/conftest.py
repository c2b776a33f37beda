"""What earlier tests left behind in cycles would be in a profile's figures."""

import gc

import pytest


@pytest.fixture(autouse=True)
def nothing_before():
    """Begin with nothing but what is really held."""
    gc.collect()
