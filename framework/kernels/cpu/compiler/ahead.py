"""Compilation ahead of use: kernels that most models need, by several processes at once.

Which those are stands in ``standard.py``, as the benchmark's models met them
(``python -m benchmarks.standard_kernels``). ``lowtide compile`` makes them once after installation;
what else a program needs is compiled when it is first called.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from importlib import import_module
from typing import Any

from . import library
from .kernel import Kernel
from .standard import KERNELS

_PACKAGE = __name__.rpartition(".compiler.")[0]


def described(kernel: Kernel, words: str) -> str:
    """Return the line of ``standard.py`` for a kernel and a signature."""
    module = kernel.py_func.__module__.removeprefix(_PACKAGE + ".")
    fast = "+".join(sorted(kernel.options.get("fastmath") or ())) or "-"
    return f"{module} {kernel.py_func.__qualname__} {words} {fast}"


def kernel_of(line: str) -> tuple[Kernel, str]:
    """Return the kernel and the signature of a line."""
    module, name, words, fast = line.split()
    found: Any = getattr(import_module(f"{_PACKAGE}.{module}"), name)
    if not isinstance(found, Kernel):  # made by a function, for one signature
        options = {"nogil": True, "error_model": "numpy"}
        fastmath = False if fast == "-" else set(fast.split("+"))
        found = Kernel(found, options | {"fastmath": fastmath}, words)
    return found, words


def missing() -> list[str]:
    """Return the lines whose libraries are not there, or stale."""
    return [line for line in KERNELS.split("\n") if line and library.load(*kernel_of(line)) is None]


def compile_all(jobs: int | None = None) -> tuple[int, float]:
    """Compile what is missing; return how many kernels that were, and the seconds it took.

    Args:
        jobs: Processes at once, 1 or more; one for each core by default.

    Raises:
        RuntimeError: A process failed, or kernels cannot be kept on this machine.
    """
    if not library.supported():
        raise RuntimeError("kernels are kept on disk by CPython on x86-64 Linux only")
    if why := library.problem():
        raise RuntimeError(f"compiled kernels cannot be kept: {why}")
    start = time.perf_counter()
    todo = missing()
    jobs = max(1, min(jobs or len(os.sched_getaffinity(0)), len(todo)))
    command = [sys.executable, "-c", f"from {__name__} import main; main()"]
    workers = []
    try:
        for k in range(jobs if todo else 0):
            worker = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
            workers.append((worker, "\n".join(todo[k::jobs]).encode()))
            assert worker.stdin is not None
            worker.stdin.write(workers[-1][1])
            worker.stdin.close()
        failed = [error for w, _ in workers for error in [_error_of(w)] if error]
    finally:
        for worker, _ in workers:
            worker.kill()
            worker.wait()
    if failed:
        raise RuntimeError(f"a process that compiled kernels failed: {failed[0]}")
    return len(todo), time.perf_counter() - start


def _error_of(worker: Any) -> str:
    said = worker.stderr.read().decode(errors="replace")
    worker.stderr.close()
    return said[-2000:] if worker.wait() else ""


def main() -> None:
    """Compile the kernels whose lines stand on the standard input."""
    for line in sys.stdin.read().split("\n"):
        kernel, words = kernel_of(line)
        kernel.prepare(words)
