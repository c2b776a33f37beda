"""Threads for kernels: :func:`parallel_for` and what it is made of.

Numba's own threads are not used: one of its layers ends the process when two Python threads meet in
it, the others when a worker is forked. The kernels here release the interpreter's lock, so plain
threads do. They are started on first use: as many as there are cores, or OMP_NUM_THREADS.

The caller works too, and nothing waits for a thread that has not begun: chunks lie in a queue, and
any thread with a core takes the next. On a machine that is busy with something else the caller may
do them all. Which thread runs a chunk never shows in what it computes.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from itertools import pairwise
from queue import SimpleQueue
from typing import Any

import numpy as np

from ...interrupts import defer_interrupts
from . import blas, cores, forking, thresholds

_pool: SimpleQueue[Any] | None = None  # where the threads wait for work


def count() -> int:
    """How many threads a kernel may use."""
    try:
        asked = int(os.environ.get("OMP_NUM_THREADS", "").split(",")[0])
    except ValueError:
        asked = 0
    return min(asked, len(cores.allowed())) if asked > 0 else min(cores.usable(), cores.MOST)


LIMIT = count()  # the same as long as the process lives: workspaces are made for so many
_wanted = LIMIT  # at most that


def get_num_threads() -> int:
    """How many threads kernels use at most."""
    return _wanted


def set_num_threads(num: int) -> None:
    """Let kernels, and BLAS where it can be told, use at most ``num`` threads.

    More than the cores, or than OMP_NUM_THREADS was at the start, are not used.

    Raises:
        RuntimeError: ``num`` is not positive.
        TypeError: ``num`` is no integer.
    """
    global _wanted
    if not isinstance(num, int) or isinstance(num, bool):
        raise TypeError(f"set_num_threads expects an int, but got {type(num).__name__}.")
    if num <= 0:
        raise RuntimeError(f"set_num_threads expects a positive integer; got {num}.")

    _wanted = min(num, LIMIT)
    blas.set_num_threads(_wanted)


def parallel_for(run: Callable[[int, int], None], work: int, n: int) -> None:
    """Call ``run(start, stop)`` for chunks of ``range(n)``, or for the whole where that is faster.

    Args:
        run: What it computes for a number must not depend on the others beside it.
        work: How much there is to do, in additions of two elements.
        n: How many numbers.
    """
    several = workers(work, n)
    if several <= 1:
        run(0, n)
    else:
        chunks = max(several, min(4 * several, work // thresholds.CHUNK, n))
        parallel_calls(run, bounds(n, chunks), several)


def workers(work: int, n: int, each: int | None = None) -> int:
    """How many threads are worth it for so many additions, in ``n`` chunks at most.

    Args:
        work: Additions, or other operations.
        n: How many chunks there can be.
        each: What a thread must have to do; of additions by default.
    """
    return min(_wanted, work // (each or thresholds.THREAD), n)


def parallel_chunks(run: Callable[[int, int, int], None], n: int, chunks: int) -> None:
    """Call ``run(chunk, start, stop)`` for so many chunks of ``range(n)``, by as many threads."""
    calls = [(k, *b) for k, b in enumerate(bounds(n, chunks))]
    parallel_calls(run, calls, min(chunks, _wanted))


def bounds(n: int, chunks: int) -> list[tuple[int, int]]:
    """(start, stop) of so many chunks of ``range(n)``, as even as can be."""
    return list(pairwise([n * k // chunks for k in range(chunks + 1)]))


def parallel_calls(
    run: Callable[..., None], calls: Sequence[tuple[Any, ...]], workers: int
) -> None:
    """Make all ``calls`` of ``run``, here and in ``workers - 1`` other threads.

    Raises:
        Exception: What a call raised, after all others have been made.
    """
    todo = deque([(run, call) for call in calls])
    errors: list[BaseException] = []
    begun: list[None] = []  # an item for each thread that came to help
    ended: SimpleQueue[None] = SimpleQueue()
    # Those who have begun write to arrays that the caller may give back, or to a tensor that must
    # not be left half written: Ctrl-C waits for all chunks.
    with defer_interrupts():
        if workers > 1:
            waiting = _threads()
            for _ in range(min(workers, len(calls)) - 1):
                waiting.put((todo, errors, begun, ended))
        try:
            _take(todo, errors)
        finally:
            todo.clear()  # who has not begun finds nothing
            # Who begins only now ends at once: its word must not be taken for that of another.
            heard = 0
            while heard < len(begun):
                ended.get()
                heard += 1
    if errors:
        error = errors[0]
        errors.clear()  # its traceback leads here: no cycle
        try:
            raise error
        finally:
            del error


def _take(todo: deque[Any], errors: list[BaseException]) -> None:
    # Work until nothing is left. No chunk outlives its run here, nor do the arrays it holds.
    while todo:
        try:
            run, call = todo.popleft()
        except IndexError:  # another thread was faster
            return
        try:
            run(*call)
        except Exception as error:
            errors.append(error)
        del run


def _help(waiting: SimpleQueue[Any]) -> None:
    np.seterr(all="ignore")  # of this thread
    while True:
        todo, errors, begun, ended = waiting.get()
        begun.append(None)
        try:
            _take(todo, errors)
        except BaseException as error:  # SystemExit: the caller's, not this thread's
            errors.append(error)
        finally:
            ended.put(None)
        del todo, errors, begun, ended


def _threads() -> SimpleQueue[Any]:
    global _pool
    if _pool is None:
        waiting: SimpleQueue[Any] = SimpleQueue()
        for k in range(max(1, LIMIT - 1)):
            name = f"lowtide-kernel_{k}"
            threading.Thread(target=_help, args=(waiting,), name=name, daemon=True).start()
        _pool = waiting
    return _pool


def _forget() -> None:
    global _pool
    _pool = None  # threads do not survive a fork


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
forking.prepare_forks()
