"""The modules because of which a call cannot be recorded, and where in the forward of each.

A recording has ended in their calls, or the call has changed an attribute of the last one. None of
them can be recorded as a whole. So they are divided at once, and not one after the other, each
after another attempt.
"""

from __future__ import annotations

import re
import sys
from types import CodeType
from typing import Any, NamedTuple

_OF_GUARDS = {"partial", "argument", "forward", "_modules"}  # in names, and not in programs
module_calls: dict[CodeType, str] = {}  # code that calls a module: the variable that has it


class Step(NamedTuple):
    """A module, and why it cannot be recorded.

    Attributes:
        module: The module.
        line: The line of its forward in which the recording ended; None if it is not known.
        change: What has changed, as guards call it: ``self._modules.block.count``.
    """

    module: Any
    line: int | None = None
    change: str = ""

    def statements(self) -> dict[str, Any]:
        """Return what tells the statements that are at fault (``DividedFunction.set_apart``)."""
        return {"lines": () if self.line is None else (self.line,), **changing(self.change)}


def changing(change: str) -> dict[str, Any]:
    """Return what tells the statements that make a change which guards have found."""
    parts = re.split(r"\W+", change)
    names = [n for n in reversed(parts) if n.isidentifier() and n not in _OF_GUARDS]
    return {"changes": last_part(change), "names": names}


def last_part(name: str) -> str:
    """Return the variable or attribute that guards call ``self.count`` or ``COUNT``."""
    last = name.rpartition(".")[2]
    return last if last.isidentifier() else ""


def steps_to_attribute(module: Any, change: str) -> list[Step]:
    """Return a module and those inside of it that have an attribute which has changed.

    Args:
        module: The module, or None.
        change: The attribute, as guards call it.
    """
    found: list[Step] = []
    names = change.split(".")[1:]
    while module is not None:
        found.append(Step(module, None, change))
        if len(names) < 2 or names[0] != "_modules":
            break
        module, names = module._modules.get(names[1]), names[2:]
    return found


def steps_to_here(start: CodeType) -> list[Step]:
    """Return the calls of modules that are under way, the outermost first.

    Args:
        start: The code of a function that is under way: only calls inside of it count. If it is not
            under way there are none.
    """
    found: list[Step] = []
    lines: dict[CodeType, int] = {}
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code is not start:
        lines[frame.f_code] = frame.f_lineno
        if frame.f_code in module_calls:
            module = frame.f_locals[module_calls[frame.f_code]]
            if not found or found[-1].module is not module:
                forward = getattr(module.forward, "__func__", None)
                found.append(Step(module, lines.get(getattr(forward, "__code__", start))))
            lines.clear()
        frame = frame.f_back
    return [] if frame is None else found[::-1]
