"""``from torch import *`` in a script that runs as torch: no names but PyTorch's."""

from __future__ import annotations

import pytest

import lowtide as lt
from lowtide import _torch_homes as homes

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.parity


def test_no_name_of_lowtides_alone_comes_with_the_star():
    """A script's own ``fit`` or ``checkpoint`` would be replaced by it."""
    given = {name for name in lt.__all__ if name.isidentifier()} - homes.NOT_TORCH
    alone = {name for name in given if not hasattr(torch, name)}
    assert {name for name in alone if not name.endswith("_")} == set()
    assert {"Tensor", "randn", "nn"} <= given
