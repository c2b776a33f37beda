"""Memory of the process and devices as the operating system reports it.

Figures, each with the method it came by:

- ``rss``, ``peak_rss``: pages of the process in memory, now and at most (``/proc/self/statm`` and
  ``VmHWM`` of ``/proc/self/status`` on Linux, else psutil);
- for each device ``live`` (the ledger), ``used`` (blocks of the pool, rounded up) and ``reserved``
  (what the pool holds from the system);
- for each GPU ``driver_used`` of this process or of the device (NVML, by ``nvidia-ml-py``; else the
  CUDA runtime).

They never agree, and :func:`rows` says where the difference is: rounding, free blocks, pages never
touched, and the remainder, *interpreter and libraries*.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from ...framework import execution

_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


def look(backends: Iterable[Any]) -> dict[str, Any]:
    """Sample all figures of system memory now.

    Args:
        backends: Of the devices; None among them are passed over.

    Returns:
        ``process``: {``rss``, ``peak_rss``, ``method``}; ``devices``: by name {``live``, ``used``,
        ``reserved``, ``method``, and for a GPU ``driver_used``, ``driver_method``, ``runtime_used``
        (all processes)}. Bytes.
    """
    devices = {}
    for be in backends:
        if be is not None:
            devices[be.ledger.name] = _device(be)
    return {"process": process(), "devices": devices}


def process() -> dict[str, Any]:
    """Return the resident bytes of this process, now and at their peak, and the source."""
    try:
        with open("/proc/self/statm", "rb") as f:
            rss = int(f.read().split()[1]) * _PAGE
        with open("/proc/self/status", "rb") as f:
            text = f.read()
        at = text.index(b"VmHWM:")
        peak = int(text[at + 6 : at + 40].split()[0]) * 1024
        # The kernel updates the two at different moments.
        return {"rss": rss, "peak_rss": max(peak, rss), "method": "/proc/self"}
    except (OSError, ValueError):
        return _by_psutil()


def _by_psutil() -> dict[str, Any]:
    import psutil

    info = psutil.Process().memory_info()
    peak = getattr(info, "peak_wset", None)
    method = "psutil"
    if peak is None:
        import resource
        import sys

        unit = 1 if sys.platform == "darwin" else 1024
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
        method = "psutil, getrusage"
    return {"rss": info.rss, "peak_rss": max(peak, info.rss), "method": method}


def _device(be: Any) -> dict[str, Any]:
    found = {
        "live": be.ledger.live,
        "used": int(be.pool.used),
        "reserved": int(be.reserved_bytes()),
        "method": "ledger and pool",
    }
    if be.device.type == "cuda" and execution.current.computes:  # an estimate has no driver
        found.update(_gpu(be))
    return found


def _gpu(be: Any) -> dict[str, Any]:
    with be._here():
        free, total = be.xp.cuda.runtime.memGetInfo()
    used = int(total - free)
    driver = _driver(be) or {"driver_used": used, "driver_method": "cudaMemGetInfo, all processes"}
    return {"runtime_used": used, **driver}


def _driver(be: Any) -> dict[str, Any] | None:
    # NVML knows what this process holds, context and libraries included; the runtime only what
    # all processes together hold.
    try:
        import pynvml

        pynvml.nvmlInit()
        bus = be.xp.cuda.runtime.deviceGetPCIBusId(be.index)
        handle = pynvml.nvmlDeviceGetHandleByPciBusId(bus.encode())
        for running in pynvml.nvmlDeviceGetComputeRunningProcesses(handle):
            if running.pid == os.getpid() and running.usedGpuMemory:
                return {
                    "driver_used": int(running.usedGpuMemory),
                    "driver_method": "NVML, this process",
                }
        used = int(pynvml.nvmlDeviceGetMemoryInfo(handle).used)
    except Exception:  # no library, no driver, another process namespace: the runtime answers
        return None
    return {"driver_used": used, "driver_method": "NVML, all processes"}


def rows(figures: dict[str, Any]) -> list[tuple[str, str, int, str]]:
    """Format figures as rows that add up: (where, what, bytes, method).

    For the process: what the cpu's pool holds in tensors, its rounding, its free blocks, and the
    remainder ("interpreter and libraries"). Pages that a pool reserved but were not written are not
    in memory, so where the remainder would be negative they are a separate line.
    """
    found: list[tuple[str, str, int, str]] = []
    process_ = figures.get("process", {})
    host = figures.get("devices", {}).get("cpu")
    for name, d in figures.get("devices", {}).items():
        if name == "meta":  # addresses without pages
            continue
        found += [
            (name, "tensors", d["live"], "ledger"),
            (name, "rounding to blocks", d["used"] - d["live"], "pool"),
            (name, "free for reuse", d["reserved"] - d["used"], "pool"),
        ]
        if "driver_used" in d:
            rest = d["driver_used"] - d["reserved"]
            found.append((name, "context and libraries", rest, d["driver_method"]))
            found.append((name, "= used", d["driver_used"], d["driver_method"]))
            if "runtime_used" in d:
                used = d["runtime_used"]
                found.append(
                    (name, "= used by all processes", used, "cudaMemGetInfo, all processes")
                )
    if process_:
        reserved = host["reserved"] if host else 0
        rest = process_["rss"] - reserved
        if rest < 0:
            found.append(("process", "reserved, not in memory", rest, process_["method"]))
            rest = 0
        found.append(("process", "interpreter and libraries", rest, process_["method"]))
        found.append(("process", "= resident", process_["rss"], process_["method"]))
        found.append(("process", "at most so far", process_["peak_rss"], process_["method"]))
    return found
