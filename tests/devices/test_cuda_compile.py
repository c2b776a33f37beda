"""Every kernel in CUDA C++ compiles for the GPUs that are supported; that takes no GPU.

CuPy and NVRTC are needed: ``pip install cupy-cuda13x nvidia-cuda-nvrtc nvidia-cuda-runtime
cuda-pathfinder``.
"""

from __future__ import annotations

import gc
import pkgutil
from importlib import import_module
from typing import Any

import pytest

from lowtide.framework.kernels import cuda
from lowtide.framework.kernels.cpu.compiler.kernel import Kernel
from lowtide.framework.kernels.cuda.bits import printed_bits
from lowtide.framework.kernels.cuda.kernel import TYPES, CudaKernel
from lowtide.framework.kernels.cuda.printer import printed
from lowtide.framework.kernels.formula.bits import Bits
from lowtide.framework.kernels.formula.declaration import DECLARED
from tests.devices.test_cuda_kernels import NOT_PRINTED
from tests.kernels.test_formula import variants

pytest.importorskip("cupy", reason="CuPy is not installed")
from cupy.cuda import compiler, nvrtc

try:
    nvrtc.getVersion()
except Exception as error:
    pytest.skip(f"there is no NVRTC: {str(error)[:80]}", allow_module_level=True)

ARCHITECTURES = ["sm_80", "sm_90", "sm_100"]


def kernels() -> dict[str, CudaKernel]:
    """All kernels, by name: those written by hand, and those printed from loops."""
    for module in pkgutil.iter_modules(cuda.__path__):
        import_module(f"{cuda.__name__}.{module.name}")
    for name, refused in NOT_PRINTED.items():
        module = import_module(f"lowtide.framework.kernels.cpu.{name}")
        for key, loop in vars(module).items():
            own = type(loop) is Kernel and loop.py_func.__module__ == module.__name__
            if own and key not in refused:
                printed(loop)
    for formula in DECLARED.values():
        for variant in variants(formula):
            (printed_bits if isinstance(formula, Bits) else printed)(variant.loop)
    found: list[Any] = gc.get_objects()
    return {k.name: k for k in found if isinstance(k, CudaKernel)}


KERNELS = kernels()


@pytest.mark.parametrize("name", sorted(KERNELS))
def test_a_kernel_compiles(name: str) -> None:
    kernel = KERNELS[name]
    for dtype in TYPES:
        for architecture in ARCHITECTURES:
            program = compiler._NVRTCProgram(
                kernel.text(dtype), f"{name}.cu", (), (), method="cubin"
            )
            found, _ = program.compile((f"-arch={architecture}", "--std=c++17"))
            assert found[:4] == b"\x7fELF"
