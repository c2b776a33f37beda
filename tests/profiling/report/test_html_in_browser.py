"""The page in a real browser: small screen, dark mode, keyboard, mouse and finger."""

from __future__ import annotations

import json

import pytest

from lowtide.framework.memory.ledger import ROLES, format_bytes
from lowtide.profiling.record.recording import Evicted
from lowtide.profiling.report.html import html
from tests.profiling.browser import CHROMIUM, Browser
from tests.profiling.recordings import TEMPORARY, Tape, gpt
from tests.profiling.report.test_html import HOSTILE, hostile


@pytest.fixture(scope="module")
def tab(tmp_path_factory):
    if CHROMIUM is None:
        pytest.skip("no Chromium is installed")
    with Browser(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


PLACE = "(({ left, top }) => [left, top])(e.getBoundingClientRect())"
OWNERS = "[data-table=owners]"
READY = "document.documentElement.dataset.ready === 'yes'"


def show(tab, tmp_path, *runs, width=1200, dark=False, **more):
    path = tmp_path / "page.html"
    html(runs[0], path, *runs[1:], **more)
    tab.size(width, 900, dark)
    tab.open(path, READY)
    return path


def click(tab, selector: str, begins: str) -> None:
    """Press the first button whose text, or else its title, begins so."""
    tab.run(
        f"""[...document.querySelectorAll({json.dumps(selector)})].find((b) =>
            [b.textContent, b.title].some((t) => t.startsWith({json.dumps(begins)}))).click()"""
    )


def each(tab, selector: str, wanted: str = "e.textContent") -> list:
    """What an expression gives for every visible element ``e``."""
    return tab.run(
        f"""[...document.querySelectorAll({json.dumps(selector)})]
            .filter((e) => !e.hidden).map((e) => {wanted})"""
    )


def corner(tab) -> tuple[float, float]:
    """Where the left upper corner of the first canvas is."""
    left, top = each(tab, "canvas", PLACE)[0]
    return left, top


def pixels(tab) -> dict[str, int]:
    """How many pixels of the first canvas have each color."""
    return tab.run(
        """(() => {
            const canvas = document.querySelector("canvas"), found = {};
            const pen = canvas.getContext("2d");
            const { data } = pen.getImageData(0, 0, canvas.width, canvas.height);
            const hex = (n) => n.toString(16).padStart(2, "0");
            for (let k = 0; k < data.length; k += 4) {
                const color = "#" + hex(data[k]) + hex(data[k + 1]) + hex(data[k + 2]);
                if (data[k + 3] === 255) found[color] = (found[color] || 0) + 1;
            }
            return found;
        })()"""
    )


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1200, 390])
def test_it_fits_the_screen_and_draws_without_a_complaint(tab, tmp_path, width, dark):
    path = show(tab, tmp_path, gpt(), width=width, dark=dark)
    assert tab.run("document.documentElement.scrollWidth") == width
    assert tab.problems() == []
    assert tab.requests() == [path.as_uri()]
    found = pixels(tab)
    for color in ("#4477aa", "#d1495b", "#2e8b57"):  # parameters, saved, optimizer state
        assert found.get(color, 0) > 500
    light = tab.run("getComputedStyle(document.documentElement).backgroundColor")
    assert light == ("rgb(20, 23, 28)" if dark else "rgb(255, 255, 255)")


def test_the_picture_begins_on_the_first_screen_of_a_telephone(tab, tmp_path):
    show(tab, tmp_path, gpt(), width=390)
    assert each(tab, "canvas", "e.getBoundingClientRect().top")[0] < 500
    hidden = each(tab, ".tiles div", "getComputedStyle(e).display")
    assert hidden[:4] == ["none", "none", "none", "block"]  # the headline has said the first three


