"""A picture of all ranks: bytes at the peak by role, and the parts of a step, a bar a rank."""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING, Any

from ...framework.serialization.atomic_files import replacing
from ..analysis.role_style import OTHERS_COLOR, PHASE_COLORS, ROLE_COLORS, ROLE_WORDS
from ..analysis.summary import unit_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from .report import RankReport

INK, FAINT, LATE = "#24292f", "#8c959f", "#d1495b"
TALLEST = 12.0  # inches
NAMED = 40  # ranks whose bars are named each
PARTS = (  # of a step: attribute, words, color
    ("computing_seconds", "computing", PHASE_COLORS["forward"]),
    ("waiting_seconds", "waiting for late ranks", LATE),
    ("exchanging_seconds", "exchanging", OTHERS_COLOR),
)


def figure(report: RankReport) -> Figure:
    """Draw the figures of all ranks."""
    from matplotlib.figure import Figure

    count = len(report.figures)
    height = min(2.6 + 0.3 * count, TALLEST)
    made = Figure(figsize=(10.5, height), dpi=110, facecolor="white", layout="constrained")
    held, took = made.subplots(1, 2, sharey=True)
    _draw_bytes(held, report)
    _draw_times(took, report)
    for axes in (held, took):
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=8.5, colors=INK)
        axes.set_ylim(count - 0.5, -0.5)
    ranks = list(report.figures)
    step = -(-count // NAMED)
    held.set_yticks(range(0, count, step), [f"rank {rank}" for rank in ranks[::step]])
    made.suptitle(report.verdict(), x=0.01, ha="left", size=10.5, color=INK, wrap=True)
    return made


def _draw_bytes(axes: Axes, report: RankReport) -> None:
    every = list(report.figures.values())
    unit, scale = unit_of(max((one.peak_bytes for one in every), default=1))
    left = [0.0] * len(every)
    for role, color in ROLE_COLORS.items():
        parts = [one.peak_roles.get(role, 0) / scale for one in every]
        if any(parts):
            axes.barh(range(len(every)), parts, left=left, color=color, label=ROLE_WORDS[role])
            left = [a + b for a, b in zip(left, parts, strict=True)]
    axes.set_xlabel(f"live bytes at the peak, {unit}", size=9, color=INK)
    _legend(axes)


def _draw_times(axes: Axes, report: RankReport) -> None:
    every = list(report.figures.values())
    longest = max((one.step_seconds for one in every), default=0.0)
    unit, scale = ("s", 1.0) if longest >= 1 else ("ms", 1e3)
    left = [0.0] * len(every)
    for attribute, words, color in PARTS:
        parts = [getattr(one, attribute) * scale for one in every]
        axes.barh(range(len(every)), parts, left=left, color=color, label=words)
        left = [a + b for a, b in zip(left, parts, strict=True)]
    axes.set_xlabel(f"time of a step, {unit}", size=9, color=INK)
    _legend(axes)


def _legend(axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        axes.legend(
            handles,
            labels,
            loc="lower left",
            bbox_to_anchor=(0, 1.0),
            ncols=3,
            frameon=False,
            fontsize=8,
            handlelength=1.0,
            columnspacing=1.2,
        )


def plot(report: RankReport, path: Any) -> None:
    """Write the picture, replacing the file atomically.

    Args:
        report: What to draw.
        path: A ``.png``, ``.svg`` or ``.pdf``.
    """
    kind = os.path.splitext(os.fspath(path))[1][1:] or "png"
    drawn = io.BytesIO()
    figure(report).savefig(drawn, format=kind)
    with replacing(path) as out:
        out.write(drawn.getvalue())
