"""A budget for memory and time while reading a file, in proportion to its size.

A small file can describe much: a text that is remembered once and encoded 5000 times, one entry
as 1000 objects. So whatever is built is booked with its bytes, before it is built, and nothing is
ever booked off again: what is thrown away took time all the same. A file that asks for more than
its size, twelve times the part that is text (an empty list is one byte of text and 56 of memory)
and 20 MiB is refused; JSON may ask for twenty-four times its text, which is what a list of pairs of
numbers takes. So is one with more instructions than a million and half its text's bytes,
and one whose keys were made to have one hash: a dict compares each of them with all before it.
"""

from __future__ import annotations

import re
import struct
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ..errors import OutOfMemoryError, SerializationError
from .atomic_files import Source

BASE = 20 << 20  # bytes that any file may take
PER_TEXT = 12  # bytes of objects for a byte of a pickle, or of nodes in JSON
PER_JSON = 24  # bytes of lists, dicts, texts and numbers for a letter of JSON
TENSOR, OBJECT = 640, 240  # bytes of a tensor without its values, of another object
# Bytes in CPython 3.11, with the collector's header: of an empty list and of another, of an empty
# dict and of another, of a place in either, of a key, a text and a number that are not shared.
_LIST, _FILLED_LIST = 72, 104
_DICT, _FILLED_DICT = 80, 152  # and a key
_ITEM, _KEY, _TEXT, _NUMBER = 9, 48, 56, 32
_COPIES = 3  # of the text while it is read: its bytes, the header, the texts in it
# Possessive: a long text in a text must not leave a place to come back to at each of its escapes.
_STRING = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_OWN_NUMBER = re.compile(r"-?[0-9][0-9.eE+-]{2,}|-[0-9]")  # small ones exist already
_SHARED = 3  # letters of a text with its quotes of which there is one only
_WHOLE = (1 << 61) - 1  # integers from here on have the hash of a smaller one
_PER_STEP = 20  # bytes of the base that give a step
_COMPARED = 16  # bytes that comparing two keys of one hash is worth, by the time it takes
_SHORT, _PER_LETTER = 1000, 16  # letters that are compared for nothing, and for one byte
_NOTED = 120  # bytes of the note of a key's hash
DAMAGE = (
    ArithmeticError, AssertionError, AttributeError, EOFError, ImportError, LookupError,
    MemoryError,
    NameError, RuntimeError, SyntaxError, TypeError, ValueError, Warning,
    struct.error, zlib.error,
)  # fmt: skip


class UnsafeContentError(ValueError):
    """A file asks for something that is not data.

    Args:
        problem: What it asks for.
        hint: What to save instead.
    """

    def __init__(self, problem: str, hint: str = "") -> None:
        super().__init__(problem)
        self.hint = hint


class OverBudgetError(ValueError):
    """A file asks for more memory or time than its size allows."""


