"""Inline HTML for notebooks: a block of lines and parts, tables of bytes, meters.

The styles are in the elements, so a notebook that removes style sheets changes nothing.
"""

from __future__ import annotations

import html as escaping
from typing import TYPE_CHECKING

from ...framework.memory.ledger import format_bytes
from ..analysis.role_style import ROLE_COLORS, ROLE_WORDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ..analysis.tables import Table

ROWS = 8  # of a table; one more row sums up the rest
RULE = "1px solid rgba(127,127,127,.4)"
_CELL = f"padding:2px 10px 2px 0;border:0;border-bottom:{RULE};background:none;color:inherit;"


_KEEP, _WRAP = "white-space:nowrap", "overflow-wrap:anywhere"
_COLUMNS = "display:flex;flex-wrap:wrap;gap:8px 28px;align-items:flex-start"


def table(shown: Table) -> str:
    """Return a table of bytes as HTML."""
    return page([shown.title], [table_of(shown, title=False, limit=40), *map(small, shown.notes)])


def page(lines: Sequence[str], parts: Iterable[str]) -> str:
    """Return lines of text, of which the first is the answer, and parts, which are HTML."""
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


def table_of(
    shown: Table, name: str = "", title: bool = True, signed: bool = False, limit: int = ROWS
) -> str:
    """Return a table of bytes with a meter for each row.

    Args:
        shown: The table.
        name: Head of the column of names; by default, what the table is by.
        title: The head says what the table shows; False: only what it is by.
        signed: Show increases with a plus sign.
        limit: Rows at most; one more sums up the rest.
    """
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
                meter(abs(row.nbytes) / most, color) + f" {row.share:.0%}",
                text_of(ROLE_WORDS.get(row.name, row.name) if shown.by == "role" else row.name),
            ]
        )
    if left:
        rest = sum(r.nbytes for r in left)
        cells.append([format_bytes(rest), "", f"({len(left)} more)"])
    cells.append([f"{sign if shown.total > 0 else ''}{format_bytes(shown.total)}", "", "in all"])
    head = name or (f"saved, by {shown.by}" if signed else shown.by)
    return grid(["", "", head if title else shown.by], cells, right=(0,))


def grid(heads: list[str], rows: list[list[str]], right: Sequence[int] = ()) -> str:
    """Return a table of cells that are HTML already; the columns ``right`` are aligned right."""
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


def beside(parts: Iterable[str]) -> str:
    """Return parts in columns."""
    columns = "".join(f"<div>{part}</div>" for part in parts)
    return f'<div style="{_COLUMNS}">{columns}</div>'


def meter(share: float, color: str, limit: float | None = None) -> str:
    """Return a bar for a share of 0 to 1, with a dashed line at ``limit``."""
    line = ""
    if limit is not None:
        line = f'<path d="M{60 * limit:.1f},0V10" stroke="currentColor" stroke-dasharray="2 1"/>'
    return (
        '<svg width="62" height="10" viewBox="0 0 62 10" style="vertical-align:middle">'
        f'<rect width="{60 * share:.1f}" height="10" fill="{color}"/>{line}</svg>'
    )


def small(text: str) -> str:
    """Return text in small letters."""
    return f'<span style="opacity:.8;font-size:12px">{text_of(text)}</span>'


def text_of(value: str) -> str:
    """Escape text for use in HTML, SVG or an attribute."""
    return escaping.escape(value, quote=True)
