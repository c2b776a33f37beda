"""Which LAPACK decomposes matrices, and how many threads it uses.

OpenBLAS splits the steps of a factorization among its threads, and waits for all of them after each
step. For matrices of up to ``ALONE`` rows or columns that gains nothing, and beside another busy
process a factorization of 128 x 128 takes a hundred times as long (docs/benchmarks.md). So these
use one thread of BLAS each, and large stacks of them are shared out among threads of lowtide.
"""

from __future__ import annotations

import functools

import numpy as np

from ...errors import LinAlgError
from ...kernels.cpu.linalg import lapack
from ...kernels.runtime import blas, threads

ALONE = 256  # size of matrices up to which a factorization uses one thread of BLAS
SMALL = 32  # size up to which NumPy's own calls cost less, though they compute in float64
SHARED = 1 << 22  # operations for each thread that shares a stack
EACH = 1 << 21  # operations for a matrix of a shared stack: between two, a thread waits for Python


def decomposition(work=0):
    """Declare that a kernel calls LAPACK for each matrix of its inputs.

    Args:
        work: Operations for a square matrix, as a multiple of its size to the third. Large stacks
            are then shared out among threads: what the kernel computes for one matrix does not
            depend on the others, and its results have the batch dims of its inputs. 0: they are
            not.
    """

    def declare(kernel):
        @functools.wraps(kernel)
        def run(xp, *arrays, **attributes):
            matrix = arrays[0]
            n = min(matrix.shape[-2:])
            if xp is not np or n > ALONE:
                return kernel(xp, *arrays, **attributes)
            if work and matrix.ndim > 2 and (n <= SMALL or work * n**3 >= EACH):
                total = int(work * n * matrix.size)
                workers = threads.workers(total, max(matrix.shape[:-2]), SHARED)
                if workers > 1 and blas.controllable() and _alike(arrays):
                    return alone(_shared, kernel, workers, arrays, attributes)
            return alone(functools.partial(kernel, xp, *arrays, **attributes))

        return run

    return declare


def alone(f, *args):
    """Call ``f(*args)`` while NumPy's BLAS and SciPy's use one thread for each call."""
    return blas.alone(blas.SCIPY.alone, f, *args)


def scipys(name, array):
    """Return SciPy's function for a routine of LAPACK, or ``trsm`` of BLAS, and a dtype."""
    from scipy.linalg import get_blas_funcs, get_lapack_funcs

    if threads.get_num_threads() < threads.LIMIT:  # SciPy's threads may have begun only now
        blas.SCIPY.set_num_threads(threads.get_num_threads())
    get = get_blas_funcs if name == "trsm" else get_lapack_funcs
    return get((name,), (array,))[0]


def linalg(xp, matrices):
    """Return what decomposes matrices: ``xp.linalg``, or what is faster than NumPy's."""
    m, n = matrices.shape[-2:]
    return lapack if xp is np and m * n > SMALL**2 and lapack.available() else xp.linalg


def _alike(arrays):
    # True if all arrays are stacks of matrices with one batch shape.
    shapes = {getattr(a, "shape", ())[:-2] for a in arrays}
    return len(shapes) == 1


def _shared(kernel, workers, arrays, attributes):
    # A part of the stack for each thread, along its longest dim.
    batch = arrays[0].shape[:-2]
    axis = max(range(len(batch)), key=batch.__getitem__)
    before = (slice(None),) * axis
    edges = threads.bounds(batch[axis], min(batch[axis], 4 * workers))
    parts = [None] * len(edges)

    def part(k, start, stop):
        made = kernel(np, *[a[(*before, slice(start, stop))] for a in arrays], **attributes)
        parts[k] = made if isinstance(made, tuple) else (made,)

    try:
        threads.parallel_calls(part, [(k, *edge) for k, edge in enumerate(edges)], workers)
    except (np.linalg.LinAlgError, LinAlgError):
        return kernel(np, *arrays, **attributes)  # whose message counts from the first matrix
    made = [np.concatenate(results, axis) for results in zip(*parts, strict=True)]
    return made[0] if len(made) == 1 else tuple(made)
