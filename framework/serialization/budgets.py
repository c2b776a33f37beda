"""What a file may cost: memory and time in proportion to its size, however it refers to itself.

A small file can describe much: a text that is remembered once and encoded 5000 times, one entry
as 1000 objects. So whatever is built is booked with its bytes, before it is built, and nothing is
ever booked off again: what is thrown away took time all the same. A file that asks for more than
its size, twelve times the part that is text (an empty list is one byte of text and 56 of memory)
and 16 MiB is refused.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ..errors import OutOfMemoryError, SerializationError
from .files import Source

BASE = 16 << 20  # bytes that any file may take
PER_TEXT = 12  # bytes of objects for a byte of JSON or of a pickle
TENSOR, OBJECT = 640, 240  # bytes of a tensor without its values, of another object
_WHOLE = (1 << 61) - 1  # integers from here on have the hash of a smaller one
DAMAGE = (
    ArithmeticError, AssertionError, AttributeError, EOFError, ImportError, LookupError,
    MemoryError,
    NameError, RuntimeError, SyntaxError, TypeError, ValueError, Warning,
    struct.error, zlib.error,
)  # fmt: skip


class Refused(ValueError):
    """A file asks for something that is not data."""


class OverBudgetError(ValueError):
    """A file asks for more memory or time than one of its size may."""


class Budget:
    """Bytes that may still be built.

    Args:
        nbytes: Besides ``BASE`` and what the text gives.
        text: The bytes of text that were read so far.
    """

    def __init__(self, nbytes: int, text: Callable[[], int]) -> None:
        self._limit = nbytes + BASE
        self._text = text
        self._spent = self._large = 0

    def spend(self, nbytes: int) -> None:
        """Book what is about to be built.

        Raises:
            OverBudgetError: It is more than may be.
        """
        self._spent += nbytes
        if self._spent > self._limit:
            limit = self._limit + PER_TEXT * self._text()
            if self._spent > limit:
                raise OverBudgetError(
                    f"it asks for {self._spent} bytes of objects, and a file of its size may have "
                    f"{limit}: its parts refer to one another over and over"
                )

    def key(self, key: Any) -> Any:
        """Book the hashing of a plain key or a flat tuple of them, and return it."""
        for part in key if type(key) is tuple else (key,):
            if type(part) is int and not -_WHOLE < part < _WHOLE:
                self._large += 1  # may all have one hash: the n-th is compared with n others
                self.spend(self._large + part.bit_length() // 8)
        if type(key) is tuple:
            self.spend(8 * len(key))
        return key


@contextmanager
def damage_named(source: Source, problem: str, hint: str = "", calls: Any = None) -> Iterator[None]:
    """Turn whatever a damaged file makes Python raise into an error that names the file.

    Args:
        source: The file.
        problem: What it says of the file, before the error.
        hint: What can be done.
        calls: Its ``failed`` is an error of the caller's own function, which passes.

    Raises:
        SerializationError: Instead of what came of the file.
    """
    try:
        yield
    except Refused:
        raise
    except DAMAGE as error:
        raise named(source, error, problem, hint, calls) from None


def named(
    source: Source, error: BaseException, problem: str, hint: str = "", calls: Any = None
) -> BaseException:
    """The error to raise for one that came of a file; see :func:`damage_named`."""
    mine = calls is not None and error is calls.failed
    if mine or isinstance(error, SerializationError | OutOfMemoryError):
        return error
    said = str(error) if type(error) in (ValueError, OverBudgetError) else repr(error)
    return source.error(f"{problem}: {said[:300]}", hint)
