"""HTML of profiles, estimates, comparisons, advice and tables, as notebooks show them.

Everything is inline: styles, and pictures as SVG. There is no style sheet, script or address, so
that nothing is loaded and what a notebook removes from pages it does not trust is not missed. Text
has the notebook's color, lines are a gray that shows on white and on black.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...framework.memory.ledger import ROLES, format_bytes
from ..analysis.role_style import ROLE_COLORS, ROLE_WORDS
from ..analysis.summary import compilation, repeated_layers, summarize, total_by
from ..leaks.findings import summary
from .plan_picture import svg
from .svg import bars, text_of, timeline

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ..analysis.tables import Table
    from ..estimate.estimate import Estimate
    from ..estimate.fit_table import FitTable
    from ..estimate.plan import Plan
    from ..estimate.proposals import Advice, Proposal
    from ..estimate.what_if import Comparison
    from ..leaks.findings import Finding
    from ..profile import Profile

ROWS = 8  # of a table; what is left out is one row
RULE = "1px solid rgba(127,127,127,.4)"
_CELL = f"padding:2px 10px 2px 0;border:0;border-bottom:{RULE};background:none;color:inherit;"


_KEEP, _WRAP = "white-space:nowrap", "overflow-wrap:anywhere"
_COLUMNS = "display:flex;flex-wrap:wrap;gap:8px 28px;align-items:flex-start"


def profile(shown: Profile) -> str:
    """Return a profile as HTML: when its peak was, a timeline, owners, and what survives."""
    shown.settle()
    recording = shown.recording
    if not recording.devices:
        return _page(["No device was used."], [])
    device = recording.devices.index(shown.device)
    first, *rest = summarize(recording, device).sentences()
    extra = compilation(recording)
    rest += [f"{extra[0].upper()}{extra[1:]}."] if extra else []
    return _page(
        [first, *rest], [timeline(recording, device), _beside(_owners(shown)), *_leaks(shown)]
    )


def estimate(shown: Estimate) -> str:
    """Return an estimate as HTML: its figures, a timeline and owners."""
    recording = shown.recording
    lines = str(shown).splitlines()
    if not recording.devices:
        return _page(lines, [])
    device = recording.devices.index(shown.device)
    return _page(lines, [timeline(recording, device), _beside(_owners(shown))])


def plan(shown: Plan) -> str:
    """Return a plan as HTML: its figures, both tides, and what is dropped."""
    lines = str(shown).splitlines()[:2]
    cells = [
        [format_bytes(d.nbytes), str(d.times), text_of(d.op), text_of(d.module), text_of(d.line)]
        for d in shown.decisions[:ROWS]
    ]
    left = shown.decisions[ROWS:]
    if left:
        rest = format_bytes(sum(d.nbytes for d in left))
        cells.append([rest, str(sum(d.times for d in left)), "", "", f"({len(left)} more)"])
    table = _grid(["dropped", "times", "op", "module", "line"], cells, right=(0, 1))
    return _page(lines, [svg(shown.tide()), table if cells else ""])


def comparison(shown: Comparison) -> str:
    """Return a comparison as HTML: what it saves, both peaks as bars, and by whom."""
    lines = str(shown).partition("\n\n")[0].splitlines()
    sides = [("before", shown.before), ("after", shown.after)]
    rows = [(name, _roles(side, shown.device)) for name, side in sides]
    tables = [shown.saved(by) for by in ("role", "module", "line")]
    tables[1] = repeated_layers(shown.before.recording, tables[1])
    return _page(
        lines,
        [bars(rows), _legend(rows), _beside(_table(t, signed=True) for t in tables if t.rows)],
    )


def advice(shown: Advice) -> str:
    """Return advice as HTML: whether the step fits, and each change with its peak and its cost."""
    lines = str(shown).splitlines()
    useful = [p for p in shown.proposals if p.fits or p.saved_bytes > 0]
    parts = []
    if useful:
        parts.append(_proposals(shown, useful))
    if shown.larger:
        parts.append(f"<b>ways to a larger batch than {shown.batch}</b>")
        parts.append(_proposals(shown, shown.larger))
    notes = [f"not tried: {what}: {why}" for what, why in shown.untried.items()]
    return _page(lines[:1] if parts else lines, [*parts, *map(_small, notes if parts else [])])


def _proposals(shown: Advice, proposals: Sequence[Proposal]) -> str:
    # Below the step as it is, with the limit as a line across the meters.
    most = max([shown.peak_bytes, shown.limit_bytes, *(p.peak_bytes for p in proposals)])
    rows = [("as it is", shown.fits, shown.peak_bytes, "", "", "")]
    for p in proposals:
        saved = format_bytes(p.saved_bytes) if p.saved_bytes > 0 else ""
        rows.append((p.change, p.fits, p.peak_bytes, saved, p.time_cost, p.cost))
    found = []
    for change, fits, peak, saved, time, costs in rows:
        meter = _meter(
            peak / most, ROLE_COLORS["optimizer" if fits else "saved"], shown.limit_bytes / most
        )
        texts = [change, "yes" if fits else "no", format_bytes(peak), saved, time, costs]
        cells = [text_of(text) for text in texts]
        found.append([*cells[:3], meter, *cells[3:]])
    heads = ["change", "fits", "peak", "", "saved", "time", "costs"]
    return _grid(heads, found, right=(2, 4, 5))


def fit_table(shown: FitTable) -> str:
    """Return the largest batches as HTML: a row for each model, a column for each limit."""
    heads = ["largest batch", *map(format_bytes, shown.limits)]
    rows = [
        [text_of(model), *(str(shown.batch(model, n) or "none fits") for n in shown.limits)]
        for model in shown.models
    ]
    return _page([], [_grid(heads, rows, right=range(1, len(heads)))])


def table(shown: Table) -> str:
    """Return a table of bytes as HTML."""
    return _page([shown.title], [_table(shown, title=False, limit=40), *map(_small, shown.notes)])


def _page(lines: Sequence[str], parts: Iterable[str]) -> str:
    # The first line is the answer.
    head = "".join(
        f'<div style="{"font-weight:600" if k == 0 else "opacity:.8"};white-space:pre-wrap">'
        f"{text_of(line)}</div>"
        for k, line in enumerate(lines)
    )
    body = "".join(f'<div style="margin-top:8px">{part}</div>' for part in parts if part)
    return (
        '<div style="font-family:sans-serif;font-size:13px;line-height:1.45;color:inherit;'
        f'max-width:1000px">{head}{body}</div>'
    )


def _owners(shown: Profile) -> list[str]:
    recording = shown.recording
    layers = repeated_layers(recording, shown.at_peak("module"))
    tables = [_table(shown.at_peak("role"), "at the peak, by role"), _table(layers, "by module")]
    if any(owner.line for owner in recording.owners[1:]):
        tables.append(_table(shown.at_peak("line"), "by line"))
    return tables


def _leaks(shown: Profile) -> list[str]:
    found: list[Finding] = shown.recording.findings
    if not found:
        return []
    heads = ["made at", "held by", "nodes a step", "bytes a step", "fix"]
    rows = []
    for f in found:
        grown = f"+{f.growth_nodes_per_step:,}", f"+{format_bytes(f.growth_bytes_per_step)}"
        rows.append([f.line, f.root, *grown, f.fix])
    cells = [[text_of(cell) for cell in row] for row in rows]
    return [f"<b>{summary(found)}</b>" + _grid(heads, cells, right=(2, 3))]


def _table(
    shown: Table, name: str = "", title: bool = True, signed: bool = False, limit: int = ROWS
) -> str:
    rows = list(shown.rows)
    kept, left = rows[:limit], rows[limit:]
    most = max((abs(r.nbytes) for r in rows), default=0) or 1
    sign = "+" if signed else ""
    cells = []
    for row in kept:
        color = ROLE_COLORS.get(row.name, "#7a8aa0")
        plus = sign if row.nbytes > 0 else ""
        cells.append(
            [
                f"{plus}{format_bytes(row.nbytes)}",
                _meter(abs(row.nbytes) / most, color) + f" {row.share:.0%}",
                text_of(ROLE_WORDS.get(row.name, row.name) if shown.by == "role" else row.name),
            ]
        )
    if left:
        rest = sum(r.nbytes for r in left)
        cells.append([format_bytes(rest), "", f"({len(left)} more)"])
    cells.append([f"{sign if shown.total > 0 else ''}{format_bytes(shown.total)}", "", "in all"])
    head = name or (f"saved, by {shown.by}" if signed else shown.by)
    return _grid(["", "", head if title else shown.by], cells, right=(0,))


def _grid(heads: list[str], rows: list[list[str]], right: Sequence[int] = ()) -> str:
    # The cells are HTML already.
    aligned = ["right" if k in right else "left" for k in range(len(heads))]
    top = "".join(
        f'<th style="{_CELL}text-align:{a};font-weight:600">{text_of(h)}</th>'
        for h, a in zip(heads, aligned, strict=True)
    )
    body = "".join(
        '<tr style="background:none">'
        + "".join(
            f'<td style="{_CELL}text-align:{a};{_WRAP if k == len(row) - 1 else _KEEP}">{cell}</td>'
            for k, (cell, a) in enumerate(zip(row, aligned, strict=True))
        )
        + "</tr>"
        for row in rows
    )
    return (
        '<table style="border-collapse:collapse;border:0;margin:0;font-size:12px;color:inherit">'
        f'<thead><tr style="background:none">{top}</tr></thead><tbody>{body}</tbody></table>'
    )


def _beside(parts: Iterable[str]) -> str:
    columns = "".join(f"<div>{part}</div>" for part in parts)
    return f'<div style="{_COLUMNS}">{columns}</div>'


def _meter(share: float, color: str, limit: float | None = None) -> str:
    line = ""
    if limit is not None:
        line = f'<path d="M{60 * limit:.1f},0V10" stroke="currentColor" stroke-dasharray="2 1"/>'
    return (
        '<svg width="62" height="10" viewBox="0 0 62 10" style="vertical-align:middle">'
        f'<rect width="{60 * share:.1f}" height="10" fill="{color}"/>{line}</svg>'
    )


def _small(text: str) -> str:
    return f'<span style="opacity:.8;font-size:12px">{text_of(text)}</span>'


def _roles(shown: Profile, device: str) -> dict[str, int]:
    return total_by(shown.peak(device), lambda owner, role: ROLES[role])


def _legend(rows: list[tuple[str, dict[str, int]]]) -> str:
    met: dict[str, Any] = {role: None for _, roles in rows for role, n in roles.items() if n}
    return " ".join(
        f'<span style="white-space:nowrap;font-size:12px;margin-right:12px">{_meter_box(role)} '
        f"{text_of(ROLE_WORDS[role])}</span>"
        for role in ROLE_COLORS
        if role in met
    )


def _meter_box(role: str) -> str:
    return (
        '<svg width="10" height="10" viewBox="0 0 10 10">'
        f'<rect width="10" height="10" fill="{ROLE_COLORS[role]}"/></svg>'
    )
