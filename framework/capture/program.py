"""The recording of a call: kernel calls on numbered values.

A value is the bytes of one storage. An array that a kernel takes is a :class:`Place`: where it lies
in a value. So a program holds no memory, and says nothing about addresses.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod
from typing import Any, NamedTuple

ARENA, CONSTANT, FRESH, OUTSIDE, GIVEN = "arena", "constant", "fresh", "outside", "given"


class Place(NamedTuple):
    """An array of a value.

    Attributes:
        value: The number of the value.
        offset: Bytes from the value's start to the first element.
        shape: The sizes.
        dtype: The NumPy dtype.
        strides: The strides, in bytes.
    """

    value: int
    offset: int
    shape: tuple[int, ...]
    dtype: Any
    strides: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""
        return prod(self.shape) * int(self.dtype.itemsize)


class EmptyArray(NamedTuple):
    """An array without elements, which lies nowhere."""

    shape: tuple[int, ...]
    dtype: Any


class DrawNumber(NamedTuple):
    """In the place of a random stream's start: that of the draw of this number."""

    number: int


@dataclass(slots=True)
class Value:
    """The bytes of one storage.

    Attributes:
        number: Its index in ``StepProgram.values``.
        nbytes: Bytes.
        kind: ``ARENA``: lives inside the call. ``CONSTANT``: was made from Python's numbers.
            ``FRESH``: outlives the call, as a result or a gradient. ``OUTSIDE``: was there before.
            ``GIVEN``: a gradient that arrives at the call's backward.
        role: The role of its storage (``memory.ledger.ROLES``).
        first: The first row that uses it; -1 if none does.
        last: The last one.
        written: A row has written it.
        changed: Rows write it after its contents were read (of a constant).
        contents: The bytes of a constant.
        tensor: Of a value from outside: the number of the tensor that holds it
            (``StepProgram.tensors``), or of the leaf whose gradient it is. Of a given one: the
            number of the gradient that arrives.
        is_gradient: Of a value from outside: it was a leaf's gradient.
        site: Where it was made (``attribution/recorded_sites.py``); None if it is not known.
        saved: The entry before which the graph saved it, and the one before which the graph let it
            go; None if it was not saved.
        saver: Where it was saved.
    """

    number: int
    nbytes: int
    kind: str
    role: int = 0
    first: int = -1
    last: int = -1
    written: bool = False
    changed: bool = False
    contents: Any = None
    tensor: int = -1
    is_gradient: bool = False
    site: Any = None
    saved: tuple[int, int] | None = None
    saver: Any = None


@dataclass(slots=True)
class Row:
    """A kernel call: ``function(*arguments)``.

    Attributes:
        function: The kernel.
        arguments: Its arguments, with a :class:`Place` for each array and a :class:`DrawNumber`
            for each random stream's start.
        written: Numbers of the values that it writes.
        plan: The op's plan, if it was run by one (``ops/plan.py``).
        over: Number of the value over which the op has written its first result, where it reads
            that, too; -1 if it has written over none. In a recording it is another value, whose
            memory a replay may take over.
    """

    function: Callable[..., Any]
    arguments: list[Any]
    written: list[int]
    plan: Any = None
    over: int = -1


@dataclass(slots=True)
class Draw:
    """A draw of ``words`` words from a generator."""

    generator: Any
    words: int


@dataclass(slots=True)
class LiveCall:
    """A call that each replay makes anew, such as an optimizer's step."""

    method: Callable[..., Any]
    owner: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclass(slots=True)
class Effects:
    """What Python sees of the rows before it.

    Attributes:
        gradients: (leaf, place of its new gradient; None if it has none any more).
        versions: (tensor, how often its storage was written).
    """

    gradients: list[tuple[int, Place | None]]
    versions: list[tuple[int, int]]


@dataclass(slots=True)
class Result:
    """A tensor that the call returns: an array of a fresh value.

    Attributes:
        place: Where it lies.
        spec: Its spec.
        requires_grad: It came from a graph.
        node_name: The name of its node.
        output: Its number among the outputs that the call's backward starts from; -1 if the call
            has run that backward itself, and freed the graph.
        base: Of a view of another result: that result.
    """

    place: Any
    spec: Any
    requires_grad: bool
    node_name: str
    output: int = -1
    base: Result | None = None


class Given(NamedTuple):
    """A tensor that the call returns, and that it was given or found: its number."""

    number: int


@dataclass(slots=True)
class StepProgram:
    """A recorded call.

    Attributes:
        entries: Rows, draws, live calls and effects, in order.
        values: The values, by number.
        tensors: Tensors from outside: those among the arguments first, as None, then all others.
        argument_count: How many of them are arguments.
        gathered_from: The first of those that is gathered for the call (``gathered.py``).
        addresses: Of those whose memory is the pool's and stays: of their first elements.
        dropped: Leaves whose old gradient goes before the first row: nothing reads it.
        results: The leaves of what the call returns: a :class:`Result`, a :class:`Given`, or a
            Python value.
        structure: The structure of what it returns.
        backward_at: The first entry of the call's backward; None if it has none that runs later.
        sources: Numbers of the tensors whose gradients that backward computes.
        gradients: A place for each of them, or None where no gradient arrives.
        several: Positions among the sources of those that several gradients arrive at.
        lines: The line of the recorded function, by the number of a row, draw or live call.
    """

    entries: list[Row | Draw | LiveCall | Effects] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    tensors: list[Any] = field(default_factory=list)
    argument_count: int = 0
    gathered_from: int = 0
    addresses: dict[int, int] = field(default_factory=dict)
    dropped: list[int] = field(default_factory=list)
    results: list[Any] = field(default_factory=list)
    structure: Any = None
    backward_at: int | None = None
    sources: list[int] = field(default_factory=list)
    gradients: list[Any] = field(default_factory=list)
    several: list[int] = field(default_factory=list)
    lines: dict[int, int] = field(default_factory=dict)

    def is_gathered(self, value: Value) -> bool:
        """Whether a value is memory of a parameter that is gathered for the call."""
        return value.kind == OUTSIDE and self.gathered_from <= value.tensor < self.argument_count

    def written(self) -> set[int]:
        """Return the numbers of the values that kernel calls write."""
        return {n for row in self.rows for n in row.written}

    @property
    def rows(self) -> list[Row]:
        """The kernel calls."""
        return [e for e in self.entries if isinstance(e, Row)]


def values_of(arguments: list[Any]) -> list[int]:
    """Return the numbers of the values whose arrays stand among arguments."""
    found = []
    for a in arguments:
        if isinstance(a, Place):
            found.append(a.value)
        elif isinstance(a, list):
            found += values_of(a)
    return found
