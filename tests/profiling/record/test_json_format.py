"""Profiles as JSON: what other versions wrote."""

from __future__ import annotations

import pytest

import lowtide as lt
from lowtide.profiling import MemoryProfiler
from lowtide.profiling.record.json_format import from_dict


def test_files_of_before_a_role_existed_are_read() -> None:
    with MemoryProfiler() as prof:
        x = lt.ones(100)
        prof.mark("here")
    data = prof.to_dict()
    older = {**data, "roles": data["roles"][:-1]}
    older["marks"] = [{**m, "roles": [r[:-1] for r in m["roles"]]} for m in data["marks"]]
    again = from_dict(older)
    assert [m.roles for m in again.marks] == [m.roles for m in prof.recording.marks]
    assert sum(again.marks[1].roles[0]) == again.marks[1].live[0]
    with pytest.raises(ValueError, match="has other roles"):
        from_dict({**data, "roles": []})
    del x
