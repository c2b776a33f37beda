"""Run a command as on a processor without AVX-512: compiled kernels, NumPy's loops, and its BLAS.

    python -m tests.without_avx512 python -m pytest -q tests/kernels

Where the processor has none, it says so and runs the command as it is.
"""

from __future__ import annotations

import os
import sys

import numpy as np
from llvmlite import binding

MARKS = ("AVX512", "X86_V4", "AVX10")  # how NumPy names what needs it


def settings() -> dict[str, str]:
    """Return the environment that switches AVX-512 off; empty if the processor has none."""
    has = binding.get_host_cpu_features()
    if not has.get("avx512f"):
        return {}
    wide = {name for name in has if name.startswith(("avx512", "avx10", "evex512", "amx"))}
    features = [f"{'+' if on and name not in wide else '-'}{name}" for name, on in has.items()]
    numpy_has = np._core._multiarray_umath.__cpu_features__  # type: ignore[attr-defined]
    dispatched = np._core._multiarray_umath.__cpu_dispatch__  # type: ignore[attr-defined]
    loops = [n for n in dispatched if numpy_has.get(n) and n.startswith(MARKS)]
    return {
        "NUMBA_CPU_NAME": "haswell",
        "NUMBA_CPU_FEATURES": ",".join(features),
        "NPY_DISABLE_CPU_FEATURES": " ".join(loops),
        "OPENBLAS_CORETYPE": "Haswell",
    }


def main() -> None:
    """Replace this process by the command."""
    found = settings()
    if not found:
        print("This processor has no AVX-512.", flush=True)
    os.execvpe(sys.argv[1], sys.argv[1:], os.environ | found)


if __name__ == "__main__":
    main()
