"""A pool of threads in compiled code: a job is shared out in about a microsecond.

A thread that Python wakes waits for the interpreter's lock first; for a product of half a
millisecond that is a tenth of its time. The helpers here are threads that never come back to
Python: they look for work in a block of words that they share with the caller.

A *job* is the address of a function, of its arguments, and a number of chunks. Caller and helpers
take the next chunk by adding to one counter, so nothing waits for a thread that has not begun, and
a helper whom the system leaves waiting leaves its share to the others. The caller returns when no
helper is inside. A second caller meanwhile makes all its calls itself.

Idle helpers look out for work for a while, then sleep in the kernel (a futex: Linux only) until a
caller wakes them.

What each word is for: ``OPEN`` is 1 while a caller has the pool. ``NEXT`` is the next chunk, or
``CLOSED``. ``INSIDE`` counts helpers that may hold a chunk. ``ASLEEP`` is not 0 if a helper sleeps
or is about to. ``ALLOWED`` is how many helpers may join. ``STOP`` ends them.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import platform
import sys
import threading
from typing import Any

import numpy as np

from ....interrupts import defer_interrupts
from ...runtime import threads
from .atomics import add, call_words, exchange, load, relax, store, ticks
from .jit import compiled

# Bytes from the block's start; words that different threads write lie in different cache lines.
OPEN, NEXT, INSIDE, ASLEEP, STOP = 0, 64, 128, 192, 256
ALLOWED, CHUNKS, FUNCTION, ARGUMENTS = 320, 328, 336, 344
SYSCALL, FUTEX, YIELD = 384, 392, 400  # the C function, and numbers of calls of the system
WORDS = 64
CLOSED = 1 << 40
LOOKS = 30000  # for work, each some 60 cycles, until a helper sleeps
FEW = 200  # looks of a helper that was taken off its core: another process wants that
AWAY = 100_000  # cycles between two looks that show it
PATIENCE = 1000  # looks until a waiting caller offers its core to others

_CALLS = {"x86_64": (202, 24), "aarch64": (98, 124)}.get(platform.machine(), (0, 0))
_WAIT, _WAKE, _ALL = 128, 129, 1 << 30  # private to the process

_block: Any = None  # the words, never freed: a helper may look while the process ends
_base = 0  # address of the block


def available() -> bool:
    """Whether this system has what the pool is made of."""
    return sys.platform == "linux" and _CALLS[0] != 0 and threads.LIMIT > 1


@compiled
def _take(base: Any) -> Any:
    function, arguments, chunks = load(base + FUNCTION), load(base + ARGUMENTS), load(base + CHUNKS)
    while True:
        k = add(base + NEXT, 1)
        if k >= chunks:
            return
        call_words(function, (arguments, k))


@compiled
def _help(base: Any, number: Any) -> Any:
    looks, most, word, last = 0, LOOKS, base + ASLEEP, ticks()
    while load(base + STOP) == 0:
        if load(base + NEXT) < CLOSED and number < load(base + ALLOWED):
            add(base + INSIDE, 1)
            # Only now is the job sure to stay: the caller waits for all that are inside.
            if load(base + NEXT) < load(base + CHUNKS):
                _take(base)
                looks, last = 0, ticks()
            add(base + INSIDE, -1)
        relax()
        looks += 1
        now = ticks()
        if now - last > AWAY:
            most = FEW
        last = now
        if looks > most:
            looks, most = 0, min(LOOKS, most + most // 8)
            store(word, 1)
            if load(base + NEXT) >= CLOSED and load(base + STOP) == 0:
                call_words(load(base + SYSCALL), (load(base + FUTEX), word, _WAIT, 1, 0, 0, 0))
                last = ticks()


@compiled(signature="i8,i8,i8,i8,i8")
def _run(base: Any, function: Any, arguments: Any, chunks: Any, helpers: Any) -> Any:
    if exchange(base + OPEN, 1) != 0:  # another thread of Python has the pool
        for k in range(chunks):
            call_words(function, (arguments, k))
        return
    store(base + FUNCTION, function)
    store(base + ARGUMENTS, arguments)
    store(base + CHUNKS, chunks)
    store(base + ALLOWED, helpers)
    store(base + NEXT, 0)
    word, syscall = base + ASLEEP, load(base + SYSCALL)
    if load(word) != 0 and exchange(word, 0) != 0:
        call_words(syscall, (load(base + FUTEX), word, _WAKE, _ALL, 0, 0, 0))
    _take(base)
    store(base + CHUNKS, 0)
    store(base + NEXT, CLOSED)
    looks = 0
    while load(base + INSIDE) != 0:
        relax()
        looks += 1
        if looks > PATIENCE:
            looks = 0
            call_words(syscall, (load(base + YIELD), 0, 0, 0, 0, 0, 0))
    store(base + OPEN, 0)


def run(function: int, arguments: int, chunks: int, workers: int) -> None:
    """Call ``function(arguments, k)`` for each ``k`` below ``chunks``, here and in helpers.

    Args:
        function: Address of a C function of two words that returns one; it must not raise.
        arguments: Address of what it reads, valid until this returns.
        chunks: How many there are.
        workers: Threads at most, this one among them.
    """
    if not _base:
        with defer_interrupts():
            _start()
    _run(_base, function, arguments, chunks, workers - 1)


def share(kernel: Any, args: tuple[Any, ...], n: int, cut: int, chunks: int, workers: int) -> bool:
    """Call a compiled kernel on chunks of a range, here and in helpers; False if it cannot be.

    Args:
        kernel: It returns nothing, and was called with such arguments before.
        args: Its arguments.
        n: Size of the range.
        cut: A bit for each argument that is cut along its first dim. 0: the last two are numbers,
            in whose place stand where a chunk begins and ends.
        chunks: How many there are.
        workers: Threads at most, this one among them.
    """
    if not _base:
        with defer_interrupts():
            _start()
    run: Any = _run
    found: bool = kernel.share(run.address, _base, chunks, workers - 1, n, cut, *args)
    return found


def _start() -> None:
    global _block, _base
    words = np.zeros(WORDS + 8, np.int64)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(words))
    base = -(-words.ctypes.data // 64) * 64
    syscall = ctypes.cast(ctypes.CDLL(None).syscall, ctypes.c_void_p).value or 0
    given = {NEXT: CLOSED, SYSCALL: syscall, FUTEX: _CALLS[0], YIELD: _CALLS[1]}
    for at, value in given.items():
        words[(base - words.ctypes.data + at) // 8] = value
    for k in range(threads.LIMIT - 1):
        name = f"lowtide-helper_{k}"
        threading.Thread(target=_help, args=(base, k), name=name, daemon=True).start()
    _block, _base = words, base


def _stop() -> None:
    # They would look at words, and run code, that the end of the process takes away.
    if _base:
        at = (_base - _block.ctypes.data) // 8
        _block[at + STOP // 8], _block[at + ASLEEP // 8] = 1, 0
        word = ctypes.c_void_p(_base + ASLEEP)
        ctypes.CDLL(None).syscall(_CALLS[0], word, _WAKE, _ALL, None, None, 0)


def _forget() -> None:
    global _base
    _base = 0  # threads do not survive a fork


atexit.register(_stop)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
