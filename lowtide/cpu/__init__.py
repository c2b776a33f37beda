"""The CPU as a device, under the names that ``lowtide.cuda`` has."""

from functools import partial

from lowtide.cpu import amp as amp
from lowtide.framework.devices import memory_statistics as _statistics


def is_available() -> bool:
    """True."""
    return True


def device_count() -> int:
    """One."""
    return 1


def current_device() -> str:
    """Its name."""
    return "cpu"


def synchronize(device: object = None) -> None:
    """Do nothing: work on the CPU is done when a call returns."""


memory_allocated = partial(_statistics.memory_allocated, "cpu")
max_memory_allocated = partial(_statistics.max_memory_allocated, "cpu")
memory_reserved = partial(_statistics.memory_reserved, "cpu")
max_memory_reserved = partial(_statistics.max_memory_reserved, "cpu")
memory_stats = partial(_statistics.memory_stats, "cpu")
memory_summary = partial(_statistics.memory_summary, "cpu")
reset_peak_memory_stats = partial(_statistics.reset_peak_memory_stats, "cpu")
empty_cache = partial(_statistics.empty_cache, "cpu")
