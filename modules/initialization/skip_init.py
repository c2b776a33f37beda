"""Module construction without parameter initialization."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from ..module import Module


def skip_init(module_cls: Any, *args: Any, **kwargs: Any) -> Any:
    """Build a module with uninitialized parameters and buffers.

    Args:
        module_cls: A module class whose constructor takes ``device``.
        args: Arguments of the constructor.
        kwargs: The same by keyword; ``device`` is where the module shall lie.

    Raises:
        RuntimeError: It is no module class, or takes no ``device``.
    """
    if not (isinstance(module_cls, type) and issubclass(module_cls, Module)):
        raise RuntimeError(f"Expected a Module; got {module_cls}.")
    if "device" not in inspect.signature(module_cls).parameters:
        raise RuntimeError(
            "Module must support a 'device' arg to skip initialization. Build it under "
            'lowtide.device("meta"), and call to_empty().'
        )
    where = kwargs.pop("device", None) or "cpu"
    build: Callable[..., Module] = module_cls
    return build(*args, device="meta", **kwargs).to_empty(device=where)


__all__ = ["skip_init"]
