"""Plot of a recording: live bytes over time, phases, the peak and who owns it.

Left the tide: what each role, module or line held, stacked, as steps, since memory does not slope.
Right, of the same bytes at the peak, the parts and the layers that own most.

Drawn by Matplotlib's own objects, without ``pyplot``: no window, no global state, any thread.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ...framework.memory.ledger import ROLES, format_bytes
from ...framework.serialization.atomic_files import replacing
from ..analysis.evicted import drop_times
from ..analysis.role_style import (
    GROUP_COLORS,
    OTHERS_COLOR,
    PHASE_COLORS,
    ROLE_COLORS,
    ROLE_WORDS,
    STACK,
)
from ..analysis.snapshots import (
    NANOSECONDS,
    SnapshotSeries,
    Span,
    device_index,
    phases,
    take_snapshots,
)
from ..analysis.summary import (
    OTHERS,
    Summary,
    module_groups,
    percent,
    seconds,
    short_lines,
    summarize,
    total_by,
    unit_of,
    with_class,
)
from ..analysis.tables import OUTSIDE
from ..record.recording import Recording

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMNS = 2400  # moments in the picture: a highest and a lowest one for each of its dots
BARS = 9
INK, FAINT = "#24292f", "#6b737c"

Group = Callable[[int, int], str]


def plot(
    recording: Recording, path: str | os.PathLike[str], by: str = "role", device: Any = None
) -> None:
    """Plot memory over time to an image file.

    Args:
        recording: What a profiler noted.
        path: The file; its ending says the format: ``.png``, ``.svg``, ``.pdf``.
        by: What the areas are: ``role``, ``module`` or ``line``.
        device: Name or index of a device; by default the one with the highest peak.

    Raises:
        ValueError: ``by`` or the ending of ``path`` is none of those, or the recording knows no
            such device.
    """
    import io

    kind = os.path.splitext(os.fspath(path))[1].lower().lstrip(".") or "png"
    if kind not in ("png", "svg", "pdf"):
        raise ValueError(f"plot writes .png, .svg or .pdf; got {os.fspath(path)!r}.")
    picture = figure(recording, by=by, device=device)
    drawn = io.BytesIO()
    picture.savefig(drawn, format=kind)
    with replacing(path) as out:
        out.write(drawn.getvalue())


def figure(recording: Recording, by: str = "role", device: Any = None) -> Figure:
    """Return the plot as a Matplotlib figure; arguments as in :func:`plot`."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    index = device_index(recording, device)
    names, colors, (group,) = grouping([(recording, index)], by)
    summary = summarize(recording, index)
    shown = take_snapshots(recording, index, COLUMNS)
    stacks = shown.stacks(group)

    made = Figure(figsize=(12, 6), dpi=110, facecolor="white")
    FigureCanvasAgg(made)
    axes = made.add_axes((0.065, 0.09, 0.615, 0.73))
    unit, scale = unit_of(max(summary.peak.nbytes, max(shown.live, default=0)))
    clock = ("s", 1.0) if recording.seconds >= 1 else ("ms", 1e3)
    times = [t / NANOSECONDS * clock[1] for t in (*shown.times, shown.end)]
    stacked = [names_ for names_ in names if any(stacks.get(names_, ()))]
    bottom = [0.0] * len(times)
    for name in stacked:
        values = [n / scale for n in stacks[name]]
        top = [b + v for b, v in zip(bottom, [*values, values[-1]], strict=True)]
        axes.fill_between(times, bottom, top, step="post", color=colors[name], linewidth=0)
        bottom = top
    if len(times) < COLUMNS / 3:  # an outline of more steps than that would be all there is to see
        axes.step(times, bottom, where="post", color=INK, linewidth=0.5)
    axes.set_xlim(0, max(times[-1], times[0] + 1e-9))
    axes.set_ylim(0, max(max(bottom) * 1.22, 1e-9))
    axes.set_ylabel(f"live bytes, {unit}", color=INK)
    took = sum(c.seconds for c in recording.compilations)
    without = f"; left out: {seconds(took)} of compiling or loading kernels" if took else ""
    axes.set_xlabel(f"time, {clock[0]}{without}", color=INK, loc="right")  # phases are at the left
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.grid(axis="y", color="#d8dce1", linewidth=0.6)
    axes.set_axisbelow(True)
    _draw_phases(axes, phases(recording), clock[1])
    _draw_drops(axes, recording, index, clock[1])
    _draw_steps(axes, recording, clock[1])
    _draw_peak(axes, shown, summary, clock[1], scale)
    _draw_headline(made, summary)
    _draw_parts(made, recording, index, stacked, colors, group, summary)
    return made


