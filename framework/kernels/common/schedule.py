"""The schedule of elementwise work: which arrays are cut, along which dim, for how many threads.

What an elementwise kernel writes at a place depends on nothing but that place of its inputs. So it
may be called on chunks of its arrays, in any order, and NumPy and compiled loops release the
interpreter's lock while they compute. The same numbers come out, bit for bit, however many threads
there are. Whatever cuts arrays goes through :func:`parallel_slices`:

====================== ==============================================================
:func:`parallel_rows`  compiled loops over flat arrays or rows: the first dim
``shared_ufuncs``      NumPy's calls of an op declared ``elementwise``: rows
``copy``               copies of three dims: the longest
``reduce``             sums: a dim that is kept, some columns at a time
====================== ==============================================================

Two know more than slices say, and cut numbers instead (``threads.parallel_for``): strided walks,
where memory is cut, not arrays (``strided``), and one bit an element (``ops/elementwise/bitmask``).
``mixed_dtype`` cuts each chunk once more, into tiles that stay in a cache.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ..runtime import threads, thresholds


def parallel_slices(
    run: Callable[..., None],
    arrays: Sequence[Any],
    axes: Sequence[int | None],
    n: int,
    work: int,
    together: int = 1,
) -> None:
    """Call ``run(*arrays)``, on chunks of the arrays by several threads if that is worth it.

    Args:
        run: What it does at an index of the dim that is cut depends on that index only.
        arrays: Arrays and numbers.
        axes: Which dim of each is cut; None for what every chunk gets completely.
        n: Size of that dim.
        work: How much there is to do, in additions of two elements.
        together: Indices that no chunk separates, from the first on.
    """
    units = n // together
    if threads.workers(work, units) <= 1:
        run(*arrays)
        return
    before = [None if k is None else (slice(None),) * k for k in axes]
    out = arrays[0]

    def chunk(start: int, stop: int) -> None:
        here = slice(start * together, stop * together if stop < units else n)
        cut = out if before[0] is None else out[(*before[0], here)]
        # A kernel asks whether an input is the result: then its chunk is that, too.
        run(
            *[
                cut if a is out else a if b is None else a[(*b, here)]
                for a, b in zip(arrays, before, strict=True)
            ]
        )

    threads.parallel_for(chunk, work, units)


def parallel_rows(run: Callable[..., None], work: int, n: int, *arrays: Any) -> None:
    """Call ``run(*arrays)``, cut along the first dim into chunks if that is worth it.

    Args:
        run: What it does to an index depends on that index of the arrays only.
        work: How much there is to do, in additions of two elements.
        n: Size of the first dim; arrays of that size are cut, all else is passed as it is.
        *arrays: Arrays and numbers.
    """
    if work >= 2 * thresholds.SHARED and _shared(run, work, n, arrays):
        return
    if threads.workers(work, n) <= 1:
        run(*arrays)
        return
    axes = [0 if getattr(a, "ndim", 0) and a.shape[0] == n else None for a in arrays]
    parallel_slices(run, arrays, axes, n, work)


def parallel_range(run: Callable[..., None], work: int, n: int, *arrays: Any) -> None:
    """Call ``run(*arrays, start, stop)`` for chunks of ``range(n)`` if that is worth it.

    Args:
        run: What it does for a number must not depend on the others beside it.
        work: How much there is to do, in additions of two elements.
        n: Size of the range.
        *arrays: Arrays and numbers, passed as they are.
    """
    if work >= 2 * thresholds.SHARED and _shared(run, work, n, (*arrays, 0, n), cut=0):
        return
    threads.parallel_for(partial(run, *arrays), work, n)


def share_units(kernel: Any, arrays: tuple[Any, ...], units: int, chunks: int) -> None:
    """Call ``kernel(*arrays, chunks, start, stop)`` for ranges of units, by as many threads.

    Args:
        kernel: A compiled kernel. Each chunk has rooms of its own, which it finds by ``start``.
        arrays: Its arrays and numbers.
        units: Size of the range.
        chunks: How many there are, and threads at most.
    """
    from ..cpu.support import work_pool

    if chunks == 1 or not work_pool.available():
        kernel(*arrays, 1, 0, units)
        return
    arguments = (*arrays, chunks, 0, units)
    if not work_pool.share(kernel, arguments, units, 0, chunks, chunks):
        kernel(*arrays, chunks, 0, 0)  # compiles it: a range without units
        work_pool.share(kernel, arguments, units, 0, chunks, chunks)


def _shared(run: Any, work: int, n: int, args: tuple[Any, ...], cut: int | None = None) -> bool:
    # By threads in compiled code, if it is a kernel that has run before.
    workers = threads.workers(work, n, thresholds.SHARED)
    if workers <= 1 or not hasattr(run, "share"):
        return False
    from ..cpu.support import work_pool

    if not work_pool.available():
        return False
    if cut is None:
        shapes = [getattr(a, "shape", ()) for a in args]
        cut = sum(1 << k for k, shape in enumerate(shapes) if shape and shape[0] == n)
        if not cut:
            return False
    rounds = max(1, min(4, work // (workers * thresholds.CHUNK)))
    chunks = min(n, workers * rounds)  # as many for each, where none is excluded
    return work_pool.share(run, args, n, cut, chunks, workers)
