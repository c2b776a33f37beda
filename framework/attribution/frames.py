"""Stack frames: the op that runs, and the line of the user's program that called it.

A file is the user's, the standard library's, or one of ours with its part in a call.
Walking the stack costs about 0.1 us a frame. Nothing of a frame is kept but the code object it ran,
which, with the offset of the instruction, stands for a line (``call_stacks.py``).
"""

from __future__ import annotations

import os
import sys
import sysconfig
from types import FrameType
from typing import Any

from . import call_stacks
from .call_stacks import UNKNOWN, CallLine

# What a file's frames are: the user's, ours, a declared op, the engine, ours but never the name of
# what the user called, the standard library, optimizers, the file of a module's call, and functions
# that call others for the user: layers; data loading; what runs a user's script.
USER, OURS, OP, ENGINE, INSIDE, LIBRARY, STEP, CALL, AROUND, LOADER, RUNNER = range(11)
_RUNNERS = tuple(
    os.path.join("lowtide", *names)
    for names in (("script_command.py",), ("as_torch", "__main__.py"))
)
_INSIDE = (
    "devices",
    "memory",
    "kernels",
    "attribution",
    "capture",
    "storage.py",
    "dispatch.py",
    "modes.py",
)

DEEPEST = 16  # lines of a stack outside of modules' calls; a test runner alone has more

_kinds: dict[str, int] = {}


def walk(  # noqa: C901, PLR0915 - once an op while profiling, a frame a turn: no calls in it
    frame: Any, owner: Any, lines: bool
) -> tuple[str, CallLine, int]:
    """Walk the stack from a frame outwards.

    Args:
        frame: The innermost to look at.
        owner: The innermost module's entry (``scopes.Scope``), or None. It remembers the line of
            its call, so that the walk need not go further.
        lines: Whether the user's line is wanted.

    Returns:
        The op, or the function of ours that the user called; the user's line with its callers, or
        ``UNKNOWN``; and ``OP``, ``ENGINE`` or ``OURS``: what was found on the way.
    """
    op = name = private = ""
    stack: CallLine | None = None
    found = OURS
    asking = []
    last = None  # of the standard library: a thread or a finalizer has no other line
    while frame is not None:
        code = frame.f_code
        filename = code.co_filename
        kind = _kinds.get(filename)
        if kind is None:
            kind = _kinds[filename] = kind_of(filename)
        if kind == INSIDE:
            pass
        elif kind == OP:
            if not op:
                op = filename[4:-1].lstrip("_")
                found = OP
                if not lines:
                    break
        elif kind == USER:
            if lines:
                stack = stack_at(frame, owner)
            break
        elif kind == CALL and code.co_name == "_call_in_scope":
            if owner is not None:
                if owner.stack is not None:
                    stack = owner.stack
                    break
                asking.append(owner)
                owner = owner.outer.owner if owner.outer is not None else None
        elif kind == ENGINE:
            found = ENGINE
            name = "backward"
        elif kind == STEP:
            name = "step"  # whatever helps it inside
        elif kind == LOADER:
            name = name or "DataLoader"
        elif kind == LIBRARY:
            last = frame.f_lineno, filename
        elif kind == OURS or not name:
            if code.co_name[0] not in "_<":
                name = code.co_name  # the outermost of ours is what the user called
            elif code.co_name[0] == "_":  # Python called it: `deepcopy` for `__deepcopy__`
                private = code.co_name.strip("_")
        frame = frame.f_back
    if stack is None:
        stack = UNKNOWN
        if lines and last is not None:
            stack = call_stacks.at_line(file_line(last[1], last[0]))
    if lines:
        for entry in asking:
            entry.stack = stack
    return op or name or private or "python", stack, found