def grouping(
    runs: Sequence[tuple[Recording, int]], by: str
) -> tuple[list[str], dict[str, str], list[Group]]:
    """Group bytes for a plot: return group names bottom to top, their colors, and the maps.

    Args:
        runs: Recordings and devices, which are grouped alike: by what they hold at their peaks
            together.
        by: ``role``, ``module`` or ``line``.

    Returns:
        The names, the color of each, and for each run the map from (owner, role number) to a name.

    Raises:
        ValueError: ``by`` is none of those.
    """
    if by == "role":
        names = [ROLES[number] for number in STACK]
        return names, ROLE_COLORS, [lambda owner, role: ROLES[role] for _ in runs]
    if by not in ("module", "line"):
        raise ValueError(f"A picture is by role, module or line; got {by!r}.")
    named = [_names(recording, by) for recording, _ in runs]
    sums: Counter[str] = Counter()
    for (recording, device), words in zip(runs, named, strict=True):
        for (owner, _), nbytes in recording.peaks[device].cells.items():
            sums[words[owner]] += nbytes
    cut: Callable[[str], str]
    if by == "module":
        cut = module_groups(sums, len(GROUP_COLORS) - 1)
    else:
        largest = dict(sums.most_common(len(GROUP_COLORS)))
        cut = lambda word: word if word in largest else OTHERS  # noqa: E731
    groups: Counter[str] = Counter()
    for word, nbytes in sums.items():
        groups[cut(word)] += nbytes
    order = [name for name, _ in groups.most_common() if name != OTHERS]
    order += [] if OUTSIDE in order or by == "line" else [OUTSIDE]
    colors = dict(zip(order, GROUP_COLORS, strict=False))
    maps = [[cut(word) for word in words] for words in named]
    return [*order, OTHERS], {**colors, OTHERS: OTHERS_COLOR}, [_by_owner(m) for m in maps]


def _names(recording: Recording, by: str) -> list[str]:
    if by == "module":
        return [owner.module for owner in recording.owners]
    short = short_lines(recording)
    return [short[owner.line] for owner in recording.owners]


def _by_owner(names: list[str]) -> Group:
    return lambda owner, role: names[owner]


def _draw_phases(axes: Axes, spans: list[Span], clock: float) -> None:
    # A faint shade behind the tide, and a strip above it with names where they fit.
    low, high = axes.get_xlim()
    across: dict[str, list[tuple[float, float]]] = {}
    for start, end, phase in _visible(spans, round((high - low) / clock * NANOSECONDS / COLUMNS)):
        at = (start / NANOSECONDS * clock, (end - start) / NANOSECONDS * clock)
        across.setdefault(phase, []).append(at)
    strip = axes.get_xaxis_transform()
    beside = 0.0  # where the next name goes that fits into none of its stretches
    for phase, bars in across.items():
        named = False
        color = PHASE_COLORS[phase]
        if phase != "other":
            axes.broken_barh(
                bars, (0, 0.975), transform=strip, color=color, alpha=0.1, lw=0, zorder=0
            )
        axes.broken_barh(
            bars, (0.975, 0.04), transform=strip, color=color, lw=0, clip_on=False, zorder=4
        )
        for left, width in bars:
            if width > 0.011 * (high - low) * len(phase):
                named = True
                axes.text(
                    left + width / 2,
                    0.9945,
                    phase,
                    transform=strip,
                    ha="center",
                    va="center",
                    size=8,
                    color=INK,
                    zorder=5,
                )
        if not named and phase != "other":
            for text, size, ink in (("\N{BLACK SQUARE}", 11.0, color), (phase, 8.5, INK)):
                place = (beside + (0.02 if text == phase else 0), -0.075)
                axes.text(*place, text, transform=axes.transAxes, size=size, color=ink, va="center")
            beside += 0.05 + 0.011 * len(phase)


def _visible(spans: list[Span], least: int) -> list[Span]:
    # Stretches too short to be seen go to the one before.
    found: list[Span] = []
    for span in spans:
        if found and (span.end - span.start < least or span.phase == found[-1].phase):
            found[-1] = Span(found[-1].start, span.end, found[-1].phase)
        else:
            found.append(span)
    return found


def _draw_drops(axes: Axes, recording: Recording, device: int, clock: float) -> None:
    # Where a byte budget dropped values: ticks below the phases.
    times = [at / NANOSECONDS * clock for at in drop_times(recording, device)]
    if times:
        strip = axes.get_xaxis_transform()
        axes.vlines(times, 0.95, 0.972, transform=strip, color=INK, lw=0.6, zorder=4)
        words = "\N{BOX DRAWINGS LIGHT VERTICAL} dropped for a byte budget"
        axes.text(1.0, 1.065, words, transform=axes.transAxes, size=8, color=INK, ha="right")


