"""Collectives of a group in progress: checked against those of the other ranks, with a deadline.

A collective is a generator that posts messages and yields those that it waits for. It begins when
it is called, and goes on whenever the channel is polled: ``wait`` does, and so do later calls.
Every rank first sends a line that says which collective it calls. If another rank calls a different
one, all raise an error before any tensor is written.

An error ends the channel: what was under way cannot be resumed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Sequence
from datetime import timedelta
from itertools import islice
from typing import Any

import numpy as np

from ..device import device
from ..devices import backend
from ..modes import local
from .fake import FakeTransport, imagining
from .transport import NOBODY, DistBackendError, Transfer, Transport
from .waiting import waits

Steps = Generator[list[Transfer], None, None]

_LINE = 160  # bytes of the line by which ranks compare what they call
_NAP = 0.05  # seconds that a waiting rank sleeps at most before it looks at the clock
_MESSAGES = 1 << 39  # tags of messages between two ranks begin here, behind those of collectives
_KINDS = 8  # messages of different kinds in one collective
_HOST = device("cpu")
_lock = threading.RLock()  # transports are used by one thread at a time


class Call:
    """A collective that this rank has called.

    Attributes:
        what: Its name, and what all ranks must agree about.
        number: Which call of the group it is, from 1; 0 for a message between two ranks.
        done: Whether it has ended, well or not.
        error: How it failed.
        asking: Whether it waits for ranks to call it, or, of a message, to send it.
    """

    def __init__(self, channel: Channel, what: str, number: int) -> None:
        self.channel, self.what, self.number = channel, what, number
        self.done = False
        self.error: Exception | None = None
        self.asking = number == 0
        self.waits: list[Transfer] = []
        self.steps: Any = None
        self.callbacks: list[Callable[[], None]] = []
        self.limit = channel.timeout.total_seconds()
        self.deadline = time.monotonic() + self.limit

    @property
    def rank(self) -> int:
        """The rank of this process in the group."""
        return self.channel.rank

    @property
    def size(self) -> int:
        """The number of processes of the group."""
        return self.channel.size

    @property
    def peers(self) -> list[int]:
        """All other ranks, beginning with the next one, so that not all send to the same."""
        return [(self.rank + k) % self.size for k in range(1, self.size)]

    @property
    def contributors(self) -> list[int]:
        """The other ranks whose numbers are added up: few where no sum is computed."""
        return self.peers[:2] if imagining() else self.peers

    def send(self, peer: int, data: Any, kind: int = 1) -> Transfer:
        """Begin to send a contiguous array."""
        return self.channel.transport.send(peer, self._tag(kind), _bytes(data))

    def receive(self, peer: int, into: Any, kind: int = 1, like: Any = None) -> Transfer:
        """Begin to receive into a contiguous array.

        Args:
            peer: The rank that sends.
            into: Where it goes.
            kind: Of the message.
            like: What comes from a rank that has what this one has: an imagined one.
        """
        transport = self.channel.transport
        if transport.imagined and like is not None:
            backend(_HOST).copy(into.reshape(-1), like.reshape(-1))
        return transport.receive(peer, self._tag(kind), _bytes(into))

    def _tag(self, kind: int) -> int:
        return self.number * _KINDS + kind

    def message_tag(self, tag: int, part: int) -> int:
        """Return the tag of a message between two ranks, which has two parts."""
        return _MESSAGES + tag * 2 + part

    def message(
        self, peer: int, tag: int, part: int, data: Any, incoming: bool = False
    ) -> Transfer:
        """Begin to send or to receive a part of a message between two ranks."""
        transport = self.channel.transport
        move = transport.receive if incoming else transport.send
        return move(peer, self.message_tag(tag, part), _bytes(data))

    def wait(self, timeout: timedelta | None = None) -> None:
        """Wait for the end.

        Raises:
            DistBackendError: A deadline passed, or ranks called different collectives, or one is
                gone.
        """
        self.channel.finish(self, timeout)


class Channel:
    """The collectives of one group, in the order in which they were called.

    Args:
        transport: Moves the messages; None for a group of one process, which sends none.
        timeout: How long a collective may take.

    Attributes:
        ranks: The ranks in the world of the group's members.
    """

    def __init__(self, transport: Transport | None, timeout: timedelta) -> None:
        self._transport = transport
        self.rank = transport.rank if transport else 0
        self.size = transport.size if transport else 1
        self.timeout = timeout
        self.ranks: Sequence[int] = range(self.size)
        self.ended: str | None = None  # why no collective can be called any more
        self._number = 0
        self._running: list[Call] = []

    @property
    def transport(self) -> Transport:
        """What moves the messages."""
        assert self._transport is not None, "a group of one process sends no message"
        return self._transport

    @property
    def imagined(self) -> bool:
        """Whether the other ranks do not exist."""
        return self._transport is not None and self._transport.imagined

    def start(self, what: str, steps: Callable[[Call], Steps]) -> Call:
        """Begin a collective.

        Args:
            what: Its name and all that ranks must agree about.
            steps: Of the call makes a generator that posts messages and yields what it waits for.

        Raises:
            DistBackendError: An earlier one failed.
        """
        _refuse_capture()
        with _lock:
            self._require_open(what)
            self._number += 1
            call = Call(self, what, self._number)
            call.steps = self._checked(call, steps)
            self._running.append(call)
            self._advance()
            return call

    def start_message(self, what: str, steps: Callable[[Call], Steps], later: bool = False) -> Call:
        """Begin a message between two ranks, of which the others know nothing.

        Args:
            what: For messages of errors.
            steps: As of a collective.
            later: It begins when the channel is polled.

        Raises:
            DistBackendError: An earlier collective failed.
        """
        _refuse_capture()
        with _lock:
            self._require_open(what)
            call = Call(self, what, 0)
            call.steps = steps(call)
            self._running.append(call)
            if not later:
                self._advance()
            return call

    def _require_open(self, what: str) -> None:
        if self.ended is not None:
            raise DistBackendError(
                f"{what}: the group is broken: {self.ended} Call destroy_process_group() and "
                "init_process_group() again in all processes."
            )

    def _checked(self, call: Call, steps: Callable[[Call], Steps]) -> Steps:
        if self._transport is None or self.imagined:  # nothing else is called
            yield from steps(call)
            return
        peers = call.peers
        lines = np.zeros((call.size, _LINE), np.uint8)
        own = np.frombuffer(call.what.encode()[:_LINE], np.uint8)
        lines[call.rank, : own.size] = own
        heard = {peer: call.receive(peer, lines[peer], 0) for peer in peers}
        for peer in peers:
            call.send(peer, lines[call.rank], 0)
        own_steps = steps(call)
        posted = list(islice(own_steps, 1))  # it travels beside the lines
        call.asking = True
        yield list(heard.values())
        call.asking = False
        this = lines[call.rank].tobytes()
        if any(lines[peer].tobytes() != this for peer in peers):
            raise DistBackendError(_different(call, lines))
        while posted:
            yield posted.pop()  # kept by no name here: it holds memory
        yield from own_steps

    def poll(self) -> None:
        """Move messages, and collectives whose messages came."""
        with _lock:
            self._progress(0.0)

    def _progress(self, seconds: float) -> None:
        if self._running:
            self.transport.progress(seconds, [t for c in self._running for t in c.waits])
            self._advance()

    def _await(self, call: Call, seconds: float) -> None:
        # Move messages for a call that this rank waits for, and note for whom it waits.
        with _lock:
            peers, asking = self._awaited(call)
            begun = time.perf_counter()
            self._progress(seconds)
            late = [self.ranks[peer] for peer in peers] if asking else []
            waits.note(time.perf_counter() - begun, late)

    def _awaited(self, call: Call) -> tuple[list[int], bool]:
        # The peers that a call waits for, and whether they have yet to call it. A reduction that
        # waits for workspace waits for what those before it wait for.
        for one in (call, *self._running):
            peers = [t.peer for t in one.waits if not t.done]
            if peers and NOBODY not in peers:
                return peers, one.asking
        return [], False

    def _advance(self) -> None:
        for call in list(self._running):
            while not call.done and all(t.done for t in call.waits):
                try:
                    if (error := next((t.error for t in call.waits if t.error), None)) is not None:
                        raise DistBackendError(f"{self._name(call)} failed: {error}.")
                    call.waits = []  # they hold memory that the next step may want
                    call.waits = next(call.steps)
                except StopIteration:
                    self._end(call, None)
                except Exception as error:  # raised where the call is waited for
                    self.break_off(str(error))
                    self._end(call, error)

    def _end(self, call: Call, error: Exception | None) -> None:
        call.done, call.error, call.waits = True, error, []
        call.steps.close()
        if call in self._running:
            self._running.remove(call)
        for callback in call.callbacks:
            callback()

    def finish(self, call: Call, timeout: timedelta | None = None) -> None:
        """Wait for the end of a call; raise its error if it has one."""
        if timeout is not None:
            call.limit = timeout.total_seconds()
            call.deadline = time.monotonic() + call.limit
        while not call.done:
            self.wait_a_moment(call)
        if call.error is not None:
            raise call.error

    def wait_a_moment(self, call: Call) -> None:
        """Move messages, or wait a moment for some; past its deadline the call ends with an error.

        An interrupt here ends the channel, because messages are incomplete.
        """
        try:
            left = call.deadline - time.monotonic()
            if left < 0:
                self._expire(call)
            else:
                self._await(call, min(_NAP, left))
        except BaseException as error:
            self.break_off(f"{call.what} was interrupted ({type(error).__name__}).")
            raise

    def _expire(self, call: Call) -> None:
        absent = sorted(set(self._awaited(call)[0]))
        ranks = f"rank{'s' if len(absent) > 1 else ''} {', '.join(map(str, absent))}"
        error = DistBackendError(
            f"{self._name(call)}: rank {self.rank} waited {call.limit:g} s for {ranks}. Did all "
            "ranks call it, and as often? If they need longer, give init_process_group a larger "
            "timeout."
        )
        self.break_off(str(error))
        self._end(call, error)

    def _name(self, call: Call) -> str:
        return f"{call.what}, call {call.number} of the group" if call.number else call.what

    def imagine(self, rank: int, size: int) -> None:
        """Imagine the other ranks from now on; what is under way has ended.

        Args:
            rank: Which rank this process then is.
            size: How many there then are.
        """
        with _lock:
            self._transport = FakeTransport(rank, size) if size > 1 else None
            self.rank, self.size, self.ended = rank, size, None
            self.ranks = self.ranks if len(self.ranks) == size else range(size)
            for call in list(self._running):
                self._end(call, None)

    def break_off(self, why: str) -> None:
        """End all that is under way with an error; peers see that this rank is gone."""
        with _lock:
            if self.ended is not None:
                return
            self.ended = why
            if self._transport is not None:
                self._transport.close()
            for call in list(self._running):
                self._end(call, DistBackendError(f"{self._name(call)} failed: {why}"))


def _different(call: Call, lines: Any) -> str:
    said: dict[str, list[str]] = {}
    for rank in range(call.size):
        said.setdefault(bytes(lines[rank]).rstrip(b"\0").decode(), []).append(str(rank))
    each = "; ".join(
        f"{what} by rank{'s' if len(ranks) > 1 else ''} {', '.join(ranks)}"
        for what, ranks in said.items()
    )
    return f"Ranks disagree about call {call.number} of the group: {each}. Nothing was written."


def _bytes(array: Any) -> memoryview:
    return memoryview(array.reshape(-1).view(np.uint8))


def _refuse_capture() -> None:
    # A replay of kernel calls would send nothing.
    capture = local.state.capture
    if capture is not None:
        capture.refuse("it exchanges messages with other processes")
