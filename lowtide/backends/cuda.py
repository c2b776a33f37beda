"""Switches of the CUDA libraries: accepted, and without effect.

Matrix products run in the precision of their inputs, so ``allow_tf32`` stays a wish.
"""

from __future__ import annotations

from collections.abc import Iterator as _Iterator
from contextlib import contextmanager
from importlib.util import find_spec


class _Matmul:
    allow_tf32: bool = False
    allow_fp16_reduced_precision_reduction: bool = False
    allow_bf16_reduced_precision_reduction: bool = False


matmul = _Matmul()


def is_built() -> bool:
    """True if CuPy, which runs lowtide's kernels on NVIDIA GPUs, is installed."""
    return find_spec("cupy") is not None


_sdp = {"flash": True, "mem_efficient": True, "math": True, "cudnn": True}


def flash_sdp_enabled() -> bool:
    """Return what :func:`enable_flash_sdp` was told; attention has one kernel here."""
    return _sdp["flash"]


def enable_flash_sdp(enabled: bool) -> None:
    """Remember a wish; attention has one kernel here."""
    _sdp["flash"] = bool(enabled)


def mem_efficient_sdp_enabled() -> bool:
    """Return what :func:`enable_mem_efficient_sdp` was told."""
    return _sdp["mem_efficient"]


def enable_mem_efficient_sdp(enabled: bool) -> None:
    """Remember a wish; attention has one kernel here."""
    _sdp["mem_efficient"] = bool(enabled)


def math_sdp_enabled() -> bool:
    """Return what :func:`enable_math_sdp` was told."""
    return _sdp["math"]


def enable_math_sdp(enabled: bool) -> None:
    """Remember a wish; attention has one kernel here."""
    _sdp["math"] = bool(enabled)


def cudnn_sdp_enabled() -> bool:
    """Return what :func:`enable_cudnn_sdp` was told."""
    return _sdp["cudnn"]


def enable_cudnn_sdp(enabled: bool) -> None:
    """Remember a wish; attention has one kernel here."""
    _sdp["cudnn"] = bool(enabled)


def is_flash_attention_available() -> bool:
    """False: PyTorch's flash kernels are not here; lowtide's own keeps no scores either."""
    return False


@contextmanager
def sdp_kernel(
    enable_flash: bool = True,
    enable_math: bool = True,
    enable_mem_efficient: bool = True,
    enable_cudnn: bool = True,
) -> _Iterator[None]:
    """Remember wishes until the block ends; attention has one kernel here."""
    before = dict(_sdp)
    _sdp.update(
        flash=enable_flash, math=enable_math, mem_efficient=enable_mem_efficient, cudnn=enable_cudnn
    )
    try:
        yield
    finally:
        _sdp.update(before)


class _PlanCache:
    """PyTorch's cache of plans of Fourier transforms, which lowtide does not have: it is empty."""

    size = 0
    max_size = 0

    def clear(self) -> None:
        """Do nothing: it is empty."""

    def __getitem__(self, device: object) -> _PlanCache:
        return self


cufft_plan_cache = _PlanCache()
_linalg = ["default"]


def preferred_linalg_library(backend: str | None = None) -> str:
    """Remember a wish, and return it; decompositions are LAPACK's, on GPUs cuSOLVER's."""
    if backend is not None:
        _linalg[0] = backend
    return _linalg[0]