def _draw_steps(axes: Axes, recording: Recording, clock: float) -> None:
    marks = [m for m in recording.marks if m.kind in ("step", "mark")]
    for mark in marks if len(marks) <= 60 else []:
        axes.axvline(mark.time * clock, color=FAINT, linewidth=0.6, linestyle=(0, (3, 3)))
    low, high = axes.get_xlim()
    free = low
    for mark in marks:
        name = _plain(mark.name)
        half = 0.0055 * (high - low) * len(name)
        at = max(min(mark.time * clock, high - half), low + half)
        if at - half >= free:
            free = at + half
            axes.annotate(
                name,
                (at, 1.03),
                xycoords=axes.get_xaxis_transform(),
                ha="center",
                size=8,
                color=FAINT,
                annotation_clip=False,
            )


def _draw_peak(
    axes: Axes, shown: SnapshotSeries, summary: Summary, clock: float, scale: int
) -> None:
    if not summary.peak.nbytes:
        return
    x, y = summary.peak.time * clock, summary.peak.nbytes / scale
    low, high = axes.get_xlim()
    text = f"peak {format_bytes(summary.peak.nbytes)}"
    if summary.kind:
        share = percent(summary.kinds[1], summary.peak.nbytes)
        text += f"\nlargest owner: {_plain(summary.called, 34)}, {share}"
    left = x > (low + high) / 2
    axes.plot([x], [y], "o", color=INK, markersize=5, zorder=6)
    axes.annotate(
        text,
        (x, y),
        xytext=(-12 if left else 12, 14),
        textcoords="offset points",
        ha="right" if left else "left",
        va="bottom",
        size=9.5,
        weight="bold",
        color=INK,
        zorder=7,
        bbox={"boxstyle": "round,pad=0.3", "facecolor": "white", "edgecolor": FAINT, "lw": 0.6},
        arrowprops={"arrowstyle": "-", "color": INK, "lw": 0.8},
    )


def _draw_headline(made: Figure, summary: Summary) -> None:
    first, *rest = summary.sentences()
    made.text(0.065, 0.95, _plain(first, 200), size=14, weight="bold", color=INK, va="center")
    made.text(0.065, 0.903, _plain(" ".join(rest), 150), size=10.5, color="#57606a", va="center")


def _draw_parts(
    made: Figure,
    recording: Recording,
    device: int,
    stacked: list[str],
    colors: dict[str, str],
    group: Group,
    summary: Summary,
) -> None:
    # The legend, with the bytes at the peak, and below it the largest layers as bars.
    total = summary.peak.nbytes
    held = total_by(summary.peak, group)
    y = 0.81
    made.text(0.71, y, "at the peak", size=10, weight="bold", color=INK)
    for name in [n for n in reversed(stacked) if held.get(n)] + [
        n for n in reversed(stacked) if not held.get(n)
    ]:
        y -= 0.036
        made.text(0.71, y, "\N{BLACK SQUARE}", size=13, color=colors[name], va="center")
        made.text(0.73, y, _plain(ROLE_WORDS.get(name, name), 30), size=9.5, color=INK, va="center")
        nbytes = held.get(name, 0)
        made.text(0.93, y, format_bytes(nbytes), size=9.5, color=INK, ha="right", va="center")
        made.text(0.985, y, percent(nbytes, total), size=9.5, color=FAINT, ha="right", va="center")
    room = y - 0.16  # below it is the edge; a bar's name needs 0.036
    layers = [(path, n) for path, n in summary.modules.items() if path]
    layers = layers[: min(BARS, int(room / 0.036))]
    if not layers:
        return
    height = min(0.045 * len(layers), room)
    axes = made.add_axes((0.71, y - 0.09 - height, 0.275, height))
    made.text(0.71, y - 0.072, "layers that own most of it", size=10, weight="bold", color=INK)
    _draw_layers(axes, recording, layers, summary)


def _draw_layers(
    axes: Axes, recording: Recording, layers: list[tuple[str, int]], summary: Summary
) -> None:
    by_role: dict[tuple[str, int], int] = {}
    for (owner, role), nbytes in summary.peak.cells.items():
        key = recording.owners[owner].module, role
        by_role[key] = by_role.get(key, 0) + nbytes
    longest = layers[0][1]
    for row, (path, nbytes) in enumerate(layers):
        left = 0
        for role in STACK:
            part = by_role.get((path, role), 0)
            color = ROLE_COLORS[ROLES[role]]
            axes.barh(row, part, left=left, height=0.9, color=color, alpha=0.55, lw=0)
            left += part
        axes.text(
            longest * 0.012,
            row,
            _plain(with_class(recording, path), 34),
            size=8.5,
            va="center",
            color=INK,
        )
        axes.text(longest * 1.34, row, format_bytes(nbytes), size=8.5, va="center", ha="right")
    axes.set_xlim(0, longest * 1.34)
    axes.set_ylim(len(layers) - 0.4, -0.6)
    axes.axis("off")


def _plain(text: str, limit: int = 24) -> str:
    """Clean a string for Matplotlib: no math mode, one line, shortened from the front."""
    text = "".join(c if c.isprintable() else " " for c in text).replace("$", r"\$")
    return text if len(text) <= limit else "\N{HORIZONTAL ELLIPSIS}" + text[1 - limit :]
