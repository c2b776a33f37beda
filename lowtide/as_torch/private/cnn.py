"""``torch._C._nn``: functions of layers, and the reading of the arguments of ``to``."""

from __future__ import annotations

from typing import Any

import lowtide as _lt


def _parse_to(*args: Any, **kwargs: Any) -> tuple[Any, Any, bool, Any]:
    """Read the arguments of ``Tensor.to``: (device, dtype, non_blocking, memory_format)."""
    device, dtype = kwargs.get("device"), kwargs.get("dtype")
    rest = list(args)
    if rest and isinstance(rest[0], _lt.Tensor):
        other = rest.pop(0)
        device, dtype = other.device, other.dtype
    elif rest and isinstance(rest[0], _lt.dtype):
        dtype = rest.pop(0)
    elif rest:
        device = rest.pop(0)
        if rest and isinstance(rest[0], _lt.dtype):
            dtype = rest.pop(0)
    non_blocking = bool(rest.pop(0)) if rest else bool(kwargs.get("non_blocking", False))
    found = None if device is None else _lt.device(device)
    return found, dtype, non_blocking, kwargs.get("memory_format")


def __getattr__(name: str) -> Any:
    """Whatever else is asked for is a function of ``nn.functional``."""
    return getattr(_lt.nn.functional, name)
