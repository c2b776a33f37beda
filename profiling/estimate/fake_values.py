"""Values that an estimate does not know: storages that say so, and what is guessed for them.

``fake_kernels.py`` says what is known and what is not.
"""

from __future__ import annotations

import linecache
import os
import sys
from typing import Any

import numpy as np

from ...framework import execution
from ...framework.dtypes import as_dtype
from ...framework.storage import Storage
from .fake_cuda import FakeCudaStorage
from .raise_analysis import past_raising

PATIENCE = 1000  # questions at one line, after which a loop may wait for another answer


class FakeStorage(Storage):
    """A storage whose values are unknown."""

    __slots__ = ()


class HintTrue(FakeStorage):
    """An unknown boolean storage whose values are assumed to be True, as ``isfinite`` gives."""

    __slots__ = ()


class HintFalse(FakeStorage):
    """An unknown boolean storage whose values are assumed to be False."""

    __slots__ = ()


class PlaceholderArray(np.ndarray):
    """A placeholder for unknown values that Python asked for."""


def guess_for(array: Any) -> Any:
    """Return a 0-d array: 1.0, 0 or False, or what is presumed of the values of ``array``."""
    usual: Any = {HintTrue: True, HintFalse: False}.get(type(storage_of(array)))
    if usual is None:
        usual = as_dtype(array.dtype).category >= 2
    return np.asarray(usual).astype(array.dtype)


def expected(t: Any, asked: int) -> Any:
    """Return the guess for one number. Sometimes the opposite: a loop may wait for it."""
    guess = guess_for(t._array).item()
    if guess is False and type(storage_of(t._array)) is not HintFalse:
        guess = _past_checks()
    return guess if asked % PATIENCE else type(guess)(not guess)


def _past_checks() -> bool:
    """Return the answer for which neither our checks of values nor the user's raise.

    The question passes through frames of ours (``__bool__``, ``item``), one of which may be a check
    such as that of ``binary_cross_entropy``; the user's own code comes last.
    """
    frame = sys._getframe(2)
    while frame.f_back is not None and is_ours(frame.f_code.co_filename):
        answer = past_raising(frame.f_code, frame.f_lasti, None)
        if answer is not None:
            return answer
        frame = frame.f_back
    return bool(past_raising(frame.f_code, frame.f_lasti, False))


def storage_of(array: Any) -> Any:
    """Return the storage below an array of the host, or None."""
    array = getattr(array, "_a", array)
    while array is not None and not isinstance(array, Storage | FakeCudaStorage):
        # NumPy's stride tricks put an object with a `base` between, a buffer one with an `obj`.
        array = getattr(array, "base", getattr(array, "obj", None))
    return array


# Who asked

_OURS = tuple(
    os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(execution.__file__))), folder)
    + os.sep
    for folder in ("framework", "modules", "optim", "profiling")
)


def users_line() -> str:
    """Return the line of the user's that is running."""
    frame = users_frame()
    return f"{frame.f_code.co_filename.removeprefix(os.getcwd() + os.sep)}:{frame.f_lineno}"


def users_expression() -> str:
    """Return the text of the user's expression that is running, and its line: ``x[m] (a.py:3)``.

    Empty where the source is not to be had.
    """
    frame = users_frame()
    code = frame.f_code
    places = list(code.co_positions())
    line, last, start, end = places[frame.f_lasti // 2]
    if line is None or last is None or start is None or end is None:
        return ""
    lines = [linecache.getline(code.co_filename, n).rstrip("\n") for n in range(line, last + 1)]
    parts = [text.encode() for text in lines]  # positions count bytes
    parts[-1] = parts[-1][:end]
    parts[0] = parts[0][start:]
    text = " ".join(part.decode(errors="replace").strip() for part in parts)
    return f"{text} ({users_line()})" if text else ""


def is_ours(file: str) -> bool:
    """True for a source file of the framework, and for code that has none."""
    return file.startswith((*_OURS, "<"))


def users_frame() -> Any:
    """Return the innermost frame that is not ours."""
    frame = sys._getframe(2)
    while frame.f_back is not None:
        if not is_ours(frame.f_code.co_filename):
            break
        frame = frame.f_back
    return frame
