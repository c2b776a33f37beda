"""The picture: its areas, its phases, its peak, and that names cannot spoil it."""

from __future__ import annotations

import sys
from itertools import pairwise

import numpy as np
import pytest

from lowtide.framework.memory.ledger import ROLES
from lowtide.profiling.analysis.role_style import (
    GROUP_COLORS,
    PHASE_COLORS,
    ROLE_COLORS,
    ROLE_WORDS,
    STACK,
)
from lowtide.profiling.record.recording import PHASES, Recording
from lowtide.profiling.report.plot import figure, grouping, plot
from tests.profiling.recordings import TEMPORARY, Tape, gpt

MIB = 1 << 20


def texts(made) -> str:
    found = [t.get_text() for t in made.texts]
    for axes in made.axes:
        found += [t.get_text() for t in axes.texts]
    return "\n".join(found)


def areas(made) -> list[np.ndarray]:
    """The upper edges of the stacked areas, bottom first, by time."""
    from matplotlib.collections import PolyCollection

    stacks = [
        c for c in made.axes[0].collections if type(c).__name__ == "FillBetweenPolyCollection"
    ]
    assert all(isinstance(c, PolyCollection) for c in stacks)
    return [c.get_paths()[0].vertices for c in stacks]


def test_every_role_and_phase_has_a_color_and_a_word():
    assert set(ROLE_COLORS) == set(ROLE_WORDS) == set(ROLES)
    assert set(PHASE_COLORS) == set(PHASES)
    assert sorted(STACK) == list(range(len(ROLES)))
    assert len(set(ROLE_COLORS.values())) == len(ROLES)
    assert len(set(GROUP_COLORS)) == len(GROUP_COLORS)


@pytest.mark.parametrize("by", ["role", "module", "line"])
def test_the_areas_are_stacked_up_to_the_peak(by):
    recording = gpt()
    tops = areas(figure(recording, by=by))
    assert max(v[:, 1].max() for v in tops) == pytest.approx(recording.peaks[0].nbytes / MIB)


def test_the_peak_and_its_owner_are_written_at_its_place():
    recording = gpt()
    made = figure(recording)
    assert "peak 92.12 MiB\nlargest owner: blocks.*.mlp.down, 36 %" in texts(made)
    dot = next(line for line in made.axes[0].lines if line.get_marker() == "o")
    assert dot.get_xdata()[0] == pytest.approx(recording.peaks[0].time * 1e3)
    assert dot.get_ydata()[0] == pytest.approx(recording.peaks[0].nbytes / MIB)


def test_phases_are_shaded_and_named():
    made = figure(gpt())
    assert {"forward", "backward"} <= set(texts(made).split("\n"))


def test_names_of_marks_stay_above_the_tide():
    tape = Tape("cpu")
    tape.mark("the first of all marks")
    tape.alloc(1000, TEMPORARY, tape.owner("a", "add"), after=10**6)
    tape.mark("the last mark of them all")
    made = figure(tape.stop())
    axes, made_by = made.axes[0], made.canvas.get_renderer()
    frame = axes.get_window_extent(made_by)
    names = [t for t in axes.texts if t.get_text().endswith(("marks", "all"))]
    assert len(names) == 2
    for name in names:
        box = name.get_window_extent(made_by)
        assert frame.x0 - 1 <= box.x0 < box.x1 <= frame.x1 + 1


@pytest.mark.parametrize("by", ["role", "module", "line"])
def test_names_of_layers_do_not_overlap(by):
    tape = Tape("cpu")
    for k in range(20):  # as many lines and modules as have a color, and more
        tape.alloc(1000 + k, TEMPORARY, tape.owner(f"m{k}", "add", "forward", f"a.py:{k}"))
    made = figure(tape.stop(), by=by)
    renderer = made.canvas.get_renderer()
    bars = made.axes[1]
    names = [t.get_window_extent(renderer) for t in bars.texts if t.get_text().startswith("m")]
    assert len(names) >= 5
    for upper, lower in pairwise(names):
        assert lower.y1 <= upper.y0


def test_bytes_at_the_peak_stand_beside_each_role():
    recording = gpt()
    sums: dict[str, int] = {}
    for (_, role), nbytes in recording.peaks[0].cells.items():
        sums[ROLES[role]] = sums.get(ROLES[role], 0) + nbytes
    written = texts(figure(recording)).split("\n")
    for role, nbytes in sums.items():
        at = written.index(ROLE_WORDS[role])
        size = f"{nbytes / MIB:.2f} MiB" if nbytes >= MIB else f"{nbytes / 1024:.2f} KiB"
        assert size in written[at : at + 3]


def test_colors_of_roles_are_the_same_in_every_picture():
    names, colors, (group,) = grouping([(gpt(), 0)], "role")
    assert colors is ROLE_COLORS
    assert group(0, ROLES.index("saved")) == "saved"
    assert names == list(ROLE_COLORS)


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_the_ending_chooses_the_format(tmp_path, ending):
    path = tmp_path / f"run.{ending}"
    plot(gpt(layers=1, steps=1), path)
    begins = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}[ending]
    assert path.read_bytes().startswith(begins)


def test_an_unknown_ending_or_grouping_leaves_the_file_alone(tmp_path):
    path = tmp_path / "run.txt"
    path.write_text("mine")
    with pytest.raises(ValueError, match=r"plot writes \.png, \.svg or \.pdf; got"):
        plot(gpt(layers=1, steps=1), path)
    picture = tmp_path / "run.png"
    picture.write_text("mine")
    with pytest.raises(ValueError, match="by role, module or line; got 'color'"):
        plot(gpt(layers=1, steps=1), picture, by="color")
    assert path.read_text() == picture.read_text() == "mine"


@pytest.mark.parametrize("by", ["module", "line"])
def test_two_runs_have_the_same_groups_and_colors(by):
    names, colors, maps = grouping([(gpt(layers=3), 0), (gpt(layers=5), 0)], by)
    assert len(maps) == 2
    assert set(names) == set(colors)
    assert len(set(colors.values())) == len(colors)
    for recording, group in zip((gpt(layers=3), gpt(layers=5)), maps, strict=True):
        assert {group(owner, 0) for owner in range(len(recording.owners))} <= set(names)


@pytest.mark.parametrize("recording", [Recording(), Tape("cpu").stop()], ids=["none", "empty"])
def test_a_picture_of_nothing_can_be_drawn(tmp_path, recording):
    plot(recording, tmp_path / "empty.png")
    assert (tmp_path / "empty.png").stat().st_size > 1000


def test_names_that_mean_something_to_matplotlib_are_only_text(tmp_path):
    tape = Tape("cpu")
    tape.alloc(MIB, TEMPORARY, tape.owner("net.$\\frac{1}{$.\n_x^", "add", "forward", "a$b.py:1"))
    tape.mark("$\\oops{$")
    for by in ("role", "module", "line"):
        plot(tape.stop(), tmp_path / f"{by}.png", by=by)


def test_drawing_opens_no_window_and_imports_no_pyplot(tmp_path):
    before = set(sys.modules)
    plot(gpt(layers=1, steps=1), tmp_path / "run.png")
    assert "matplotlib.pyplot" not in set(sys.modules) - before
