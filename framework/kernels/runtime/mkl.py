"""Intel's MKL for linear algebra, where package ``mkl`` is installed (``lowtide[mkl]``).

Products of float32 and float64 go to it, and the routines of LAPACK that lowtide calls itself
(``kernels/cpu/linalg/lapack.py``). What goes through NumPy's functions stays with OpenBLAS. Each
call uses the thread that makes it, as with OpenBLAS (``blas.py``). It gives the same bits wherever
the operands lie: MKL's reproducible mode is on, without a loss of speed.

MKL's settings belong to the process. Where another package has loaded it first, it is left alone,
and OpenBLAS does all. ``LOWTIDE_MKL=0`` leaves it alone, too; any other value is the path
of ``libmkl_rt``.
"""

from __future__ import annotations

import ctypes
import os
import platform
import site
import sys
from functools import cache
from pathlib import Path

from ...interrupts import defer_interrupts

VARIABLE = "LOWTIDE_MKL"
_SEQUENTIAL = 1  # MKL_THREADING_SEQUENTIAL of mkl_service.h
_REPRODUCIBLE = 2  # MKL_CBWR_AUTO of mkl_types.h
_NAMES = {"f": "cblas_sgemm_64", "d": "cblas_dgemm_64"}
_NO_LOAD = getattr(os, "RTLD_NOLOAD", 0)


def path() -> str | None:
    """Return the path of MKL's library, or None where there is none to use.

    Raises:
        OSError: ``LOWTIDE_MKL`` names a file that does not exist.
    """
    wanted = os.environ.get(VARIABLE, "")
    if wanted == "0":
        return None
    if wanted:
        if not os.path.isfile(wanted):
            raise OSError(f"{VARIABLE}={wanted}: there is no such file; 0 switches MKL off")
        return wanted
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return None
    for prefix in (sys.prefix, site.USER_BASE):
        found = sorted(Path(prefix, "lib").glob("libmkl_rt.so.*")) if prefix else []
        if found:
            return str(found[-1])
    return None


@cache
def _library() -> ctypes.CDLL | None:
    where = path()
    if where is None or _loaded(where):
        return None
    with defer_interrupts():  # loading takes some milliseconds, and its settings belong to it
        library = ctypes.CDLL(where)
        if not all(hasattr(library, name) for name in _NAMES.values()):  # before 2022
            return None
        # The layer is chosen at the first call, and stays; the mode, too.
        sequential: bool = library.MKL_Set_Threading_Layer(_SEQUENTIAL) == _SEQUENTIAL
        return library if sequential and library.MKL_CBWR_Set(_REPRODUCIBLE) == 0 else None


def _loaded(where: str) -> bool:
    try:
        ctypes.CDLL(os.path.basename(where), mode=_NO_LOAD | os.RTLD_LAZY)
    except OSError:
        return False
    return True


def gemm(kind: str) -> int:
    """Return the address of MKL's product of a dtype's character; 0 where there is none to use."""
    return symbol(_NAMES[kind]) if kind in _NAMES else 0


def symbol(name: str) -> int:
    """Return the address of a function of MKL; 0 where it is not used or has none of that name."""
    function = getattr(_library(), name, None)
    return 0 if function is None else ctypes.cast(function, ctypes.c_void_p).value or 0


def used() -> bool:
    """Whether products go to MKL; the first call loads it."""
    return _library() is not None


def version() -> str | None:
    """Return what MKL says of its version and of the processor; None where it is not used."""
    library = _library()
    if library is None:
        return None
    text = ctypes.create_string_buffer(198)
    library.MKL_Get_Version_String(text, len(text) - 1)
    return text.value.decode().strip()
