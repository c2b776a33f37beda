"""The tide of a plan beside that of the plain step: live bytes over the predicted time."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from ...framework.memory.ledger import format_bytes
from ...framework.serialization.atomic_files import replacing
from ..analysis.role_style import PHASE_COLORS
from ..analysis.summary import unit_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMNS = 600  # moments that are drawn: a highest and a lowest of each column
INK, PLAIN, PLANNED, BUDGET = "#24292f", "#98a1ab", "#4477aa", "#d1495b"
WIDTH, HEIGHT = 640, 180  # of the picture in a notebook


class Moment(NamedTuple):
    """Live bytes after an allocation or a release.

    Attributes:
        time: Predicted seconds since the step began; kernel calls, where no time is known.
        nbytes: Live bytes.
        replays: Whether a value was being recomputed.
    """

    time: float
    nbytes: int
    replays: bool


class Tide(NamedTuple):
    """Both tides of a plan.

    Attributes:
        plain: The step without a budget.
        planned: The step under the plan.
        evictions: When values were dropped, and their bytes.
        limit: The budget, in bytes.
        timed: Whether times are seconds.
    """

    plain: Sequence[Moment]
    planned: Sequence[Moment]
    evictions: Sequence[tuple[float, int]]
    limit: int
    timed: bool


def thinned(moments: Sequence[Moment]) -> list[Moment]:
    """Return the moments that show: of each column the highest and the lowest, in their order."""
    if len(moments) <= 2 * COLUMNS:
        return list(moments)
    end = moments[-1].time or 1.0
    columns: dict[tuple[int, bool], list[int]] = {}
    for k, moment in enumerate(moments):
        column = int(moment.time / end * COLUMNS), moment.replays
        found = columns.setdefault(column, [k, k])
        if moment.nbytes > moments[found[0]].nbytes:
            found[0] = k
        if moment.nbytes < moments[found[1]].nbytes:
            found[1] = k
    return [moments[k] for k in sorted({k for found in columns.values() for k in found})]


def replays_of(moments: Sequence[Moment]) -> list[tuple[float, float]]:
    """Return the spans in which values were recomputed: (begin, end)."""
    spans: list[tuple[float, float]] = []
    for before, after in pairwise(moments):
        if before.replays:
            if spans and spans[-1][1] == before.time:
                spans[-1] = spans[-1][0], after.time
            else:
                spans.append((before.time, after.time))
    return spans


def _clock(tide: Tide) -> tuple[str, float, float]:
    # (label, factor, end) of the time axis.
    end = max(m.time for m in (*tide.plain[-1:], *tide.planned[-1:]))
    if not tide.timed:
        return "kernel calls", 1.0, end
    unit, factor = ("s", 1.0) if end >= 1 else ("ms", 1e3)
    return f"predicted time of kernels, {unit}", factor, end


def figure(tide: Tide, headline: str) -> Figure:
    """Draw both tides.

    Args:
        tide: What to draw.
        headline: The plan in a sentence.
    """
    from matplotlib.figure import Figure

    made = Figure(figsize=(9, 4.2), dpi=110, facecolor="white", layout="constrained")
    axes = made.add_subplot()
    label, factor, end = _clock(tide)
    unit, scale = unit_of(max(m.nbytes for m in (*tide.plain, *tide.planned)))
    spans = replays_of(tide.planned)
    for moments, color, name, alpha in (
        (tide.plain, PLAIN, "plain step", 0.35),
        (tide.planned, PLANNED, "under the plan", 0.55),
    ):
        shown = thinned(moments)
        times, values = [m.time * factor for m in shown], [m.nbytes / scale for m in shown]
        axes.fill_between(times, values, step="post", color=color, alpha=alpha, lw=0, label=name)
        axes.step(times, values, where="post", color=color, lw=0.8)
    if spans:
        axes.broken_barh(
            [(a * factor, (b - a) * factor) for a, b in spans],
            (0, 1),
            transform=axes.get_xaxis_transform(),
            color=PHASE_COLORS["recompute"],
            alpha=0.35,
            lw=0,
            zorder=0,
            label="made again",
        )
    if tide.evictions:
        axes.plot(
            [t * factor for t, _ in tide.evictions],
            [tide.limit / scale] * len(tide.evictions),
            "v",
            color=BUDGET,
            ms=4,
            label="a value is dropped",
        )
    axes.axhline(tide.limit / scale, color=BUDGET, lw=1, ls="--", label="budget")
    axes.set_xlim(0, end * factor or 1)
    axes.set_ylim(0, None)
    axes.set_xlabel(label)
    axes.set_ylabel(f"live bytes, {unit}")
    axes.set_title(headline.replace("; ", "\n", 1), loc="left", size=10, color=INK)
    axes.legend(fontsize=8, ncols=5, loc="upper center", bbox_to_anchor=(0.5, -0.14), frameon=False)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return made


def plot(tide: Tide, headline: str, path: str | os.PathLike[str]) -> None:
    """Draw both tides to a file.

    Args:
        tide: What to draw.
        headline: The plan in a sentence.
        path: Its ending says the format: ``.png``, ``.svg``, ``.pdf``.

    Raises:
        ValueError: It has another ending.
    """
    kind = os.path.splitext(os.fspath(path))[1].lower().lstrip(".")
    if kind not in ("png", "svg", "pdf"):
        raise ValueError(f"plot writes .png, .svg or .pdf; got {os.fspath(path)!r}.")
    drawn = io.BytesIO()
    figure(tide, headline).savefig(drawn, format=kind)
    with replacing(path) as file:
        file.write(drawn.getvalue())


def svg(tide: Tide) -> str:
    """Return both tides as SVG without styles or scripts, for a notebook."""
    label, factor, end = _clock(tide)
    high = max(m.nbytes for m in (*tide.plain, *tide.planned)) * 1.05

    def x(time: float) -> str:
        return f"{time / (end or 1) * WIDTH:.1f}"

    def y(nbytes: float) -> str:
        return f"{HEIGHT * (1 - nbytes / high):.1f}"

    def area(moments: Sequence[Moment], color: str, name: str) -> str:
        shown = thinned(moments)
        steps = "".join(f"H{x(m.time)}V{y(m.nbytes)}" for m in shown)
        return (
            f'<path d="M0 {HEIGHT}{steps}H{x(shown[-1].time)}V{HEIGHT}Z" fill="{color}" '
            f'fill-opacity="0.5"><title>{name}</title></path>'
        )

    def text(at: float, height: float, words: str, anchor: str = "start") -> str:
        return (
            f'<text x="{at:.1f}" y="{height:.1f}" font-size="11" fill="currentColor" '
            f'text-anchor="{anchor}">{words}</text>'
        )

    parts: list[Any] = [
        f'<rect x="{x(a)}" y="0" width="{float(x(b)) - float(x(a)):.1f}" height="{HEIGHT}" '
        f'fill="{PHASE_COLORS["recompute"]}" fill-opacity="0.35"><title>recomputed</title></rect>'
        for a, b in replays_of(tide.planned)
    ]
    parts += [area(tide.plain, PLAIN, "plain step"), area(tide.planned, PLANNED, "under the plan")]
    parts.append(
        f'<path d="M0 {y(tide.limit)}H{WIDTH}" stroke="{BUDGET}" stroke-dasharray="5 3" '
        'fill="none"><title>budget</title></path>'
    )
    parts += [
        f'<path d="M{x(t)} {y(tide.limit)}v-7" stroke="{BUDGET}"><title>'
        f"{format_bytes(n)} dropped</title></path>"
        for t, n in tide.evictions
    ]
    parts.append(text(0, HEIGHT + 14, "gray: plain step; blue: under the plan; violet: recomputed"))
    last = f"{end * factor:.3g} {label.rpartition(', ')[2] if tide.timed else label}"
    parts.append(text(WIDTH, HEIGHT + 14, last, "end"))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 -10 {WIDTH} {HEIGHT + 30}" '
        f'width="{WIDTH}" style="max-width:100%">{"".join(parts)}</svg>'
    )


__all__ = ["Moment", "Tide", "figure", "plot", "svg"]