def stack_at(frame: Any, owner: Any) -> CallLine:
    """Return the user's line of a frame, with the lines that called it.

    Args:
        frame: A frame of the user's.
        owner: The entry of the innermost module called outside of it, or None. The stack of a
            module's call is remembered there, so that what the module does need not walk further.
    """
    met: list[Any] = []  # innermost first: frames, and the entries of calls between them
    stack: CallLine | None = None
    frames, last = 0, None
    while frame is not None:
        code = frame.f_code
        filename = code.co_filename
        kind = _kinds.get(filename)
        if kind is None:
            kind = _kinds[filename] = kind_of(filename)
        if kind == USER:
            if code is not last:  # a function that calls itself is on a stack once
                frames, last = frames + 1, code
            if frames > DEEPEST:
                break
            met.append(frame)
        elif kind == CALL and owner is not None and code.co_name == "_call_in_scope":
            if owner.stack is not None:
                stack = owner.stack
                break
            met.append(owner)
            owner = owner.outer.owner if owner.outer is not None else None
        elif kind == RUNNER:
            break
        frame = frame.f_back
    for item in reversed(met):
        if isinstance(item, FrameType):
            code, instruction = item.f_code, item.f_lasti
            found = call_stacks.known(code, instruction, stack)
            if found is None:
                line = file_line(code.co_filename, item.f_lineno)
                found = call_stacks.remember(code, instruction, line, stack)
            stack = found
        else:
            item.stack = stack
    return stack or UNKNOWN


def file_line(filename: str, line: int) -> str:
    """Format ``file:line``, relative to the working directory where the file lies below it.

    A cell of a notebook is named as one: ``cell [3], line 2``.
    """
    if "IPython" in sys.modules and (cell := _cell(filename)):
        return f"{cell}, line {line}"
    here = os.getcwd() + os.sep
    return f"{filename.removeprefix(here)}:{line}"


def _cell(filename: str) -> str:
    # IPython compiles each cell under a name of its own and remembers its number.
    if not filename.startswith("<ipython-input-") and "ipykernel_" not in filename:
        return ""
    shell = getattr(sys.modules["IPython"], "get_ipython", lambda: None)()
    numbers = getattr(getattr(shell, "compile", None), "_filename_map", {})
    number = numbers.get(filename)
    return f"cell [{number}]" if number is not None else "a cell"


def _roots_of_package() -> tuple[str, tuple[str, ...]]:
    # (the folder of framework/, folders whose files are ours)
    inner = os.path.dirname(os.path.dirname(_roots_of_package.__code__.co_filename))
    root = os.path.dirname(inner)
    names = ["framework", "modules", "optim", "profiling"]
    if os.path.isfile(os.path.join(root, "lowtide", "__init__.py")):
        names.append("lowtide")  # a checkout; else the face's files lie in `root` itself
    return inner + os.sep, tuple(os.path.join(root, n) + os.sep for n in names)


_FRAMEWORK, _FOLDERS = _roots_of_package()
_STANDARD = tuple({sysconfig.get_path(n) + os.sep for n in ("stdlib", "platstdlib")})


def kind_of(filename: str) -> int:
    """Return the kind of a file's frames: lowtide's own, another library's, or the user's."""
    if filename.startswith("<op "):
        return OP
    if filename.startswith(("<function ", "<frozen ")):
        return OURS if filename.startswith("<function ") else LIBRARY
    if filename.startswith(_FOLDERS):
        if filename.startswith(_FRAMEWORK):
            inner = filename[len(_FRAMEWORK) :].replace(os.sep, "/")
            if inner in ("autograd/engine.py", "autograd/backward_pass.py"):
                return ENGINE
            if any(part in _INSIDE for part in inner.split("/")):
                return INSIDE
        if filename.endswith("module.py") and filename.startswith(_FOLDERS[1]):
            return CALL
        if filename.startswith(os.path.join(_FRAMEWORK, "data") + os.sep):
            return LOADER
        if filename.startswith(_FOLDERS[1]):
            return AROUND
        if filename.endswith(_RUNNERS):
            return RUNNER
        return STEP if filename.startswith(_FOLDERS[2]) else OURS
    face = os.path.dirname(os.path.dirname(_FRAMEWORK))
    if not filename.startswith(os.path.join(face, "recipes") + os.sep) and (
        os.path.basename(face) == "lowtide"
        and filename.startswith(face + os.sep)
        and len(_FOLDERS) == 4
    ):
        return RUNNER if filename.endswith(_RUNNERS) else OURS
    if filename.startswith(_STANDARD) and "-packages" + os.sep not in filename:
        return LIBRARY
    return USER


def is_ours(filename: str) -> bool:
    """True for a file of lowtide itself."""
    return kind_of(filename) not in (USER, LIBRARY)


def user_line() -> str:
    """Return ``file:line`` of the innermost frame of the user's program."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        filename = frame.f_code.co_filename
        kind = _kinds.get(filename)
        if kind is None:
            kind = _kinds[filename] = kind_of(filename)
        if kind == USER:
            return file_line(filename, frame.f_lineno)
        frame = frame.f_back
    return ""
