"""A sample of damaged checkpoints against restore; restores.py has the full count."""

from __future__ import annotations

import pytest

from tests.faults.restores import restores


@pytest.mark.deep
def test_no_damaged_checkpoint_leaves_objects_half_restored(tmp_path) -> None:
    outcomes, bad = restores(200, 1, tmp_path)
    assert outcomes["passed over"] > 180
    assert not bad, bad
