"""Call stacks of the user's program: which line called the line that an owner is named after.

A function that training and evaluation both call is two owners, not one line. A stack is a chain of
:class:`CallLine`, innermost first, and equal stacks are one object. So a stack is compared and
hashed by identity, and an event costs no more than the walk.

Only the user's frames are on a stack. A function that calls itself is on it once, as its outermost
call was reached: the number of stacks then depends on the program's text and not on how deep it
recurses.
"""

from __future__ import annotations

from types import CodeType


class CallLine:
    """A line of the user's program, and the line that called its function.

    Attributes:
        line: ``file:line``; empty if lines were not asked for.
        outer: The caller's; None for the outermost.
        code: The code object that the line is in; None if there was no frame of the user's.
    """

    __slots__ = ("code", "line", "outer")

    def __init__(self, line: str, outer: CallLine | None = None, code: CodeType | None = None):
        self.line = line
        self.outer = outer
        self.code = code

    def callers(self) -> tuple[str, ...]:
        """Return the lines of the callers, innermost first."""
        found, level = [], self.outer
        while level is not None:
            found.append(level.line)
            level = level.outer
        return tuple(found)


UNKNOWN = CallLine("")  # lines were not asked for, or no frame was the user's
BEFORE = CallLine("before the profiler")

# By identity of the code object, which the value keeps alive: to hash one reads all of it.
_by_instruction: dict[tuple[int, int, CallLine | None], CallLine] = {}
_by_line: dict[tuple[str, int, CallLine | None], CallLine] = {}


def known(code: CodeType, instruction: int, outer: CallLine | None) -> CallLine | None:
    """Return the line that :func:`remember` was told of for an instruction under a caller."""
    return _by_instruction.get((id(code), instruction, outer))


def remember(code: CodeType, instruction: int, line: str, outer: CallLine | None) -> CallLine:
    """Return the one object for a line under a caller, and remember its instruction."""
    level = outer
    while level is not None and level.code is not code:
        level = level.outer
    caller = outer if level is None else level.outer  # it calls itself
    found = at_line(line, caller, code)
    _by_instruction[id(code), instruction, outer] = found
    return found


def at_line(line: str, outer: CallLine | None = None, code: CodeType | None = None) -> CallLine:
    """Return the one object for a line under a caller."""
    key = (line, id(code), outer)
    return _by_line.get(key) or _by_line.setdefault(key, CallLine(line, outer, code))


def forget() -> None:
    """Clear what is known: it keeps code objects alive."""
    _by_instruction.clear()
    _by_line.clear()
