"""Queries on a memory recording.

Each answer is a :class:`~lowtide.profiling.analysis.tables.Table` or a plain object;
:meth:`Profile.report` prints the main ones on a page, :meth:`Profile.to_json` stores the recording
behind them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..framework.memory.ledger import format_bytes
from .analysis import diff
from .analysis import timeline as timelines
from .analysis.tables import Table, check_by, grouped, selection
from .leaks.findings import Finding
from .record import json_format, system_memory
from .record.recording import Cells, Mark, Peak, Recording, busiest


class Profile:
    """A memory recording and the queries on it.

    Args:
        recording: The data; see ``profiling/record/recording.py`` for its schema.

    Every ``device`` argument is a device's name; by default the one with the highest peak.
    """

    def __init__(self, recording: Recording) -> None:
        self.recording = recording

    def settle(self) -> None:
        """Process events recorded since the last query; does nothing for a loaded profile."""

    # Peak

    @property
    def device(self) -> str:
        """The default device of queries: the one with the highest peak.

        Devices on which nothing happened meanwhile come last.
        """
        self.settle()
        if not self.recording.devices:
            raise RuntimeError(
                "this profile has recorded no device. Ask it inside or after its with block."
            )
        return self.recording.devices[busiest(self.recording)]

    def _index(self, device: Any) -> int:
        self.settle()
        name = self.device if device is None else str(device)
        if name not in self.recording.devices:
            raise ValueError(
                f"this profile has no device {name!r}; it has {', '.join(self.recording.devices)}."
            )
        return self.recording.devices.index(name)

    def peak(self, device: Any = None) -> Peak:
        """Return the event at which a device had the most live bytes.

        Of several as high, the last at which some of them changed their role.
        """
        return self.recording.peaks[self._index(device)]

    @property
    def peak_bytes(self) -> int:
        """Highest live bytes, on the device with the highest peak."""
        return self.peak().nbytes

    @property
    def peak_time(self) -> float:
        """Time of the peak, in seconds after the start."""
        return self.peak().time

    def at_peak(
        self,
        by: str | Sequence[str] = "role",
        depth: int | None = None,
        device: Any = None,
        *,
        role: str | None = None,
        module: str | None = None,
        op: str | None = None,
        phase: str | None = None,
        line: str | None = None,
    ) -> Table:
        """Bytes at the peak by role, module, op, line, stack or phase.

        Args:
            by: ``role``, ``module``, ``op``, ``line``, ``stack`` (the line with all its callers,
                ``model.py:9 < train.py:14 < train.py:30``) or ``phase``, or several of them.
            depth: How many segments of module paths to show: 1 sums ``blocks.3.mlp`` in ``blocks``.
            device: Its name.
            role: Only bytes of this role.
            module: Only those of this module and what is below it.
            op: Only those of this op.
            phase: Only those allocated in this phase.
            line: Only those of this source line.
        """
        where = selection(role=role, module=module, op=op, phase=phase, line=line)
        return self._table(self.peak(device), "at the peak", by, depth, device, where)

    def _table(
        self, peak: Peak, what: str, by: Any, depth: int | None, device: Any, where: Any = None
    ) -> Table:
        name = self.recording.devices[self._index(device)]
        title = f"{name} {what}, {peak.time:.3f} s after the start: {format_bytes(peak.nbytes)}"
        sums = grouped(self.recording, peak.cells, by, depth, where)
        keys = check_by(by)
        texts = self.recording.lines if keys == ("line",) else None
        return Table(title, " · ".join(keys), sums, texts=texts)

    # Time

    def timeline(
        self, by: str | Sequence[str] = "role", depth: int | None = None, device: Any = None
    ) -> timelines.Timeline:
        """Live bytes over time, by role or another key; their sum is the total at every event.

        Raises:
            RuntimeError: The profiler was asked to keep no timeline.
        """
        return timelines.timeline(self.recording, by, depth, self._index(device))

    @property
    def marks(self) -> list[Mark]:
        """Marks so far: ``start``, the optimizer steps, the user's, ``stop``."""
        self.settle()
        return self.recording.marks

    def growth(
        self,
        start: str | None = None,
        end: str | None = None,
        by: str | Sequence[str] = "line",
        depth: int | None = None,
        device: Any = None,
    ) -> Table:
        """Change of live bytes between two marks by owner; steady growth is a leak.

        Args:
            start: Name of a mark. By default the second step, when gradients and optimizer state
                exist; without steps, the start.
            end: Name of a mark. By default the last step; without steps, the stop or the last mark.
            by: As in ``at_peak``.
            depth: As in ``at_peak``.
            device: Its name.

        Raises:
            ValueError: There is no such mark.
        """
        index = self._index(device)
        first, last = diff.between(self.recording.marks, start, end)
        sums = diff.changes(self.recording, first, last, index, by, depth)
        names = [self.recording.marks[k].name for k in (first, last)]
        title = f"{self.recording.devices[index]} from {names[0]!r} to {names[1]!r}"
        keys = check_by(by)
        texts = self.recording.lines if keys == ("line",) else None
        return Table(title, " · ".join(keys), sums, texts=texts)

    def steps(self, device: Any = None) -> list[dict[str, Any]]:
        """Return one dict per step: name, time, live bytes after it, peak since the mark before."""
        index = self._index(device)
        return [
            {"name": m.name, "time": m.time, "live": m.live[index], "peak": m.peak[index]}
            for m in self.marks
            if m.kind == "step" and index < len(m.live)
        ]

    # What the graph keeps

    def saved(
        self,
        by: str | Sequence[str] = "module",
        depth: int | None = None,
        device: Any = None,
        holder: bool = False,
    ) -> Table:
        """Bytes saved for backward by module or line, when the graph held most.

        A value counts once, where it was saved first. Parameters, inputs and whatever has a role
        of its own are alive anyway, and not counted.

        Args:
            by: As in ``at_peak``.
            depth: As in ``at_peak``.
            device: Its name.
            holder: Sum under the op that computed a value instead of the op that saves it.
        """
        full = self.recording.fullest[self._index(device)]
        cells: Cells = full.holders if holder else full.cells
        peak = Peak(full.nbytes, full.time, full.event, cells)
        return self._table(peak, "when most was saved for backward", by, depth, device)

    # What survives

    @property
    def findings(self) -> list[Finding]:
        """Graphs that outlived their step, largest growth first.

        Empty if there was none, or leaks were not watched: see ``MemoryProfiler(leaks=True)``.
        """
        self.settle()
        return self.recording.findings

    # Process

    def process(self, mark: str | None = None) -> list[tuple[str, str, int, str]]:
        """Memory of the process by the operating system: (where, what, bytes, method).

        Args:
            mark: Name of a mark; the last one by default.
        """
        marks = self.marks
        found = marks[-1] if mark is None else marks[diff.position(marks, mark)]
        return system_memory.rows(found.probes)

    # All of it

    def diff(
        self,
        other: Profile,
        by: str | Sequence[str] = "module",
        depth: int | None = None,
        device: Any = None,
    ) -> Table:
        """Difference of this profile's peak from another's by owner, sorted by change.

        A line of source is the same if its file and text are, whatever its number now is.

        Raises:
            TypeError: ``other`` is no profile.
        """
        if not isinstance(other, Profile):
            raise TypeError(f"diff compares with another profile; got {type(other).__name__}.")
        return diff.diff(self, other, by, depth, device)

    def verdict(self) -> str:
        """Return the report in a few lines: the peak, whose it is, and what grows."""
        return str(self._text().verdict(self))

    def report(self, limit: int = 8) -> str:
        """Return a text report: peak by owner, saved tensors, growth, steps, process memory."""
        return str(self._text().page(self, limit))

    def _text(self) -> Any:
        from .report import text

        self.settle()
        return text

    # Pictures, pages, other tools

    def plot(self, path: Any, by: str = "role", device: Any = None) -> None:
        """Plot live bytes over time, with phases, the peak and its owners.

        Args:
            path: A ``.png``, ``.svg`` or ``.pdf``.
            by: What the areas are: ``role``, ``module`` or ``line``.
            device: Whose bytes.
        """
        from .report.plot import plot

        self.settle()
        plot(self.recording, path, by, device)

    def html(
        self,
        path: Any,
        other: Profile | None = None,
        names: Sequence[str] = ("this run", "other run"),
        device: Any = None,
    ) -> None:
        """Write an HTML report: one self-contained file.

        Args:
            path: The file.
            other: A profile to compare with, side by side.
            names: What to call the two.
            device: Which device to show first.
        """
        from .report.html import html

        self.settle()
        if other is not None:
            other.settle()
        html(self.recording, path, None if other is None else other.recording, names, device)

    def to_perfetto(self, path: Any) -> None:
        """Write a trace for ui.perfetto.dev: counters by role, slices of phases and ops."""
        from .exports import to_perfetto

        self.settle()
        to_perfetto(self.recording, path)

    def to_pytorch_snapshot(self, path: Any) -> None:
        """Write a snapshot for PyTorch's memory viewer (pytorch.org/memory_viz)."""
        from .exports import to_pytorch_snapshot

        self.settle()
        to_pytorch_snapshot(self.recording, path)

    def to_flamegraph(self, path: Any, what: str = "peak", device: Any = None) -> None:
        """Write folded stacks of module, line and op at the ``peak``, or of ``saved`` tensors."""
        from .exports import to_flamegraph

        self.settle()
        to_flamegraph(self.recording, path, what, device)

    def to_dict(self) -> dict[str, Any]:
        """Convert the recording to plain containers; see docs/profiler_json.md."""
        self.settle()
        return json_format.to_dict(self.recording)

    def to_json(self, path: Any) -> None:
        """Write the recording as JSON, replacing the file atomically.

        Args:
            path: Where to. A file that is there is replaced.
        """
        json_format.write(self.to_dict(), path)

    @staticmethod
    def from_json(path: Any) -> Profile:
        """Load a recording that ``to_json`` wrote.

        Raises:
            ValueError: It is something else, or of a later version.
        """
        return Profile(json_format.read(path))

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        # IPython in a terminal.
        printer.text(str(self))

    def _repr_html_(self) -> str:
        """Return what a notebook shows."""
        from .report import notebook

        return notebook.profile(self)

    def __str__(self) -> str:
        return self.report()
