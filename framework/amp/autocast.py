"""Automatic mixed precision: ``autocast`` converts inputs of ops that say so in their declaration.

An op declares ``autocast="low"`` (products: run in bfloat16 or float16), ``"float32"`` (losses,
sums over many terms: run in float32) or ``"promote"`` (run in the widest type of its inputs), or a
dict of these by device type, where PyTorch's lists differ; a composition is decorated with
:func:`casts`. Everything else runs in the types it is given.

A region is a dict of dtypes by device type, ``State.autocast`` of its thread; it is replaced, never
changed. The dispatcher and compositions look at it, and convert their inputs by the policy
(``framework/ops/autocast_policy.py``).

Conversions are recorded ops, so gradients arrive in the types of what was converted: float32
weights have float32 gradients. A converted leaf that requires grad is kept until the outermost
region ends, and converted again if it was written or recording is on now and was off then. Backward
runs without autocast: it uses the types of the forward.

Differences from PyTorch: tensors on meta follow the region that was entered last, so that bytes can
be foretold; float16 on the CPU and all listed ops compute in float32 inside and round once; ops of
PyTorch's lists that only move, pad or pool values are not listed here. The CPU has no faster
bfloat16 product: what mixed precision saves there is memory.
"""

from __future__ import annotations

import functools
import warnings
from typing import Any, Self

from ..dtypes import dtype
from ..interrupts import WholeContext
from ..modes import local
from ..ops.autocast_policy import LOW, thread

DEVICE_TYPES = ("cpu", "cuda", "sim", "meta")
ELSEWHERE = frozenset({"hpu", "ipu", "maia", "mps", "mtia", "xla", "xpu"})  # of PyTorch alone


class autocast(WholeContext):
    """Run selected ops in lower precision inside; a context manager and a decorator.

    Args:
        device_type: "cpu" or "cuda": whose ops.
        dtype: bfloat16 or float16; default: bfloat16 on the CPU, float16 on cuda.
        enabled: False turns it off inside.
        cache_enabled: Keep converted weights until the outermost region ends.

    Raises:
        ValueError: ``device_type`` is no string.
        RuntimeError: There is no such device type.

    Example:
        >>> import lowtide as lt
        >>> a, b = lt.ones(2, 2), lt.ones(2, 2)
        >>> with lt.autocast("cpu"):
        ...     c = a @ b
        >>> c.dtype
        lowtide.bfloat16
    """

    def __init__(
        self,
        device_type: str,
        dtype: dtype | None = None,
        enabled: bool = True,
        cache_enabled: bool | None = None,
    ) -> None:
        self.device = checked(device_type)
        self.fast_dtype = get_autocast_dtype(device_type) if dtype is None else dtype
        if enabled and self.fast_dtype not in LOW:
            warnings.warn(
                f"In {device_type.upper()} autocast, but the target dtype is not supported. "
                f"Disabling autocast. It supports {', '.join(map(str, LOW))}; got "
                f"{self.fast_dtype}.",
                UserWarning,
                stacklevel=2,
            )
            enabled = False
        if enabled and device_type == "cuda" and not _has_cuda():
            warnings.warn(
                "User provided device_type of 'cuda', but CUDA is not available. Disabling "
                "autocast.",
                UserWarning,
                stacklevel=2,
            )
            enabled = False
        self._enabled = bool(enabled)
        self._cache_enabled = cache_enabled
        self._before: list[Any] = []  # a stack: one object may be entered again inside itself

    def _enter(self) -> Self:
        self._before.append((local.state.autocast, thread.dtypes[self.device], thread.caching))
        thread.dtypes[self.device] = self.fast_dtype
        if self._cache_enabled is not None:
            thread.caching = self._cache_enabled
        autocast_increment_nesting()
        set_autocast_enabled(self.device, self._enabled)
        return self

    def _leave(self) -> None:
        mapping, thread.dtypes[self.device], thread.caching = self._before.pop()
        if autocast_decrement_nesting() == 0:
            clear_autocast_cache()
        local.state.autocast = mapping

    def __call__(self, function: Any) -> Any:
        """Decorate a function: each call is a region."""
        if not callable(function):
            raise TypeError(
                f"autocast()(func) requires a callable, but got {type(function).__name__}. Did "
                "you mean `with lowtide.autocast(device_type):`?"
            )

        @functools.wraps(function)
        def inside(*args: Any, **kwargs: Any) -> Any:
            with self:
                return function(*args, **kwargs)

        return inside


# PyTorch's functions around it


def _has_cuda() -> bool:
    from ..devices.cuda import device_count

    return device_count() > 0


def checked(device_type: Any) -> str:
    """Validate and return a device type.

    Raises:
        ValueError: It is no string.
        RuntimeError: Autocast does not know it.
    """
    if not isinstance(device_type, str):
        raise ValueError(
            f"Expected `device_type` of type `str`, got: `{type(device_type)}`. Pass 'cpu' or "
            "'cuda'."
        )
    if device_type not in DEVICE_TYPES:
        raise RuntimeError(
            f"User specified an unsupported autocast device_type '{device_type}'. "
            f"Use one of {', '.join(DEVICE_TYPES)}."
        )
    return device_type


def is_autocast_available(device_type: str) -> bool:
    """True if autocast supports the device type."""
    return device_type in DEVICE_TYPES


def is_autocast_enabled(device_type: str = "cuda") -> bool:
    """True inside an autocast region for the device type; PyTorch's other devices have none."""
    if device_type in ELSEWHERE:
        return False
    return checked(device_type) in (local.state.autocast or {})


def set_autocast_enabled(device_type: Any, enabled: bool | None = None) -> None:
    """Turn autocast on or off for a device type; prefer ``with autocast``."""
    if enabled is None:  # PyTorch's older form, for cuda
        device_type, enabled = "cuda", device_type
    mapping = dict(local.state.autocast or {})
    mapping.pop(checked(device_type), None)
    if enabled:
        mapping[device_type] = thread.dtypes[device_type]
    local.state.autocast = mapping or None


def get_autocast_dtype(device_type: str) -> dtype:
    """Return the dtype in which ``autocast(device_type)`` computes."""
    return thread.dtypes[checked(device_type)]


def set_autocast_dtype(device_type: str, dtype: dtype) -> None:
    """Set the dtype in which ``autocast(device_type)`` computes, also in active regions."""
    thread.dtypes[checked(device_type)] = dtype
    if is_autocast_enabled(device_type):
        local.state.autocast = {**(local.state.autocast or {}), device_type: dtype}


def is_autocast_cache_enabled() -> bool:
    """True if weights converted inside a region are cached."""
    return thread.caching


def set_autocast_cache_enabled(enabled: bool) -> None:
    """Enable or disable the cache of converted weights inside a region."""
    thread.caching = bool(enabled)


def clear_autocast_cache() -> None:
    """Clear the cache of converted weights."""
    thread.cache.clear()


def autocast_increment_nesting() -> int:
    """Increment the nesting depth of autocast regions and return it."""
    thread.nesting += 1
    return thread.nesting


def autocast_decrement_nesting() -> int:
    """Decrement the nesting depth of autocast regions and return it."""
    thread.nesting -= 1
    return thread.nesting
