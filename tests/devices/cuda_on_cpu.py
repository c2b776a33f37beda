"""The kernels for CUDA, compiled for the CPU: ``sim`` gets CuPy's ``RawModule``, made by g++.

With :func:`cuda_kernels` the device ``sim`` chooses kernels as a GPU does, and their source runs on
its arrays. So every CUDA kernel is tested where there is no GPU: its indices, its barriers, its
arithmetic. What this cannot show: races between blocks and within a warp, limits of registers and
shared memory, and speed.
"""

from __future__ import annotations

import ctypes
import hashlib
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from lowtide.framework.device import device
from lowtide.framework.devices import backend
from lowtide.framework.devices.sim.array import SimArray
from lowtide.framework.devices.sim.backend import SIM
from lowtide.framework.ops.registry import OPS

COMPILER = shutil.which("g++")
_HEADER = Path(__file__).with_name("cuda_on_cpu.h")
_ENTRY = re.compile(r'extern "C" __global__ void (\w+)\(([^)]*)\)')
_WAITS = re.compile(r"\b(__syncthreads|__syncwarp|__shfl\w+|block_sum|block_max)\b")
_folder = Path(tempfile.gettempdir()) / "lowtide-cuda-on-cpu"


class RawModule:
    """Stands for ``cupy.RawModule``: compiles CUDA C++ with g++, once a machine."""

    def __init__(self, code: str, options: tuple[str, ...] = ()) -> None:
        standard = [o for o in options if o.startswith("--std")]
        found = list(_ENTRY.finditer(code))
        text = f'#include "{_HEADER}"\n{code}\n' + "".join(map(_entry, found))
        text = text.replace("<<WAITS>>", str(bool(_WAITS.search(_without_preamble(code)))).lower())
        key = hashlib.sha256((text + _HEADER.read_text()).encode()).hexdigest()[:24]
        library = _folder / f"{key}.so"
        if not library.exists():
            _folder.mkdir(exist_ok=True)
            with tempfile.TemporaryDirectory(dir=_folder) as work:
                source, made = Path(work) / "kernel.cpp", Path(work) / "kernel.so"
                source.write_text(text)
                command = [str(COMPILER), "-O1", "-w", *[o[1:] for o in standard], "-shared"]
                command += ["-fPIC", "-ffp-contract=off", str(source), "-o", str(made)]
                ran = subprocess.run(command, capture_output=True, text=True, check=False)
                assert ran.returncode == 0, ran.stderr
                made.replace(library)
        self._library = ctypes.CDLL(str(library))

    def get_function(self, name: str) -> Any:
        """Return what is called as a ``RawKernel``: (blocks, threads, arguments)."""
        entry = getattr(self._library, f"run_{name}")

        def call(grid: tuple[int], block: tuple[int], arguments: tuple[Any, ...]) -> None:
            assert block[0] in range(32, 1025, 32)
            entry(ctypes.c_uint(grid[0]), ctypes.c_uint(block[0]), *map(_argument, arguments))

        return call


def _without_preamble(code: str) -> str:
    return code[code.index("typedef") :]


def _entry(found: re.Match[str]) -> str:
    name, parameters = found.groups()
    names = ", ".join(re.findall(r"(\w+)\s*(?:,|$)", parameters))
    return (
        f'\nextern "C" void run_{name}(unsigned blocks, unsigned threads, {parameters}) {{\n'
        f"    on_cpu::launch(blocks, threads, <<WAITS>>, [=] {{ {name}({names}); }});\n}}\n"
    )


def _argument(value: Any) -> Any:
    if isinstance(value, SimArray):
        value = value._a
    if isinstance(value, np.ndarray):
        assert value.flags.c_contiguous, "a kernel takes contiguous arrays"
        return ctypes.c_void_p(value.__array_interface__["data"][0])
    if isinstance(value, np.float32):
        return ctypes.c_float(value)
    if isinstance(value, np.float64):
        return ctypes.c_double(value)
    assert type(value) is int, value
    return ctypes.c_longlong(value)


@contextmanager
def cuda_kernels() -> Iterator[None]:
    """Let ``sim`` choose the kernels of a GPU, and run them."""
    be = backend(device("sim"))
    SIM.__dict__["RawModule"] = RawModule
    before, be.kernel_key = be.kernel_key, "cuda"
    _forget_plans(be)
    try:
        yield
    finally:
        be.kernel_key = before
        del SIM.__dict__["RawModule"]
        _forget_plans(be)


def _forget_plans(be: Any) -> None:
    for op in OPS.values():
        for key in [k for k, p in op.plans.items() if p.backend is be]:
            del op.plans[key]
