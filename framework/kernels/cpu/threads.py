"""Run a compiled loop on parts of its arrays at once.

Numba's own threads are not used: one of its layers ends the process when two Python threads meet in
it, the others when a worker is forked. The kernels here release the interpreter's lock, so plain
threads do. They are started on first use; OMP_NUM_THREADS limits them, as it does BLAS.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from itertools import pairwise
from typing import Any

from ..silence import run_nested

SHARE = 1 << 19  # elements below which another thread costs more than it saves

_pool: ThreadPoolExecutor | None = None


def count() -> int:
    """How many threads a kernel may use."""
    try:
        asked = int(os.environ.get("OMP_NUM_THREADS", "").split(",")[0])
    except ValueError:
        asked = 0
    found = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, min(asked or 8, found or 1, 8))


LIMIT = count()  # the same as long as the process lives: workspaces are made for so many
_wanted = LIMIT  # at most that


def get_num_threads() -> int:
    """How many threads kernels use at most."""
    return _wanted


def set_num_threads(n: int) -> None:
    """Let kernels, and BLAS where it can be told, use at most ``n`` threads.

    More than the cores, or than OMP_NUM_THREADS was at the start, are not used.

    Raises:
        RuntimeError: ``n`` is not positive.
        TypeError: ``n`` is no integer.
    """
    global _wanted
    if not isinstance(n, int) or isinstance(n, bool):
        raise TypeError(f"set_num_threads expects an int, but got {type(n).__name__}.")
    if n <= 0:
        raise RuntimeError(f"set_num_threads expects a positive integer; got {n}.")
    from . import blas

    _wanted = min(n, LIMIT)
    blas.set_num_threads(_wanted)


def spread(run: Callable[..., None], elements: int, n: int, *arrays: Any) -> None:
    """Call ``run(*arrays)``, in parts along the first dimension where that is worth it.

    Args:
        run: Compiled; what it does to an index may depend on that index of the arrays only.
        elements: How much work there is.
        n: Size of the first dimension; arrays of that size are cut, all else is passed as it is.
        *arrays: Arrays and scalars.
    """
    parts = min(_wanted, elements // SHARE, n)
    if parts <= 1:
        run(*arrays)
        return
    bounds = [n * k // parts for k in range(parts + 1)]
    cut = [
        [a[s:e] if getattr(a, "ndim", 0) and a.shape[0] == n else a for a in arrays]
        for s, e in pairwise(bounds)
    ]
    started = [_threads().submit(run, *part) for part in cut[1:]]
    run(*cut[0])
    for task in started:
        task.result()


def split(run: Callable[[int, int, int], None], n: int, parts: int) -> None:
    """Call ``run(part, start, stop)`` for ``parts`` shares of ``range(n)``, side by side."""
    bounds = [n * k // parts for k in range(parts + 1)]
    shares = [(k, *b) for k, b in enumerate(pairwise(bounds))]
    for first in range(0, parts, _wanted):
        here, *others = shares[first : first + _wanted]
        started = [_threads().submit(run_nested, run, *share) for share in others]
        try:
            run(*here)
        finally:
            wait(started)  # they write to arrays that the caller may give back
        for task in started:
            task.result()


def _threads() -> ThreadPoolExecutor:
    global _pool
    if _pool is None:
        _pool = ThreadPoolExecutor(max(1, LIMIT - 1), thread_name_prefix="lowtide-kernel")
    return _pool


def _forget() -> None:
    global _pool
    _pool = None  # threads do not survive a fork


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
