"""Static analysis of ``if`` conditions: for which truth value the program raises.

``assert mask.all()`` and ``if (x < 0).any(): raise ...`` decide by truth values that an estimate
does not have. The step that is estimated is one that works, so the answer is the one that leads
past the exception; the program's bytecode tells which that is. Seen are conditions that the value
alone decides, and exceptions raised there and then, not in a function called.
"""

from __future__ import annotations

import dis
import functools
import types

_STEPS = 200  # instructions gone through on the way to ``raise``
_BETWEEN = ("CACHE", "NOP", "PRECALL", "TO_BOOL", "COPY")


@functools.lru_cache(maxsize=1024)
def past_raising(code: types.CodeType, at: int, guess: bool | None) -> bool | None:
    """Return the truth value of a condition for which the program does not raise.

    Args:
        code: Of the function that asks.
        at: Offset of the instruction that asks: a conditional jump, or a call whose result one
            takes.
        guess: The answer if both will do, or none.
    """
    steps = list(dis.get_instructions(code))
    places = {step.offset: k for k, step in enumerate(steps)}
    k = places.get(at, len(steps))
    if k < len(steps) and not _decides(steps[k].opname):
        # In a function that ran often, Python 3.11 may call where it used to prepare the call.
        k += 2 if steps[k].opname == "PRECALL" else 1
        while k < len(steps) and steps[k].opname in _BETWEEN:
            k += 1
    if k >= len(steps) or not _decides(steps[k].opname):
        return guess
    jumps = _raises(steps, places.get(steps[k].argval, len(steps)))
    goes_on = _raises(steps, k + 1)
    if jumps == goes_on:
        return guess
    jumps_if = "IF_TRUE" in steps[k].opname
    return jumps_if is not jumps


def _decides(name: str) -> bool:
    return "JUMP" in name and ("IF_TRUE" in name or "IF_FALSE" in name)


def _raises(steps: list[dis.Instruction], k: int) -> bool:
    # Whether the way from here leads to ``raise`` without another question.
    for step in steps[k : k + _STEPS]:
        name = step.opname
        if name == "RAISE_VARARGS":
            return True
        if "JUMP" in name or name.startswith(("RETURN", "FOR_ITER", "SEND", "YIELD")):
            return False
    return False
