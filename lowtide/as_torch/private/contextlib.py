"""``torch.utils._contextlib``: context managers that are decorators as well."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


class _DecoratorContextManager:
    """A base of context managers: an instance, or the class itself, decorates functions."""

    def __call__(self, orig_func: Callable[..., Any]) -> Any:
        """Decorate a function to run inside a copy of this context."""

        @functools.wraps(orig_func)
        def inside(*args: Any, **kwargs: Any) -> Any:
            with self.clone():
                return orig_func(*args, **kwargs)

        return inside

    def __enter__(self) -> Any:
        raise NotImplementedError

    def __exit__(self, *exc: object) -> Any:
        raise NotImplementedError

    def clone(self) -> Any:
        """Return a context like this one; override it where the constructor takes arguments."""
        return self.__class__()


class _NoParamDecoratorContextManager(_DecoratorContextManager):
    """The same for contexts without arguments: ``@context`` works without a call."""

    def __new__(cls, orig_func: Any = None) -> Any:
        """Return a context, or the decorated function."""
        self = super().__new__(cls)
        return self if orig_func is None else self(orig_func)


def context_decorator(ctx: Any, func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a function to run inside a context: an instance, or what makes one."""

    @functools.wraps(func)
    def inside(*args: Any, **kwargs: Any) -> Any:
        with ctx() if callable(ctx) and not hasattr(ctx, "__enter__") else ctx:
            return func(*args, **kwargs)

    return inside
