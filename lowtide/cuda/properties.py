"""What a GPU is: its name, memory and capability, under PyTorch's names and under CUDA's."""

from __future__ import annotations

from typing import Any

_CUDAS = {
    "total_memory": "totalGlobalMem",
    "multi_processor_count": "multiProcessorCount",
    "max_threads_per_multi_processor": "maxThreadsPerMultiProcessor",
    "warp_size": "warpSize",
    "regs_per_multiprocessor": "regsPerMultiprocessor",
    "shared_memory_per_block": "sharedMemPerBlock",
    "shared_memory_per_multiprocessor": "sharedMemPerMultiprocessor",
    "L2_cache_size": "l2CacheSize",
    "is_integrated": "integrated",
    "is_multi_gpu_board": "isMultiGpuBoard",
}


class DeviceProperties(dict[str, Any]):
    """Properties of a GPU: attributes by PyTorch's names, keys by CUDA's.

    ``total_memory`` is in bytes, ``major`` and ``minor`` are the compute capability.
    """

    def __getattr__(self, name: str) -> Any:
        key = _CUDAS.get(name, name)
        if key not in self:
            raise AttributeError(
                f"DeviceProperties has no {name}; it has {', '.join(sorted(self))}."
            )
        return self[key]
