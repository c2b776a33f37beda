"""The batch that a fit table names trains under the limit, and one example more does not."""

from __future__ import annotations

import gc
from typing import Any

import pytest

import lowtide as lt
from lowtide import nn, optim
from lowtide.nn import functional as F
from lowtide.profiling import fit_table


def net() -> Any:
    return nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 64), nn.Linear(64, 4))


def normalized() -> Any:
    return nn.Sequential(nn.Linear(16, 64), nn.BatchNorm1d(64), nn.Linear(64, 4))


def batch(n: int) -> Any:
    return lt.randn(n, 16), lt.randint(0, 4, (n,))


def table(**options: Any) -> Any:
    return fit_table(
        {"net": net, "normalized": normalized},
        options.pop("limits", ["160KiB", "400KB", 20_000]),
        batch=batch,
        loss=F.cross_entropy,
        optimizer=optim.AdamW,
        **options,
    )


def fits(make: Any, n: int, limit: int, steps: int) -> bool:
    gc.collect()
    model, (x, y) = make(), batch(n)
    optimizer = optim.AdamW(model.parameters())
    lt.set_memory_limit(limit)
    try:
        for _ in range(steps):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
    except lt.MemoryLimitError:
        return False
    finally:
        lt.set_memory_limit(None)
    return True


@pytest.mark.deep
def test_the_batch_fits_and_one_more_does_not() -> None:
    gc.collect()
    held = lt.memory_allocated()
    found = table(limits=[held + 160 * 1024, held + 400_000, 20_000])
    assert lt.memory_allocated() == held
    makers = {"net": net, "normalized": normalized}
    for row in found.rows:
        if not row.batch:
            continue
        assert max(row.first_bytes, row.steady_bytes) <= row.limit_bytes
        make = makers[row.model]
        assert fits(make, row.batch, row.limit_bytes, 3)
        assert not fits(make, row.batch + 1, row.limit_bytes, 3)
        assert fits(make, row.first_batch, row.limit_bytes, 1)
        assert not fits(make, row.first_batch + 1, row.limit_bytes, 1)
    assert any(row.first_batch > row.batch > 0 for row in found.rows)
    assert found.batch("net", 20_000) == 0


@pytest.mark.deep
def test_text_csv_and_picture(tmp_path: Any) -> None:
    found = table()
    text = str(found).splitlines()
    assert len(text) == 1 + len(found.rows) == 7
    assert "none fits" in str(found)
    lines = found.to_csv(tmp_path / "fit.csv").splitlines()
    assert (tmp_path / "fit.csv").read_text().splitlines() == lines
    assert lines[0] == "model,limit_bytes,batch,first_batch,first_bytes,steady_bytes"
    assert int(lines[1].split(",")[2]) == found.batch("net", "160KiB")
    found.plot(tmp_path / "fit.png")
    assert (tmp_path / "fit.png").read_bytes()[:4] == b"\x89PNG"


def test_wrong_questions_name_the_way_out() -> None:
    with pytest.raises(ValueError, match="fit_table needs a model and a limit"):
        fit_table({}, ["1MiB"], batch=batch)
    with pytest.raises(ValueError, match="fit_table: limit"):
        fit_table(net, "much", batch=batch)
    with pytest.raises(KeyError, match="no row for 'other'"):
        fit_table(normalized, "160KiB", batch=lambda n: lt.randn(n, 16)).batch("other", 1)
