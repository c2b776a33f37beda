"""A recording whose names are no Unicode is shown all the same."""

from __future__ import annotations

import lowtide as lt
from lowtide.diff_command import diff
from lowtide.profile_command import report
from lowtide.profiling import MemoryProfiler, scope


def test_a_run_with_half_a_surrogate_pair_is_reported_and_compared(tmp_path, capsys) -> None:
    with MemoryProfiler() as prof, scope("unusualname"):
        kept = [lt.ones(1000), lt.zeros(5000)]
    path, whole = tmp_path / "run.json", tmp_path / "whole.json"
    prof.to_json(path)
    prof.to_json(whole)
    text = path.read_text(encoding="utf-8")
    assert "unusualname" in text
    path.write_text(text.replace("unusualname", "a\\ud800b"), encoding="utf-8")
    assert report(str(path), {"html": str(tmp_path / "page.html")}) == 0
    assert diff(str(path), str(whole), None) == 0
    assert "a\\ud800b" in capsys.readouterr().out
    assert len(kept) == 2
