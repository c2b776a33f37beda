"""Places in sorted rows, short and long ones, beside NumPy's of each row."""

import numpy as np
import pytest

import lowtide as lt


@pytest.mark.parametrize("kind", ["f4", "f8", "i8", "u1"])
@pytest.mark.parametrize("batch", [(1,), (3,), (2, 4), (0,)])
def test_places_in_rows(kind, batch):
    draws = np.random.default_rng(len(batch))
    for n in (0, 1, 5, 32, 33):
        for m in (1, 7):
            rows = np.sort((draws.standard_normal((*batch, n)) * 3).astype(kind), -1)
            values = (draws.standard_normal((*batch, m)) * 3).astype(kind)
            if kind.startswith("f") and values.size:
                values.reshape(-1)[[0, -1]] = np.nan, np.inf
            if n and values.size:
                values.reshape(-1)[values.size // 2] = rows.reshape(-1)[0]
            for right in (False, True):
                found = lt.searchsorted(lt.tensor(rows), lt.tensor(values), right=right)
                side = "right" if right else "left"
                for place in np.ndindex(*batch):
                    expected = np.searchsorted(rows[place], values[place], side)
                    assert found[place].tolist() == expected.tolist()


def test_nan_in_a_row_lies_behind_all_numbers():
    rows = lt.tensor([[0.0, 1.0, float("nan")], [0.0, 1.0, 2.0]])
    values = lt.tensor([[5.0], [5.0]])
    assert lt.searchsorted(rows, values).tolist() == [[2], [3]]
