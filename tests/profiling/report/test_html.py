"""The page: what it says without a script, and what it refuses to be fooled by."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import pytest

from lowtide.framework.memory.ledger import format_bytes
from lowtide.profiling.analysis.role_style import PHASE_COLORS
from lowtide.profiling.record.recording import Recording
from lowtide.profiling.report import plot
from lowtide.profiling.report.html import html, page
from lowtide.profiling.report.html_tables import ROWS
from tests.profiling.recordings import INPUT, SAVED, TEMPORARY, Tape, gpt

HOSTILE = "</script><script>window.hacked=1</script><img src=x onerror=window.hacked=1>\"'&<!--"


class Reader(HTMLParser):
    """Tags with their attributes, and the rows of each table by its name."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.tables: dict[str, list[list[str]]] = {}
        self.values: dict[str, list[list[str | None]]] = {}
        self.section, self.cell = "", False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.tags.append((tag, attributes))
        if tag == "section":
            self.section = attributes.get("data-table") or ""
        if tag == "tr":
            self.tables.setdefault(self.section, []).append([])
            self.values.setdefault(self.section, []).append([])
        if tag in ("td", "th"):
            self.cell = True
            self.tables[self.section][-1].append("")
            self.values[self.section][-1].append(attributes.get("data-value"))

    def handle_endtag(self, tag):
        if tag in ("td", "th"):
            self.cell = False

    def handle_data(self, data):
        if self.cell:
            self.tables[self.section][-1][-1] += data


def data_of(text: str):
    return json.loads(re.search(r'id="data">(.*?)</script>', text, re.S)[1])


def test_the_headline_says_where_the_peak_is_and_who_owns_it():
    text = page(gpt())
    assert "<h1>The peak is 92.12 MiB on cpu, 2.8 ms in, backward of step 2.</h1>" in text
    assert "blocks.*.mlp.down" in text[: text.index("<main>")]


def test_tables_need_no_script_and_sum_to_the_peak():
    recording = gpt()
    read = Reader(page(recording))
    owners = read.values["owners"][1:]
    assert sum(int(row[0]) for row in owners) == recording.peaks[0].nbytes
    assert len(owners) == len(recording.peaks[0].cells)
    saved = read.values["saved"][1:]
    assert sum(int(row[0]) for row in saved) == recording.fullest[0].nbytes
    names = [row[1] for row in read.tables["marks"][1:]]
    assert names == ["start", "step 1", "step 2", "step 3", "stop"]


def test_marks_tell_growth_and_what_grew():
    read = Reader(page(gpt(layers=1, steps=2)))
    step = next(k for k, row in enumerate(read.tables["marks"]) if row[1] == "step 1")
    values, words = read.values["marks"][step], read.tables["marks"][step]
    start = int(read.values["marks"][1][3])
    assert int(values[4]) == int(values[3]) - start > 0
    assert words[6] == (
        "optimizer state +6.00 MiB, parameters +3.00 MiB, gradients +3.00 MiB, inputs +128.00 KiB; "
        "most: optimizer state of blocks.0.mlp.up by adamw, +2.00 MiB"
    )


def test_long_tables_end_in_a_row_that_keeps_the_sum():
    tape = Tape("cpu")
    for k in range(ROWS + 40):
        tape.alloc(8 * (k + 1), TEMPORARY, tape.owner(f"m{k}", "add"))
    recording = tape.stop()
    read = Reader(page(recording))
    assert len(read.tables["owners"]) == 1 + ROWS + 1
    assert "40 more rows" in read.tables["owners"][-1]
    assert sum(int(row[0]) for row in read.values["owners"][1:]) == recording.peaks[0].nbytes


def test_the_data_replays_to_the_peak():
    recording = gpt()
    device = data_of(page(recording))["runs"][0]["devices"][0]
    end = sum(device["counts"][: device["moment"] + 1])
    assert sum(device["change"][:end]) == recording.peaks[0].nbytes
    assert sum(device["peak"]["size"]) == recording.peaks[0].nbytes
    assert len(device["times"]) == len(device["counts"])


def test_nothing_is_loaded_and_only_our_script_may_run():
    text = page(gpt())
    read = Reader(text)
    for tag, attributes in read.tags:
        assert "src" not in attributes
        assert attributes.get("href", "data:,").startswith("data:")
        assert not any(name.startswith("on") for name in attributes), tag
    assert "http:" not in text.replace("http-equiv", "")
    assert "https:" not in text
    assert "url(" not in text
    policy = next(a["content"] for t, a in read.tags if t == "meta" and "http-equiv" in a)
    assert policy.startswith("default-src 'none';")
    assert re.search(r"script-src 'sha256-[A-Za-z0-9+/]{43}='", policy)


def hostile():
    tape = Tape("cpu", HOSTILE)
    owner = tape.owner(f"net.{HOSTILE}", HOSTILE, "forward", f"{HOSTILE}.py:1")
    block = tape.alloc(4096, TEMPORARY, owner)
    tape.role(block, SAVED, owner)
    tape.alloc(512, INPUT, owner, device=1)
    tape.mark(HOSTILE, probes={"process": {"rss": 1, "peak_rss": 2, "method": HOSTILE}})
    return tape.stop()


def test_names_from_the_program_are_escaped():
    text = page(hostile(), hostile(), names=(HOSTILE, HOSTILE))
    assert [t for t, _ in Reader(text).tags if t in ("img", "script")] == ["script", "script"]
    assert f"net.{HOSTILE}" in data_of(text)["runs"][0]["owners"]["modules"]
    assert text.count("</script>") == 2
    assert "<!--" not in text


