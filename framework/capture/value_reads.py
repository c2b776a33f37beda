"""Numbers that Python reads in a recorded call: a replay goes on only if they are as they were.

What the program does after ``if mask.any():`` depends on the number. So the read is a row of the
recording, which compares. If the number is another, the replay ends there and everything is put
back: nobody has seen anything of it. That is possible as long as nothing outside of the call was
written, so a number that is read later ends the recording.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .program import OUTSIDE, Draw, Row, StepProgram


class ValueChanged(Exception):
    """A number that Python has read in the recorded call is another now."""


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


def may_be_undone(program: StepProgram) -> bool:
    """Whether all that a recording holds so far leaves what was there before the call alone."""
    for entry in program.entries:
        if isinstance(entry, Row):
            if any(program.values[n].kind == OUTSIDE for n in entry.written):
                return False
        elif not isinstance(entry, Draw):
            return False
    return True


class Undo:
    """Puts generators back to where they were when a replay began.

    Args:
        program: What is replayed.
    """

    def __init__(self, program: StepProgram) -> None:
        reads = [k for k, e in enumerate(program.entries) if is_read(e)]
        self.last = reads[-1] if reads else -1
        before = program.entries[: self.last + 1]
        self._generators = list(
            {id(e.generator): e.generator for e in before if isinstance(e, Draw)}.values()
        )

    def places(self) -> list[tuple[Any, Any, Any]]:
        """Return where the generators are."""
        return [(g, g._seed, g._offset) for g in self._generators]

    @staticmethod
    def restore(places: Iterable[tuple[Any, Any, Any]]) -> None:
        """Put them back."""
        for g, seed, offset in places:
            g._seed, g._offset = seed, offset
