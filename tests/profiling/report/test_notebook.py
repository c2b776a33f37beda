"""What notebooks show of profiles, estimates, comparisons and advice: complete, inline, escaped."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest

import lowtide as lt
from lowtide import nn
from lowtide.framework.memory.ledger import format_bytes
from lowtide.profiling import MemoryProfiler, Profile, Table, advise, compare, estimate
from tests.profiling.recordings import TEMPORARY, Tape


class Checked(HTMLParser):
    """Parses what is shown; every element is closed, nothing is loaded, nothing runs."""

    def __init__(self, text):
        super().__init__()
        self.open, self.words, self.rows, self.tags = [], [], 0, set()
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        self.rows += tag == "tr"
        for name, value in attributes:
            assert not name.startswith("on")
            assert name not in ("src", "href", "class", "id")
            assert "url(" not in (value or "")
        if not self.get_starttag_text().endswith("/>"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.add(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


def shown(value):
    text = value._repr_html_()
    assert "http" not in text
    found = Checked(text)
    assert not found.tags & {"script", "style", "link", "img", "iframe"}
    return " ".join(found.words), found


@pytest.fixture(scope="module")
def program():
    lt.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
    x = lt.randn(128, 64)

    def step():
        model.zero_grad()
        model(x).square().mean().backward()

    return model, step


def test_a_profile_is_a_sentence_a_timeline_and_its_owners(program):
    with MemoryProfiler("cpu", modules=program[0]) as prof:
        program[1]()
    words, found = shown(prof)
    assert f"The peak is {format_bytes(prof.peak_bytes)} on cpu" in words
    for name in ("parameters", "saved for backward", "0 (Linear)", "1 (ReLU)", "test_notebook.py"):
        assert name in words
    assert {"svg", "polygon", "table"} <= found.tags
    assert "currentColor" in prof._repr_html_()  # readable on white and on black
    assert "#000" not in prof._repr_html_()
    assert "background:white" not in prof._repr_html_()


def test_a_profile_shows_the_graphs_that_survive():
    w, kept = lt.ones(3, requires_grad=True), []
    with MemoryProfiler("cpu", leaks=True) as prof:
        for _ in range(4):
            kept.append((w * w).sum())
            kept[-1].backward()
    words, _ = shown(prof)
    assert "1 graph survives its step" in words
    assert "Keep .item() instead of the tensor in kept." in words


def test_an_estimate_has_its_figures(program):
    found = estimate(program[1])
    words, parsed = shown(found)
    for line in str(found).splitlines():
        assert line in words
    assert "polygon" in parsed.tags


def test_a_comparison_has_both_peaks_and_what_is_saved(program):
    found = compare(program[1], checkpoint="1", model=program[0])
    words, _ = shown(found)
    for side in (found.before, found.after):
        assert format_bytes(side.peak(found.device).nbytes) in words
    assert "saved, by module" in words


@pytest.mark.deep
def test_advice_has_a_row_for_each_change(program):
    found = advise(program[1], limit=lt.memory_allocated() + 200_000, model=program[0])
    assert not found.fits
    words, parsed = shown(found)
    useful = [p for p in found.proposals if p.saved_bytes > 0 or p.fits]
    assert parsed.rows == len(useful) + 2  # the head, and the step as it is
    for p in useful:
        assert p.change in words
        assert format_bytes(p.peak_bytes) in words
    fits = advise(program[1], limit=1 << 40, model=program[0])
    assert str(fits).splitlines()[0] in shown(fits)[0]


def test_a_table_sums_up_and_keeps_its_sign():
    words, parsed = shown(Table("what <it> is", "module", {f"layer{k}": 1024 for k in range(50)}))
    assert parsed.rows == 43  # the head, 40 of them, the others, the sum
    assert "(10 more)" in words
    assert "what <it> is" in words


def test_names_of_the_program_are_text():
    tape = Tape()
    hostile = "</svg><script>alert(1)</script>\"'&"
    tape.alloc(1 << 20, TEMPORARY, tape.owner(hostile, hostile, "forward", f"{hostile}.py:1"))
    tape.mark(hostile)
    words, _ = shown(Profile(tape.stop()))
    assert "alert(1)" in words


def test_a_profile_of_nothing_says_so():
    with MemoryProfiler("cpu") as prof:
        pass
    prof.recording.devices.clear()
    assert "No device was used." in shown(prof)[0]
