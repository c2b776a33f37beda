"""Processes of a group, forked from the test: what each returns, or how it failed."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import lowtide.distributed as dist


class Failed:
    """How a rank failed."""

    def __init__(self, error: BaseException) -> None:
        self.kind, self.message = type(error).__name__, str(error)
        self.trace = "".join(traceback.format_exception(error))

    def __repr__(self) -> str:
        return f"{self.kind}: {self.message}"


def free_port() -> int:
    """A port that nobody listens at."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def _child(
    function: Callable[..., Any], rank: int, size: int, where: str, pipe: Any, options: Any
) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        dist.init_process_group("gloo", where, rank=rank, world_size=size, **options)
        found = function(rank, size)
        if dist.is_initialized():
            dist.destroy_process_group()
    except BaseException as error:
        found = Failed(error)
    with contextlib.suppress(BrokenPipeError):
        pipe.send_bytes(pickle.dumps(found))
    pipe.close()
    sys.stdout.flush()
    os._exit(0)


def outcomes(
    size: int,
    function: Callable[..., Any],
    seconds: float = 240.0,
    during: Callable[[list[int]], None] | None = None,
    **options: Any,
) -> list[Any]:
    """Run ``function(rank, size)`` in a group of processes; return what each returned.

    Args:
        size: How many processes.
        function: What each runs, inside the group.
        seconds: After which all are killed, and the test fails.
        during: Called with their process ids once they run.
        options: Of ``init_process_group``.

    Returns:
        Of each rank the result, a :class:`Failed`, or None if it died.
    """
    context = multiprocessing.get_context("fork")
    where = f"tcp://127.0.0.1:{free_port()}"
    ends, processes = [], []
    for rank in range(size):
        here, there = context.Pipe(duplex=False)
        p = context.Process(target=_child, args=(function, rank, size, where, there, options))
        p.start()
        there.close()
        ends.append(here)
        processes.append(p)
    try:
        if during is not None:
            during([p.pid for p in processes if p.pid is not None])
        return list(_received(ends, time.monotonic() + seconds))
    finally:
        for p in processes:
            p.kill()
            p.join()


def _received(ends: list[Any], deadline: float) -> Iterator[Any]:
    for rank, end in enumerate(ends):
        if not end.poll(max(0.0, deadline - time.monotonic())):
            raise AssertionError(f"rank {rank} did not end in time")
        try:
            yield pickle.loads(end.recv_bytes())
        except EOFError:
            yield None


def results(size: int, function: Callable[..., Any], **options: Any) -> list[Any]:
    """Return what each rank returned; fail if one failed."""
    found = outcomes(size, function, **options)
    for rank, one in enumerate(found):
        assert not isinstance(one, Failed), f"rank {rank}:\n{one.trace}"
    return found
