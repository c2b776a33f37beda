"""A picture of bytes over time in characters, for a terminal."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

SHADES = "█▓▒░"  # of the series, from the bottom up
PLAIN_SHADES = "#*+."
LEVELS = 8  # parts of a character's height that are told apart


def tide(
    series: Mapping[str, Sequence[int]],
    width: int = 72,
    height: int = 6,
    top: int | None = None,
    plain: bool = False,
) -> list[str]:
    """Draw stacked series in lines of characters, from the top down.

    Each column is a stretch of as many instants, drawn as it was when the stack was highest, so no
    peak is lost.

    Args:
        series: Bytes at each instant by name, the lowest of the stack first; at most four.
        width: Characters a line; fewer where there are fewer instants.
        height: Lines.
        top: Bytes at the upper edge; the highest stack by default.
        plain: Only ASCII.
    """
    shades = PLAIN_SHADES if plain else SHADES
    rows = [list(values) for values in series.values()]
    totals = [sum(column) for column in zip(*rows, strict=True)]
    if len(rows) > len(shades):
        raise ValueError(f"tide draws at most {len(shades)} series; got {len(rows)}.")
    if not totals:
        return [""] * height
    width = min(width, len(totals))
    edges = [len(totals) * k // width for k in range(width + 1)]
    chosen = [max(range(a, b), key=totals.__getitem__) for a, b in itertools.pairwise(edges)]
    scale = max(top or max(totals), 1) / (height * LEVELS)
    columns = [_column([row[k] for row in rows], scale, height, shades) for k in chosen]
    return ["".join(column[line] for column in columns).rstrip() for line in range(height)]


def _column(parts: list[int], scale: float, height: int, shades: str) -> list[str]:
    # Where a character has several series in it, it is the one that fills most; less than half of
    # a character is left empty, except at the bottom: what is there is seen.
    edges, total = [], 0
    for part in parts:
        total += part
        edges.append(total / scale)
    cells = []
    for line in range(height):
        low, high = line * LEVELS, (line + 1) * LEVELS
        filled = [
            max(0.0, min(edge, high) - max(before, low))
            for before, edge in zip([0.0, *edges[:-1]], edges, strict=True)
        ]
        enough = sum(filled) >= LEVELS / 2 or (line == 0 and total > 0)
        cells.append(shades[filled.index(max(filled))] if enough else " ")
    return cells[::-1]
