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
from types import SimpleNamespace
from typing import Any

import numpy as np

from lowtide.framework.device import device
from lowtide.framework.devices import backend
from lowtide.framework.devices.sim.array import SimArray
from lowtide.framework.devices.sim.backend import SIM
from lowtide.framework.dtypes import bfloat16
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


class _Blas:
    """Stands for ``cupy.cuda.cublas``: products of matrices that are given by addresses."""

    def sgemmStridedBatched(self, handle: int, *arguments: Any) -> None:
        """Of float32."""
        self._run(np.dtype(np.float32), np.dtype(np.float32), *arguments)

    def dgemmStridedBatched(self, handle: int, *arguments: Any) -> None:
        """Of float64."""
        self._run(np.dtype(np.float64), np.dtype(np.float64), *arguments)

    def gemmStridedBatchedEx(
        self, handle: int, o1: int, o2: int, m: int, n: int, k: int, alpha: int, x: int, kind: int,
        ldx: int, sx: int, y: int, kind_y: int, ldy: int, sy: int, beta: int, z: int, kind_z: int,
        ldz: int, sz: int, count: int, computed: int, algorithm: int,
    ) -> None:  # fmt: skip
        """Of halves, summed in float32."""
        assert (kind, computed) in ((2, 68), (14, 68))
        assert kind == kind_y == kind_z
        of = np.dtype(np.float16) if kind == 2 else bfloat16.np
        number = np.dtype(np.float32)
        self._run(
            of, number, o1, o2, m, n, k, alpha, x, ldx, sx, y, ldy, sy, beta, z, ldz, sz, count
        )

    def _run(
        self, kind: Any, number: Any, o1: int, o2: int, m: int, n: int, k: int, alpha: int, x: int,
        ldx: int, sx: int, y: int, ldy: int, sy: int, beta: int, z: int, ldz: int, sz: int,
        count: int,
    ) -> None:  # fmt: skip
        # Columns lie side by side; cuBLAS checks the leading dimensions just so.
        assert ldx >= (k if o1 else m)
        assert ldy >= (n if o2 else k)
        assert ldz >= m
        scale, keep = (_at(p, 1, number)[0] for p in (alpha, beta))
        for i in range(count):
            first = _columns(x + i * sx * kind.itemsize, k if o1 else m, m if o1 else k, ldx, kind)
            second = _columns(y + i * sy * kind.itemsize, n if o2 else k, k if o2 else n, ldy, kind)
            made = _columns(z + i * sz * kind.itemsize, m, n, ldz, kind)
            wide = [
                a.astype(number) for a in (first.T if o1 else first, second.T if o2 else second)
            ]
            found = scale * (wide[0] @ wide[1])
            made[...] = found if keep == 0 else found + keep * made.astype(number)


def _at(address: int, count: int, kind: Any) -> Any:
    held = (ctypes.c_char * (count * kind.itemsize)).from_address(address)
    return np.frombuffer(held, kind)


def _columns(address: int, rows: int, columns: int, leading: int, kind: Any) -> Any:
    flat = _at(address, leading * (columns - 1) + rows, kind)
    steps = (kind.itemsize, leading * kind.itemsize)
    return np.lib.stride_tricks.as_strided(flat, (rows, columns), steps)


_CUDA = SimpleNamespace(cublas=_Blas(), device=SimpleNamespace(get_cublas_handle=lambda: 0))


def _data(array: SimArray) -> Any:
    return SimpleNamespace(ptr=int(array._a.__array_interface__["data"][0]))


@contextmanager
def cuda_kernels() -> Iterator[None]:
    """Let ``sim`` choose the kernels of a GPU, and run them."""
    be = backend(device("sim"))
    SIM.__dict__.update(RawModule=RawModule, cuda=_CUDA)
    if not hasattr(SimArray, "data"):
        SimArray.data = property(_data)
    before, be.kernel_key = be.kernel_key, "cuda"
    _forget_plans(be)
    try:
        yield
    finally:
        be.kernel_key = before
        del SIM.__dict__["RawModule"], SIM.__dict__["cuda"]
        _forget_plans(be)


def _forget_plans(be: Any) -> None:
    for op in OPS.values():
        for key in [k for k, p in op.plans.items() if p.backend is be]:
            del op.plans[key]