def weigh_json(source: Source, text: str, what: str) -> None:
    """Refuse a JSON text whose values would take more than a file of its size may.

    They are counted before any is built, by the characters that begin them: a parser makes 81 bytes
    out of the three of ``[],``. Those inside strings count only where a first count is too many.

    Raises:
        SerializationError: They would take more than that; the message begins with ``what``.
    """
    limit = source.size + BASE + PER_JSON * len(text)
    copies = _COPIES * sys.getsizeof(text)
    filled = text.count("[") + text.count("{")
    most = _NUMBER * (text.count(",") + filled) + _TEXT * (text.count('"') // 2)
    if copies + _containers(text) + most <= limit:
        return
    nbytes = copies + _values(text)
    for match in _STRING.finditer(text):
        if match.end() - match.start() > _SHARED:
            nbytes += _TEXT - _values(match[0][1:-1])
    if nbytes > limit:
        raise source.error(
            f"{what} asks for {nbytes} bytes of lists, dicts, texts and numbers, and a file of its "
            f"size may have {limit}",
            "Save many small lists as one tensor or array",
        )


def _values(text: str) -> int:
    numbers = sum(1 for _ in _OWN_NUMBER.finditer(text))
    return _containers(text) + _NUMBER * numbers


def _containers(text: str) -> int:
    empty_lists, empty_dicts = text.count("[]"), text.count("{}")
    return (
        _LIST * empty_lists
        + _FILLED_LIST * (text.count("[") - empty_lists)
        + _DICT * empty_dicts
        + _FILLED_DICT * (text.count("{") - empty_dicts)
        + _ITEM * text.count(",")
        + _KEY * text.count('":')
    )


class Budget:
    """Remaining bytes that may be built, and steps that may be taken.

    Args:
        nbytes: Besides ``base`` and what the text gives.
        text: The bytes of text that were read so far.
        base: Bytes for any file; ``BASE`` if None.

    Attributes:
        spent: Bytes that were booked; a loop may add to it and call ``check`` past ``limit``.
        limit: Bytes that are known to be allowed; more may be, as text is read.
    """

    __slots__ = ("_base", "_first", "_same", "_start", "_text", "limit", "spent")

    def __init__(self, nbytes: int, text: Callable[[], int], base: int | None = None) -> None:
        self._base = BASE if base is None else base
        self._start = self.limit = nbytes + self._base
        self._text = text
        self.spent = 0
        self._first: dict[int, Any] = {}  # by hash: the first key that had it
        self._same: dict[int, int] = {}  # and how many others had it

    def spend(self, nbytes: int) -> None:
        """Deduct what is about to be built.

        Raises:
            OverBudgetError: It is more than may be.
        """
        self.spent += nbytes
        if self.spent > self.limit:
            self.check()

    def check(self) -> None:
        """Raise an error if more was spent than the text read so far allows.

        Raises:
            OverBudgetError: More than that was booked.
        """
        self.limit = self._start + PER_TEXT * self._text()
        if self.spent > self.limit:
            raise OverBudgetError(
                f"it asks for {self.spent} bytes of objects, and a file of its size may have "
                f"{self.limit}: its parts refer to one another over and over"
            )

    def steps(self, done: int) -> int:
        """Return how many steps a text of this length may take.

        Raises:
            OverBudgetError: That many, or more, are done.
        """
        allowed = self._base // _PER_STEP + self._text() // 2
        if done >= allowed:
            raise OverBudgetError(
                f"it takes more than {allowed} instructions, and a file of its size may not"
            )
        return allowed

    def key(self, key: Any) -> Any:
        """Deduct the cost of hashing a plain key or a flat tuple, and return the key.

        Keys that may have been made to have one hash are noted by it: hashes of texts are secret,
        those of numbers and of tuples are not.
        """
        kind = type(key)
        if kind is str or kind is bytes:
            if len(key) > _SHORT:  # an equal one is compared letter by letter
                self.spend(len(key) // _PER_LETTER)
            return key
        if kind is tuple:
            self.spend(8 * len(key))
            for part in key:
                if type(part) is int:
                    self.spend(part.bit_length() // 8)
                elif type(part) in (str, bytes):
                    self.spend(len(part) // _PER_LETTER)
        elif kind is not float and (kind is not int or -_WHOLE < key < _WHOLE):
            return key
        else:
            self.spend(key.bit_length() // 8 if kind is int else 0)
        number = hash(key)
        first = self._first.get(number)
        if first is None:
            self.spend(_NOTED)
            self._first[number] = key
        elif first is not key and first != key:
            count = self._same[number] = self._same.get(number, 0) + 1
            self.spend(_COMPARED * count)
        return key


@contextmanager
def damage_named(source: Source, problem: str, hint: str = "", calls: Any = None) -> Iterator[None]:
    """Convert exceptions that a damaged file causes to an error that names the file.

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
    except UnsafeContentError:
        raise
    except DAMAGE as error:
        raise named(source, error, problem, hint, calls) from None


def named(
    source: Source, error: BaseException, problem: str, hint: str = "", calls: Any = None
) -> BaseException:
    """Build the error for an exception that a file caused; see :func:`damage_named`."""
    mine = calls is not None and error is calls.failed
    if mine or isinstance(error, SerializationError | OutOfMemoryError):
        return error
    said = str(error) if type(error) in (ValueError, OverBudgetError) else repr(error)
    return source.error(f"{problem}: {said[:300]}", hint)
