"""Compiled functions: ``compile``, ``disable``, ``explain``; other names of PyTorch's compiler."""

from __future__ import annotations

import contextlib
from typing import Any

from lowtide.framework.capture.compiling import compile as compile
from lowtide.framework.capture.compiling import disable as disable
from lowtide.framework.capture.compiling import explain as explain
from lowtide.framework.capture.compiling import is_compiling as is_compiling
from lowtide.framework.capture.compiling import reset as reset
from lowtide.framework.capture.compiling import set_stance as set_stance
from lowtide.modules.compiled import OptimizedModule as OptimizedModule


def is_dynamo_compiling() -> bool:
    """True while the call of a compiled function is recorded."""
    return is_compiling()


def is_exporting() -> bool:
    """False: nothing is exported."""
    return False


def allow_in_graph(fn: Any) -> Any:
    """Return the function."""
    return fn


def assume_constant_result(fn: Any) -> Any:
    """Return the function."""
    return fn


def substitute_in_graph(original_fn: Any, **options: Any) -> Any:
    """Return a decorator that leaves a function as it is."""
    return lambda fn: fn


def cudagraph_mark_step_begin() -> None:
    """Do nothing: results of a replay have separate memory."""


def list_backends(exclude_tags: Any = ()) -> list[str]:
    """Return no names: there is one way to replay."""
    return []


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
