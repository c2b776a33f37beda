"""``lowtide diff``: what one recorded run has more than another, and whether that is too much."""

from __future__ import annotations

import sys
from typing import Any

from lowtide.framework.memory.ledger import format_bytes
from lowtide.framework.memory.sizes import as_bytes
from lowtide.profile_command import read_run, run_of, show, written
from lowtide.script_command import USAGE_ERROR


def diff(before: str, after: str, html: str | None, fail_over: str | None = None) -> int:
    """Print what the second of two recorded runs has more at its peak, by role, module and line.

    Args:
        before: A ``run.json``, or its folder.
        after: Another.
        html: Where to write a page of both.
        fail_over: By how much the peak may grow: a share such as ``5%``, or a size.

    Returns:
        0; 1 if the peak grew by more than ``fail_over``; 2 if a file is no recording, or one in
        which no tensor was made, or ``fail_over`` is neither share nor size.
    """
    if fail_over is not None and (wrong := _no_growth(fail_over)):
        print(f"lowtide diff: --fail-over {wrong}", file=sys.stderr)
        return USAGE_ERROR
    a, b = read_run(before), read_run(after)
    if a is None or b is None:
        return USAGE_ERROR
    for path, run in ((before, a), (after, b)):
        if not run.recording.devices:
            print(f"{path} has nothing to compare: no device was used in it.", file=sys.stderr)
            return USAGE_ERROR
    print(f"peak: {_change(a.peak_bytes, b.peak_bytes)}\n")
    for by in ("role", "module", "line"):
        show(b.diff(a, by).text(signed=True))
        print()
    if html:
        code = _pages(a, b, before, after, html)
        if code:
            return code
    if fail_over is None or b.peak_bytes - a.peak_bytes <= _allowed(fail_over, a.peak_bytes):
        return 0
    print(f"the peak grew by more than {fail_over}: {_change(a.peak_bytes, b.peak_bytes)}")
    return 1


def _pages(a: Any, b: Any, before: str, after: str, html: str) -> int:
    paths = run_of(before), run_of(after)
    names = [path.stem for path in paths]
    if names[0] == names[1]:  # both are run.json; then their folders tell them apart
        names = [path.resolve().parent.name for path in paths]
    if names[0] == names[1]:
        names = [before, after]
    return written(lambda file: a.html(file, b, names), html)


def _change(before: int, after: int) -> str:
    sign = "+" if after > before else "-" if after < before else ""
    share = f", {(after - before) / before:+.1%}" if before else ""
    return (
        f"{format_bytes(before)} -> {format_bytes(after)} "
        f"({sign}{format_bytes(abs(after - before))}{share})"
    )


def _no_growth(text: str) -> str:
    # What is wrong with the words for a growth that is allowed; nothing if they are right.
    try:
        _allowed(text, 0)
    except ValueError:
        return f"takes a share such as 5%, or a size such as 10MiB; got {text!r}."
    return ""


def _allowed(text: str, before: int) -> int:
    if text.endswith("%"):
        share = float(text[:-1])
        if not 0 <= share < float("inf"):
            raise ValueError(text)
        return int(before * share / 100)
    return as_bytes(text, "--fail-over")
