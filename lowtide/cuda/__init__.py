"""GPUs, under PyTorch's names. Without one, everything here that asks answers, and nothing fails.

CuPy is imported by the first call that needs it, never by ``import lowtide``.
"""

from __future__ import annotations

from typing import Any, NoReturn

from lowtide.cuda import amp as amp
from lowtide.cuda import nvtx as nvtx
from lowtide.cuda._selected import as_device as _as_device
from lowtide.cuda._selected import current as _current
from lowtide.cuda.properties import DeviceProperties as DeviceProperties
from lowtide.cuda.streams import Event as Event
from lowtide.cuda.streams import Stream as Stream
from lowtide.cuda.streams import StreamContext as StreamContext
from lowtide.cuda.streams import current_stream as current_stream
from lowtide.cuda.streams import default_stream as default_stream
from lowtide.cuda.streams import set_stream as set_stream
from lowtide.cuda.streams import stream as stream
from lowtide.framework.device import device as _device
from lowtide.framework.devices import backend as _backend
from lowtide.framework.devices import live_backends as _live_backends
from lowtide.framework.devices import memory_statistics as _statistics
from lowtide.framework.errors import OutOfMemoryError as OutOfMemoryError
from lowtide.framework.random.generator import generator_of as _generator_of

has_half = has_magma = True


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
    be: Any = _backend(where)
    assert where.index is not None
    be.use()
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


def get_device_properties(device: Any = None) -> DeviceProperties:
    """Return what CuPy knows of a GPU: attributes by PyTorch's names, keys by CUDA's."""
    be: Any = _backend(_as_device(device))  # of a GPU
    return DeviceProperties(be.properties())


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
    be: Any = _backend(_as_device(device))  # of a GPU
    free, total = be.memory_info()
    return int(free), int(total)


def _used(device: Any) -> bool:
    # A GPU that was not used holds nothing: asking about it must not start it.
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


def seed() -> None:
    """Seed the generator of the current GPU with a random number."""
    _generator_of(_device("cuda", _current[0])).seed()


seed_all = seed


def initial_seed() -> int:
    """Return the seed of the current GPU's generator."""
    return _generator_of(_device("cuda", _current[0])).initial_seed()


def get_rng_state(device: Any = "cuda") -> Any:
    """Return the state of a GPU's generator, as a tensor of uint8."""
    return _generator_of(_as_device(device)).get_state()


def set_rng_state(new_state: Any, device: Any = "cuda") -> None:
    """Set the state of a GPU's generator to what :func:`get_rng_state` returned."""
    _generator_of(_as_device(device)).set_state(new_state)


def get_rng_state_all() -> list[Any]:
    """Return the states of all GPUs' generators."""
    return [get_rng_state(index) for index in range(device_count())]


def set_rng_state_all(new_states: Any) -> None:
    """Set the states of all GPUs' generators."""
    for index, state in enumerate(new_states):
        set_rng_state(state, index)


def ipc_collect() -> None:
    """Do nothing: no memory of a GPU is shared between processes."""


def get_arch_list() -> list[str]:
    """Return no names: CuPy compiles kernels for the GPU that is there."""
    return []


def is_tf32_supported() -> bool:
    """False: a matrix product runs in the precision of its inputs."""
    return False


def is_current_stream_capturing() -> bool:
    """False: no graph is captured."""
    return False


def set_per_process_memory_fraction(fraction: float, device: Any = None) -> None:
    """Allow a share of a GPU's memory; beyond it an allocation raises MemoryLimitError.

    Raises:
        ValueError: The share is not between 0 and 1.
        RuntimeError: There is no GPU.
    """
    if not 0 <= fraction <= 1:
        raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0~1")
    total = mem_get_info(device)[1]
    _statistics.set_memory_limit(int(total * fraction), _as_device(device))


def _refuse_history(name: str) -> NoReturn:
    raise NotImplementedError(
        f"cuda.memory.{name}: allocations are recorded by lowtide.profiling.MemoryProfiler, on "
        "every device: `with lowtide.profiling.MemoryProfiler() as prof: ...`, then "
        "`prof.to_pytorch_snapshot(path)` writes a file in PyTorch's format."
    )


def _record_memory_history(enabled: Any = "all", *args: Any, **kwargs: Any) -> NoReturn:
    """Name :class:`lowtide.profiling.MemoryProfiler`, which records allocations here.

    Raises:
        NotImplementedError: Always.
    """
    _refuse_history("_record_memory_history")


def _snapshot(device: Any = None, *args: Any, **kwargs: Any) -> NoReturn:
    """Name :class:`lowtide.profiling.MemoryProfiler`; see :func:`_record_memory_history`."""
    _refuse_history("_snapshot")


def _dump_snapshot(filename: Any = "dump_snapshot.pickle", *args: Any, **kwargs: Any) -> NoReturn:
    """Name :class:`lowtide.profiling.MemoryProfiler`; see :func:`_record_memory_history`."""
    _refuse_history("_dump_snapshot")


def memory_snapshot(*args: Any, **kwargs: Any) -> NoReturn:
    """Name :class:`lowtide.profiling.MemoryProfiler`; see :func:`_record_memory_history`."""
    _refuse_history("memory_snapshot")


max_memory_cached, memory_cached = max_memory_reserved, memory_reserved
