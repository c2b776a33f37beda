"""What code asks of PyTorch's compiler; lowtide runs everything as it is written."""

from __future__ import annotations

import contextlib
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


is_exporting = is_dynamo_compiling


def allow_in_graph(fn: Any) -> Any:
    """Return the function."""
    return fn


def assume_constant_result(fn: Any) -> Any:
    """Return the function."""
    return fn


def substitute_in_graph(original_fn: Any, **options: Any) -> Any:
    """Return a decorator that leaves a function as it is."""
    return lambda fn: fn


def reset() -> None:
    """Do nothing: nothing is compiled."""


def cudagraph_mark_step_begin() -> None:
    """Do nothing: nothing is compiled."""


def list_backends(exclude_tags: Any = ()) -> list[str]:
    """Return no names: there is no compiler."""
    return []


def set_stance(stance: Any = "default", **options: Any) -> Any:
    """Accept a wish; return a context that changes nothing."""
    return contextlib.nullcontext()


class _Config:
    """Settings of a compiler that is not there: each can be set and read, and changes nothing.

    One that was never set is False.
    """

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return False

    def patch(self, *args: Any, **changes: Any) -> Any:
        """Return a context, or decorator, in which nothing changes."""
        return _Unchanged()


class _Unchanged(contextlib.ContextDecorator):
    def __enter__(self) -> None:
        pass

    def __exit__(self, *exc: object) -> None:
        pass


config = _Config()
