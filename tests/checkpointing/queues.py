"""Queues that a GPU works through: CUDA's streams and events, and what they leave open.

What waits for what follows from streams, events and the host's waiting alone, as in CUDA:

- Each piece of work knows how much of every stream is sure to be done before it (a vector clock).
- :class:`Memory` knows who touched which bytes last, and raises :class:`Race` where two pieces of
  work touch the same ones, one of them writes, and neither is sure to come first.
- An :class:`Order` chooses in which of the legal orders the work is really done.

The host never looks at how far the GPU is, so a program without races gives the same bytes in every
legal order (Netzer and Miller, What are race conditions?, 1992).

Sources: CUDA C++ Programming Guide, Asynchronous Concurrent Execution; CUDA Runtime API, API
synchronization behavior. Not modelled: copies that share an engine, CUDA graphs.
"""

from __future__ import annotations

import os
import random
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

POISON = 0xFF  # makes every float a NaN
MOST = 12  # streams
KERNEL, COPY_OUT, COPY_BACK = "kernel", "out", "back"

Array = Any


class Race(AssertionError):
    """Two pieces of work touch the same bytes, and nothing says which comes first."""


_process = os.getpid()


def check_process() -> None:
    if os.getpid() != _process:
        raise RuntimeError("initialization error: a forked process cannot use CUDA")


# Work, and the streams it waits in


class Work:
    """Something queued.

    Attributes:
        name: Of the op, or what it is.
        kind: ``kernel``, ``out`` (a copy to the host) or ``back``.
        stream: Its stream.
        number: Its place in the stream, from 1.
        after: How many pieces of each stream are done before it begins, whatever the order.
        run: Does it.
        nbytes: Bytes that it writes.
    """

    def __init__(
        self, name: str, kind: str, stream: Stream, run: Callable[[], Any], nbytes: int
    ) -> None:
        self.name, self.kind, self.run, self.nbytes = name, kind, run, nbytes
        self.stream = stream
        self.after = stream.clock.copy()
        stream.clock[stream.index] += 1
        self.number = int(stream.clock[stream.index])

    def precedes(self, other: Work) -> bool:
        """Whether it is done before ``other`` begins, in every legal order."""
        return bool(other.after[self.stream.index] >= self.number)

    def __repr__(self) -> str:
        return f"{self.name} ({self.kind} {self.number} of stream {self.stream.index})"


class Stream:
    """A queue; each piece of it runs after the one before."""

    def __init__(self, gpu: Queues, non_blocking: bool, index: int, device: int) -> None:
        self.gpu, self.non_blocking, self.index, self.device = gpu, non_blocking, index, device
        self.ptr = index
        self.queue: deque[Work] = deque()
        self.clock = np.zeros(MOST, np.int64)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other.ptr == self.ptr

    def __hash__(self) -> int:
        return self.ptr

    def wait_event(self, event: Event) -> None:
        """What is queued from now on waits for what the event saw when it was last recorded."""
        check_process()
        if event.clock is not None:
            np.maximum(self.clock, event.clock, out=self.clock)

    def synchronize(self) -> None:
        """The host waits for all of it."""
        self.gpu.wait(self)

    def __enter__(self) -> Stream:
        self.before = self.gpu.get_current_stream()
        self.gpu.here.streams[self.gpu.here.device] = self
        return self

    def __exit__(self, *_: object) -> None:
        self.gpu.here.streams[self.gpu.here.device] = self.before


class Event:
    """A mark in a stream; one that was never recorded makes nobody wait."""

    def __init__(self, block: bool = False, disable_timing: bool = False) -> None:
        check_process()
        self.clock: Any = None

    def record(self, stream: Stream) -> None:
        """Mark how far the stream is queued."""
        self.clock = stream.clock.copy()


# Orders


class Order:
    """Which piece of work comes next; this one does each as soon as it is asked for."""

    def asked(self, gpu: Queues) -> None:
        """Something was queued; the GPU may begin."""
        while gpu.heads():
            gpu.do(gpu.heads()[0])

    def choose(self, heads: list[Work], wanted: list[Work]) -> Work:
        """The host waits: take one that can begin (``wanted``: those it waits for)."""
        return wanted[0]

    def __repr__(self) -> str:
        return "at once"


class Late(Order):
    """Nothing before the host waits for it, and the kinds named last as late as is legal."""

    def __init__(self, *kinds: str) -> None:
        self.kinds = kinds

    def asked(self, gpu: Queues) -> None:
        """Do nothing."""

    def choose(self, heads: list[Work], wanted: list[Work]) -> Work:
        """The first of the kind named first."""
        return min(wanted, key=lambda w: self.kinds.index(w.kind))

    def __repr__(self) -> str:
        return f"late, {', '.join(self.kinds)}"


class Drawn(Order):
    """At random."""

    def __init__(self, seed: int) -> None:
        self.seed, self.random = seed, random.Random(seed)

    def asked(self, gpu: Queues) -> None:
        """Do some of what can be done."""
        while self.random.random() < 0.5 and (heads := gpu.heads()):
            gpu.do(self.random.choice(heads))

    def choose(self, heads: list[Work], wanted: list[Work]) -> Work:
        """Any that can begin."""
        return self.random.choice(heads)

    def __repr__(self) -> str:
        return f"drawn, seed {self.seed}"


def orders() -> list[Order]:
    """The extreme orders, and some between."""
    return [
        Order(),
        Late(KERNEL, COPY_BACK, COPY_OUT),
        Late(KERNEL, COPY_OUT, COPY_BACK),
        Late(COPY_OUT, COPY_BACK, KERNEL),
        *map(Drawn, range(2)),
    ]


