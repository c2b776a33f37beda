"""Module paths as stack frames: one frame or slice per module."""

from __future__ import annotations


def modules_of(path: str) -> list[tuple[str, str]]:
    """Split a module path into (label, full path) of each module, outermost first.

    A label is the last part of the path. A number alone says nothing, and tools that sum by label
    would take ``blocks.2`` and ``mlp.2`` for the same; so the name before it is part of the label.

    >>> modules_of("blocks.3.mlp")
    [('blocks', 'blocks'), ('blocks.3', 'blocks.3'), ('mlp', 'blocks.3.mlp')]
    """
    found: list[tuple[str, str]] = []
    label = whole = ""
    for part in path.split(".") if path else ():
        label = f"{label}.{part}" if label and part.isdigit() else part
        whole = f"{whole}.{part}" if whole else part
        found.append((label, whole))
    return found
