"""Flame graph export as folded stacks: ``blocks;blocks.3;attention;model.py:31;matmul 8192``.

The format of Brendan Gregg's ``flamegraph.pl``, which speedscope, inferno and Firefox's profiler
open too. The width of a frame is bytes. The numbers sum to the peak, or to the most that was saved
for backward, to the byte.
"""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

from ...framework.serialization.atomic_files import replacing
from ..analysis.snapshots import device_index
from ..analysis.summary import short_lines
from ..analysis.tables import OUTSIDE
from ..record.recording import Recording
from .module_frames import modules_of


def to_flamegraph(
    recording: Recording,
    path: str | os.PathLike[str],
    what: str = "peak",
    device: Any = None,
) -> None:
    """Write folded stacks of (module path, line, op).

    Args:
        recording: What a profiler noted.
        path: The file, a text.
        what: ``peak``: all bytes at the peak; ``saved``: those saved for backward when they were
            most, under the line and op that saved them.
        device: Name or index of a device; by default the one with the highest peak.

    Raises:
        ValueError: ``what`` is neither, or the recording knows no such device.
    """
    text = "".join(f"{line}\n" for line in folded(recording, what, device))
    with replacing(path) as out:
        out.write(text.encode(errors="backslashreplace"))  # a file's name may be no Unicode


def folded(recording: Recording, what: str = "peak", device: Any = None) -> list[str]:
    """Return the lines of :func:`to_flamegraph`, sorted by stack."""
    if what not in ("peak", "saved"):
        raise ValueError(f"A flame graph is of the 'peak' or of what was 'saved'; got {what!r}.")
    index = device_index(recording, device)
    peaks = recording.peaks if what == "peak" else recording.fullest
    short = short_lines(recording)
    stacks: Counter[tuple[str, ...]] = Counter()
    for (number, _), nbytes in (peaks[index].cells if index < len(peaks) else {}).items():
        owner = recording.owners[number]
        path = [label for label, _ in modules_of(owner.module)] or [OUTSIDE]
        stacks[(*map(_frame, path), _frame(short[owner.line]), _frame(owner.op))] += nbytes
    return [f"{';'.join(stack)} {nbytes}" for stack, nbytes in sorted(stacks.items())]


def _frame(name: str) -> str:
    # A frame may contain neither a semicolon nor the end of a line.
    return " ".join("".join(c if c.isprintable() else " " for c in name).split()).replace(";", ",")
