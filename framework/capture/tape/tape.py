"""The loops of many kernel calls in one list, and the addresses in it.

Kernel calls that follow each other are one tape: a replay calls compiled code once, and that calls
the loops. While it runs no Python does, so Ctrl-C comes before it or after it.

A kernel call may begin with a question, such as whether a class number is out of range. Its loops
are what follows the usual answer, False. At any other the tape stops, the kernel is called as it
was recorded, and the tape goes on behind it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ...kernels.cpu.elementwise.ufunc_loops import address
from ...kernels.cpu.loop_tape import SCRATCH, run
from .traced_array import NotTraced


class Site(NamedTuple):
    """An address that a kernel call's words need.

    Attributes:
        word: Its index among them.
        value: Index of the value among those of the kernel call; -1 for a number.
        offset: Bytes from the value's start, or from the first of the numbers.
    """

    word: int
    value: int
    offset: int


class KernelLoops(NamedTuple):
    """What stands for a kernel call.

    Attributes:
        words: Of the loops.
        sites: Where addresses go.
        numbers: Bytes of the numbers that the loops read, each aligned.
        asks: Whether they begin with a question.
    """

    words: list[int]
    sites: list[Site]
    numbers: bytes
    asks: bool = False


class TapedRow(NamedTuple):
    """A kernel call that goes into a tape.

    Attributes:
        loops: What stands for it.
        values: The numbers of the values that the sites of ``loops`` count.
        call: The kernel and its arguments, if ``loops`` asks.
    """

    loops: KernelLoops
    values: list[int]
    call: tuple[Any, list[Any]] | None = None


class AddressSites(NamedTuple):
    """Where the addresses of one value stand in a tape.

    Attributes:
        words: The tape.
        places: Indices of words.
        offsets: What is added to the value's address, for each of them.
    """

    words: Any
    places: Any
    offsets: Any

    def bind(self, start: int) -> None:
        """Write the addresses of a value that lies at ``start``."""
        self.words[self.places] = self.offsets + start


class Tape:
    """A list of loops.

    Args:
        rows: The kernel calls, in order.

    Attributes:
        call: The function that runs it, and its arguments.
        sites: For each value, where its addresses stand.
        count: How many kernel calls there are.
    """

    def __init__(self, rows: list[TapedRow]) -> None:
        words: list[int] = [0] * SCRATCH
        numbers = bytearray()
        of_numbers: list[tuple[int, int]] = []
        of_values: dict[int, list[tuple[int, int]]] = {}
        self._asking: list[tuple[int, Any]] = []  # (last word, the call) of each that asks
        for row in rows:
            start, first = len(words), len(numbers)
            for word, value, offset in row.loops.sites:
                if value < 0:
                    of_numbers.append((start + word, first + offset))
                else:
                    of_values.setdefault(row.values[value], []).append((start + word, offset))
            words += row.loops.words
            numbers += row.loops.numbers
            if row.loops.asks:
                self._asking.append((len(words), row.call))
        self.count = len(rows)
        self._words = np.array(words, np.int64)
        self._numbers = np.zeros(len(numbers) // 16, np.complex128)  # their addresses are in words
        self._numbers.view(np.uint8)[:] = np.frombuffer(numbers, np.uint8)
        if of_numbers:
            self._sites(of_numbers).bind(address(self._numbers))
        self.sites = {number: self._sites(found) for number, found in of_values.items()}
        arguments = [self._words, address(self._words)]
        self.call: tuple[Any, list[Any]] = run, arguments
        if self._asking:
            arguments.append(self._answer)

    def run(self) -> None:
        """Call the loops."""
        function, arguments = self.call
        function(*arguments)

    def _answer(self, place: int) -> int:
        # Make the call whose question ends at a word; return the word behind the call.
        end, call = next(one for one in self._asking if place <= one[0])
        if call is None:
            raise NotTraced("a kernel that finds something in drawn numbers")
        function, arguments = call
        function(*arguments)
        return end

    def _sites(self, found: list[tuple[int, int]]) -> AddressSites:
        places, offsets = np.array(found, np.int64).T
        return AddressSites(self._words, places.copy(), offsets.copy())
