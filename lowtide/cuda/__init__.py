"""GPUs, under PyTorch's names. Without one, everything here that asks answers, and nothing fails.

CuPy is imported by the first call that needs it, never by ``import lowtide``.
"""

from __future__ import annotations

from typing import Any

from lowtide.cuda import amp as amp
from lowtide.framework.device import device as _device
from lowtide.framework.devices import backend as _backend
from lowtide.framework.devices import live_backends as _live_backends
from lowtide.framework.devices import memory_statistics as _statistics
from lowtide.framework.errors import OutOfMemoryError as OutOfMemoryError
from lowtide.framework.random.generator import generator_of as _generator_of

_current = [0]


def is_available() -> bool:
    """True if CuPy, a driver and a GPU are there."""
    return device_count() > 0


def device_count() -> int:
    """Return the number of GPUs that CuPy sees; 0 without CuPy or a driver."""
    from lowtide.framework.devices.cuda import device_count

    return device_count()


def is_initialized() -> bool:
    """True once a tensor or a call has used a GPU."""
    return any(be.device.type == "cuda" for be in _live_backends())


def init() -> None:
    """Prepare the current GPU now instead of at its first use.

    Raises:
        RuntimeError: There is none; the message says what to install.
    """
    _backend(_as_device(None))


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """True where there is a GPU: lowtide computes bfloat16 in float32 and rounds once."""
    return is_available()


def _as_device(device: Any) -> _device:
    if device is None:
        return _device("cuda", _current[0])
    found = _device(device)
    if found.type != "cuda":
        raise ValueError(f"Expected a cuda device, but got: {found}. Pass 'cuda' or 'cuda:0'.")
    if str(device) == "cuda":  # without an index: the current one
        return _device("cuda", _current[0])
    return found


def current_device() -> int:
    """Return the index of the GPU that ``"cuda"`` means here.

    Raises:
        RuntimeError: There is none; the message says what to install.
    """
    init()
    return _current[0]


def set_device(device: Any) -> None:
    """Make a GPU the current one, for this module and for CuPy.

    Raises:
        RuntimeError: It is not there.
    """
    where = _as_device(device)
    be = _backend(where)
    assert where.index is not None
    be.xp.cuda.Device(where.index).use()
    _current[0] = where.index


class device:
    """Make a GPU the current one inside a ``with``; -1 or None changes nothing."""

    def __init__(self, device: Any) -> None:
        self.index = -1 if device in (None, -1) else _as_device(device).index

    def __enter__(self) -> device:
        self.before = _current[0]
        if self.index != -1:
            set_device(self.index)
        return self

    def __exit__(self, *exc: object) -> None:
        if self.index != -1:
            set_device(self.before)


def get_device_properties(device: Any = None) -> dict[str, Any]:
    """Return what CuPy knows of a GPU, by CUDA's names of the fields."""
    where = _as_device(device)
    found = _backend(where).xp.cuda.runtime.getDeviceProperties(where.index)
    return {k: v.decode() if isinstance(v, bytes) else v for k, v in found.items()}


def get_device_name(device: Any = None) -> str:
    """Return the name of a GPU."""
    return str(get_device_properties(device)["name"])


def get_device_capability(device: Any = None) -> tuple[int, int]:
    """Return the compute capability of a GPU, as (major, minor)."""
    found = get_device_properties(device)
    return int(found["major"]), int(found["minor"])


def synchronize(device: Any = None) -> None:
    """Wait until everything submitted to a GPU is done."""
    _backend(_as_device(device)).synchronize()


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """Return the bytes of a GPU that are free and that it has, as its driver says."""
    be = _backend(_as_device(device))
    with be._here():
        free, total = be.xp.cuda.runtime.memGetInfo()
    return int(free), int(total)


def _used(device: Any) -> bool:
    # A GPU that nobody has used holds nothing: asking about it must not start it.
    where = _as_device(device)
    return any(be.device is where for be in _live_backends())


def memory_allocated(device: Any = None) -> int:
    """Return the bytes of all living storages on a GPU; 0 if it was never used."""
    return _statistics.memory_allocated(_as_device(device)) if _used(device) else 0


def max_memory_allocated(device: Any = None) -> int:
    """Return the highest ``memory_allocated`` since the last reset, in bytes."""
    return _statistics.max_memory_allocated(_as_device(device)) if _used(device) else 0


def memory_reserved(device: Any = None) -> int:
    """Return the bytes that the pool of a GPU holds from the driver."""
    return _statistics.memory_reserved(_as_device(device)) if _used(device) else 0


def max_memory_reserved(device: Any = None) -> int:
    """Return the highest ``memory_reserved`` since the last reset, in bytes."""
    return _statistics.max_memory_reserved(_as_device(device)) if _used(device) else 0


def memory_stats(device: Any = None) -> dict[str, Any]:
    """Return all that is known of a GPU's memory; see ``lowtide.memory_stats``."""
    return _statistics.memory_stats(_as_device(device)) if _used(device) else {}


def memory_summary(device: Any = None, abbreviated: bool = False) -> str:
    """Return a table of ``memory_stats`` to print."""
    if not _used(device):
        return f"{_as_device(device)} was not used"
    return _statistics.memory_summary(_as_device(device), abbreviated)


def reset_peak_memory_stats(device: Any = None) -> None:
    """Let the peaks start again from now."""
    if _used(device):
        _statistics.reset_peak_memory_stats(_as_device(device))


reset_max_memory_allocated = reset_peak_memory_stats


def empty_cache() -> None:
    """Give the free blocks of all GPUs' pools back to the driver."""
    for be in _live_backends():
        if be.device.type == "cuda":
            be.release_cached()


def manual_seed(seed: int) -> None:
    """Seed the generator of the current GPU; kept for later where there is none."""
    _generator_of(_device("cuda", _current[0])).manual_seed(seed)


def manual_seed_all(seed: int) -> None:
    """Seed the generators of all GPUs."""
    for index in range(max(device_count(), 1)):
        _generator_of(_device("cuda", index)).manual_seed(seed)
