"""What code asks of PyTorch's compiler; lowtide runs everything as it is written."""

from __future__ import annotations

from typing import Any

from lowtide.framework.compat import compile as compile


def disable(fn: Any = None, recursive: bool = True, **kwargs: Any) -> Any:
    """Return the function, or a decorator that does."""
    return fn if fn is not None else lambda f: f


def is_compiling() -> bool:
    """False: nothing is compiled."""
    return False


def is_dynamo_compiling() -> bool:
    """False: nothing is compiled."""
    return False
