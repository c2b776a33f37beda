"""Numbers that a recorded function reads only to return them: ``return loss.item()``.

Nothing in the call depends on such a number, so it need not be compared: a replay reads it anew.
That the function does nothing else with it follows from its bytecode: from the read on, the number
only goes into tuples, lists and values of dicts, by way of local variables or not, and the function
returns them. While the call is recorded, a :class:`Number` stands in its place, or, for
``float(loss)``, the number itself, which is known again in the result by its identity.
"""

from __future__ import annotations

import dis
import inspect
from collections.abc import Sequence
from types import FrameType
from typing import Any

from ..interop.pytree import tree_map

_COMPILED = f"{__package__}.compiled"  # the module that calls a recorded function
_NOT_PLAIN = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_SEE_VARIABLES = {"locals", "vars", "dir", "eval", "exec", "_getframe", "currentframe"}
_TAKES = {  # instructions that put one value in the place of so many
    "BINARY_OP": 2,
    "BINARY_SUBSCR": 2,
    "COMPARE_OP": 2,
    "CONTAINS_OP": 2,
    "IS_OP": 2,
    "UNARY_INVERT": 1,
    "UNARY_NEGATIVE": 1,
    "UNARY_NOT": 1,
}
_LOADS = (
    "LOAD_ATTR",
    "LOAD_CONST",
    "LOAD_DEREF",
    "LOAD_FAST",
    "LOAD_GLOBAL",
    "LOAD_METHOD",
    "LOAD_SMALL_INT",
)
_NOTHING = {"NOP", "CACHE", "PRECALL", "EXTENDED_ARG", "RESUME", "KW_NAMES", "NOT_TAKEN"}


class Number:
    """In the place of a number that the call returns.

    Attributes:
        index: Which of the call's it is.
        value: The number, of the last call.
    """

    __slots__ = ("index", "value")

    def __init__(self, index: int, value: Any) -> None:
        self.index, self.value = index, value


def keep_number(array: Any, number: Number) -> None:
    """Read an array's only element, as a row of a replay."""
    number.value = array.item()


def with_numbers(result: Any) -> Any:
    """Return what a recorded call returns, with the numbers in their places."""
    return tree_map(lambda x: x.value if type(x) is Number else x, result)


def is_only_returned(frame: FrameType | None) -> bool:
    """Whether the function only returns what the call it is making returns.

    Args:
        frame: Of the function, which has to be the recorded one itself: what a caller does with a
            number is not looked at.
    """
    if frame is None:
        return False
    code, caller = frame.f_code, frame.f_back
    if caller is None or caller.f_globals.get("__name__") != _COMPILED:
        return False
    if code.co_flags & _NOT_PLAIN or not _SEE_VARIABLES.isdisjoint(code.co_names):
        return False
    steps = list(dis.get_instructions(code))
    # The call, or one of the interpreter's caches behind it.
    at = max(k for k, i in enumerate(steps) if i.offset <= frame.f_lasti)
    return _is_returned(steps, at + 1, 0, set())


def _is_returned(steps: Sequence[dis.Instruction], at: int, above: int, followed: set[str]) -> bool:
    # Whether what lies on the stack, with so many values above it, only gets into what the function
    # returns. Any instruction that is not known here is a use.
    for i in steps[at:]:
        if i.opname in _NOTHING:
            continue
        if i.opname == "RETURN_VALUE":
            return above == 0
        if i.opname.startswith("STORE_FAST"):
            names = _names(i)
            stored = names if i.opname == "STORE_FAST_STORE_FAST" else names[:1]
            if above < len(stored):
                return _only_loaded_to_return(steps, stored[above], followed)
            above += len(names) - 2 * len(stored)  # some also load
            continue
        moved = _moved(i, above)
        if moved is None:
            return False
        above = moved
    return False


def _moved(i: dis.Instruction, above: int) -> int | None:
    # How many values lie above ours after an instruction; None if it uses ours.
    name, count = i.opname, i.arg or 0
    if name == "SWAP":
        return {0: count - 1, count - 1: 0}.get(above, above)
    if name == "POP_TOP":
        return above - 1 if above else None
    if name in ("BUILD_TUPLE", "BUILD_LIST"):
        return 0 if above < count else above + 1 - count
    if name == "BUILD_MAP":  # a value, then its key, and so on downwards
        if above < 2 * count:
            return None if above % 2 else 0
        return above + 1 - 2 * count
    if name == "BUILD_CONST_KEY_MAP":  # the keys lie on top
        if above <= count:
            return 0 if above else None
        return above - count
    takes = count + 2 if name == "CALL" else _TAKES.get(name)
    if takes is not None:
        return above + 1 - takes if above >= takes else None
    if name == "PUSH_NULL" or name.startswith(_LOADS):
        if name in ("LOAD_ATTR", "LOAD_METHOD") and not above:
            return None
        effect: int = dis.stack_effect(i.opcode, i.arg, jump=False)
        return above + effect
    return None


def _only_loaded_to_return(
    steps: Sequence[dis.Instruction], variable: str, followed: set[str]
) -> bool:
    if variable in followed:  # one that is assigned to another, and that one to it
        return True
    followed.add(variable)
    for k, i in enumerate(steps):
        names = _names(i)
        if variable not in names or i.opname.startswith("STORE_FAST"):
            continue
        if not i.opname.startswith("LOAD_FAST"):
            return False
        for place, name in enumerate(names):
            if name == variable and not _is_returned(
                steps, k + 1, len(names) - 1 - place, followed
            ):
                return False
    return True


def _names(i: dis.Instruction) -> tuple[str, ...]:
    # The local variables of an instruction; some stand for two.
    if "_FAST" not in i.opname:
        return ()
    return i.argval if isinstance(i.argval, tuple) else (str(i.argval),)


__all__ = ["Number", "is_only_returned", "keep_number", "with_numbers"]
