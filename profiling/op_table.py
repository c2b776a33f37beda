"""Lists and tables of recorded ops, in the columns that PyTorch's profiler has."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from .op_times import KERNEL, MEMORY, RANGE, OpEvent

_SORTS = {
    "cpu_time": "cpu_time",
    "cpu_time_total": "cpu_time_total",
    "self_cpu_time_total": "self_cpu_time_total",
    "cpu_memory_usage": "cpu_memory_usage",
    "self_cpu_memory_usage": "self_cpu_memory_usage",
    "count": "count",
}


class FunctionEvent:
    """One call of an op, or one named range. Times in microseconds, as PyTorch's.

    Attributes:
        name: ``aten::mul``, ``MulBackward0``, ``optimizer::step``, or the range's name; of the
            steps of a schedule ``ProfilerStep*``, so that their sums are one row.
        trace_name: The same, with the number of the step.
        time_range: (begin, end) since the recording began.
        thread: Number of the thread.
        cpu_time_total: Time in it.
        self_cpu_time_total: Time in it and in no op or range inside it.
        cpu_memory_usage: Bytes taken less bytes given back, by it and by what is inside it.
        self_cpu_memory_usage: The same, by it alone.
        input_shapes: Shapes of what its kernel read, if they were asked for.
        stack: Source line of the program.
        module: Path of the module call that it belongs to.
        cpu_parent: The range or op around it, or None.
        cpu_children: What is directly inside it.
    """

    count = 1
    device_type = "cpu"
    is_async = is_remote = False

    def __init__(self, number: int, event: OpEvent) -> None:
        self.id = number
        self.kind = event.kind
        self.trace_name = event.name
        self.name = self.key = (
            "ProfilerStep*" if event.name.startswith("ProfilerStep#") else event.name
        )
        self.time_range = (event.begin / 1e3, event.end / 1e3)
        self.thread = event.thread
        self.cpu_time_total = self.self_cpu_time_total = (event.end - event.begin) / 1e3
        self.cpu_memory_usage = self.self_cpu_memory_usage = event.nbytes
        self.input_shapes = [list(shape) for shape in event.shapes]
        self.stack = [event.line] if event.line else []
        self.module = event.module
        self.cpu_parent: FunctionEvent | None = None
        self.cpu_children: list[FunctionEvent] = []

    @property
    def cpu_time(self) -> float:
        """Time of a call."""
        return self.cpu_time_total

    @property
    def is_user_annotation(self) -> bool:
        """Whether this is a named range."""
        return self.kind == RANGE

    def __repr__(self) -> str:
        return (
            f"<FunctionEvent {self.name} {self.cpu_time_total:.3f}us {self.cpu_memory_usage} bytes>"
        )


class FunctionEventAvg:
    """Sums over the calls of one name. Times in microseconds.

    Attributes:
        key: The name.
        count: How many calls.
        cpu_time_total: Time in them; that of a range inside one of the same name counts once.
        self_cpu_time_total: Time in them and in nothing inside them.
        cpu_memory_usage: Bytes taken less bytes given back, with what is inside.
        self_cpu_memory_usage: The same, by them alone.
        input_shapes: Shapes, if they were grouped by.
        stack: Source line of one of them.
    """

    def __init__(self, first: FunctionEvent) -> None:
        self.key = self.name = first.key
        self.count = 0
        self.cpu_time_total = self.self_cpu_time_total = 0.0
        self.cpu_memory_usage = self.self_cpu_memory_usage = 0
        self.input_shapes = first.input_shapes
        self.stack = first.stack
        self.is_user_annotation = first.is_user_annotation

    @property
    def cpu_time(self) -> float:
        """Mean time of a call."""
        return self.cpu_time_total / self.count if self.count else 0.0

    def add(self, event: FunctionEvent) -> None:
        """Add a call."""
        self.count += event.kind != MEMORY
        self.self_cpu_time_total += event.self_cpu_time_total
        self.self_cpu_memory_usage += event.self_cpu_memory_usage
        around = event.cpu_parent
        while around is not None and around.key != event.key:
            around = around.cpu_parent
        if around is None:  # else the outer one has it
            self.cpu_time_total += event.cpu_time_total
            self.cpu_memory_usage += event.cpu_memory_usage

    def __repr__(self) -> str:
        return f"<FunctionEventAvg {self.key} x{self.count} {self.cpu_time_total:.3f}us>"


class EventList(list[Any]):
    """Calls in the order of their beginnings, or sums by name.

    Args:
        events: They.
        profile_memory: Whether tables have columns of bytes.
    """

    def __init__(self, events: Iterable[Any] = (), *, profile_memory: bool = False) -> None:
        super().__init__(events)
        self._profile_memory = profile_memory

    @classmethod
    def of(cls, recorded: Sequence[OpEvent], profile_memory: bool = False) -> EventList:
        """Make the list of what was recorded, each event below the one it lies in."""
        order = sorted(range(len(recorded)), key=lambda i: (recorded[i].begin, -recorded[i].end))
        made = [FunctionEvent(n, recorded[i]) for n, i in enumerate(order)]
        open_ones: dict[int, list[FunctionEvent]] = {}
        for event in made:
            stack = open_ones.setdefault(event.thread, [])
            while stack and stack[-1].time_range[1] < event.time_range[1]:
                stack.pop()
            if stack:
                event.cpu_parent = stack[-1]
                stack[-1].cpu_children.append(event)
                stack[-1].self_cpu_time_total -= event.cpu_time_total
            if event.kind != MEMORY:
                stack.append(event)
        for event in reversed(made):  # children come after their parents
            if event.cpu_parent is not None:
                event.cpu_parent.cpu_memory_usage += event.cpu_memory_usage
        return cls(made, profile_memory=profile_memory)

    @property
    def self_cpu_time_total(self) -> float:
        """Sum of all self times, in microseconds."""
        return float(sum(event.self_cpu_time_total for event in self))

    def key_averages(
        self,
        group_by_input_shapes: bool = False,
        group_by_stack_n: int = 0,
        group_by_overload_name: bool = False,
    ) -> EventList:
        """Return sums by name, and by shapes or source lines if asked for."""
        groups: dict[Any, FunctionEventAvg] = {}
        for event in self:
            key = (
                event.key,
                str(event.input_shapes) if group_by_input_shapes else "",
                tuple(event.stack[:group_by_stack_n]),
            )
            groups.setdefault(key, FunctionEventAvg(event)).add(event)
        if not group_by_input_shapes:  # each row may have several
            for average in groups.values():
                average.input_shapes = []
        return EventList(groups.values(), profile_memory=self._profile_memory)

    def total_average(self) -> FunctionEventAvg:
        """Return the sum over all events."""
        total = FunctionEventAvg(self[0]) if self else None
        if total is None:
            raise RuntimeError("total_average: nothing was recorded.")
        total.key = total.name = "Total"
        for event in self:
            total.add(event)
        return total

    def table(
        self,
        sort_by: str | None = None,
        row_limit: int = 100,
        max_src_column_width: int = 75,
        max_name_column_width: int = 55,
        max_shapes_column_width: int = 80,
        header: str | None = None,
        top_level_events_only: bool = False,
        time_unit: str | None = None,
    ) -> str:
        """Return a table of the events.

        Args:
            sort_by: ``cpu_time``, ``cpu_time_total``, ``self_cpu_time_total``,
                ``cpu_memory_usage``, ``self_cpu_memory_usage`` or ``count``; None leaves the order.
            row_limit: Rows at most; -1 for all.
            max_src_column_width: Characters of a source line.
            max_name_column_width: Characters of a name.
            max_shapes_column_width: Characters of shapes.
            header: A line above.
            top_level_events_only: Leave out what lies inside another event.
            time_unit: ``"s"``, ``"ms"`` or ``"us"``; None chooses for each number.

        Raises:
            ValueError: There is no column ``sort_by``.
        """
        rows = [e for e in self if not (top_level_events_only and getattr(e, "cpu_parent", None))]
        if sort_by is not None:
            if sort_by not in _SORTS:
                raise ValueError(
                    f"table: sort_by={sort_by!r} is none of {', '.join(_SORTS)}: times and "
                    "bytes of the CPU."
                )
            rows.sort(key=lambda e: getattr(e, _SORTS[sort_by]), reverse=True)
        total = sum(e.self_cpu_time_total for e in self) or 1.0
        shapes = any(e.input_shapes for e in rows)
        titles = ["Name", "Self CPU %", "Self CPU", "CPU total %", "CPU total", "CPU time avg"]
        titles += ["CPU Mem", "Self CPU Mem"] if self._profile_memory else []
        titles += ["# of Calls"] + (["Input Shapes"] if shapes else [])
        cells = [
            [
                _cut(e.key, max_name_column_width),
                f"{100 * e.self_cpu_time_total / total:.2f}%",
                _time(e.self_cpu_time_total, time_unit),
                f"{100 * e.cpu_time_total / total:.2f}%",
                _time(e.cpu_time_total, time_unit),
                _time(e.cpu_time, time_unit),
                *(
                    [_bytes(e.cpu_memory_usage), _bytes(e.self_cpu_memory_usage)]
                    if self._profile_memory
                    else []
                ),
                str(e.count),
                *([_cut(str(e.input_shapes), max_shapes_column_width)] if shapes else []),
            ]
            for e in (rows if row_limit < 0 else rows[:row_limit])
        ]
        widths = [max(len(row[i]) for row in [titles, *cells]) for i in range(len(titles))]
        rule = "  ".join("-" * width for width in widths)
        lines = [rule, _line(titles, widths), rule, *(_line(row, widths) for row in cells), rule]
        if header is not None:
            lines.insert(0, header)
        return "\n".join([*lines, f"Self CPU time total: {_time(total, time_unit)}", ""])

    def __str__(self) -> str:
        return self.table()

    def export_chrome_trace(self, path: str | os.PathLike[str]) -> None:
        """Write the events in the format that Perfetto and Chrome read; ``.gz`` compresses."""
        live, rows = 0, []
        for event in sorted(self, key=lambda e: e.time_range):
            row = {
                "name": event.trace_name,
                "pid": os.getpid(),
                "tid": event.thread,
                "ts": event.time_range[0],
            }
            if event.kind == MEMORY:
                live += event.cpu_memory_usage
                row |= {"ph": "i", "s": "t", "cat": "cpu_instant_event"}
                row["args"] = {"Bytes": event.cpu_memory_usage, "Change since the start": live}
            else:
                live += event.self_cpu_memory_usage
                row |= {"ph": "X", "dur": event.time_range[1] - event.time_range[0]}
                row["cat"] = "cpu_op" if event.kind == KERNEL else "user_annotation"
                row["args"] = {
                    "Bytes": event.self_cpu_memory_usage,
                    "Input Dims": event.input_shapes,
                    "Module": event.module,
                    "Line": event.stack[0] if event.stack else "",
                }
            rows.append(row)
        text = json.dumps({"traceEvents": rows, "displayTimeUnit": "ms"}).encode()
        Path(path).write_bytes(gzip.compress(text) if str(path).endswith(".gz") else text)


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 3] + "..."


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *others = (
        cell.ljust(width) if i == 0 else cell.rjust(width)
        for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )
    return "  ".join([first, *others]).rstrip()


def _time(microseconds: float, unit: str | None) -> str:
    if unit is None:
        unit = "s" if microseconds >= 1e6 else "ms" if microseconds >= 1e3 else "us"
    return f"{microseconds / {'s': 1e6, 'ms': 1e3, 'us': 1.0}[unit]:.3f}{unit}"


def _bytes(count: int) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if abs(count) >= size:
            return f"{count / size:.2f} {unit}"
    return f"{count} B"
