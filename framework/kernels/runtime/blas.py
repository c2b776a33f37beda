"""One thread for each call of BLAS, while threads of ours make the calls.

OpenBLAS splits each product evenly among its own threads, and waits for all of them, also for one
that the system has not scheduled: beside another busy process a product takes ten times as long.
And threads of ours would multiply with its. So products are cut among our threads
(``kernels/cpu/linalg/gemm.py``), and BLAS uses one. Its number of threads is a setting
of the process, so it is changed while any such section runs, counted, and put back: NumPy's
products outside of lowtide are as they were.

Its threads also stay awake after a product and take the cores from ours: :func:`doze_sooner`.
SciPy comes with another OpenBLAS, which has other threads: :data:`SCIPY`. Products go to MKL
where that is installed (:func:`gemm`).

Other libraries (MKL, Accelerate, OpenBLAS made with OpenMP) are left as they are;
:func:`controllable` says False, and lowtide starts no threads around their products.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

from . import mkl

_NAMES = (
    ("scipy_openblas_", "64_"),
    ("scipy_openblas_", ""),
    ("openblas_", "64_"),
    ("openblas_", ""),
)
_SEQUENTIAL, _PTHREADS = 0, 1  # what openblas_get_parallel says
GEMM = {"f": "scipy_cblas_sgemm64_", "d": "scipy_cblas_dgemm64_"}

_TIMEOUT = "OPENBLAS_THREAD_TIMEOUT"


def doze_sooner() -> None:
    """Let BLAS's threads wait for a next product for a millisecond or two, no longer.

    OpenBLAS's default is 2**28 cycles, some 0.1 s on this decade's machines. 2**22 outlast the gap
    to a next product. It reads the variable when NumPy loads it; where that has happened already,
    it is made to read again and to start its threads anew, as it does itself around a fork. Not
    while other threads of Python run: one of them might be in the middle of a product. A variable
    that is set already stays as it is.
    """
    if _TIMEOUT in os.environ:
        return
    os.environ[_TIMEOUT] = "22"  # for NumPy, if it is still to come, and for child processes
    if "numpy" not in sys.modules or threading.active_count() > 1:
        return
    controls = NUMPY.controls()
    if controls is None or controls[0]() == 1:  # one thread: there are none to wait
        return
    library = NUMPY.opened(ctypes.PyDLL)  # which holds the interpreter's lock in a call
    try:
        read, end = library.openblas_read_env, library.blas_thread_shutdown_
    except AttributeError:  # not every build shows them
        return
    read.restype = None
    read()
    end()  # the next product starts them


class Library:
    """The OpenBLAS that a package of compiled code is linked with, and its number of threads.

    Args:
        module: The extension module that is linked with it.
    """

    def __init__(self, module: str) -> None:
        self._module = module
        self._found: Any = False  # the functions, or None; False: not looked for
        self._inside: list[None] = []  # an item for each section that runs now
        self._resting = 1  # threads outside of sections

    def opened(self, kind: type[ctypes.CDLL]) -> ctypes.CDLL:
        """Load the module as a library; it finds what it is linked with, too."""
        return kind(str(importlib.import_module(self._module).__file__))

    def functions(self, *names: str) -> list[Any] | None:
        """Return functions of OpenBLAS, which has them under one of several prefixes.

        None for another BLAS.
        """
        try:
            # These hold the interpreter's lock in a call, as a fork does: no other thread is inside
            # when the process is copied, where it would leave a lock of BLAS's locked for good.
            library = self.opened(ctypes.PyDLL)
        except (ImportError, OSError, TypeError):
            return None
        for prefix, suffix in _NAMES:
            try:
                return [getattr(library, f"{prefix}{name}{suffix}") for name in names]
            except AttributeError:
                continue
        return None

    def controls(self) -> tuple[Callable[[], int], Callable[[int], Any]] | None:
        """Return (get, set) of the number of threads, or None where it cannot be told."""
        if self._found is False:
            if self._module not in sys.modules:
                return None
            found = self.functions("get_parallel", "get_num_threads", "set_num_threads")
            known = found is not None and found[0]() in (_SEQUENTIAL, _PTHREADS)
            self._found = tuple(found[1:]) if found is not None and known else None
        controls: tuple[Callable[[], int], Callable[[int], Any]] | None = self._found
        return controls

    def set_num_threads(self, n: int) -> None:
        """How many threads it uses outside of :meth:`alone`; nothing if it cannot be told."""
        controls = self.controls()
        if controls is None:
            return
        self._resting = n
        if not self._inside:
            controls[1](n)

    def alone(self, f: Callable[..., Any], *args: Any) -> Any:
        """Call ``f(*args)`` while each call of BLAS uses the thread that makes it and no other.

        Between its statements are calls of C functions only, and whatever one of them did when
        Ctrl-C comes is taken back: BLAS is left with the number it had. It costs less than a
        microsecond.
        """
        controls = self.controls()
        if controls is None:
            return f(*args)
        get, put = controls
        try:
            self._inside.append(None)
            if not self._inside[1:]:
                self._resting = get()
            if self._resting != 1:
                put(1)
            return f(*args)
        finally:
            try:
                if self._resting != 1 and not self._inside[1:]:
                    put(self._resting)
            finally:
                self._inside.pop()

    def forget(self) -> None:
        """After a fork: the threads that were inside did not come along."""
        if self._inside:
            self._inside.clear()
            controls = self.controls()
            if controls is not None:
                controls[1](self._resting)


NUMPY = Library("numpy._core._multiarray_umath")
SCIPY = Library("scipy.linalg._fblas")  # once it is imported
alone = NUMPY.alone


def kernels() -> str | None:
    """Return the processor that the kernels of OpenBLAS in use are for; None for another BLAS."""
    found = NUMPY.functions("get_corename")
    if found is None:
        return None
    found[0].restype = ctypes.c_char_p
    return str(found[0]().decode())


def symbol(name: str) -> int:
    """Return the address of a function of NumPy's BLAS; 0 if it has none of that name."""
    try:
        return ctypes.cast(getattr(NUMPY.opened(ctypes.CDLL), name), ctypes.c_void_p).value or 0
    except (AttributeError, ImportError, OSError, TypeError):
        return 0


def gemm(kind: str) -> int:
    """Return the address of ``cblas_?gemm`` with 64-bit integers, MKL's or NumPy's.

    Args:
        kind: The dtype's character.

    Returns:
        0 for a dtype or a BLAS without such a function.
    """
    return mkl.gemm(kind) or (symbol(GEMM[kind]) if kind in GEMM else 0)


def controllable() -> bool:
    """Whether :func:`alone` does what it says with the BLAS that NumPy uses."""
    return NUMPY.controls() is not None


def set_num_threads(n: int) -> None:
    """How many threads BLAS uses outside of :func:`alone`; nothing if it cannot be told."""
    NUMPY.set_num_threads(n)
    SCIPY.set_num_threads(n)


def _forget() -> None:
    NUMPY.forget()
    SCIPY.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
