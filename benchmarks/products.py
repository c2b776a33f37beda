"""Matrix products by library: OpenBLAS as NumPy has it, MKL, BLIS.

Each library makes the same products of float32 matrices through its C function, with one thread, as
lowtide calls BLAS: a product is cut among lowtide's own threads, and each call uses the thread that
makes it. The sizes are those of the models of ``training_step.py``. Prints GFLOP/s, medians of
alternating runs, and the geometric mean of each library's times over OpenBLAS's.

MKL is found by ``--mkl DIRECTORY`` (with ``libmkl_rt.so.3``; package ``mkl`` of the index), BLIS by
``--blis FILE`` (the module ``blis/cy*.so``; package ``blis`` of the index).

    OMP_NUM_THREADS=1 python benchmarks/products.py --mkl venv/lib
"""

from __future__ import annotations

import argparse
import ctypes
import glob
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from lowtide.framework.kernels.runtime import blas

# (m, k, n, transposed a, transposed b): layers forward, their gradients of inputs and of weights.
SIZES = [
    (1024, 256, 768, False, True),
    (1024, 256, 1024, False, True),
    (1024, 1024, 256, False, True),
    (1024, 768, 256, False, False),
    (768, 1024, 256, True, False),
    (1024, 1024, 256, True, False),
    (64, 64, 64, False, True),
    (64, 32, 64, False, True),
    (64, 64, 32, False, False),
    (128, 64, 128, False, True),
    (32, 128, 512, False, True),
    (256, 784, 256, False, True),
    (784, 256, 256, True, False),
    (16, 64, 256, False, True),
    (64, 576, 3136, False, False),
    (2048, 2048, 2048, False, False),
]
ROW_MAJOR, PLAIN, TRANSPOSED = 101, 111, 112
Product = Callable[[Any, Any, Any], None]


def cblas(function: Any) -> Product:
    """A library's ``cblas_sgemm`` with 64-bit integers, for arrays and their transposes."""
    function.restype = None
    long, pointer, number = ctypes.c_int64, ctypes.c_void_p, ctypes.c_float
    function.argtypes = [
        *[ctypes.c_int] * 3, long, long, long, number, pointer, long, pointer, long, number,
        pointer, long,
    ]  # fmt: skip

    def multiply(a: Any, b: Any, out: Any) -> None:
        (m, n), k = out.shape, a.shape[1]
        ta, tb = (PLAIN if x.flags.c_contiguous else TRANSPOSED for x in (a, b))
        lda, ldb = (max(x.strides) // 4 for x in (a, b))
        function(
            ROW_MAJOR, ta, tb, m, n, k, 1.0, a.ctypes.data, lda, b.ctypes.data, ldb, 0.0,
            out.ctypes.data, n,
        )  # fmt: skip

    return multiply


def openblas() -> Product:
    kind = ctypes.CFUNCTYPE(None)
    return cblas(ctypes.cast(kind(blas.symbol(blas.GEMM["f"])), ctypes.CFUNCTYPE(None)))


def other_openblas(file: str) -> Product:
    library = ctypes.CDLL(file)
    library.scipy_openblas_set_num_threads64_(1)
    return cblas(getattr(library, blas.GEMM["f"]))


def mkl(directory: str) -> Product:
    os.environ.setdefault("MKL_THREADING_LAYER", "SEQUENTIAL")
    return cblas(ctypes.CDLL(os.path.join(directory, "libmkl_rt.so.3")).cblas_sgemm_64)


def blis(pattern: str) -> Product:
    function = ctypes.CDLL(glob.glob(pattern)[0]).bli_sgemm
    function.restype = None
    one, zero = ctypes.c_float(1), ctypes.c_float(0)
    word, ref = ctypes.c_int64, ctypes.c_void_p
    operand = [ref, word, word]
    function.argtypes = [
        ctypes.c_int, ctypes.c_int, word, word, word, ref, *operand, *operand, ref, *operand,
    ]  # fmt: skip

    def multiply(a: Any, b: Any, out: Any) -> None:
        words = [(x.ctypes.data, x.strides[0] // 4, x.strides[1] // 4) for x in (a, b, out)]
        function(
            0, 0, *out.shape, a.shape[1], ctypes.addressof(one), *words[0], *words[1],
            ctypes.addressof(zero), *words[2],
        )  # fmt: skip

    return multiply


def operands(m: int, k: int, n: int, ta: bool, tb: bool) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(0)
    a = rng.standard_normal((k, m) if ta else (m, k), np.float32)
    b = rng.standard_normal((n, k) if tb else (k, n), np.float32)
    return a.T if ta else a, b.T if tb else b, np.empty((m, n), np.float32)


def timed(multiply: Product, arrays: tuple[Any, Any, Any], times: int) -> float:
    start = time.perf_counter()
    for _ in range(times):
        multiply(*arrays)
    return (time.perf_counter() - start) / times


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mkl", help="directory of libmkl_rt.so.3")
    parser.add_argument("--openblas", help="another build, of the package scipy-openblas64")
    parser.add_argument("--blis", help="pattern of the shared library")
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    libraries = {"openblas": openblas()}
    if args.openblas:
        libraries["other"] = other_openblas(args.openblas)
    if args.mkl:
        libraries["mkl"] = mkl(args.mkl)
    if args.blis:
        libraries["blis"] = blis(args.blis)
    logs: dict[str, list[float]] = {name: [] for name in libraries}
    print(f"{'m x k x n':>20}" + "".join(f"{name:>10}" for name in libraries), "(GFLOP/s)")
    for m, k, n, ta, tb in SIZES:
        arrays = operands(m, k, n, ta, tb)
        expected = np.array(arrays[0], np.float64) @ np.array(arrays[1], np.float64)
        for name, multiply in libraries.items():
            arrays[2].fill(np.nan)
            multiply(*arrays)
            np.testing.assert_allclose(arrays[2], expected, rtol=0, atol=2e-5 * k, err_msg=name)
        times = max(1, round(2e8 / (2 * m * k * n)))
        took: dict[str, list[float]] = {name: [] for name in libraries}
        with OneThread():
            for _ in range(args.rounds):
                for name, multiply in libraries.items():
                    took[name].append(timed(multiply, arrays, times))
        medians = {name: statistics.median(t) for name, t in took.items()}
        for name, t in medians.items():
            logs[name].append(np.log(t / medians["openblas"]))
        kind = f"{m}{'t' if ta else ''} x {k} x {n}{'t' if tb else ''}"
        print(
            f"{kind:>20}" + "".join(f"{2e-9 * m * k * n / t:>10.1f}" for t in medians.values()),
            flush=True,
        )
    means = {name: float(np.exp(np.mean(found))) for name, found in logs.items()}
    print(f"{'time over OpenBLAS':>20}" + "".join(f"{x:>10.2f}" for x in means.values()))
    return 0


class OneThread:
    """NumPy's BLAS uses one thread inside of it."""

    def __enter__(self) -> None:
        blas.set_num_threads(1)

    def __exit__(self, *_: Any) -> None:
        blas.set_num_threads(len(os.sched_getaffinity(0)))


if __name__ == "__main__":
    sys.exit(main())
