"""What the driver says of a GPU: by NVML if it knows this process, else of the whole GPU.

NVML is in its place here; what it really has is asked in ``tests/devices/test_cupy.py``, and what
it says in ``tests/devices/test_gpu.py``.
"""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace
from typing import Any

import pytest

import lowtide as lt
from lowtide.profiling.record.system_memory import look, rows
from tests.checkpointing.asynchronous import Gpu, running
from tests.checkpointing.queues import Order

OTHER = SimpleNamespace(pid=1, usedGpuMemory=7 << 20)


def nvml(processes: Any) -> Any:
    """NVML with these processes on the GPU; whoever asks for another GPU is refused."""
    refused = RuntimeError("NVMLError_NotFound")

    def handle(bus: bytes) -> str:
        if bus != b"0000:0A:00.0":
            raise refused
        return "handle"

    def running_on(handle: str) -> Any:
        if processes is None:
            raise refused
        return processes

    return SimpleNamespace(
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByPciBusId=handle,
        nvmlDeviceGetComputeRunningProcesses=running_on,
        nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(used=9 << 20),
    )


CASES = {
    "this process": (
        [OTHER, SimpleNamespace(pid=os.getpid(), usedGpuMemory=5 << 20)],
        5 << 20,
        "NVML, this process",
    ),
    "another's number": ([OTHER], 9 << 20, "NVML, all processes"),
    "not told": (
        [SimpleNamespace(pid=os.getpid(), usedGpuMemory=None)],
        9 << 20,
        "NVML, all processes",
    ),
    "refused": (None, None, "cudaMemGetInfo, all processes"),
    "no library": ("none", None, "cudaMemGetInfo, all processes"),
}


@pytest.mark.parametrize("case", CASES)
def test_the_method_is_named_and_the_rows_add_up(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    processes, expected, method = CASES[case]
    monkeypatch.setitem(sys.modules, "pynvml", None if processes == "none" else nvml(processes))
    gpu = Gpu(Order(), size=1 << 22)
    monkeypatch.setattr(Gpu, "deviceGetPCIBusId", lambda self, index: "0000:0A:00.0", raising=False)
    with running(gpu) as (d,):
        kept = lt.zeros(1000, device=d)
        be = lt.framework.devices.backend(d)
        found = look([be])["devices"][str(d)]
        free, total = gpu.memGetInfo()
        expected = expected or total - free
        assert (found["driver_used"], found["driver_method"]) == (expected, method)
        assert (found["live"], found["used"], found["reserved"]) == (4000, 4096, 4096)
        lines = [(what, n) for _, what, n, _ in rows({"devices": {str(d): found}})]
        assert lines == [
            ("tensors", 4000),
            ("rounding to blocks", 96),
            ("free for reuse", 0),
            ("context and libraries", expected - 4096),
            ("= used", expected),
            ("= used by all processes", total - free),
        ]
        del kept
