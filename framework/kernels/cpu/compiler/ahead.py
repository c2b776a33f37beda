"""Compilation ahead of use: kernels that most models need, by several processes at once.

Which those are stands in ``standard.py``, as the benchmark's models met them
(``python -m benchmarks.standard_kernels``). ``lowtide compile`` makes them once after installation;
what else a program needs is compiled when it is first called.
"""

from __future__ import annotations

import os
import selectors
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib import import_module
from tempfile import TemporaryFile
from typing import Any

from ...formula.declaration import loop_named
from ...runtime import cores
from . import library
from .kernel import Kernel
from .standard import KERNELS

_PACKAGE = __name__.rpartition(".compiler.")[0]
_ROOT = _PACKAGE.partition(".")[0] + "."  # lines of formulas have full names of modules


def described(kernel: Kernel, words: str) -> str:
    """Return the line of ``standard.py`` for a kernel and a signature."""
    module = kernel.py_func.__module__.removeprefix(_PACKAGE + ".")
    fast = "+".join(sorted(kernel.options.get("fastmath") or ())) or "-"
    return f"{module} {kernel.py_func.__qualname__} {words} {fast}"


def kernel_of(line: str) -> tuple[Kernel, str]:
    """Return the kernel and the signature of a line."""
    module, name, words, fast = line.split()
    if module.startswith(_ROOT):
        import_module(module)
        return loop_named(module, name), words
    found: Any = getattr(import_module(f"{_PACKAGE}.{module}"), name)
    if not isinstance(found, Kernel):  # made by a function, for one signature
        options = {"nogil": True, "error_model": "numpy"}
        fastmath = False if fast == "-" else set(fast.split("+"))
        found = Kernel(found, options | {"fastmath": fastmath}, words)
    return found, words


def missing() -> list[str]:
    """Return the lines whose libraries are not there, or stale."""
    return [line for line in KERNELS.split("\n") if line and library.load(*kernel_of(line)) is None]


def compile_all(
    jobs: int | None = None, told: Callable[[int, int, str], None] | None = None
) -> tuple[int, float]:
    """Compile what is missing; return how many kernels that were, and the seconds it took.

    Args:
        jobs: Processes at once, 1 or more; one for each core by default.
        told: Called after each kernel with how many are compiled, of how many, and its name; once
            before the first, without a name.

    Raises:
        RuntimeError: A process failed, or kernels cannot be kept on this machine.
    """
    if not library.supported():
        raise RuntimeError("kernels are kept on disk by CPython on x86-64 Linux only")
    if why := library.problem():
        raise RuntimeError(f"compiled kernels cannot be kept: {why}")
    start = time.perf_counter()
    todo = missing()
    jobs = max(1, min(jobs or cores.usable(), len(todo)))
    with ExitStack() as stack:
        workers = [stack.enter_context(_Worker(todo[k::jobs])) for k in range(jobs if todo else 0)]
        for done, name in enumerate(_names_from([w.process.stdout for w in workers])):
            if told is not None:
                told(done, len(todo), name)
        failed = [error for w in workers for error in [w.error()] if error]
    if failed:
        raise RuntimeError(f"a process that compiled kernels failed: {failed[0]}")
    return len(todo), time.perf_counter() - start


class _Worker:
    # A process that compiles the kernels of some lines; it ends with the block that it is used in.

    def __init__(self, lines: list[str]) -> None:
        with ExitStack() as stack:
            self.errors = stack.enter_context(TemporaryFile())
            self.process = subprocess.Popen(
                [sys.executable, "-c", f"from {__name__} import main; main()"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self.errors,
            )
            self.open = stack.pop_all()
        self.lines = lines

    def __enter__(self) -> _Worker:
        assert self.process.stdin is not None
        self.process.stdin.write("\n".join(self.lines).encode())
        self.process.stdin.close()
        return self

    def __exit__(self, *_: Any) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.open.close()

    def error(self) -> str:
        """What it wrote to its standard error, if it failed."""
        code = self.process.wait()
        self.errors.seek(0)
        written = self.errors.read().decode(errors="replace")
        return (written[-2000:] or f"exit status {code}") if code else ""


def _names_from(pipes: list[Any]) -> Iterator[str]:
    # An empty name, and then those that processes write, a line each, until all pipes are closed.
    yield ""
    with selectors.DefaultSelector() as selector:
        for pipe in pipes:
            selector.register(pipe, selectors.EVENT_READ)
        while selector.get_map():
            for key, _ in selector.select():
                line = key.fileobj.readline()  # type: ignore[union-attr]
                if line:
                    yield line.decode().strip()
                else:
                    selector.unregister(key.fileobj)


def main() -> None:
    """Compile the kernels whose lines stand on the standard input; write the name of each."""
    for line in sys.stdin.read().split("\n"):
        kernel, words = kernel_of(line)
        kernel.prepare(words)
        os.write(1, f"{kernel.__name__.strip('_')}\n".encode())
