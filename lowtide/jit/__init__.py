"""TorchScript's decorators, which leave what they decorate as it is."""

from __future__ import annotations

from collections.abc import Callable as _Callable
from typing import Any, Final, TypeVar

__all__ = [
    "Final", "annotate", "export", "ignore", "is_scripting", "is_tracing", "script",
    "script_if_tracing", "trace", "unused",
]  # fmt: skip
T = TypeVar("T")


def script(obj: T, *args: Any, **kwargs: Any) -> T:
    """Return ``obj`` itself: Python runs it."""
    return obj


def trace(func: T, example_inputs: Any = None, *args: Any, **kwargs: Any) -> T:
    """Return ``func`` itself; the example is not run."""
    return func


def script_if_tracing(fn: T) -> T:
    """Return ``fn`` itself."""
    return fn


def export(fn: T) -> T:
    """Return ``fn`` itself."""
    return fn


def unused(fn: T) -> T:
    """Return ``fn`` itself."""
    return fn


def ignore(drop: Any = False, **kwargs: Any) -> Any:
    """Return the function, or a decorator that does."""
    if callable(drop):
        return drop
    keep: _Callable[[T], T] = lambda fn: fn  # noqa: E731
    return keep


def annotate(the_type: Any, the_value: T) -> T:
    """Return the value."""
    return the_value


def is_scripting() -> bool:
    """False: Python runs everything."""
    return False


def is_tracing() -> bool:
    """False: Python runs everything."""
    return False
