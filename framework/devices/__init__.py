"""Device backends, created on first use: importing lowtide does not import CuPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import execution
from ..device import device
from .backend import Backend

_backends: dict[device | None, Backend] = {}
on_new_backend: list[Callable[[Backend], None]] = []  # called with each backend that is made


def backend(d: device | None) -> Backend:
    """Return the backend of a device: its allocator, copies and array module.

    Raises:
        RuntimeError: The device is not there; the message says what to install.
    """
    found = _backends.get(d)
    if found is None:
        found = _backends[d] = execution.current.new_backend(d, _make)
        for tell in list(on_new_backend):
            tell(found)
    return found


def _make(d: device | None) -> Backend:
    assert d is not None, "a spec without device is for infer only"
    if d.type in ("cpu", "meta"):
        from .host import cpu_backend, meta_backend

        return cpu_backend() if d.type == "cpu" else meta_backend()
    if d.type == "sim":
        from .sim.backend import sim_backend

        return sim_backend()
    from .cuda import cuda_backend

    return cuda_backend(d)


@execution.when_installed
def _run_by(executor: execution.Executor) -> None:
    for d, be in list(_backends.items()):
        _backends[d] = executor.known_backend(d, be)


def on_device(be: Backend, f: Any) -> Any:
    """Wrap ``f``, which runs kernels, to run on the device of a backend.

    CuPy launches on the GPU that is current, and on its current stream: with several GPUs, that of
    the tensors has to be made so.
    """
    return be.on_device(f) if be.several else f


def live_backends() -> list[Backend]:
    """Return the backends created so far."""
    return list(_backends.values())