@pytest.mark.deep
def test_two_hundred_thousand_events_stay_small():
    tape = Tape("cpu")
    owners = [tape.owner(f"blocks.{k}.mlp", "linear", "forward", f"m.py:{k}") for k in range(48)]
    recording = tape.recording
    columns = recording.events.columns()
    for k in range(200_000):  # 1000 allocations, then 1000 frees, and so on
        block, alloc = k // 2000 * 1000 + k % 1000 + 1, k // 1000 % 2 == 0
        size, owner = 1000 + block * 7919 % 100_003, owners[block % 48]
        values = (1000 * k, 0 if alloc else 1, 0, block, size, SAVED, owner if alloc else -1)
        for column, value in zip(columns.values(), values, strict=True):
            column.append(value)
    sizes = [1000 + block * 7919 % 100_003 for block in range(1, 100_001)]
    rounds = [sum(sizes[k : k + 1000]) for k in range(0, 100_000, 1000)]
    most = rounds.index(max(rounds))
    recording.peaks[0].nbytes, recording.peaks[0].event = max(rounds), most * 2000 + 1000
    recording.peaks[0].cells = {(owners[0], SAVED): max(rounds)}
    recording.seconds = 0.2
    text = page(recording)
    assert len(text) < 8_000_000
    device = data_of(text)["runs"][0]["devices"][0]
    assert sum(device["change"][: sum(device["counts"][: device["moment"] + 1])]) == max(rounds)
    assert len(device["times"]) <= 20_010


def test_a_second_run_is_compared_figure_by_figure():
    one, two = gpt(layers=4), gpt(layers=2)
    text = page(one, two, names=("deep", "shallow"))
    a, b = one.peaks[0].nbytes, two.peaks[0].nbytes
    share = f"{100 * (a - b) / a:.0f} %"
    assert f"<h1>shallow peaks {format_bytes(a - b)} ({share}) lower than deep on cpu.</h1>" in text
    read = Reader(text)
    rows = {
        (w[0], w[1]): [int(v) for v in v[2:]]
        for w, v in zip(read.tables["difference"][1:], read.values["difference"][1:], strict=True)
    }
    assert rows["all", "the peak"] == [a, b, b - a]
    for by in ("role", "module", "line"):
        assert sum(v[2] for k, v in rows.items() if k[0] == by) == b - a
    assert len(data_of(text)["runs"]) == 2
    figures = [
        f'<dd><span class="of">{n}</span> {format_bytes(p)}</dd>'
        for n, p in (("deep", a), ("shallow", b))
    ]
    assert f"<dt>peak</dt>{''.join(figures)}" in text
    titles = re.findall(r"<h2>(\w+): Owners at the peak</h2>", text)
    assert titles == ["deep", "shallow"]
    assert sum(int(row[0]) for row in read.values["owners"] if row[0]) == a + b


def test_equal_runs_are_called_equal():
    assert "<h1>Both runs peak at 92.12 MiB on cpu.</h1>" in page(gpt(), gpt())


def test_a_page_of_nothing_and_one_without_a_timeline():
    assert "<h1>Nothing was allocated on no device.</h1>" in page(Recording())
    assert "<h1>Nothing was allocated on cpu.</h1>" in page(Tape("cpu").stop())
    bare = gpt()
    for column in bare.events.columns().values():
        del column[:]
    bare.timeline = False
    text = page(bare)
    assert "The peak is 92.12 MiB on cpu" in text
    assert data_of(text)["runs"][0]["phases"] == []


def test_a_failure_leaves_the_old_page(tmp_path):
    path = tmp_path / "run.html"
    path.write_text("old")
    with pytest.raises(ValueError, match="knows no device 'tpu'"):
        html(gpt(layers=1, steps=1), path, device="tpu")
    with pytest.raises(ValueError, match=r"A page of 2 runs needs a name for each; got \['one'\]"):
        html(gpt(layers=1, steps=1), path, gpt(layers=1, steps=1), names=["one"])
    assert path.read_text() == "old"


def test_file_names_that_are_no_unicode_can_be_written(tmp_path):
    tape = Tape("cpu")
    tape.alloc(64, TEMPORARY, tape.owner("a", "add", "forward", "caf\udce9.py:3"))
    html(tape.stop(), tmp_path / "run.html")
    assert "caf\\udce9.py:3" in (tmp_path / "run.html").read_text()


def contrast(one: str, two: str) -> float:
    """Of two colors, by the Web Content Accessibility Guidelines 2.2: 4.5 can be read by most."""

    def luminance(color: str) -> float:
        parts = [int(color[k : k + 2], 16) / 255 for k in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return sum(weight * p for weight, p in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    light, dark = sorted((luminance(one), luminance(two)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_words_can_be_read_on_what_they_lie_on():
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    text = page(gpt(layers=1, steps=1))
    modes = [
        dict(re.findall(r"--(\w+): (#\w{6})", m)) for m in re.findall(r":root {(.*?)}", text, re.S)
    ]
    assert len(modes) == 2  # light and dark
    for colors in modes:
        for words in ("ink", "soft", "accent"):
            for ground in ("ground", "panel"):
                assert contrast(colors[words], colors[ground]) >= 4.5, (words, ground)
    for name, color in PHASE_COLORS.items():
        assert contrast(plot.INK, color) >= 4.5, name
    assert contrast(plot.FAINT, "#ffffff") >= 4.5