# Memory


class Memory:
    """Bytes with an address, and who touched each grain of them last, by stream."""

    def __init__(self, size: int, grain: int) -> None:
        whole = np.zeros(size + grain, np.uint8)
        skip = -int(whole.__array_interface__["data"][0]) % grain
        self.bytes = whole[skip : skip + size]
        self.ptr = self.start = int(self.bytes.__array_interface__["data"][0])
        self.end = self.start + size
        self.grain = grain
        self.touched = np.zeros((2, MOST, size // grain + 1), np.int32)  # read, written

    def touch(self, work: Work, first: int, end: int, writes: bool) -> None:
        """Check that ``work`` may touch bytes ``first`` to ``end``, and note that it does."""
        low, high = (first - self.start) // self.grain, -(-(end - self.start) // self.grain)
        part = self.touched[:, :, low:high]
        for k in (0, 1) if writes else (1,):
            latest = part[k].max(axis=1, initial=0)
            latest[work.stream.index] = 0
            for other in np.flatnonzero(latest > work.after):
                how = "written" if k else "read"
                raise Race(
                    f"{work} {'writes' if writes else 'reads'} what is {how} by piece "
                    f"{latest[other]} of stream {other}, and nothing says which comes first."
                )
        part[int(writes), work.stream.index] = work.number

    def at(self, address: int, nbytes: int) -> Array:
        """Some of the bytes."""
        return self.bytes[address - self.start : address - self.start + nbytes]


class Here(threading.local):
    device = 0

    def __init__(self) -> None:
        self.streams: dict[int, Stream] = {}


class Queues:
    """Streams of one or more devices, and the host that fills them.

    Args:
        order: In which order the work is done.

    Attributes:
        streams: All streams.
        defaults: CUDA's legacy stream of each device.
        queued: All work there was.
        host: How much of each stream the host knows to be done.
        done: How much really is.
        inside: A kernel runs just now.
        waits: How often the host waited.
    """

    def __init__(self, order: Order) -> None:
        self.order = order
        self.streams: list[Stream] = []
        self.defaults: dict[int, Stream] = {}
        self.here = Here()
        self.host = np.zeros(MOST, np.int64)
        self.done = np.zeros(MOST, np.int64)
        self.queued: list[Work] = []
        self.inside = False
        self.waits = 0

    def Stream(self, null: bool = False, non_blocking: bool = False) -> Stream:
        """A new stream."""
        made = Stream(self, non_blocking, len(self.streams), self.here.device)
        self.streams.append(made)
        assert len(self.streams) <= MOST
        return made

    def get_current_stream(self) -> Stream:
        """The stream that kernels are queued on; the device's default one unless one is entered."""
        check_process()
        here = self.here
        found = here.streams.get(here.device)
        if found is None:
            if here.device not in self.defaults:
                self.defaults[here.device] = self.Stream()
            found = here.streams[here.device] = self.defaults[here.device]
        return found

    def queue(
        self, name: str, kind: str, stream: Stream, run: Callable[[], Any], nbytes: int
    ) -> Work:
        check_process()
        np.maximum(stream.clock, self.host, out=stream.clock)
        if not stream.non_blocking:  # the legacy stream and those that block: one after another
            for other in self.streams:
                legacy = {stream, other} & set(self.defaults.values())
                if other is not stream and legacy and not other.non_blocking:
                    np.maximum(stream.clock, other.clock, out=stream.clock)
        work = Work(name, kind, stream, run, nbytes)
        stream.queue.append(work)
        self.queued.append(work)
        return work

    def heads(self) -> list[Work]:
        """The work that can begin."""
        firsts = [s.queue[0] for s in self.streams if s.queue]
        return [w for w in firsts if (w.after <= self.done).all()]

    def do(self, work: Work) -> None:
        """Do a piece of work that can begin."""
        assert work.stream.queue.popleft() is work
        before, self.inside = self.inside, True
        try:
            work.run()
        finally:
            self.inside = before
            work.run = _done
        self.done[work.stream.index] = work.number

    def wait(self, stream: Stream) -> None:
        """The host waits until all that is queued on a stream is done."""
        check_process()
        self.waits += 1
        until = stream.clock.copy()
        while (self.done < until).any():
            heads = self.heads()
            wanted = [w for w in heads if w.number <= until[w.stream.index]]
            self.do(self.order.choose(heads, wanted))
        np.maximum(self.host, until, out=self.host)

    # What it shows

    def beside(self, work: Work) -> list[Work]:
        """The kernels that may run at the same time as a piece of work."""
        return [
            w
            for w in self.queued
            if w.kind == KERNEL and w.nbytes and not w.precedes(work) and not work.precedes(w)
        ]

    def timeline(self, seconds: Callable[[Work], float]) -> dict[Work, tuple[float, float]]:
        """Start and end of each piece, if each takes ``seconds(work)`` and begins when it can."""
        ends: dict[int, list[float]] = {s.index: [0.0] for s in self.streams}
        found = {}
        for w in self.queued:
            # In a stream the ends rise, so the last one that is waited for tells.
            start = max(ends[k][int(w.after[k])] for k in ends)
            ends[w.stream.index].append(start + seconds(w))
            found[w] = (start, start + seconds(w))
        return found


def _done() -> None:
    """Nothing: what was done keeps nothing alive."""


__all__ = [
    "COPY_BACK", "COPY_OUT", "KERNEL", "POISON", "Drawn", "Event", "Late", "Memory", "Order",
    "Queues", "Race", "Stream", "Work", "check_process", "orders",
]  # fmt: skip
