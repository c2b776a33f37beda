"""The accelerator of this machine: a GPU if CuPy runs on one, else none."""

from __future__ import annotations

from typing import Any

from lowtide import cuda as _cuda
from lowtide.framework.device import device as _device

__path__: list[str] = []  # so that Python asks for modules below: lowtide._torch_paths


def is_available() -> bool:
    """True if there is a GPU that CuPy runs on."""
    return _cuda.is_available()


def device_count() -> int:
    """Return the number of GPUs."""
    return _cuda.device_count()


def current_accelerator(check_available: bool = False) -> _device | None:
    """Return the device of the current GPU; None without one."""
    return _device("cuda", _cuda.current_device()) if _cuda.is_available() else None


def _checked() -> None:
    if not _cuda.is_available():
        raise RuntimeError(
            "Cannot access accelerator device when none is available: lowtide runs on NVIDIA GPUs "
            "through CuPy. Install lowtide[cuda], or ask is_available() first."
        )


def current_device_index() -> int:
    """Return the index of the current GPU.

    Raises:
        RuntimeError: There is none.
    """
    _checked()
    return _cuda.current_device()


current_device_idx = current_device_index


def set_device_index(device: Any) -> None:
    """Make a GPU the current one.

    Raises:
        RuntimeError: There is none.
    """
    _checked()
    _cuda.set_device(device)


set_device_idx = set_device_index


def synchronize(device: Any = None) -> None:
    """Wait until the GPU has done what it was given.

    Raises:
        RuntimeError: There is none.
    """
    _checked()
    _cuda.synchronize(device)


def current_stream(device: Any = None) -> Any:
    """Return the stream on which all work of a GPU is done.

    Raises:
        RuntimeError: There is none.
    """
    _checked()
    return _cuda.current_stream(device)


def empty_cache() -> None:
    """Give free blocks of all GPUs' pools back to the driver."""
    _cuda.empty_cache()


def memory_allocated(device: Any = None) -> int:
    """Return the bytes of all living storages on a GPU."""
    return _cuda.memory_allocated(device)


def max_memory_allocated(device: Any = None) -> int:
    """Return the highest :func:`memory_allocated` since the last reset."""
    return _cuda.max_memory_allocated(device)


def memory_reserved(device: Any = None) -> int:
    """Return the bytes that the pool of a GPU holds."""
    return _cuda.memory_reserved(device)


def max_memory_reserved(device: Any = None) -> int:
    """Return the highest :func:`memory_reserved` since the last reset."""
    return _cuda.max_memory_reserved(device)


def memory_stats(device: Any = None) -> dict[str, Any]:
    """Return all that is known of a GPU's memory."""
    return _cuda.memory_stats(device)


def reset_peak_memory_stats(device: Any = None) -> None:
    """Let the peaks start again from now."""
    _cuda.reset_peak_memory_stats(device)
