"""Lines of runs of changed code are compared by their text."""

from __future__ import annotations

import linecache

from lowtide.profiling import MemoryProfiler
from lowtide.profiling.record.json_format import from_dict
from lowtide.profiling.record.source_lines import renumbered, texts

CODE = """
import lowtide as lt

a = lt.ones(1000)
b = lt.ones(2000)
c = [a + 1]
"""


def profiled(path, code):
    path.write_text(code)
    with MemoryProfiler() as prof:
        exec(compile(code, str(path), "exec"), {})
    return prof


def test_a_line_that_moved_is_the_same_line(tmp_path):
    path = tmp_path / "a.py"
    old = profiled(path, CODE)
    assert {line: t for line, t in old.recording.lines.items() if line.startswith(str(path))} == {
        f"{path}:4": "a = lt.ones(1000)",
        f"{path}:5": "b = lt.ones(2000)",
        f"{path}:6": "c = [a + 1]",
    }
    linecache.clearcache()
    new = profiled(path, CODE.replace("a = lt", "x = 1\na = lt").replace("[a + 1]", "[a + 1, a]"))
    assert new.diff(old, "line").as_dict() == {
        f"{path}:7": 4000,  # another text there now, and before in the line above
        f"{path}:6 (before)": -4000,
    }


def test_an_old_recording_without_texts_is_compared_by_numbers(tmp_path):
    prof = profiled(tmp_path / "a.py", CODE)
    data = prof.to_dict()
    del data["lines"]
    before = from_dict(data)
    assert before.lines == {}
    assert from_dict(prof.to_dict()).lines == prof.recording.lines


def test_lines_that_are_alike_are_told_apart_by_their_order():
    old = {"a.py:3": "x = f()", "a.py:10": "x = f()", "a.py:11": "y"}
    new = {"a.py:4": "x = f()", "a.py:9": "x = f()", "a.py:11": "z", "b.py:1": "y"}
    assert renumbered(old, new) == {
        "a.py:3": "a.py:4",
        "a.py:10": "a.py:9",
        "a.py:11": "a.py:11 (before)",
    }
    assert renumbered(new, new) == renumbered({}, new) == {}


def test_files_that_are_not_there_have_no_text(tmp_path):
    (tmp_path / "a.py").write_text("one\n\n")
    lines = [f"{tmp_path / 'a.py'}:{k}" for k in (1, 2, 9)]
    assert texts([*lines, "", "gone.py:3", "strange"]) == {lines[0]: "one"}
