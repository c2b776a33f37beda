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
from .inline_html import ROWS, beside, grid, meter, page, small, table_of, text_of
from .plan_picture import svg
from .svg import bars, timeline

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..estimate.estimate import Estimate
    from ..estimate.fit_table import FitTable
    from ..estimate.plan import Plan
    from ..estimate.proposals import Advice, Proposal
    from ..estimate.what_if import Comparison
    from ..leaks.findings import Finding
    from ..profile import Profile


def profile(shown: Profile) -> str:
    """Return a profile as HTML: when its peak was, a timeline, owners, and what survives."""
    shown.settle()
    recording = shown.recording
    if not recording.devices:
        return page(["No device was used."], [])
    device = recording.devices.index(shown.device)
    first, *rest = summarize(recording, device).sentences()
    extra = compilation(recording)
    rest += [f"{extra[0].upper()}{extra[1:]}."] if extra else []
    return page(
        [first, *rest], [timeline(recording, device), beside(_owners(shown)), *_leaks(shown)]
    )


def estimate(shown: Estimate) -> str:
    """Return an estimate as HTML: its figures, a timeline and owners."""
    recording = shown.recording
    lines = str(shown).splitlines()
    if not recording.devices:
        return page(lines, [])
    device = recording.devices.index(shown.device)
    return page(lines, [timeline(recording, device), beside(_owners(shown))])


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
    table = grid(["dropped", "times", "op", "module", "line"], cells, right=(0, 1))
    return page(lines, [svg(shown.tide()), table if cells else ""])


def comparison(shown: Comparison) -> str:
    """Return a comparison as HTML: what it saves, both peaks as bars, and by whom."""
    lines = str(shown).partition("\n\n")[0].splitlines()
    sides = [("before", shown.before), ("after", shown.after)]
    rows = [(name, _roles(side, shown.device)) for name, side in sides]
    tables = [shown.saved(by) for by in ("role", "module", "line")]
    tables[1] = repeated_layers(shown.before.recording, tables[1])
    return page(
        lines,
        [bars(rows), _legend(rows), beside(table_of(t, signed=True) for t in tables if t.rows)],
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
    return page(lines[:1] if parts else lines, [*parts, *map(small, notes if parts else [])])


def _proposals(shown: Advice, proposals: Sequence[Proposal]) -> str:
    # Below the step as it is, with the limit as a line across the meters.
    most = max([shown.peak_bytes, shown.limit_bytes, *(p.peak_bytes for p in proposals)])
    rows = [("as it is", shown.fits, shown.peak_bytes, "", "", "")]
    for p in proposals:
        saved = format_bytes(p.saved_bytes) if p.saved_bytes > 0 else ""
        rows.append((p.change, p.fits, p.peak_bytes, saved, p.time_cost, p.cost))
    found = []
    for change, fits, peak, saved, time, costs in rows:
        drawn = meter(
            peak / most, ROLE_COLORS["optimizer" if fits else "saved"], shown.limit_bytes / most
        )
        texts = [change, "yes" if fits else "no", format_bytes(peak), saved, time, costs]
        cells = [text_of(text) for text in texts]
        found.append([*cells[:3], drawn, *cells[3:]])
    heads = ["change", "fits", "peak", "", "saved", "time", "costs"]
    return grid(heads, found, right=(2, 4, 5))


def fit_table(shown: FitTable) -> str:
    """Return the largest batches as HTML: a row for each model, a column for each limit."""
    heads = ["largest batch", *map(format_bytes, shown.limits)]
    rows = [
        [text_of(model), *(str(shown.batch(model, n) or "none fits") for n in shown.limits)]
        for model in shown.models
    ]
    return page([], [grid(heads, rows, right=range(1, len(heads)))])


def _owners(shown: Profile) -> list[str]:
    recording = shown.recording
    layers = repeated_layers(recording, shown.at_peak("module"))
    tables = [
        table_of(shown.at_peak("role"), "at the peak, by role"),
        table_of(layers, "by module"),
    ]
    if any(owner.line for owner in recording.owners[1:]):
        tables.append(table_of(shown.at_peak("line"), "by line"))
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
    return [f"<b>{summary(found)}</b>" + grid(heads, cells, right=(2, 3))]


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
