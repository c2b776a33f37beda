"""``lowtide doctor``: what this machine offers, and what is missing."""

from __future__ import annotations

import mmap
import os
import platform
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import lowtide
from lowtide.framework.kernels.cpu.compiler import library
from lowtide.framework.kernels.runtime import blas, cores, kernel_seconds, mkl
from lowtide.framework.kernels.runtime.cache_folder import Unusable
from lowtide.framework.memory.ledger import format_bytes

# What the framework needs, and what only some work needs: how to install it, and what for.
REQUIRED = (
    "numpy",
    "scipy",
    "numba",
    "psutil",
    "nvidia-ml-py",
    "ml_dtypes",
    "rich",
    "matplotlib",
)
OPTIONAL = {
    "cupy": ("cupy-cuda13x", "cupy-cuda12x", "cupy"),
    "torch": ("torch",),
    "mkl": ("mkl",),
}
HINTS = {
    "cupy": "runs on NVIDIA GPUs: pip install 'lowtide[cuda]'",
    "torch": "only for the parity tests: pip install 'lowtide[parity]'",
    "mkl": "faster products of matrices on Intel processors: pip install 'lowtide[mkl]'",
}


def doctor() -> int:
    """Print versions, devices, threads and memory; name what is missing and how to get it.

    Returns:
        0 if everything that lowtide requires is there, else 1.
    """
    print(f"lowtide {lowtide.__version__} in {Path(lowtide.__path__[0])}")
    print(f"Python {platform.python_version()}, {platform.system()} {platform.machine()}")
    print("\nPackages")
    missing = [name for name in REQUIRED if _version(name) is None]
    for name in REQUIRED:
        print(f"  {name:<14} {_version(name) or 'MISSING'}")
    for name, distributions in OPTIONAL.items():
        found = next(filter(None, map(_version, distributions)), None)
        print(f"  {name:<14} {found or 'not installed: ' + HINTS[name]}")
    print("\nDevices")
    for line in _devices():
        print(f"  {line}")
    print("\nMemory")
    for line in _memory():
        print(f"  {line}")
    print("\nCompiled kernels")
    for line in _kernels():
        print(f"  {line}")
    print("\nTimes of kernels")
    for line in _times():
        print(f"  {line}")
    if missing:
        print(f"\nMissing: {', '.join(missing)}. Install with: pip install {' '.join(missing)}")
        return 1
    print("\nNothing that lowtide requires is missing.")
    return 0


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _devices() -> Iterator[str]:
    limits = [f"{k}={os.environ[k]}" for k in _THREADS if k in os.environ]
    said = f" ({', '.join(limits)})" if limits else ""
    yield f"cpu: {_processor()}, {cores.usable()} cores usable{said}"
    yield from _blas()
    yield "meta: shapes and bytes without values, always there"
    yield from _gpus()


def _blas() -> Iterator[str]:
    try:
        used = mkl.version()
    except OSError as error:
        yield f"products: none, {error}"
        return
    if used is not None:
        yield f"products and decompositions: {used}"
        yield f"small matrices: OpenBLAS with kernels for {blas.kernels()}"
        return
    if os.environ.get(mkl.VARIABLE) == "0":
        yield f"{mkl.VARIABLE}=0 keeps MKL from being used"
    found = blas.kernels()
    if found is None:
        yield "products: NumPy's BLAS is not OpenBLAS"
        return
    yield f"products: OpenBLAS with kernels for {found}"
    if os.environ.get(_CORE):
        yield f"{_CORE} has chosen these; without it OpenBLAS takes those for the processor"


_CORE = "OPENBLAS_CORETYPE"
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _gpus() -> Iterator[str]:
    # NVML answers without a CUDA context, and without CuPy.
    try:
        import pynvml

        pynvml.nvmlInit()
    except ImportError:
        yield "cuda: unknown, nvidia-ml-py is missing"
        return
    except pynvml.NVMLError as error:
        yield f"cuda: none ({error})"
        return
    try:
        count = pynvml.nvmlDeviceGetCount()
        for index in range(count):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            name = pynvml.nvmlDeviceGetName(handle)
            total = int(pynvml.nvmlDeviceGetMemoryInfo(handle).total)
            yield f"cuda:{index}: {name}, {format_bytes(total)}"
        yield f"driver {pynvml.nvmlSystemGetDriverVersion()}"
        if count and not any(map(_version, OPTIONAL["cupy"])):
            yield "cupy is missing, so lowtide cannot use them: pip install 'lowtide[cuda]'"
    finally:
        pynvml.nvmlShutdown()


def _memory() -> Iterator[str]:
    try:
        import psutil
    except ImportError:
        yield "unknown, psutil is missing"
        return
    machine = psutil.virtual_memory()
    yield f"machine: {format_bytes(machine.available)} of {format_bytes(machine.total)} available"
    yield f"this process: {format_bytes(psutil.Process().memory_info().rss)} resident"


def _times() -> Iterator[str]:
    known = kernel_seconds.of_machine()
    count = sum(not key.startswith(kernel_seconds.FAULT) for key in known.times)
    yield f"{count} measured with {known.threads} thread{'s' if known.threads > 1 else ''}"
    fault = known.times.get(kernel_seconds.FAULT)
    if fault is not None:
        yield f"a page that the system gives takes {fault[1] * mmap.PAGESIZE * 1e6:.2f} us"
    yield "`lowtide.fit` measures those it has not met, once, to predict how long a step takes"


def _kernels() -> Iterator[str]:
    if not library.supported():
        yield "Numba compiles them in each process: they are kept on x86-64 Linux, by CPython"
        return
    try:
        count, nbytes = library.inventory()
    except Unusable as error:
        yield f"not kept: {error}"
        return
    yield f"{count} in {library.folder()}, {format_bytes(nbytes)}"
    yield "`lowtide compile` makes those that most models need, `--clear` removes all"