def test_who_owns_the_bytes_is_seen_on_a_telephone(tab, tmp_path):
    show(tab, tmp_path, gpt(), width=390)
    right = each(tab, f"{OWNERS} .sheet", "e.getBoundingClientRect().right")[0]
    module = "e.cells[3].getBoundingClientRect().right"
    assert max(each(tab, f"{OWNERS} tbody tr", module)) <= right


def test_a_tap_tells_what_is_there(tab, tmp_path):
    show(tab, tmp_path, gpt(), width=390)
    left, top = corner(tab)
    point = {"x": left + 250, "y": top + 200}
    tab.call("Input.dispatchTouchEvent", type="touchStart", touchPoints=[point])
    tab.call("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])
    assert tab.run("document.getElementById('tip').hidden") is False
    assert "MiB live" in tab.run("document.getElementById('tip').textContent")


def test_marks_never_hide_the_tide(tab, tmp_path):
    show(tab, tmp_path, gpt(layers=1, steps=3))
    assert tab.run("charts[0].lines") == 3
    show(tab, tmp_path, gpt(layers=1, steps=300))
    assert 5 < tab.run("charts[0].lines") < 30  # those with a name
    tab.run("(() => { const c = charts[0]; c.high = c.high / 60; c.draw(); })()")
    inside = "charts[0].tide.run.marks.filter(([time]) => time <= charts[0].high).length"
    assert tab.run("charts[0].lines") == tab.run(inside) > 3  # nearer, all of them


def test_areas_change_with_the_choice_and_hide_with_the_legend(tab, tmp_path):
    show(tab, tmp_path, gpt(layers=2))
    before = pixels(tab)["#d1495b"]
    click(tab, "#legend button", "saved")
    assert pixels(tab).get("#d1495b", 0) < before / 50
    click(tab, "button", "by module")
    names = each(tab, "#legend .name")
    assert "blocks.0.mlp.down" in names


def test_hovering_names_time_group_bytes_and_owner(tab, tmp_path):
    show(tab, tmp_path, gpt())
    left, top = corner(tab)
    x, y = tab.run(
        "[charts[0].place(charts[0].tide.time[charts[0].tide.data.moment]), charts[0].height(6e7)]"
    )
    tab.mouse("mouseMoved", left + x, top + y)
    tip = tab.run("document.getElementById('tip').textContent")
    assert "92.12 MiB live" in tip
    assert "backward" in tip
    assert "saved for backward: 48.00 MiB (52.1 %)" in tip
    assert "linear · model.py:23" in tip


def test_the_wheel_zooms_at_the_pointer_and_a_double_click_shows_all(tab, tmp_path):
    show(tab, tmp_path, gpt())
    left, top = corner(tab)
    x, y = left + 400, top + 200
    before = tab.run("[charts[0].value(400), charts[0].high - charts[0].low]")
    tab.mouse("mouseWheel", x, y, deltaX=0, deltaY=-240)
    after = tab.run("[charts[0].value(400), charts[0].high - charts[0].low]")
    assert after[1] < 0.6 * before[1]
    assert after[0] == pytest.approx(before[0], rel=1e-9)
    for count in (1, 2):
        tab.mouse("mousePressed", x, y, button="left", clickCount=count)
        tab.mouse("mouseReleased", x, y, button="left", clickCount=count)
    assert tab.run("charts[0].high - charts[0].low") == before[1]


def test_dragging_zooms_into_the_stretch(tab, tmp_path):
    show(tab, tmp_path, gpt())
    left, top = corner(tab)
    ends = tab.run("[charts[0].value(300), charts[0].value(500)]")
    tab.mouse("mousePressed", left + 300, top + 100, button="left", clickCount=1)
    tab.mouse("mouseMoved", left + 500, top + 100, button="left", buttons=1)
    tab.mouse("mouseReleased", left + 500, top + 100, button="left", clickCount=1)
    assert tab.run("[charts[0].low, charts[0].high]") == pytest.approx(ends)


def test_the_keyboard_steps_zooms_and_finds_the_peak(tab, tmp_path):
    show(tab, tmp_path, gpt())
    tab.run("document.querySelector('canvas').focus()")
    tab.key("p")
    moment = tab.run("charts[0].tide.data.moment")
    assert tab.run("charts[0].cursor") == moment
    assert "92.12 MiB live" in tab.run("document.getElementById('tip').textContent")
    tab.key("ArrowRight")
    assert tab.run("charts[0].cursor") == moment + 1
    width = tab.run("charts[0].high - charts[0].low")
    tab.key("+")
    assert tab.run("charts[0].high - charts[0].low") == pytest.approx(0.6 * width)
    tab.key("Escape")
    assert tab.run("[charts[0].low, charts[0].cursor]") == [0, -1]
    reached = set()
    for _ in range(60):
        tab.key("Tab")
        reached.add(tab.run("document.activeElement.closest('section')?.innerText.split('\\n')[0]"))
    assert {"Memory over time", "Modules at the peak", "Owners at the peak"} <= reached


def test_the_map_has_the_area_of_the_bytes_and_opens_modules(tab, tmp_path):
    recording = gpt()
    show(tab, tmp_path, recording)
    area = "e.offsetWidth * e.offsetHeight"
    (whole,), (part,) = each(tab, ".map", area), each(tab, ".map [title^='blocks:']", area)
    blocks = sum(n for (o, _), n in recording.peaks[0].cells.items() if recording.owners[o].module)
    assert part / whole == pytest.approx(blocks / recording.peaks[0].nbytes, abs=0.02)
    click(tab, ".map button", "blocks.2:")
    names = each(tab, ".map .branch .name")
    assert names == ["mlp", "attention"]
    shown = each(tab, f"{OWNERS} tbody tr", "e.cells[3].textContent")
    assert shown
    assert all(path.startswith("blocks.2.") for path in shown)
    crumb = tab.run("document.activeElement.textContent")
    assert crumb == "2"


def test_tables_sort_and_filter(tab, tmp_path):
    recording = gpt()
    show(tab, tmp_path, recording)

    def column():
        return each(tab, f"{OWNERS} tbody tr", "Number(e.cells[0].dataset.value)")

    largest_first = column()
    assert largest_first == sorted(largest_first, reverse=True)
    tab.run(f"document.querySelector('{OWNERS} th button').focus()")
    tab.key("Enter")
    tab.key("Enter")
    assert column() == sorted(largest_first)
    assert tab.run(f"document.querySelector('{OWNERS} th').ariaSort") == "ascending"
    tab.run(
        f"""(() => {{ const field = document.querySelector("{OWNERS} input");
            field.value = "optimizer mlp.up"; field.dispatchEvent(new Event("input")); }})()"""
    )
    shown = each(tab, f"{OWNERS} tbody tr")
    assert len(shown) == 4
    assert all("optimizer state" in row and "mlp.up" in row for row in shown)
    total = sum(
        n
        for (o, r), n in recording.peaks[0].cells.items()
        if ROLES[r] == "optimizer" and recording.owners[o].module.endswith("mlp.up")
    )
    count = tab.run(f"document.querySelector('{OWNERS} .count').textContent")
    assert count == f"4 of {len(largest_first)} rows, {format_bytes(total)}"


def test_sizes_read_the_same_in_python_and_in_the_page(tab, tmp_path):
    show(tab, tmp_path, gpt(layers=1, steps=1))
    sizes = [0, 1, 1023, 1024, 96600064, 10**9, 3 * 2**40 + 12345]
    sizes += [2**20 + k * 1311 for k in range(99)]
    assert tab.run(f"{sizes}.map(bytes)") == [format_bytes(n) for n in sizes]


def test_two_runs_lie_side_by_side_at_one_scale(tab, tmp_path):
    show(tab, tmp_path, gpt(layers=4), gpt(layers=2), names=("deep", "shallow"))
    places = each(tab, "canvas", PLACE)
    assert len(places) == 2
    assert places[0][0] < places[1][0]
    assert places[0][1] == places[1][1]
    assert tab.run("charts[0].most === charts[1].most")
    click(tab, "button", "by module")
    colors = tab.run("charts.map(({ tide }) => tide.groups('module').colors)")
    assert colors[0] == colors[1]
    figures = each(tab, "#legend button", "e.textContent")
    assert any(f.startswith("blocks.3") and f.endswith("MiB | 0 B") for f in figures)
    tab.size(390, 900)
    places = each(tab, "canvas", PLACE)
    assert places[0][1] < places[1][1]
    assert tab.run("document.documentElement.scrollWidth") == 390


def test_the_device_chosen_is_the_one_shown(tab, tmp_path):
    tape = Tape("cpu", "sim")
    tape.alloc(1000, TEMPORARY, tape.owner("a", "add"))
    tape.alloc(5000, TEMPORARY, tape.owner("b", "mul"), device=1)
    show(tab, tmp_path, tape.stop())
    assert tab.run("[state.device, charts[0].tide.data.peak.bytes]") == ["sim", 5000]
    assert each(tab, OWNERS, "e.dataset.device") == ["sim"]
    tab.run(
        """(() => { const select = document.querySelector("select"); select.value = "cpu";
            select.dispatchEvent(new Event("change")); })()"""
    )
    assert tab.run("charts[0].tide.data.peak.bytes") == 1000
    assert each(tab, OWNERS, "e.dataset.device") == ["cpu"]


def test_hostile_names_do_nothing_in_a_browser(tab, tmp_path):
    show(tab, tmp_path, hostile(), hostile(), names=(HOSTILE, HOSTILE))
    click(tab, "button", "by module")
    click(tab, "button", "Go to the peak")
    assert HOSTILE in tab.run("document.getElementById('tip').textContent")
    assert tab.run("window.hacked") is None
    assert tab.run("document.images.length") == 0
    assert tab.problems() == []


def test_it_reads_without_scripts(tab, tmp_path):
    path = tmp_path / "page.html"
    html(gpt(), path)
    tab.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        tab.size(1200, 900)
        tab.open(path)
        texts = tab.run("document.body.innerText")
        assert "The peak is 92.12 MiB on cpu" in texts
        assert "Owners at the peak" in texts
        assert "Go to the peak" not in texts
        assert tab.run("document.querySelectorAll('noscript svg polygon').length") >= 5
        assert tab.run("getComputedStyle(document.getElementById('legend')).display") == "none"
    finally:
        tab.call("Emulation.setScriptExecutionDisabled", value=False)


def test_what_a_budget_dropped_has_ticks_a_legend_and_a_table(tab, tmp_path):
    found = gpt(layers=2)
    owner = max(found.peaks[0].cells)[0]
    ends = [mark.time * 1e9 for mark in found.marks]
    for k in range(3):
        found.evictions.time.append(round(ends[0] + (ends[-1] - ends[0]) * (k + 1) / 4))
        for column, value in zip(("device", "owner", "nbytes"), (0, owner, 1 << 20), strict=True):
            getattr(found.evictions, column).append(value)
        found.evictions.replay.append(-1)
    found.evicted[0, owner] = Evicted(3, 3 << 20, 2, 5_000_000)
    show(tab, tmp_path, found)
    assert tab.problems() == []
    assert tab.run("charts[0].ticks") == 3
    assert "dropped for a byte budget" in tab.run("document.getElementById('legend').textContent")
    assert each(tab, "[data-table=evicted] tbody tr", "e.cells[0].textContent") == ["3.00 MiB"]
    assert "3 values (3.00 MiB); 2 replays" in tab.run(
        "document.querySelector('.lead').textContent"
    )
    show(tab, tmp_path, gpt(layers=2))
    assert tab.run("charts[0].ticks") == 0
    assert "byte budget" not in tab.run("document.querySelector('main').textContent")
