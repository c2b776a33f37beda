"""SVG pictures of a recording without Matplotlib: the stacked timeline, and bars.

Text and lines have the color of the text around them (``currentColor``), so that a picture can be
read in a dark notebook as in a light one.
"""

from __future__ import annotations

from ...framework.memory.ledger import ROLES, format_bytes
from ..analysis.evicted import drop_times
from ..analysis.role_style import PHASE_COLORS, ROLE_COLORS, ROLE_WORDS, STACK
from ..analysis.snapshots import NANOSECONDS, SnapshotSeries, phases, take_snapshots
from ..analysis.summary import seconds, summarize
from ..record.recording import Recording
from .inline_html import text_of

STEPS_SHOWN = 40  # of more, the lines would hide the tide


def areas(shown: SnapshotSeries, width: float, height: float, most: int) -> list[str]:
    """Return the stacked bytes of each role as SVG polygons, bottom role first.

    Args:
        shown: What to draw.
        width: Of the picture; time fills it.
        height: Of ``most`` bytes; y grows downwards from 0.
        most: Bytes at the top.
    """
    stacks = shown.stacks(lambda owner, role: role)
    end = max(shown.end, 1)
    across = [t * width / end for t in (*shown.times, shown.end)]
    below = [0] * len(shown)
    parts = []
    for role in STACK:
        top = [b + n for b, n in zip(below, stacks.get(role, [0] * len(shown)), strict=True)]
        if top != below:
            points = _steps(across, top) + _steps(across, below)[::-1]
            path = " ".join(f"{x:.1f},{height * (1 - y / most):.1f}" for x, y in points)
            title = f"<title>{text_of(ROLE_WORDS[ROLES[role]])}</title>"
            color = ROLE_COLORS[ROLES[role]]
            parts.append(f'<polygon fill="{color}" points="{path}">{title}</polygon>')
        below = top
    return parts


def _steps(across: list[float], values: list[int]) -> list[tuple[float, int]]:
    points = []
    for k, value in enumerate(values):
        points += [(across[k], value), (across[k + 1], value)]
    return points


def timeline(recording: Recording, device: int, width: int = 720, height: int = 150) -> str:
    """Draw live bytes over time as an SVG element, with phases, steps, the peak and both axes.

    Args:
        recording: A recording.
        device: Index into its devices.
        width: In pixels at most; it shrinks with the page.
        height: Of the area for bytes, in pixels.
    """
    shown = take_snapshots(recording, device, 240)
    summary = summarize(recording, device)
    most = round(max([1, summary.peak.nbytes, *shown.live]) * 1.12)
    left, top, inner = 74, 22, width - 84
    end = max(shown.end, 1)
    parts = [f'<g transform="translate({left},{top})">', *areas(shown, inner, height, most)]
    for span in phases(recording):
        x, wide = span.start * inner / end, (span.end - span.start) * inner / end
        if wide >= 0.4:
            words = f"<title>{text_of(span.phase)}</title>"
            parts.append(
                f'<rect x="{x:.1f}" y="-6" width="{wide:.1f}" height="5" '
                f'fill="{PHASE_COLORS[span.phase]}">{words}</rect>'
            )
    drops = {round(at * inner / end) for at in drop_times(recording, device)}
    if drops:
        path = "".join(f"M{x} -1v7" for x in sorted(drops))
        words = "<title>dropped for a byte budget</title>"
        parts.append(f'<path d="{path}" stroke="currentColor" fill="none">{words}</path>')
    steps = [m for m in recording.marks if m.kind in ("step", "mark")]
    for mark in steps if len(steps) <= STEPS_SHOWN else []:
        x = mark.time * NANOSECONDS * inner / end
        words = f"<title>{text_of(mark.name)}</title>"
        parts.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{height}" stroke="currentColor" '
            f'stroke-opacity="0.35" stroke-dasharray="2 3">{words}</line>'
        )
    parts.append(
        f'<path d="M0,0V{height}H{inner}" fill="none" stroke="currentColor" stroke-opacity="0.5"/>'
    )
    x = summary.peak.time * NANOSECONDS * inner / end
    y = height * (1 - summary.peak.nbytes / most)
    anchor, aside = ("end", -6) if x > inner / 2 else ("start", 6)
    if summary.peak.nbytes:
        parts.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="currentColor"/>'
            + _text(x + aside, y - 3, f"peak {format_bytes(summary.peak.nbytes)}", anchor)
            + _text(-6, y + 4, format_bytes(summary.peak.nbytes), "end")
        )
    parts.append(_text(-6, height, "0", "end") + _text(0, height + 15, "0", "start"))
    parts.append(_text(inner, height + 15, seconds(shown.end / NANOSECONDS), "end"))
    label = text_of(" ".join(summary.sentences()))
    return (
        f'<svg viewBox="0 0 {width} {height + top + 20}" role="img" aria-label="{label}" '
        f'style="width:100%;max-width:{width}px;height:auto;display:block">{"".join(parts)}</g></svg>'
    )


def bars(rows: list[tuple[str, dict[str, int]]], limit: int | None = None, width: int = 720) -> str:
    """Draw horizontal bars of bytes stacked by role as an SVG element.

    Args:
        rows: Name of each bar, and its bytes by role.
        limit: Bytes at which a line is drawn, if any.
        width: In pixels at most.
    """
    most = max([1, limit or 0, *(sum(roles.values()) for _, roles in rows)])
    left, line, inner = 190, 22, width - 290
    parts = []
    for k, (name, roles) in enumerate(rows):
        y, x = 4 + k * line, float(left)
        parts.append(_text(left - 6, y + 12, name if len(name) <= 30 else f"…{name[-29:]}", "end"))
        for number in STACK:
            wide = roles.get(ROLES[number], 0) * inner / most
            if wide:
                words = f"{ROLE_WORDS[ROLES[number]]} {format_bytes(roles[ROLES[number]])}"
                parts.append(
                    f'<rect x="{x:.1f}" y="{y}" width="{wide:.1f}" height="15" '
                    f'fill="{ROLE_COLORS[ROLES[number]]}"><title>{text_of(words)}</title></rect>'
                )
                x += wide
        parts.append(_text(x + 6, y + 12, format_bytes(sum(roles.values())), "start"))
    height = 8 + line * len(rows)
    if limit is not None:
        x = left + limit * inner / most
        words = f"<title>limit {format_bytes(limit)}</title>"
        parts.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{height}" stroke="currentColor" '
            f'stroke-width="1.5" stroke-dasharray="4 3">{words}</line>'
        )
    label = text_of("; ".join(f"{n}: {format_bytes(sum(r.values()))}" for n, r in rows))
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{label}" '
        f'style="width:100%;max-width:{width}px;height:auto;display:block">{"".join(parts)}</svg>'
    )


def _text(x: float, y: float, words: str, anchor: str) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="11" '
        f'font-family="sans-serif" fill="currentColor">{text_of(words)}</text>'
    )
