"""Numbers that Python reads in a recorded call: a replay goes on only if they are the same.

What the program does after ``if mask.any():`` depends on the number. So the read is a row of the
recording, which compares. If the number differs, the replay stops there and is undone: nothing has
seen its effects. That is possible as long as it has not written outside of the call. So a number
that is read after such a write ends the recording.
"""

from __future__ import annotations

from typing import Any

from ..random.generator import Position, positions_of
from .program import OUTSIDE, Draw, Row, StepProgram


class ValueChanged(Exception):
    """A number that Python read in the recorded call has changed."""


def compare_value(array: Any, expected: Any) -> None:
    """Raise :class:`ValueChanged` unless an array's only element is the number that was read."""
    found = array.item()
    if found is expected or (found == expected and found != 0):
        return
    if repr(found) != repr(expected):  # NaN is like NaN, and 0 is not like -0
        raise ValueChanged


def is_read(entry: Any) -> bool:
    """Whether an entry of a program is a number that Python reads."""
    return isinstance(entry, Row) and entry.function is compare_value


def lines_of_reads(program: StepProgram) -> set[int]:
    """Return the lines of the recorded function that read numbers."""
    return {
        program.lines[k] for k, e in enumerate(program.entries) if is_read(e) and k in program.lines
    }


def may_be_undone(program: StepProgram) -> bool:
    """Whether all that a recording holds so far leaves what was there before the call alone."""
    for entry in program.entries:
        if isinstance(entry, Row):
            if any(program.values[n].kind == OUTSIDE for n in entry.written):
                return False
        elif not isinstance(entry, Draw):
            return False
    return True


class Reads:
    """Where a program reads its last number, and what it draws from before that.

    Args:
        program: The recording.

    Attributes:
        last: The entry of the last number that is read; -1 if there is none.
    """

    def __init__(self, program: StepProgram) -> None:
        reads = [k for k, e in enumerate(program.entries) if is_read(e)]
        self.last = reads[-1] if reads else -1
        before = program.entries[: self.last + 1]
        self._generators = list(
            {id(e.generator): e.generator for e in before if isinstance(e, Draw)}.values()
        )

    def positions(self) -> list[Position]:
        """Return where these generators are, before a replay that may have to be undone."""
        return positions_of(self._generators)
