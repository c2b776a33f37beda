"""Every case gives the numbers that were recorded with PyTorch (``tests/modules/goldens.py``)."""

from __future__ import annotations

import json

import numpy as np
import pytest

import lowtide as lt
from tests.modules.goldens import FOLDER, results
from tests.modules.table import FAMILIES, family

GOLDEN = {
    n: json.loads((FOLDER / f"{n}.json").read_text(encoding="utf-8"))
    for n in FAMILIES
    if (FOLDER / f"{n}.json").is_file()
}
CASES = [(name, c) for name in FAMILIES for c in family(name).CASES]


@pytest.mark.parametrize(("name", "case"), CASES, ids=[f"{n}: {c.id}" for n, c in CASES])
def test_the_recorded_numbers_come_out(name, case):
    if case.differs:
        pytest.skip(case.differs)
    recorded = GOLDEN[name][case.id]
    found = results(lt, case)
    assert set(found) == set(recorded)
    for mode, parts in recorded.items():
        assert {*parts} ^ {*found[mode]} <= {n for n in (*parts, *found[mode]) if "grad" in n}
        for key in {*parts, *found[mode]}:
            a, b = found[mode].get(key), parts.get(key)
            if a is None or b is None:  # no gradient is a gradient of zero
                assert (a or b)[2] == 0, key
                continue
            scale = max(abs(b[2]), 1.0)  # a sum of many numbers is as exact as the largest of them
            atol = case.rtol * scale
            np.testing.assert_allclose(a, b, rtol=case.rtol, atol=atol, err_msg=f"{mode} {key}")


def test_every_recorded_case_is_still_one():
    left = {
        n: sorted(set(g) - {"source"} - {c.id for c in family(n).CASES}) for n, g in GOLDEN.items()
    }
    assert {n: v for n, v in left.items() if v} == {}
